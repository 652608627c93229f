"""Deterministic automata over code points, closed under the set operations of their languages.

:class:`CharDfa` is what schema algebra computes with: patterns, lengths, formats and sets of strings are
intersected, united and subtracted here, exactly, and the result goes to the grammar IR with any spelling
of its characters (UTF-8, or the escapes of a JSON string). Products are the textbook construction over
the common refinement of the two alphabets' classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vllm_guided.automaton.char_anchors import Items, resolved
from vllm_guided.automaton.char_expression import ANYTHING, Expression, Look, alternation, concat
from vllm_guided.automaton.char_minimise import Table, minimised
from vllm_guided.automaton.char_product import product
from vllm_guided.automaton.char_sets import ALL, Partition, Ranges, partition, refine
from vllm_guided.automaton.char_subset import determinised, too_many_states
from vllm_guided.automaton.char_unrolled import unrolled
from vllm_guided.errors import ConstraintTooComplex

if TYPE_CHECKING:
    from vllm_guided.grammar import ir

MAX_STATES = 10_000
MAX_PRODUCTS = 8
Rows = list[list[int]]
_Keep = Callable[[Any, Any], Any]
"""Of which states of both sides, as masks, a pair accepts."""


class CharDfa:
    """A minimal deterministic automaton over Unicode scalar values. Immutable.

    Attributes:
        partition: the classes of characters the automaton tells apart.
        rows: the target state by state and class; -1 where no string of the language goes on.
        accepting: the accepting states. State 0 is the start.

    Every operation that builds an automaton raises ConstraintTooComplex beyond ``MAX_STATES`` states.
    """

    __slots__ = ("_table", "accepting", "partition", "rows")

    def __init__(self, classes: Partition, rows: Rows | Table, accepting: Iterable[int]) -> None:
        """The minimal automaton of the given one (rows complete, -1 for no transition)."""
        table, final = minimised(np.array(rows, np.int32, ndmin=2), _mask(len(rows), accepting))
        self.partition, self._table = _merged_classes(classes, table)
        self.rows: list[list[int]] = self._table.tolist()
        self.accepting = frozenset(np.flatnonzero(final).tolist())

    @classmethod
    def from_expression(cls, expression: Expression, max_states: int = MAX_STATES) -> CharDfa:
        """The automaton of a pattern's tree, lookaround included."""
        try:
            return _of_alternatives(resolved(expression), max_states)
        except RecursionError:
            raise ConstraintTooComplex("the pattern is nested too deeply: flatten it") from None

    @classmethod
    def from_pattern(
        cls, pattern: str, *, dialect: str = "python", search: bool = False, flags: str = ""
    ) -> CharDfa:
        """The texts that ``pattern`` matches whole, or (``search``) that hold a match.

        Raises:
            InvalidConstraint, UnsupportedConstraint: as the pattern parser does.
        """
        from vllm_guided.frontends.regex import pattern_expression

        return cls.from_expression(pattern_expression(pattern, dialect=dialect, search=search, flags=flags))

    @classmethod
    def any_string(cls) -> CharDfa:
        """Every text."""
        return cls.of_length(0, None)

    @classmethod
    def nothing(cls) -> CharDfa:
        """No text at all."""
        return cls(partition([])[0], [[-1]], ())

    @classmethod
    def literal(cls, value: str) -> CharDfa:
        """Only ``value``."""
        return cls.literals([value])

    @classmethod
    def literals(cls, values: Iterable[str]) -> CharDfa:
        """Any one of ``values``."""
        texts = [value for value in dict.fromkeys(values) if not _has_surrogate(value)]
        alphabet = sorted({character for text in texts for character in text})
        classes, _ = partition([((ord(character), ord(character)),) for character in alphabet])
        index = {character: classes.find(ord(character)) for character in alphabet}
        rows: Rows = [[-1] * classes.count]
        accepting = set()
        for text in texts:
            state = 0
            for character in text:
                target = rows[state][index[character]]
                if target < 0:
                    target = rows[state][index[character]] = len(rows)
                    rows.append([-1] * classes.count)
                state = target
            accepting.add(state)
        return cls(classes, rows, accepting)

    @classmethod
    def of_length(cls, minimum: int, maximum: int | None) -> CharDfa:
        """Every text of ``minimum`` to ``maximum`` code points."""
        top = minimum if maximum is None else maximum
        if maximum is not None and maximum < minimum:
            return cls.nothing()
        if top >= MAX_STATES:
            raise too_many_states(MAX_STATES)
        rows = [[state + 1] for state in range(top)] + [[top if maximum is None else -1]]
        return cls(partition([])[0], rows, range(minimum, top + 1))

    # What it says of its language

    def accepts(self, text: str) -> bool:
        """Whether ``text`` is in the language."""
        state = 0
        for character in text:
            found = self.partition.find(ord(character))
            state = self.rows[state][found] if found >= 0 else -1
            if state < 0:
                return False
        return state in self.accepting

    def is_empty(self) -> bool:
        """Whether no text is in the language."""
        return not self.accepting

    def is_universal(self) -> bool:
        """Whether every text is."""
        return self.rows == [[0]] and bool(self.accepting)

    def is_finite(self) -> bool:
        """Whether the language has finitely many texts."""
        return self.maximum_length() is not None or self.is_empty()

    def minimum_length(self) -> int | None:
        """The length of the shortest text in code points; None if there is no text."""
        shortest = self.shortest()
        return None if shortest is None else len(shortest)

    def maximum_length(self) -> int | None:
        """The length of the longest text in code points; None if there is no longest (or no text)."""
        if self.is_empty():
            return None
        order = self._topological()
        if order is None:
            return None
        longest = [0] * len(self.rows)
        for state in reversed(order):
            for target in set(self.rows[state]):
                if target >= 0:
                    longest[state] = max(longest[state], longest[target] + 1)
        return longest[0]

    def shortest(self) -> str | None:
        """One of the shortest texts (first characters of the classes); None if there is no text."""
        if self.is_empty():
            return None
        members = self.partition.members()
        seen: dict[int, str] = {0: ""}
        queue = [0]
        for state in queue:
            if state in self.accepting:
                return seen[state]
            for label, target in enumerate(self.rows[state]):
                if target >= 0 and target not in seen:
                    seen[target] = seen[state] + chr(_legible(members[label]))
                    queue.append(target)
        return None

    def count(self, limit: int) -> int | None:
        """How many texts the language has; None if more than ``limit``."""
        order = self._topological()
        if order is None:
            return None
        sizes = [sum(high - low + 1 for low, high in ranges) for ranges in self.partition.members()]
        totals = [0] * len(self.rows)
        for state in reversed(order):
            totals[state] = int(state in self.accepting) + sum(
                sizes[label] * totals[target] for label, target in enumerate(self.rows[state]) if target >= 0
            )
        return totals[0] if totals[0] <= limit else None

    def texts(self, limit: int) -> list[str] | None:
        """All texts of the language, if they are at most ``limit``."""
        if self.count(limit) is None:
            return None
        members = self.partition.members()
        found: list[str] = []
        stack = [(0, "")]
        while stack:
            state, text = stack.pop()
            if state in self.accepting:
                found.append(text)
            for label, target in enumerate(self.rows[state]):
                if target >= 0:
                    for low, high in members[label]:
                        stack.extend((target, text + chr(point)) for point in range(low, high + 1))
        return sorted(found)

    def _topological(self) -> list[int] | None:
        """The states, each before its targets; None if there is a cycle."""
        incoming = [0] * len(self.rows)
        for row in self.rows:
            for target in set(row):
                if target >= 0:
                    incoming[target] += 1
        order = [state for state, count in enumerate(incoming) if count == 0]
        for state in order:
            for target in set(self.rows[state]):
                if target >= 0:
                    incoming[target] -= 1
                    if incoming[target] == 0:
                        order.append(target)
        return order if len(order) == len(self.rows) else None

    def __eq__(self, other: object) -> bool:
        """Whether the two languages are the same."""
        if not isinstance(other, CharDfa):
            return NotImplemented
        return (
            self.rows == other.rows
            and self.accepting == other.accepting
            and self.partition.starts == other.partition.starts
            and self.partition.class_of == other.partition.class_of
        )

    def __hash__(self) -> int:
        return hash((self.accepting, tuple(map(tuple, self.rows)), tuple(self.partition.starts)))

    # Algebra

    def intersection(self, other: CharDfa) -> CharDfa:
        """The texts of both."""
        return self._product(other, np.logical_and, (False, False))

    def union(self, other: CharDfa) -> CharDfa:
        """The texts of either."""
        return self._product(other, np.logical_or, (True, True))

    def difference(self, other: CharDfa) -> CharDfa:
        """The texts of this one that are not of ``other``."""
        return self._product(other, np.greater, (True, False))

    def complement(self) -> CharDfa:
        """Every other text."""
        return CharDfa.any_string().difference(self)

    def with_length(self, minimum: int = 0, maximum: int | None = None) -> CharDfa:
        """The texts of ``minimum`` to ``maximum`` code points."""
        if minimum <= 0 and maximum is None:
            return self
        return self.intersection(CharDfa.of_length(minimum, maximum))

    def includes(self, other: CharDfa) -> bool:
        """Whether every text of ``other`` is one of this."""
        return other.difference(self).is_empty()

    def _product(self, other: CharDfa, keep: _Keep, one_side: tuple[bool, bool]) -> CharDfa:
        """The product; ``one_side`` says whether a left state or a right one alone can still accept."""
        classes, pairs = refine(self.partition, other.partition)
        left_class, right_class = np.array(pairs, np.int32).reshape(-1, 2).T.copy()
        table, lefts, rights = product(
            self._table, other._table, left_class, right_class, *one_side, np.int64(MAX_STATES)
        )
        if not len(table):
            raise too_many_states(MAX_STATES)
        return CharDfa(classes, table, np.flatnonzero(keep(self._accepts(lefts), other._accepts(rights))))

    def _accepts(self, states: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Which of ``states`` accept; -1 does not."""
        return _mask(len(self.rows) + 1, self.accepting)[states]

    def to_node(self, encode: Callable[[Ranges], ir.Node]) -> ir.Node:
        """The language in the grammar IR, each set of characters spelt as ``encode`` says."""
        from vllm_guided.automaton.char_node import to_node

        return to_node(self, encode)


def _of_alternatives(alternatives: list[Items], max_states: int) -> CharDfa:
    """The union of sequences. Lookahead that stands first, and lookbehind that stands last, is a product."""
    together: list[Expression] = []
    apart: list[CharDfa] = []
    for items in alternatives:
        if len(apart) < MAX_PRODUCTS and (
            _is_look(items[:1], behind=False) or _is_look(items[-1:], behind=True)
        ):
            apart.append(_of_sequence(items, max_states))
        else:
            together.append(concat(items))
    found = CharDfa.nothing()
    if together:
        whole = alternation(together)
        found = CharDfa(*(unrolled(whole, max_states) or determinised(whole, max_states)))
    for other in apart:
        found = found.union(other)
    return found


def _is_look(items: Items, *, behind: bool) -> bool:
    return bool(items) and type(items[0]) is Look and items[0].behind == behind


def _of_sequence(items: Items, max_states: int) -> CharDfa:
    conditions: list[tuple[Expression, bool]] = []
    while items and type(items[0]) is Look and not items[0].behind:
        conditions.append((concat([items[0].item, ANYTHING]), items[0].negated))
        items = items[1:]
    while items and type(items[-1]) is Look and items[-1].behind:
        conditions.append((concat([ANYTHING, items[-1].item]), items[-1].negated))
        items = items[:-1]
    found = CharDfa.from_expression(concat(items), max_states)
    for expression, negated in conditions:
        other = CharDfa.from_expression(expression, max_states)
        found = found.difference(other) if negated else found.intersection(other)
    return found


def _mask(states: int, accepting: Iterable[int]) -> npt.NDArray[np.bool_]:
    mask = np.zeros(states, np.bool_)
    mask[list(accepting)] = True
    return mask


def _merged_classes(classes: Partition, table: Table) -> tuple[Partition, Table]:
    """Classes that no state tells apart made one, numbered by their first character."""
    columns = [column.tobytes() for column in table.T.copy()]
    numbers: dict[bytes, int] = {}
    kept: list[int] = []
    starts: list[int] = []
    class_of: list[int] = []
    for start, old in zip(classes.starts, classes.class_of, strict=True):
        found = -1
        if old >= 0:
            found = numbers.setdefault(columns[old], len(numbers))
            if found == len(kept):
                kept.append(old)
        if class_of and class_of[-1] == found:
            continue
        starts.append(start)
        class_of.append(found)
    return Partition(starts, class_of, len(numbers)), np.ascontiguousarray(table[:, kept])


def _has_surrogate(text: str) -> bool:
    return any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def _legible(ranges: Ranges) -> int:
    """A character of the set that a person can read, if there is one."""
    for low, high in ranges:
        if high > 32 and low < 127:
            return max(low, 33)
    return ranges[0][0]


__all__ = ["ALL", "MAX_STATES", "CharDfa"]
