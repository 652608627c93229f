"""The JSON texts of a set of numbers, as automata over decimal digits.

In: one :class:`~.numbers.Numbers`. Out: an IR node that matches its members as JSON writes them:
plain decimals, and the scientific form (``1e+20``, ``2.5e-07``) where no multiple has to be kept.

A magnitude is read from its first digit on. Against a bound it is enough to know how many integer
digits were read and whether they are less than, equal to or greater than as many digits of the bound;
of a multiple it is enough to know the remainder. Once every bound is decided the rest is free and is a
counted repetition. In scientific form the mantissa is compared first and leaves an interval of exponents.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import NamedTuple

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.json_schema import limits
from vllm_guided.frontends.json_schema.numbers import ANY_FORM, DIGITS, NOT_DIGITS, Exact, Numbers
from vllm_guided.grammar import ir

_DIGIT = ir.byte_range(0x30, 0x39)
_NONZERO = ir.byte_range(0x31, 0x39)
LESS, EQUAL, GREATER = -1, 0, 1


class _Bound(NamedTuple):
    """A magnitude's decimal digits; ``closed`` says whether it belongs to the set."""

    whole: str
    fraction: str
    closed: bool


class _Remainder(NamedTuple):
    """Multiples of ``modulus / 10**scale``; ``wanted`` says whether to keep them or leave them out."""

    modulus: int
    scale: int
    wanted: bool


def _decimal(value: Exact, closed: bool) -> _Bound:
    fraction = Fraction(value)
    scale, denominator = 0, fraction.denominator
    while denominator != 1:
        scale += 1
        denominator = Fraction(fraction * 10**scale).denominator
        if scale > 1100:
            raise ConstraintTooComplex("a bound has more than 1,100 decimals")
    digits = str(int(fraction * 10**scale)).zfill(scale + 1)
    whole = digits[: len(digits) - scale]
    return _Bound(whole, digits[len(digits) - scale :], closed)


def _remainder(multiple: Exact, wanted: bool) -> _Remainder:
    fraction = Fraction(multiple)
    scale = 0
    while (fraction * 10**scale).denominator != 1:
        scale += 1
        if scale > 1100:
            raise ConstraintTooComplex("multipleOf has more than 1,100 decimals")
    return _Remainder(int(fraction * 10**scale), scale, wanted)


def _compare(digit: int, bound: str, position: int, so_far: int) -> int:
    """``so_far`` after one more digit at ``position`` of the bound (0 beyond its end)."""
    if so_far != EQUAL:
        return so_far
    other = int(bound[position]) if position < len(bound) else 0
    return (digit > other) - (digit < other)


_State = tuple[object, ...]


