"""Terminals that look at the text around them: ``/if\\b/``, ``/a(?!b)/``, ``/^#/m``.

In: the pattern of a terminal. Out: nothing for the many that do not, for what they match is what they match
by themselves (the lookbehind at the end of an escaped string sees the string). For the others, machines whose
texts leave a watch on what follows. They match as ``re`` does where they begin: what it prefers, no shorter.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_guided.automaton.char_expression import has_look
from vllm_guided.bounded import bounded_cache
from vllm_guided.errors import GrammarError, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends import regular
from vllm_guided.frontends.lark_grammar.lalr.machines import Machine, Wanted, build
from vllm_guided.frontends.lark_grammar.lalr.patterns import Program
from vllm_guided.frontends.lark_grammar.lalr.scanner import Before, Place, Scanner
from vllm_guided.frontends.lark_grammar.lalr.watches import Watches
from vllm_guided.frontends.regex.parser import parse
from vllm_guided.frontends.regular import Dfa

_MOST_PLACES = 6_000
_SIGNS = ("(?", "^", "$", "\\b", "\\B", "\\A", "\\Z")


@dataclass(frozen=True, slots=True)
class Outlook:
    """One terminal that looks around: its number."""

    number: int


class Outlooks:
    """The terminals of one grammar that look around, and their machines."""

    def __init__(self, watches: Watches) -> None:
        self.watches = watches
        self.known: dict[str, Outlook | None] = {}
        self.scanners: list[tuple[Scanner, int, int]] = []
        self.names: list[str] = []
        self.machines: dict[tuple[int, Before], Machine] = {}

    def of(self, pattern: str, name: str) -> Outlook | None:
        """The outlook of a terminal's pattern; None if it does not look around."""
        if pattern not in self.known:
            self.known[pattern] = self._of(pattern, name)
        return self.known[pattern]

    def _of(self, pattern: str, name: str) -> Outlook | None:
        if not any(sign in pattern for sign in _SIGNS) or not _looks_around(pattern):
            return None
        number = len(self.scanners)
        self.names.append(name)
        self.scanners.append(_scanner(pattern, name, number))
        return Outlook(number)

    def machine(self, outlook: Outlook, before: Before) -> Machine:
        """The texts of a terminal with nothing or something before it."""
        key = (outlook.number, before)
        if key not in self.machines:
            scanner, start, end = self.scanners[outlook.number]
            wanted = Wanted((), {end: ()}, {end: None})
            machine = build(scanner, self.watches, [start], wanted, before)
            if machine.ends[0]:
                raise InvalidConstraint(
                    f"{self.names[outlook.number]} looks at the text around it and can match nothing; make"
                    " what uses it optional instead"
                )
            self.machines[key] = machine
        return self.machines[key]

    def settled(self, outlook: Outlook, automaton: Dfa) -> bool:
        """Whether the terminal always matches where its longest match by itself ends.

        That is how ignored text is read: nothing follows that could lengthen it (:mod:`skips`).
        """
        machine = self.machine(outlook, "unknown")
        if regular.is_empty(automaton):
            return False
        pairs = {(0, 0)}
        todo = [(0, 0)]
        while todo:
            state, place = todo.pop()
            live = 0
            for mask, target in automaton.edges[state]:
                live |= mask
                for other, partner in machine.edges[place]:
                    if mask & other:
                        mask &= ~other
                        if (target, partner) not in pairs:
                            pairs.add((target, partner))
                            todo.append((target, partner))
                if mask:
                    return False
            if state in automaton.accepting and not any(
                self.watches.watches[watch].may_end
                and not any(mask & ~live for mask, _ in self.watches.watches[watch].edges)
                for watch in machine.ends[place]
            ):
                return False
        return True


def _scanner(pattern: str, name: str, number: int) -> tuple[Scanner, int, int]:
    """A scanner for one pattern, and the instructions at which it starts and ends."""
    program = Program()
    end = program.instruction()
    start = program.add(parse(pattern, dialect="python"), end)
    return Scanner(program, frozenset([end]), [len(program.edges) - 1], [name], number), start, end


@bounded_cache(1024, 2 << 20)
def _looks_around(pattern: str) -> bool:
    """Whether a match can depend on what is before it or behind it."""
    try:
        if not has_look(parse(pattern, dialect="python")):
            return False
    except GrammarError:
        return False  # refused, or read in another dialect, elsewhere
    scanner, start, end = _scanner(pattern, "", 0)
    try:
        first = scanner.start((start,))
        places = {first}
        todo: list[Place] = [first]
        while todo:
            place = todo.pop()
            if any(number == end and conditions for number, conditions in place.threads):
                return True
            for _, after in scanner.moves(place):
                if after not in places:
                    places.add(after)
                    todo.append(after)
                    if len(places) > _MOST_PLACES:
                        return True
    except UnsupportedConstraint:
        return True
    return False
