"""What a lexer of Lark's matches: all its terminals side by side, each as Python's ``re`` would match it.

Lark's lexer is one ordered choice of regexps; the first that matches gives the token. In a
list of threads, the preferred ones first (Pike's machine, as in Cox 2009), a thread that is through cuts off
all behind it, and those before it run on: if one of them gets through later, the token is that longer one.
So a token may end where a thread of its terminal is through, if none before it ever will be: that is its
watch (:mod:`watches`). Lookahead that is still open is a condition of its thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Literal

from vllm_guided.errors import UnsupportedConstraint
from vllm_guided.frontends import regular
from vllm_guided.frontends.lark_grammar.lalr.patterns import Assertion, Program
from vllm_guided.frontends.lark_grammar.lalr.watches import VIOLATED
from vllm_guided.frontends.regular import Dfa

#: An open lookahead: the instruction that asserts it, and the state of its automaton.
Condition = tuple[int, int]
Conditions = frozenset[Condition]
#: An instruction (or, negative, where a thread was through that has open conditions), and its conditions.
Thread = tuple[int, Conditions]
Threads = tuple[Thread, ...]
#: Per lookbehind of the program, the states its automaton can be in.
Past = tuple[frozenset[int], ...]

Before = Literal["nothing", "something", "unknown"]

NONE: Conditions = frozenset()
_ALL = (1 << 256) - 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a lexer is inside a token: its threads, and what the text before looks like."""

    threads: Threads
    past: Past
    scanner: int = 0  # whose instructions these are, where several scanners share their watches


