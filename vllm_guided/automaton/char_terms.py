"""Partial derivatives of regular expressions whose empty parts may be guarded by lookaround.

A term, an interned integer, is what is left to match. ``head(t)`` is its linear form, a list of
``(guard, classes, rest)``: where the guard holds at this place, a character of one of the classes (a bit
mask) leads to ``rest``. ``empty(t)`` is the guard under which the term matches the empty string here.
A guard is a boolean function (of ``guards``) of the pattern's lookarounds, by their numbers.

Antimirov, Partial derivatives of regular expressions, 1996; lookaround as a guard on the empty string
after Miyazaki and Minamide, Derivatives of regular expressions with lookahead, 2019.
"""

from __future__ import annotations

from typing import NamedTuple

from vllm_guided.automaton.char_diagrams import FALSE, TRUE, Diagrams
from vllm_guided.automaton.char_expression import (
    ANY,
    ANYTHING,
    Alternation,
    Chars,
    Concat,
    Expression,
    Look,
    Repetition,
)
from vllm_guided.automaton.char_sets import Ranges, partition
from vllm_guided.errors import ConstraintTooComplex

EMPTY_TERM = 0
GUARD_BUDGET = 20_000
Head = list[tuple[int, int, int]]


class CharsItem(NamedTuple):
    mask: int


class AlternationItem(NamedTuple):
    options: tuple[int, ...]


class RepetitionItem(NamedTuple):
    body: int
    minimum: int
    maximum: int | None


class LookItem(NamedTuple):
    number: int
    negated: bool


Item = CharsItem | AlternationItem | RepetitionItem | LookItem


