"""Plain decimals in an interval of magnitudes, with multiples kept or left out.

In: bounds and remainders. Out: an IR graph over digits. A magnitude is read from its first digit on:
against a bound it is enough to know how many integer digits were read and whether they are less
than, equal to or greater than as many digits of the bound; of a multiple it is enough to know the
remainder. Once every bound is decided the rest is free and is a counted repetition.
"""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import NamedTuple

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.json_schema import limits
from vllm_guided.frontends.json_schema.numbers import ANY_FORM, DIGITS, NOT_DIGITS, Exact, Numbers
from vllm_guided.grammar import ir

DIGIT = ir.byte_range(0x30, 0x39)
NONZERO = ir.byte_range(0x31, 0x39)
LESS, EQUAL, GREATER = -1, 0, 1


class Bound(NamedTuple):
    """A magnitude's decimal digits; ``closed`` says whether it belongs to the set."""

    whole: str
    fraction: str
    closed: bool


class Remainder(NamedTuple):
    """Multiples of ``modulus / 10**scale``; ``wanted`` says whether to keep them or leave them out."""

    modulus: int
    scale: int
    wanted: bool


def decimal(value: Exact, closed: bool) -> Bound:
    fraction = Fraction(value)
    scale, denominator = 0, fraction.denominator
    while denominator != 1:
        scale += 1
        denominator = Fraction(fraction * 10**scale).denominator
        if scale > 1100:
            raise ConstraintTooComplex("a bound has more than 1,100 decimals")
    digits = str(int(fraction * 10**scale)).zfill(scale + 1)
    whole = digits[: len(digits) - scale]
    return Bound(whole, digits[len(digits) - scale :], closed)


def remainder(multiple: Exact, wanted: bool) -> Remainder:
    fraction = Fraction(multiple)
    scale = 0
    while (fraction * 10**scale).denominator != 1:
        scale += 1
        if scale > 1100:
            raise ConstraintTooComplex("multipleOf has more than 1,100 decimals")
    return Remainder(int(fraction * 10**scale), scale, wanted)


def compare(digit: int, bound: str, position: int, so_far: int) -> int:
    """``so_far`` after one more digit at ``position`` of the bound (0 beyond its end)."""
    if so_far != EQUAL:
        return so_far
    other = int(bound[position]) if position < len(bound) else 0
    return (digit > other) - (digit < other)


_State = tuple[object, ...]


