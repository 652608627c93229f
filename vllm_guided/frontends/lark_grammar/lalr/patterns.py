"""Terminals as programs over bytes that keep what a backtracking matcher prefers.

In: the tree of a Python pattern. Out: instructions as in Pike's and Thompson's machines: byte edges, ordered
branches, assertions, one end. Which match ``re`` finds first is the order of the branches (:mod:`scanner`
runs them), so that ``a|ab`` matches ``a`` and ``.*?`` as little as it can.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm_guided.automaton.char_anchors import nullable
from vllm_guided.automaton.char_expression import (
    ANYTHING,
    END,
    Alternation,
    Chars,
    Concat,
    Expression,
    Look,
    Repetition,
    concat,
    has_look,
    length_bounds,
)
from vllm_guided.automaton.char_sets import Ranges
from vllm_guided.bounded import bounded_cache
from vllm_guided.errors import ConstraintTooComplex, UnsupportedConstraint
from vllm_guided.frontends import regular
from vllm_guided.frontends.regex.translate import Translator, pattern_node, utf8
from vllm_guided.frontends.regular import Dfa
from vllm_guided.grammar import ir

MAX_INSTRUCTIONS = 40_000
_NEWLINE = Chars(((10, 10),))
_LINE_END = Alternation((END, Look(concat([_NEWLINE, END]))))  # what ``$`` is without the flag m
_ENDING = regular.dfa(ir.optional(ir.text("\n")))


@dataclass(frozen=True, slots=True)
class Assertion:
    """What the text behind (or before, ``behind``) must, or must not, match."""

    automaton: Dfa
    behind: bool
    negated: bool
    whole: bool = False  # all of the rest, not only its beginning
    settled: frozenset[int] = frozenset()  # if whole: the states from which every text is accepted


@dataclass(slots=True)
class Program:
    """Instructions by number: ``edges`` consume a byte, ``branches`` are taken in order, the best first."""

    edges: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    branches: list[tuple[int, ...]] = field(default_factory=list)
    assertions: dict[int, Assertion] = field(default_factory=dict)
    start: int = 0
    end: int = 0

    def instruction(self) -> int:
        """A new instruction without anything."""
        if len(self.edges) >= MAX_INSTRUCTIONS:
            raise ConstraintTooComplex(
                f"the terminals need more than {MAX_INSTRUCTIONS:,} instructions; use smaller counts"
            )
        self.edges.append(())
        self.branches.append(())
        return len(self.edges) - 1

    def add(self, tree: Expression, target: int) -> int:
        """Instructions that match ``tree`` and go on at ``target``; the first of them."""
        match tree:
            case Chars(ranges):
                return self.chars(ranges, target)
            case Concat(items):
                for item in reversed(items):
                    target = self.add(item, target)
                return target
            case Alternation(options):
                if tree == _LINE_END:
                    number = self.branch(target)
                    self.assertions[number] = Assertion(_ENDING, behind=False, negated=False, whole=True)
                    return number
                return self.branch(*(self.add(option, target) for option in options))
            case Repetition(item, minimum, maximum, lazy):
                return self.repeat(item, minimum, maximum, lazy, target)
            case Look(item, behind, negated):
                number = self.branch(target)
                self.assertions[number] = _assertion(item, behind, negated)
                return number

    def branch(self, *targets: int) -> int:
        """An instruction that tries ``targets`` in order."""
        number = self.instruction()
        self.branches[number] = targets
        return number

    def repeat(self, item: Expression, minimum: int, maximum: int | None, lazy: bool, target: int) -> int:
        """A quantifier: at each round go on or leave, whichever is preferred first."""
        if (maximum is None or maximum > minimum) and nullable(item) and (lazy or not _empty_last(item)):
            raise UnsupportedConstraint(
                "with parser='lalr', what a terminal repeats cannot match nothing before it tries to match"
                " something; write the part so that it is never empty"
            )
        if maximum is None:
            loop = self.instruction()
            body = self.add(item, loop)
            self.branches[loop] = (target, body) if lazy else (body, target)
            target = loop
        else:
            leave = target
            for _ in range(maximum - minimum):
                body = self.add(item, target)
                target = self.branch(leave, body) if lazy else self.branch(body, leave)
        for _ in range(minimum):
            target = self.add(item, target)
        return target

    def chars(self, ranges: Ranges, target: int) -> int:
        """One character of a set."""
        automaton = _char(ranges)
        numbers = [
            target if state in automaton.accepting else self.instruction()
            for state in range(len(automaton.edges))
        ]
        for state, edges in enumerate(automaton.edges):
            if state not in automaton.accepting:
                self.edges[numbers[state]] = tuple((mask, numbers[after]) for mask, after in edges)
        return numbers[0]


@bounded_cache(1024, 4 << 20)
def _char(ranges: Ranges) -> Dfa:
    return regular.dfa(ir.char_set(ranges))


def _assertion(item: Expression, behind: bool, negated: bool) -> Assertion:
    if not has_look(item):
        node = Translator(utf8).node(item)
        return Assertion(
            regular.dfa(ir.sequence(regular.TEXT_NODE, node) if behind else node), behind, negated
        )
    if behind or not _stays_inside(item, 0):
        raise UnsupportedConstraint(
            "a lookaround in a terminal's lookaround cannot look at the text before that; write it without"
        )
    automaton = regular.dfa(pattern_node(concat([item, ANYTHING]), search=False, encode=utf8))
    return Assertion(automaton, behind, negated, whole=True, settled=_settled(automaton))


def _stays_inside(tree: Expression, read: int) -> bool:
    """Whether no lookbehind in the tree sees more than it and the ``read`` characters before it."""
    match tree:
        case Concat(items):
            for item in items:
                if not _stays_inside(item, read):
                    return False
                read += length_bounds(item)[0]
            return True
        case Alternation(options):
            return all(_stays_inside(option, read) for option in options)
        case Repetition(item):
            return _stays_inside(item, read)
        case Look(item, False):
            return _stays_inside(item, read)
        case Look(item):
            longest = length_bounds(item)[1]
            return not has_look(item) and longest is not None and longest <= read
        case _:
            return True


def _settled(automaton: Dfa) -> frozenset[int]:
    """The states from which every text is accepted (text is UTF-8, so there are bytes it never has)."""
    whole = regular.dfa(regular.TEXT_NODE)
    pairs = {(state, 0) for state in automaton.accepting}
    todo = list(pairs)
    wrong: set[tuple[int, int]] = set()
    back: dict[tuple[int, int], list[tuple[int, int]]] = {}
    while todo:
        state, text = pair = todo.pop()
        if text in whole.accepting and state not in automaton.accepting:
            wrong.add(pair)
        for mask, later in whole.edges[text]:
            for other, target in automaton.edges[state]:
                if mask & other:
                    mask &= ~other
                    reached = (target, later)
                    back.setdefault(reached, []).append(pair)
                    if reached not in pairs:
                        pairs.add(reached)
                        todo.append(reached)
            if mask:
                wrong.add(pair)
    todo = list(wrong)
    while todo:
        for source in back.get(todo.pop(), ()):
            if source not in wrong:
                wrong.add(source)
                todo.append(source)
    return frozenset(state for state, text in pairs - wrong if text == 0)


def _empty_last(tree: Expression) -> bool:
    """Whether a nullable tree tries the empty match after every other."""
    match tree:
        case Concat(items):
            return all(_empty_last(item) for item in items)
        case Alternation(options):
            return not any(nullable(option) for option in options[:-1]) and _empty_last(options[-1])
        case Repetition(item, _, _, lazy):
            return not lazy and (not nullable(item) or _empty_last(item))
        case Look():
            return False
        case _:
            return True


def loose(tree: Expression) -> Expression:
    """``tree`` without its assertions: it matches at least as much."""
    match tree:
        case Concat(items):
            return Concat(tuple(loose(item) for item in items))
        case Alternation(options):
            return Alternation(tuple(loose(option) for option in options))
        case Repetition(item, minimum, maximum, lazy):
            return Repetition(loose(item), minimum, maximum, lazy)
        case Look():
            return Concat()
        case _:
            return tree