class Scanner:
    """Runs the threads of one program.

    ``ends`` are the instructions at which a terminal is through, ``last`` the last one of each terminal
    (they lie one behind the other), ``names`` what errors call them. ``number`` tells apart the places of
    scanners that share their watches.
    """

    def __init__(
        self, program: Program, ends: frozenset[int], last: list[int], names: list[str], number: int = 0
    ) -> None:
        self.program = program
        self.number = number
        self.names = names
        self.ends = ends
        self.last = last
        self.behind = [n for n, assertion in program.assertions.items() if assertion.behind]
        self.rows: dict[Place, list[tuple[int, Place]]] = {}
        self.behind_of = {number: index for index, number in enumerate(self.behind)}

    def start(self, instructions: tuple[int, ...], before: Before = "unknown") -> Place:
        """The place before a token; ``before`` is what is known of the text before it."""
        past: list[frozenset[int]] = []
        for number in self.behind:
            automaton = self.program.assertions[number].automaton
            past.append(frozenset([0]) if before == "nothing" else _states(automaton, before == "something"))
        threads = self._closed([(number, NONE) for number in instructions], tuple(past))
        return self.relevant(Place(threads, tuple(past), self.number))

    def _closed(self, threads: list[Thread], past: Past) -> Threads:
        """Follow branches and assertions; what stands behind a thread that is through is cut off."""
        out: list[Thread] = []
        seen: set[Thread] = set()
        stack = list(reversed(threads))
        while stack:
            thread = stack.pop()
            number, conditions = thread
            if thread in seen or (conditions and (number, NONE) in seen):
                continue
            seen.add(thread)
            if number < 0 or number in self.ends:
                out.append(thread)
                if not conditions:
                    break
                continue
            assertion = self.program.assertions.get(number)
            if assertion is not None:
                if assertion.behind:
                    if not self._holds_behind(number, past):
                        continue
                elif not _found(assertion, 0):
                    conditions |= {(number, 0)}
                elif assertion.negated:
                    continue
            branches = self.program.branches[number]
            if branches:
                stack.extend((target, conditions) for target in reversed(branches))
            elif self.program.edges[number]:
                out.append(thread)
        return tuple(out)

    def _holds_behind(self, number: int, past: Past) -> bool:
        assertion = self.program.assertions[number]
        verdicts = {state in assertion.automaton.accepting for state in past[self.behind_of[number]]} or {
            False
        }
        if len(verdicts) > 1:
            name = self.names[bisect_left(self.last, number)]
            raise UnsupportedConstraint(
                f"the terminal {name}: what it matches cannot depend on the text before it (^, \\b or a"
                " lookbehind at its beginning); write the terminal without"
            )
        return verdicts.pop() != assertion.negated

    def parts(self, place: Place, conditions: Conditions = NONE) -> Iterator[tuple[int, int]]:
        """Masks of bytes that this place does not tell apart, with one byte of each."""
        masks: set[int] = set()
        open_ = set(conditions)
        for number, pending in place.threads:
            open_ |= pending
            if number >= 0 and number not in self.ends:
                masks.update(mask for mask, _ in self.program.edges[number])
        for number, state in open_:
            masks.update(mask for mask, _ in self.program.assertions[number].automaton.edges[state])
        for number, states in zip(self.behind, place.past, strict=True):
            edges = self.program.assertions[number].automaton.edges
            masks.update(mask for state in states for mask, _ in edges[state])
        parts = [_ALL]
        for mask in masks:
            split = []
            for part in parts:
                if part & mask:
                    split.append(part & mask)
                if part & ~mask:
                    split.append(part & ~mask)
            parts = split
        for part in parts:
            yield part, (part & -part).bit_length() - 1

    def conditions_after(self, conditions: Conditions, byte: int) -> Conditions | None:
        """The conditions still open behind ``byte``; None if one has failed."""
        if not conditions:
            return conditions
        left = set()
        for number, state in conditions:
            assertion = self.program.assertions[number]
            after = assertion.automaton.step(state, byte)
            if after is None:
                if not assertion.negated:
                    return None
            elif not _found(assertion, after):
                left.add((number, after))
            elif assertion.negated:
                return None
        return frozenset(left)

    def hold_at_end(self, conditions: Conditions) -> bool:
        """Whether all the conditions hold if the text ends here."""
        for number, state in conditions:
            assertion = self.program.assertions[number]
            found = assertion.whole and state in assertion.automaton.accepting
            if found == assertion.negated:
                return False
        return True

    def step(self, place: Place, byte: int) -> Place:
        """The place behind one more byte."""
        moved: list[Thread] = []
        for number, conditions in place.threads:
            later = self.conditions_after(conditions, byte)
            if later is None:
                continue
            if number < 0 or number in self.ends:
                if conditions:  # without any, it has cut off what it could, and is done
                    moved.append((min(number, -1), later))
            else:
                for mask, target in self.program.edges[number]:
                    if mask >> byte & 1:
                        moved.append((target, later))
                        break
        past = []
        for number, states in zip(self.behind, place.past, strict=True):
            automaton = self.program.assertions[number].automaton
            after = (automaton.step(state, byte) for state in states)
            past.append(frozenset(state for state in after if state is not None))
        return self.relevant(Place(self._closed(moved, tuple(past)), tuple(past), self.number))

    def moves(self, place: Place) -> list[tuple[int, Place]]:
        """Where the bytes lead from a place that is in no watch: disjoint masks and places with threads."""
        row = self.rows.get(place)
        if row is None:
            found: dict[Place, int] = {}
            for mask, byte in self.parts(place):
                after = self.step(place, byte)
                if after.threads:
                    found[after] = found.get(after, 0) | mask
            row = self.rows[place] = [(mask, after) for after, mask in found.items()]
        return row

    def watched(self, description: Hashable) -> tuple[bool, list[tuple[int, Hashable]]]:
        """The step of a watch: a place whose threads must never be through, and conditions that must hold."""
        assert isinstance(description, tuple)
        place, conditions = description
        assert isinstance(place, Place)
        may_end = self.hold_at_end(conditions) and not any(
            (number < 0 or number in self.ends) and self.hold_at_end(pending)
            for number, pending in place.threads
        )
        edges: list[tuple[int, Hashable]] = []
        for mask, byte in self.parts(place, conditions):
            later = self.conditions_after(conditions, byte)
            after = self.step(place, byte)
            if later is None or any(
                not pending and (number < 0 or number in self.ends) for number, pending in after.threads
            ):
                edges.append((mask, VIOLATED))
            elif after.threads or later:
                edges.append((mask, (after, later)))
        return may_end, edges

    def relevant(self, place: Place) -> Place:
        """``place`` without what no thread of it can ask for of the past."""
        if not self.behind:
            return place
        owners = {bisect_left(self.last, n) for n, _ in place.threads if n >= 0 and n not in self.ends}
        past = (
            states if bisect_left(self.last, number) in owners else frozenset[int]()
            for number, states in zip(self.behind, place.past, strict=True)
        )
        return Place(place.threads, tuple(past), self.number)

    def prefers(self, instruction: int, data: bytes) -> bool:
        """Whether a match at the beginning of ``data``, and of nothing else, takes all of it."""
        place = self.start((instruction,), "nothing")
        threads, best = place.threads, 0
        past = place.past
        for position, byte in enumerate(data):
            # a thread that is through is renamed for where that was
            named = tuple((-2 - position if n in self.ends else n, c) for n, c in threads)
            after = self.step(Place(named, past), byte)
            threads, past = after.threads, after.past
            for number, conditions in threads:
                if not conditions and (number < 0 or number in self.ends):
                    best = position + 1 if number >= 0 else -2 - number
        for number, conditions in threads:
            if (number < 0 or number in self.ends) and self.hold_at_end(conditions):
                best = len(data) if number >= 0 else -2 - number
                break
        return best == len(data)


def _found(assertion: Assertion, state: int) -> bool:
    """Whether the text ahead matches whatever comes."""
    return state in (assertion.settled if assertion.whole else assertion.automaton.accepting)


def _states(automaton: Dfa, some: bool) -> frozenset[int]:
    """The states that any text leads to; with ``some`` those that one of a character or more does."""
    text = regular.dfa(regular.TEXT_NODE)
    pairs = {(0, 0)}
    todo = [(0, 0)]
    found = set() if some else {0}
    while todo:
        state, place = todo.pop()
        for mask, later in text.edges[place]:
            for other, target in automaton.edges[state]:
                if mask & other:
                    if later in text.accepting:
                        found.add(target)
                    if (target, later) not in pairs:
                        pairs.add((target, later))
                        todo.append((target, later))
    return frozenset(found)