class _Magnitude:
    """Builds the graph of the plain decimals in one interval of magnitudes."""

    def __init__(
        self, low: _Bound, high: _Bound | None, remainders: list[_Remainder], form: int, whole_only: bool
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
        self.first_low = EQUAL if self.low.whole.strip("0") or self.low.fraction or not self.low.closed else GREATER
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
            next_low = _compare(digit, self.low.whole, count, low) if count < len(self.low.whole) else GREATER
            next_high = EQUAL
            if self.high is not None:
                next_high = _compare(digit, self.high.whole, count, high)
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
        self.edges.append((source, ir.sequence(ir.Repeat(_DIGIT, 0, self.longest - count), tail), end))

    def free_fraction(self) -> ir.Node:
        if self.whole_only:
            return ir.text("0")
        return ir.Repeat(_DIGIT, 1, limits.MAX_FRACTION_DIGITS)

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
            tail = ir.Repeat(_DIGIT, minimum, max(limits.MAX_FRACTION_DIGITS - count, 1))
            self.edges.append((source, tail, end))
            return
        targets: list[tuple[int, _State]] = []
        for digit in range(1 if self.whole_only else 10):
            next_low = _compare(digit, self.low.fraction, count, low)
            next_high = EQUAL
            if self.high is not None:
                next_high = _compare(digit, self.high.fraction, count, high)
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


def _plain(low: _Bound, high: _Bound | None, numbers: Numbers) -> ir.Node:
    whole_only = numbers.multiple is not None and Fraction(numbers.multiple).denominator == 1
    remainders = []
    if numbers.multiple is not None and numbers.multiple != 1:
        remainders.append(_remainder(numbers.multiple, True))
    remainders.extend(_remainder(other, False) for other in numbers.excluded)
    return _Magnitude(low, high, remainders, numbers.form, whole_only).build()


# Scientific form --------------------------------------------------------------------------------------


def _scientific_parts(bound: _Bound) -> tuple[str, int] | None:
    """Digits without leading zeros and the exponent of the first; ``None`` for zero."""
    digits = bound.whole + bound.fraction
    stripped = digits.lstrip("0")
    if not stripped:
        return None
    exponent = len(bound.whole) - 1 - (len(digits) - len(stripped))
    return stripped.rstrip("0"), exponent


@lru_cache(maxsize=1024)
def _exponent(low: int, high: int) -> ir.Node:
    """``e`` and an exponent between ``low`` and ``high``, with an optional sign and leading zero."""
    options: list[ir.Node] = []

    def between(first: int, last: int) -> ir.Node:
        whole = _Magnitude(
            _Bound(str(first), "", True), _Bound(str(last), "", True), [], DIGITS, True
        ).build()
        short = ir.byte_range(0x30 + first, 0x30 + min(last, 9)) if first <= 9 else ir.NOTHING
        return ir.choice(whole, ir.sequence(ir.text("0"), short))

    if high >= 0:
        options.append(ir.sequence(ir.optional(ir.text("+")), between(max(low, 0), high)))
    if low < 0:
        options.append(ir.sequence(ir.text("-"), between(max(-high, 1), -low)))
    return ir.sequence(ir.byte_set(b"eE"), ir.choice(*options))


class _Mantissa(NamedTuple):
    """How the digits read so far compare with both bounds' digits."""

    count: int
    low: int
    high: int


def _scientific(low: _Bound, high: _Bound | None, whole: bool) -> ir.Node:
    """One digit, perhaps a point and more, then the exponents that both bounds leave."""
    low_parts = _scientific_parts(low)
    high_parts = _scientific_parts(high) if high is not None else None
    if high is not None and high_parts is None:
        return ir.NOTHING
    low_digits = low_parts[0] if low_parts else ""
    high_digits = high_parts[0] if high_parts else ""

    def interval(state: _Mantissa) -> tuple[int, int]:
        least, most = -limits.MAX_EXPONENT, limits.MAX_EXPONENT
        if low_parts:
            below = LESS if state.low == EQUAL and state.count < len(low_digits) else state.low
            fits = below == GREATER or (below == EQUAL and low.closed)
            least = low_parts[1] + (0 if fits else 1)
        if high is not None and high_parts:
            above = LESS if state.high == EQUAL and state.count < len(high_digits) else state.high
            fits = above == LESS or (above == EQUAL and high.closed)
            most = high_parts[1] - (0 if fits else 1)
        if whole:
            least = max(least, 0 if state.count == 1 else limits.FLOAT_DIGITS)
        return least, most

    nodes: dict[object, int] = {}
    edges: list[tuple[int, ir.Node, int]] = []
    start = _Mantissa(0, EQUAL if low_parts else GREATER, EQUAL if high_parts else LESS)
    queue = [start]
    nodes[start] = 0
    end = nodes.setdefault("end", 1)

    def finish(source: int, label: ir.Node, span: tuple[int, int]) -> None:
        if span[0] > span[1]:
            return
        if span not in nodes:
            nodes[span] = len(nodes)
            edges.append((nodes[span], _exponent(*span), end))
        edges.append((source, label, nodes[span]))

    longest = limits.FLOAT_DIGITS + 1
    while queue:
        state = queue.pop()
        source = nodes[state]
        if state.count >= 1:
            finish(source, ir.EMPTY, interval(state))
            if state.low != EQUAL and state.high != EQUAL:
                more = ir.Repeat(_DIGIT, 1, max(longest - state.count, 1))
                point = ir.text(".") if state.count == 1 else ir.EMPTY
                finish(source, ir.sequence(point, more), interval(state._replace(count=max(longest, 2))))
                continue
        if state.count >= longest:
            continue
        for digit in range(1 if state.count == 0 else 0, 10):
            after = _Mantissa(
                state.count + 1,
                _compare(digit, low_digits, state.count, state.low),
                _compare(digit, high_digits, state.count, state.high),
            )
            if after not in nodes:
                nodes[after] = len(nodes)
                queue.append(after)
            byte = ir.byte_set([0x30 + digit])
            edges.append(
                (source, ir.sequence(ir.text("."), byte) if state.count == 1 else byte, nodes[after])
            )
    return ir.Graph(tuple(edges), frozenset([end])) if edges else ir.NOTHING


# The whole set ----------------------------------------------------------------------------------------


def _signed(
    numbers: Numbers, low: Exact | None, low_closed: bool, high: Exact | None, high_closed: bool
) -> ir.Node:
    """Magnitudes from ``low`` (``None``: 0) to ``high`` (``None``: no end)."""
    least = _decimal(low if low is not None else 0, low_closed if low is not None else True)
    most = _decimal(high, high_closed) if high is not None else None
    options = [_plain(least, most, numbers)]
    if numbers.form != DIGITS and numbers.multiple in (None, 1) and not numbers.excluded:
        options.append(_scientific(least, most, whole=numbers.multiple == 1))
    return ir.choice(*(option for option in options if option != ir.NOTHING))


@lru_cache(maxsize=2048)
def number_node(numbers: Numbers) -> ir.Node:
    """The JSON texts of the numbers in the set; ``ir.NOTHING`` if there are none.

    Raises:
        ConstraintTooComplex: the bounds and multiples need more than the budget of states.
    """
    options: list[ir.Node] = []
    low, high = numbers.low, numbers.high
    if high is None or high >= 0:
        floor = low if low is not None and low > 0 else None
        if low is not None and low == 0 and numbers.low_open:
            positive = _signed(numbers, 0, False, high, not numbers.high_open)
        elif high is not None and high == 0 and numbers.high_open:
            positive = ir.NOTHING
        else:
            positive = _signed(numbers, floor, not numbers.low_open, high, not numbers.high_open)
        options.append(positive)
    if low is None or low <= 0:
        least = -high if high is not None and high < 0 else None
        most = -low if low is not None else None
        if high is not None and high == 0 and numbers.high_open:
            negative = _signed(numbers, 0, False, most, not numbers.low_open)
        elif low is not None and low == 0 and numbers.low_open:
            negative = ir.NOTHING
        else:
            negative = _signed(numbers, least, not numbers.high_open, most, not numbers.low_open)
        if negative != ir.NOTHING:
            options.append(ir.sequence(ir.text("-"), negative))
    return ir.choice(*(option for option in options if option != ir.NOTHING))


def _any_number() -> ir.Node:
    fraction = ir.sequence(ir.text("."), ir.Repeat(_DIGIT, 1, limits.MAX_FRACTION_DIGITS))
    exponent = ir.sequence(ir.byte_set(b"eE"), ir.optional(ir.byte_set(b"+-")), ir.Repeat(_DIGIT, 1, 3))
    whole = ir.choice(
        ir.text("0"), ir.sequence(_NONZERO, ir.Repeat(_DIGIT, 0, limits.MAX_INTEGER_DIGITS - 1))
    )
    return ir.sequence(ir.optional(ir.text("-")), whole, ir.optional(fraction), ir.optional(exponent))


ANY_NUMBER = _any_number()
"""Every JSON number of bounded length."""