class Magnitude:
    """Builds the graph of the plain decimals in one interval of magnitudes."""

    def __init__(
        self, low: Bound, high: Bound | None, remainders: list[Remainder], form: int, whole_only: bool
    ) -> None:
        self.low = low
        self.high = high
        self.remainders = remainders
        self.form = form
        self.whole_only = whole_only
        self.numbers: dict[_State, int] = {}
        self.queue: list[_State] = []
        self.edges: list[tuple[int, ir.Node, int]] = []
        self.accepting: set[int] = set()
        self.longest = limits.MAX_INTEGER_DIGITS
        if high is not None:
            self.longest = max(len(high.whole), 1)
        elif remainders:
            self.longest = len(low.whole) + 20
        self.longest = max(self.longest, len(low.whole))
        self.endless = high is None and prod(item.modulus for item in remainders) > limits.COUNTED_REMAINDERS
        self.scale = max([1, len(low.fraction), *(item.scale for item in remainders)])
        if high is not None:
            self.scale = max(self.scale, len(high.fraction))

    def number(self, state: _State) -> int:
        found = self.numbers.get(state)
        if found is None:
            found = len(self.numbers)
            if found > limits.MAX_NUMBER_STATES:
                raise ConstraintTooComplex(
                    "the number's bounds and multipleOf need too large an automaton; use a smaller multipleOf"
                )
            self.numbers[state] = found
            self.queue.append(state)
        return found

    def build(self) -> ir.Node:
        self.number(("start",))
        positive = self.low.whole.strip("0") or self.low.fraction or not self.low.closed
        self.first_low = EQUAL if positive else GREATER
        while self.queue:
            state = self.queue.pop()
            source = self.numbers[state]
            if state[0] == "whole":
                self.whole(source, state)
            elif state[0] == "point":
                self.fraction_digits(source, state, first=True)
            elif state[0] == "fraction":
                self.fraction_digits(source, state, first=False)
            elif state[0] == "start":
                self.digits(source, 0, self.first_low, EQUAL, tuple(0 for _ in self.remainders))
        return ir.Graph(tuple(self.edges), frozenset(self.accepting)) if self.accepting else ir.NOTHING

    def edges_by_target(self, source: int, targets: list[tuple[int, _State]]) -> None:
        grouped: dict[_State, list[int]] = {}
        for digit, state in targets:
            grouped.setdefault(state, []).append(0x30 + digit)
        for state, digits in grouped.items():
            self.edges.append((source, ir.byte_set(digits), self.number(state)))

    def digits(self, source: int, count: int, low: int, high: int, rests: tuple[int, ...]) -> None:
        """The edges of one more integer digit after ``count``."""
        if count >= self.longest:
            return
        targets: list[tuple[int, _State]] = []
        for digit in range(10):
            next_low = compare(digit, self.low.whole, count, low) if count < len(self.low.whole) else GREATER
            next_high = EQUAL
            if self.high is not None:
                next_high = compare(digit, self.high.whole, count, high)
            moved = tuple(
                (rest * 10 + digit) % item.modulus for rest, item in zip(rests, self.remainders, strict=True)
            )
            position = count + 1
            if self.endless and position > len(self.low.whole) + 1:
                position = count  # too many remainders to count digits as well
            if position > len(self.low.whole):
                next_low = GREATER
            targets.append(
                (digit, ("whole", position, next_low, next_high, moved, count == 0 and digit == 0))
            )
        self.edges_by_target(source, targets)

    def whole(self, source: int, state: _State) -> None:
        _, count, low, high, rests, zero = state
        assert isinstance(count, int) and isinstance(low, int) and isinstance(high, int)
        assert isinstance(rests, tuple)
        below = low if count == len(self.low.whole) else (GREATER if count > len(self.low.whole) else LESS)
        above = LESS
        if self.high is not None:
            above = high if count == len(self.high.whole) else LESS
        if not zero:
            if (
                self.high is None
                and not self.remainders
                and count >= len(self.low.whole)
                and below == GREATER
            ):
                self.free_whole(source, count)
                return
            self.digits(source, count, low, high, rests)
        if below == LESS or above == GREATER:
            return
        if self.form != NOT_DIGITS and self.ends(below, above, 0, rests):
            self.accepting.add(source)
        if self.form != DIGITS:
            self.edges.append((source, ir.text("."), self.number(("point", 0, below, above, rests))))

    def free_whole(self, source: int, count: int) -> None:
        end = self.number(("free",))
        fraction = ir.sequence(ir.text("."), self.free_fraction())
        tail: ir.Node = ir.EMPTY
        if self.form == NOT_DIGITS:
            tail = fraction
        elif self.form == ANY_FORM:
            tail = ir.optional(fraction)
        self.accepting.add(end)
        self.edges.append((source, ir.sequence(ir.Repeat(DIGIT, 0, self.longest - count), tail), end))

    def free_fraction(self) -> ir.Node:
        if self.whole_only:
            return ir.text("0")
        return ir.Repeat(DIGIT, 1, limits.MAX_FRACTION_DIGITS)

    def ends(self, low: int, high: int, count: int, rests: tuple[int, ...]) -> bool:
        """Whether the number may end after ``count`` fraction digits."""
        if low == EQUAL:
            if count < len(self.low.fraction.rstrip("0")):
                return False
            if not self.low.closed:
                return False
        if high == EQUAL and self.high is not None:
            exactly = count >= len(self.high.fraction.rstrip("0"))
            if exactly and not self.high.closed:
                return False
        for rest, item in zip(rests, self.remainders, strict=True):
            divisible = rest >= 0 and (rest * 10 ** max(item.scale - count, 0)) % item.modulus == 0
            if divisible != item.wanted:
                return False
        return True

    def fraction_digits(self, source: int, state: _State, first: bool) -> None:
        _, count, low, high, rests = state
        assert isinstance(count, int) and isinstance(low, int) and isinstance(high, int)
        assert isinstance(rests, tuple)
        if not first and self.ends(low, high, count, rests):
            self.accepting.add(source)
        decided = low == GREATER and (self.high is None or high == LESS)
        if decided and all(rest < 0 for rest in rests) and not self.whole_only:
            end = self.number(("free",))
            self.accepting.add(end)
            minimum = 1 if first else 0
            tail = ir.Repeat(DIGIT, minimum, max(limits.MAX_FRACTION_DIGITS - count, 1))
            self.edges.append((source, tail, end))
            return
        targets: list[tuple[int, _State]] = []
        for digit in range(1 if self.whole_only else 10):
            next_low = compare(digit, self.low.fraction, count, low)
            next_high = EQUAL
            if self.high is not None:
                next_high = compare(digit, self.high.fraction, count, high)
            if next_low == LESS or next_high == GREATER:
                continue
            if count >= self.scale and digit == 0 and self.zero_is_last(high, count):
                continue
            moved = self.move(rests, digit, count)
            if moved is not None:
                targets.append((digit, ("fraction", count + 1, next_low, next_high, moved)))
        self.edges_by_target(source, targets)

    def zero_is_last(self, high: int, count: int) -> bool:
        """Whether a further zero after ``count`` fraction digits would only repeat what is said."""
        if self.whole_only or any(item.wanted for item in self.remainders):
            return True
        if self.high is not None and high == EQUAL:
            return True
        return count >= self.scale + limits.MAX_ZEROS

    def move(self, rests: tuple[int, ...], digit: int, count: int) -> tuple[int, ...] | None:
        moved: list[int] = []
        for rest, item in zip(rests, self.remainders, strict=True):
            if rest < 0:
                moved.append(rest)
            elif count < item.scale:
                moved.append((rest * 10 + digit) % item.modulus)
            elif digit == 0:
                moved.append(rest)
            elif item.wanted:
                return None
            else:
                moved.append(-1)
        return tuple(moved)


def plain_node(low: Bound, high: Bound | None, numbers: Numbers) -> ir.Node:
    whole_only = numbers.multiple is not None and Fraction(numbers.multiple).denominator == 1
    remainders = []
    if numbers.multiple is not None and numbers.multiple != 1:
        remainders.append(remainder(numbers.multiple, True))
    remainders.extend(remainder(other, False) for other in numbers.excluded)
    return Magnitude(low, high, remainders, numbers.form, whole_only).build()
