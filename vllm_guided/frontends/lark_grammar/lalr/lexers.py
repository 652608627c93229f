"""Lark's contextual lexers: which terminals one looks for, in which order, and which texts it retypes.

In: Lark's terminals. Out: for a set of accepted terminals the order of its regexps (priority, then
greatest length, then length of the pattern, then name), and for a regexp the strings of the same priority
that it matches: a token equal to one of them has the string's type (keywords before names).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lark.lexer import PatternRE, PatternStr

from vllm_guided.automaton.char_expression import Expression
from vllm_guided.errors import GrammarError, InvalidConstraint
from vllm_guided.frontends import regular
from vllm_guided.frontends.lark_grammar.lalr.machines import Machine, Wanted, build
from vllm_guided.frontends.lark_grammar.lalr.patterns import Program, loose
from vllm_guided.frontends.lark_grammar.lalr.scanner import Scanner
from vllm_guided.frontends.lark_grammar.lalr.watches import Watches
from vllm_guided.frontends.regex.parser import parse
from vllm_guided.frontends.regex.translate import Translator, utf8
from vllm_guided.frontends.regular import Dfa
from vllm_guided.grammar import ir


@dataclass(frozen=True, slots=True)
class Lexer:
    """``order``: the terminals it tries; ``retyped``: per regexp, the strings it matches, in order."""

    order: tuple[int, ...]
    retyped: dict[int, tuple[int, ...]]


class Lexers:
    """All lexers of one grammar, over ``terminals`` (Lark's TerminalDef)."""

    def __init__(self, terminals: list[Any], ignored: frozenset[str], watches: Watches) -> None:
        self.terminals = terminals
        self.ignored = frozenset(i for i, terminal in enumerate(terminals) if terminal.name in ignored)
        self.watches = watches
        self.program = Program()
        self.trees: list[Expression] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        last: list[int] = []
        for terminal in terminals:
            self._add(terminal)
            last.append(len(self.program.edges) - 1)
        self.scanner = Scanner(
            self.program, frozenset(self.ends), last, [terminal.name for terminal in terminals]
        )
        self.ranked = sorted(range(len(terminals)), key=lambda i: _rank(terminals[i]))
        self.loose: dict[int, Dfa] = {}
        self.words: dict[int, Dfa] = {}
        self.competing: dict[tuple[int, int], bool] = {}
        self.matched: dict[tuple[int, int], bool] = {}
        self.lexers: dict[frozenset[int], Lexer] = {}
        self.machines: list[Machine] = []
        self.built: dict[object, int] = {}
        self.numbers: dict[Machine, int] = {}

    def _add(self, terminal: Any) -> None:
        try:
            tree = parse(terminal.pattern.to_regexp(), dialect="python")
            end = self.program.instruction()
            self.trees.append(tree)
            self.starts.append(self.program.add(tree, end))
            self.ends.append(end)
        except GrammarError as error:
            where = f"{error.where}: " if error.where else ""
            raise type(error)(f"the terminal {terminal.name}: {where}{error.message}") from None

    def lexer(self, accepted: frozenset[int]) -> Lexer:
        """The lexer of the parser states that accept these terminals."""
        lexer = self.lexers.get(accepted)
        if lexer is None:
            lexer = self.lexers[accepted] = self._lexer(accepted | self.ignored)
        return lexer

    def _lexer(self, members: frozenset[int]) -> Lexer:
        order = [index for index in self.ranked if index in members]
        for index in order:
            if self.terminals[index].pattern.min_width == 0:
                raise InvalidConstraint(
                    f"the terminal {self.terminals[index].name}: it can match nothing, which Lark's lexers do"
                    " not take"
                )
        strings = [i for i in order if isinstance(self.terminals[i].pattern, PatternStr)]
        embedded: set[int] = set()
        retyped: dict[int, tuple[int, ...]] = {}
        for index in order:
            terminal = self.terminals[index]
            if not isinstance(terminal.pattern, PatternRE):
                continue
            mine = [
                i for i in strings if self.terminals[i].priority == terminal.priority and self.takes(index, i)
            ]
            if mine:
                retyped[index] = tuple(mine)
                flags = terminal.pattern.flags
                embedded.update(i for i in mine if self.terminals[i].pattern.flags <= flags)
        return Lexer(tuple(index for index in order if index not in embedded), retyped)

    def takes(self, regexp: int, string: int) -> bool:
        """Whether the regexp matches all of the string."""
        key = (regexp, string)
        if key not in self.matched:
            data = self.terminals[string].pattern.value.encode()
            self.matched[key] = self.scanner.prefers(self.starts[regexp], data)
        return self.matched[key]

    def machine(self, lexer: Lexer, terminal: int, *, ignored: bool = False) -> int:
        """The number of the automaton of a terminal's tokens; ``ignored``: of what the lexer drops as it."""
        sources: dict[int, int | None] = {}
        for index in lexer.order:
            if ignored:
                if index == terminal:
                    sources[index] = None
            elif index not in self.ignored:
                if index == terminal:
                    sources[index] = None
                elif terminal in lexer.retyped.get(index, ()):
                    sources[index] = terminal
        if not sources:
            return self._numbered(Machine(((),), ((),)))
        final = max(lexer.order.index(index) for index in sources)
        beside = tuple(
            index
            for index in lexer.order[: final + 1]
            if index in sources or any(self.compete(index, source) for source in sources)
        )
        listed = {i: () if ignored else lexer.retyped.get(i, ()) for i in sources}
        words = tuple(sorted({word for found in listed.values() for word in found}))
        key = (tuple(sorted(sources.items(), key=str)), beside, tuple(sorted(listed.items())))
        number = self.built.get(key)
        if number is None:
            place = {word: number for number, word in enumerate(words)}
            wanted = Wanted(
                tuple(self.word(word) for word in words),
                {self.ends[i]: tuple(place[word] for word in found) for i, found in listed.items()},
                {self.ends[i]: None if word is None else place[word] for i, word in sources.items()},
            )
            instructions = [self.starts[index] for index in beside]
            machine = build(self.scanner, self.watches, instructions, wanted)
            number = self.built[key] = self._numbered(machine)
        return number

    def _numbered(self, machine: Machine) -> int:
        number = self.numbers.get(machine)
        if number is None:
            number = self.numbers[machine] = len(self.machines)
            self.machines.append(machine)
        return number

    def word(self, string: int) -> Dfa:
        """A string as Lark looks for it in a token: a line end behind it does not count."""
        if string not in self.words:
            node = Translator(utf8).node(self.trees[string])
            self.words[string] = regular.dfa(ir.sequence(node, ir.optional(ir.text("\n"))))
        return self.words[string]

    def compete(self, one: int, other: int) -> bool:
        """Whether a text of one can begin with, or be the beginning of, a text of the other."""
        key = (min(one, other), max(one, other))
        if key not in self.competing:
            self.competing[key] = one == other or _meet(self.matching(one), self.matching(other))
        return self.competing[key]

    def matching(self, index: int) -> Dfa:
        """What a terminal can match, its assertions left out."""
        if index not in self.loose:
            self.loose[index] = regular.dfa(Translator(utf8).node(loose(self.trees[index])))
        return self.loose[index]


def _rank(terminal: Any) -> tuple[int, int, int, str]:
    pattern = terminal.pattern
    return -terminal.priority, -pattern.max_width, -len(pattern.value), terminal.name


def _meet(left: Dfa, right: Dfa) -> bool:
    seen = {(0, 0)}
    todo = [(0, 0)]
    while todo:
        a, b = todo.pop()
        if a in left.accepting or b in right.accepting:
            return True
        for mask, target in left.edges[a]:
            for other, partner in right.edges[b]:
                if mask & other and (target, partner) not in seen:
                    seen.add((target, partner))
                    todo.append((target, partner))
    return False
