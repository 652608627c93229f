"""Plain decimals in an interval of magnitudes, with multiples kept or left out.

In: bounds and remainders. Out: an IR graph over digits. A magnitude is read from its first digit on:
against a bound it is enough to know how many integer digits were read and whether they are less
than, equal to or greater than as many digits of the bound; of a multiple it is enough to know the
remainder (:mod:`.remainders`). Once every bound is decided the rest is free and is a counted repetition.

Most readers take a number with a fraction for the nearest double. Where that could make a number one that it
is not (a multiple of what is left out, a second spelling of the same value), the fraction has to show it
within the first 15 digits of the number, which every double keeps.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from vllm_guided.frontends.json_schema import limits
from vllm_guided.frontends.json_schema.decimals import (
    DIGIT,
    EACH_DIGIT,
    EQUAL,
    GREATER,
    LESS,
    NONZERO,
    ZERO,
    Bound,
    compare,
    digit_of,
    digits,
    runs,
)
from vllm_guided.frontends.json_schema.numbers import ANY_FORM, DIGITS, NOT_DIGITS
from vllm_guided.frontends.json_schema.remainders import NEVER, Remainder
from vllm_guided.grammar import ir

NEW, ZEROS, NINES, CLEAR, TINY = 0, 1, 2, 3, 4
"""What the digits behind the grid are so far: none, all 0, all 9, or clearly between two multiples; or
nothing but zeros at all was read."""
FREE, ON_GRID, OFF_GRID = 0, 1, 2
"""Any fraction; no digits behind the ones that the multiples have; some."""
FRACTION_ROOM = 15
"""Digits of a number that every double keeps."""


class TooManyStates(Exception):
    """More states than the budget has."""


class _Whole(NamedTuple):
    """``position`` integer digits were read."""

    position: int
    low: int
    high: int
    rests: tuple[int, ...]
    zero: bool


class _Fraction(NamedTuple):
    """``position`` digits were read behind the point."""

    position: int
    low: int
    high: int
    rests: tuple[int, ...]
    room: int
    edge: int
    ended: bool
    """The last digit is not 0 (only where there is one spelling for each value)."""


_END = "end"


class Magnitude:
    """Builds the graph of the plain decimals in one interval of magnitudes.

    Args:
        low, high: the interval; ``None``: no end.
        remainders: what to keep and to leave out, on the grid of their decimals.
        form: as in :class:`~.numbers.Numbers`.
        fractions: :data:`FREE`, :data:`ON_GRID` or :data:`OFF_GRID`.
        canonical: one spelling for each value.
        longest: most integer digits, where ``high`` does not say it.
        endless: the integer digits are not counted.
    """

    def __init__(
        self,
        low: Bound,
        high: Bound | None,
        remainders: tuple[Remainder, ...] = (),
        form: int = DIGITS,
        fractions: int = ON_GRID,
        canonical: bool = False,
        grid: int = 0,
        longest: int | None = None,
        endless: bool = False,
    ) -> None:
        self.low, self.high = low, high
        self.remainders = remainders
        self.form = form
        self.fractions = fractions
        self.canonical = canonical
        self.grid = grid
        self.whole_only = canonical and fractions == ON_GRID and grid == 0
        self.states: dict[object, int] = {}
        self.queue: deque[_Whole | _Fraction] = deque()
        self.edges: list[tuple[int, ir.Node, int]] = []
        self.accepting: set[int] = set()
        self.deepest = 0
        self.remainder_states: dict[tuple[int, ...], int] = {}
        self.endless = endless
        if longest is not None:
            self.longest = longest
        elif high is not None:
            self.longest = len(high.whole)
        elif remainders:
            self.longest = len(low.whole) + 20
        else:
            self.longest = max(limits.MAX_INTEGER_DIGITS, len(low.whole))
        self.decimals = max(grid, len(low.fraction), len(high.fraction) if high is not None else 0)
        # How many digits may stand before a point: where the nearest double is not to be trusted, 15.
        exactly = bool(canonical or remainders or fractions == OFF_GRID)
        self.pointed = 0 if self.endless else FRACTION_ROOM if exactly else self.longest
        if fractions == OFF_GRID:
            self.longest = min(self.longest, FRACTION_ROOM - 1)

    def build(self) -> ir.Node:
        """The graph; ``ir.NOTHING`` if it is empty."""
        positive = self.low.whole.strip("0") or self.low.fraction or not self.low.closed
        start = _Whole(0, EQUAL if positive else GREATER, EQUAL, tuple(0 for _ in self.remainders), False)
        self._number(start)
        while self.queue:
            state = self.queue.popleft()
            if isinstance(state, _Whole):
                if self.endless and state.position > len(self.low.whole):
                    self._settled(state)
                else:
                    self._whole(self.states[state], state)
            else:
                self._fraction(self.states[state], state)
        return ir.Graph(tuple(self.edges), frozenset(self.accepting)) if self.accepting else ir.NOTHING

    def _number(self, state: _Whole | _Fraction) -> int:
        found = self.states.get(state)
        if found is None:
            found = self.states[state] = len(self.states)
            if found > limits.COUNTED_NUMBER_STATES:
                raise TooManyStates
            self.queue.append(state)
            if isinstance(state, _Whole):
                self.deepest = max(self.deepest, state.position)
        return found

    def _finish(self, source: int, label: ir.Node) -> None:
        """An edge to the end of the number."""
        end = self.states.setdefault(_END, len(self.states))
        self.accepting.add(end)
        self.edges.append((source, label, end))

    def _add(self, source: int, targets: dict[_Whole | _Fraction, int]) -> None:
        """Edges to states by the masks of their digits."""
        for state, mask in targets.items():
            self.edges.append((source, digits(mask), self._number(state)))

    def _runs(
        self, state: _Whole | _Fraction, low: str, high: str | None, ends: bool
    ) -> tuple[tuple[int, int], ...]:
        """The digits by what follows them; ``ends``: 0 and 9 may be unlike those beside them."""
        if self.remainders:
            return EACH_DIGIT
        apart = {0, 9} if ends else set()
        if state.low == EQUAL:
            apart.add(digit_of(low, state.position))
        if high is not None and state.high == EQUAL:
            apart.add(digit_of(high, state.position))
        return runs(frozenset(apart))

    # Before the point

    def _whole(self, source: int, state: _Whole) -> None:
        count, low, high, rests, zero = state
        below = low if count == len(self.low.whole) else (GREATER if count > len(self.low.whole) else LESS)
        above = LESS
        if self.high is not None:
            above = high if count == len(self.high.whole) else LESS
        if not zero:
            if self._free_from_here(count, below):
                self._free_whole(source, count)
                return
            self._more_digits(source, state)
        if count == 0 or below == LESS or above == GREATER:
            return
        if self.form != NOT_DIGITS and self.fractions != OFF_GRID and self._ends(below, above, 0, rests):
            self.accepting.add(source)
        if self.form != DIGITS and count <= self.pointed and not self.whole_only:
            room = FRACTION_ROOM - count
            if self.fractions == ON_GRID and not self.canonical:
                room = max(min(room, self.grid), 0)
            elif self.fractions == FREE and not self.canonical:
                room = limits.MAX_FRACTION_DIGITS
            edge = TINY if zero and self.fractions == OFF_GRID else NEW
            if self.fractions == ON_GRID and self.decimals == 0 and not self.remainders:
                # Only zeros may follow, which change nothing: bounds that hold now do so to the end.
                if not self._ends(below, above, 0, rests):
                    return
                below, above = GREATER, LESS
            after = _Fraction(0, below, above, rests, room, edge, False)
            self.edges.append((source, ir.text("."), self._number(after)))

    def _free_from_here(self, count: int, below: int) -> bool:
        """Whether nothing but their number is asked of further digits."""
        if self.high is not None or self.remainders or count == 0 or below != GREATER:
            return False
        if self.fractions == OFF_GRID:
            return False
        if count < len(self.low.whole):
            return False
        return self.whole_only or self.pointed >= self.longest or count >= self.pointed

    def _free_whole(self, source: int, count: int) -> None:
        more = ir.Repeat(DIGIT, 0, self.longest - count)
        if self.whole_only or self.pointed < self.longest:
            if self.form != NOT_DIGITS:
                self._finish(source, more)
            return
        some = DIGIT if self.fractions == FREE else ZERO
        fraction = ir.sequence(ir.text("."), ir.Repeat(some, 1, limits.MAX_FRACTION_DIGITS))
        tail: ir.Node = ir.EMPTY
        if self.form == NOT_DIGITS:
            tail = fraction
        elif self.form == ANY_FORM:
            tail = ir.optional(fraction)
        self._finish(source, ir.sequence(more, tail))

    def _settled(self, first: _Whole) -> None:
        """The graph from a state on in which only remainders count, and digits do not."""
        labels = [digits(1 << digit) for digit in range(10)]
        numbers = self.remainder_states
        if first.rests in numbers:
            self.edges.append((self.states[first], ir.EMPTY, numbers[first.rests]))
            return
        numbers[first.rests] = self.states[first]
        queue = [first.rests]
        edges, states, items = self.edges, self.states, self.remainders
        for rests in queue:  # grows while it is read
            source = numbers[rests]
            if self._ends(GREATER, LESS, 0, rests):
                self.accepting.add(source)
            for digit, label in enumerate(labels):
                moved = tuple([item.onwards(rest, digit) for rest, item in zip(rests, items, strict=True)])
                target = numbers.get(moved)
                if target is None:
                    target = numbers[moved] = states[moved] = len(states)
                    if target > limits.MAX_NUMBER_STATES:
                        raise TooManyStates
                    queue.append(moved)
                edges.append((source, label, target))

    def _more_digits(self, source: int, state: _Whole) -> None:
        count = state.position
        if count >= self.longest:
            return
        targets: dict[_Whole | _Fraction, int] = {}
        for digit, mask in self._runs(state, self.low.whole, self.high and self.high.whole, count == 0):
            zero = count == 0 and digit == 0
            low = compare(digit, self.low.whole, count, state.low) if count < len(self.low.whole) else GREATER
            high = EQUAL
            if self.high is not None:
                high = compare(digit, self.high.whole, count, state.high)
            position = count + 1
            if self.endless and position > len(self.low.whole) + 1:
                position = count  # too many remainders to count digits as well
            if position > len(self.low.whole):
                low = GREATER
            left = 0 if zero else self.longest - position
            if high == GREATER and self.high is not None:
                left = min(left, len(self.high.whole) - 1 - position)
            if left < 0:
                continue
            rests: list[int] = []
            for rest, item in zip(state.rests, self.remainders, strict=True):
                most = None if self.endless and not zero else item.scale + left
                rest = NEVER if rest == NEVER else (rest * 10 + digit) % item.modulus
                moved = item.representative(rest, item.scale, most)
                if moved is None:
                    break
                rests.append(moved)
            else:
                target = _Whole(position, low, high, tuple(rests), zero)
                targets[target] = targets.get(target, 0) | mask
        self._add(source, targets)

    # Behind the point

    def _ends(self, low: int, high: int, count: int, rests: tuple[int, ...]) -> bool:
        """Whether the number may end after ``count`` fraction digits, as far as bounds and multiples go."""
        if low == EQUAL and (count < len(self.low.fraction.rstrip("0")) or not self.low.closed):
            return False
        past = self.high is not None and high == EQUAL and count >= len(self.high.fraction.rstrip("0"))
        if past and self.high is not None and not self.high.closed:
            return False
        for rest, item in zip(rests, self.remainders, strict=True):
            if item.divides(rest, count) != item.wanted:
                return False
        return True

    def _fraction(self, source: int, state: _Fraction) -> None:
        count, low, high, rests, room, edge, ended = state
        fits = self.fractions != OFF_GRID or edge in (NINES, CLEAR)
        if count > 0 and (ended or not self.canonical) and fits and self._ends(low, high, count, rests):
            self.accepting.add(source)
        if count >= self.decimals and low == EQUAL and self.low.closed:
            low = GREATER
        inside = low == GREATER and (self.high is None or high == LESS)
        if self.canonical:
            if inside and self.fractions == FREE:
                if count < room:
                    self._finish(source, ir.sequence(ir.Repeat(DIGIT, 0, room - count - 1), NONZERO))
                return
        elif inside and (self.fractions == FREE or edge == CLEAR):
            most = limits.MAX_FRACTION_DIGITS - count
            self._finish(source, ir.Repeat(DIGIT, 0 if count else 1, max(most, 1)))
            return
        only_zeros = count >= self.decimals and (
            self.fractions == ON_GRID or (self.high is not None and high == EQUAL)
        )
        if only_zeros:
            if fits and not self.canonical and self._ends(low, high, count, rests):
                most = max(limits.MAX_FRACTION_DIGITS - count, 1)
                self._finish(source, ir.Repeat(ZERO, 0 if count else 1, most))
            return
        targets: dict[_Whole | _Fraction, int] = {}
        ends = self.canonical or self.fractions != FREE
        for digit, mask in self._runs(state, self.low.fraction, self.high and self.high.fraction, ends):
            after = self._after(state, digit)
            if after is not None:
                targets[after] = targets.get(after, 0) | mask
        self._add(source, targets)

    def _after(self, state: _Fraction, digit: int) -> _Fraction | None:
        """The state after one more digit behind the point, if the number can still be of the set."""
        count = state.position
        low = compare(digit, self.low.fraction, count, state.low)
        high = EQUAL
        if self.high is not None:
            high = compare(digit, self.high.fraction, count, state.high)
        if low == LESS or high == GREATER:
            return None
        if self.fractions == ON_GRID and digit and count >= min(state.room, self.grid):
            return None
        if self.canonical and count >= state.room:
            return None
        edge = self._edge(state, digit) if self.fractions == OFF_GRID else NEW
        if edge is None or count + 1 > self.decimals + limits.MAX_ZEROS:
            return None
        rests: list[int] = []
        for rest, item in zip(state.rests, self.remainders, strict=True):
            moved = item.after(rest, digit, count)
            if moved is None:
                return None
            rests.append(moved)
        return _Fraction(count + 1, low, high, tuple(rests), state.room, edge, self.canonical and digit != 0)

    def _edge(self, state: _Fraction, digit: int) -> int | None:
        """The edge after one more digit; ``None`` if a double might not tell the number from a multiple."""
        count, edge = state.position, state.edge
        if edge == CLEAR or (edge == TINY and digit == 0):
            return edge
        if count < self.grid:
            return NEW
        run = ZEROS if digit == 0 else NINES if digit == 9 else CLEAR
        if edge == TINY:
            return NINES if count == self.grid and digit == 9 else CLEAR
        edge = run if edge in (NEW, run) else CLEAR
        if count + 1 > state.room or (count + 1 == state.room and edge == ZEROS):
            return None
        return edge