class Terms:
    """The terms of one expression.

    Attributes:
        partition: the classes that the expression's character sets cut.
        looks: ``(term, behind)`` of every lookaround, inner ones before those that hold them. The term
            of a lookahead is its body followed by anything; of a lookbehind, its body.
        root: the term of the whole expression.
        everything: the term of any text.

    Raises ConstraintTooComplex once the linear forms asked for hold more than ``budget`` entries in all.
    """

    def __init__(self, expression: Expression, budget: int) -> None:
        self._budget = budget
        sets: dict[Ranges, int] = {ANY.ranges: 0}
        _collect_sets(expression, sets)
        self.partition, masks = partition(list(sets))
        self._masks = {ranges: masks[index] for ranges, index in sets.items()}
        self.guards = Diagrams(GUARD_BUDGET)
        self.looks: list[tuple[int, bool]] = []
        self._numbers: dict[tuple[int, bool], int] = {}
        self._items: list[Item] = []
        self._item_numbers: dict[Item, int] = {}
        self._terms: list[tuple[int, int]] = [(-1, -1)]
        self._term_numbers: dict[tuple[int, int], int] = {}
        self._heads: dict[int, Head] = {EMPTY_TERM: []}
        self._empties: dict[int, int] = {EMPTY_TERM: TRUE}
        self._within: dict[int, frozenset[int]] = {}
        self._joined: dict[tuple[int, int], int] = {}
        self.everything = self.term(ANYTHING, EMPTY_TERM)
        self.root = self.term(expression, EMPTY_TERM)

    def _cons(self, item: Item, rest: int) -> int:
        number = self._item_numbers.get(item)
        if number is None:
            number = self._item_numbers[item] = len(self._items)
            self._items.append(item)
        key = (number, rest)
        found = self._term_numbers.get(key)
        if found is None:
            found = self._term_numbers[key] = len(self._terms)
            self._terms.append(key)
        return found

    def term(self, expression: Expression, rest: int) -> int:
        """The term of ``expression`` followed by ``rest``."""
        match expression:
            case Chars(ranges):
                return self._cons(CharsItem(self._masks[ranges]), rest)
            case Concat(items):
                for item in reversed(items):
                    rest = self.term(item, rest)
                return rest
            case Alternation(options):
                terms = dict.fromkeys(self.term(option, EMPTY_TERM) for option in options)
                return self._cons(AlternationItem(tuple(terms)), rest)
            case Repetition(item, minimum, maximum):
                return self.repeated(self.term(item, EMPTY_TERM), minimum, maximum, rest)
            case Look(item, behind, negated):
                key = (self.term(item, EMPTY_TERM if behind else self.everything), behind)
                number = self._numbers.get(key)
                if number is None:
                    number = self._numbers[key] = len(self.looks)
                    self.looks.append(key)
                return self._cons(LookItem(number, negated), rest)

    def repeated(self, body: int, minimum: int, maximum: int | None, rest: int) -> int:
        """The term of ``body`` repeated, followed by ``rest``."""
        if maximum == 0:
            return rest
        if minimum and self.empty(body) == TRUE:
            minimum = 0
        return self._cons(RepetitionItem(body, minimum, maximum), rest)

    def first(self, term: int) -> tuple[Item | None, int]:
        """The first item of a term and the term behind it; ``(None, -1)`` of the empty term."""
        number, rest = self._terms[term]
        return (self._items[number] if number >= 0 else None), rest

    def _join(self, term: int, rest: int) -> int:
        """``term`` followed by ``rest``."""
        if rest == EMPTY_TERM:
            return term
        if term == EMPTY_TERM:
            return rest
        found = self._joined.get((term, rest))
        if found is None:
            chain: list[int] = []
            walk = term
            while walk != EMPTY_TERM:
                number, walk = self._terms[walk]
                chain.append(number)
            found = rest
            for number in reversed(chain):
                found = self._cons(self._items[number], found)
            self._joined[term, rest] = found
        return found

    def looks_within(self, term: int) -> frozenset[int]:
        """The numbers of the lookarounds that ``term``, or a lookaround in it, holds."""
        found = self._within.get(term)
        if found is None:
            numbers: set[int] = set()
            walk = term
            while walk != EMPTY_TERM:
                index, walk = self._terms[walk]
                match self._items[index]:
                    case AlternationItem(options):
                        numbers.update(*(self.looks_within(option) for option in options))
                    case RepetitionItem(body):
                        numbers |= self.looks_within(body)
                    case LookItem(number):
                        numbers |= {number} | self.looks_within(self.looks[number][0])
            found = self._within[term] = frozenset(numbers)
        return found

    def empty(self, term: int) -> int:
        """The guard under which ``term`` matches the empty string."""
        found = self._empties.get(term)
        if found is None:
            found, walk = TRUE, term
            while walk != EMPTY_TERM and found != FALSE:
                number, walk = self._terms[walk]
                found = self.guards.both(found, self._item_empty(self._items[number]))
            self._empties[term] = found
        return found

    def _item_empty(self, item: Item) -> int:
        match item:
            case CharsItem():
                return FALSE
            case AlternationItem(options):
                found = FALSE
                for option in options:
                    found = self.guards.either(found, self.empty(option))
                return found
            case RepetitionItem(body, minimum):
                return self.empty(body) if minimum else TRUE
            case LookItem(number, negated):
                held = self.guards.variable(number)
                return self.guards.negated(held) if negated else held

    def head(self, term: int) -> Head:
        """The linear form of ``term``."""
        found = self._heads.get(term)
        if found is None:
            gathered: dict[tuple[int, int], int] = {}
            guard, walk = TRUE, term
            while walk != EMPTY_TERM and guard != FALSE:
                known = self._heads.get(walk)
                if known is not None:
                    entries, item = known, None
                    walk = EMPTY_TERM
                else:
                    number, walk = self._terms[walk]
                    item = self._items[number]
                    entries = self._item_head(item, walk)
                for inner, mask, rest in entries:
                    key = (self.guards.both(guard, inner), rest)
                    gathered[key] = gathered.get(key, 0) | mask
                if item is not None:
                    guard = self.guards.both(guard, self._item_empty(item))
            found = [
                (inner, mask, rest) for (inner, rest), mask in gathered.items() if inner != FALSE and mask
            ]
            self._heads[term] = found
            self._budget -= len(found)
            if self._budget < 0:
                raise ConstraintTooComplex(
                    "too many optional parts in a row in the pattern: make some of them one repeated group"
                )
        return found

    def _item_head(self, item: Item, rest: int) -> Head:
        match item:
            case CharsItem(mask):
                return [(TRUE, mask, rest)]
            case AlternationItem(options):
                return [
                    (guard, mask, self._join(after, rest))
                    for option in options
                    for guard, mask, after in self.head(option)
                ]
            case RepetitionItem(body, minimum, maximum):
                fewer = None if maximum is None else maximum - 1
                heads = self.head(body)
                following = self.repeated(body, max(minimum - 1, 0), fewer, rest)
                found = [(guard, mask, self._join(after, following)) for guard, mask, after in heads]
                skipped = self.empty(body)
                if minimum > 1 and skipped != FALSE:
                    # Where the body may be empty here, any number of rounds may be spent on nothing.
                    following = self.repeated(body, 0, fewer, rest)
                    found.extend(
                        (self.guards.both(skipped, guard), mask, self._join(after, following))
                        for guard, mask, after in heads
                    )
                return found
            case LookItem():
                return []


def _collect_sets(expression: Expression, sets: dict[Ranges, int]) -> None:
    match expression:
        case Chars(ranges):
            sets.setdefault(ranges, len(sets))
        case Concat(items):
            for item in items:
                _collect_sets(item, sets)
        case Alternation(options):
            for option in options:
                _collect_sets(option, sets)
        case Repetition(item) | Look(item):
            _collect_sets(item, sets)
