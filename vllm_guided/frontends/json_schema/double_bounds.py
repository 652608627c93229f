"""Bounds of numbers that hold for readers of exact numbers and for readers of doubles.

Most readers take a number with a fraction or an exponent for the nearest double, and the bound too: to them
0.99999999999999999999 is 1.0, which ``exclusiveMaximum: 1`` forbids. Rounding keeps the order, so bounds that
belong to the set need no care; of the others, what rounds to the bound is left out. Integers beyond 2**53 are
read exactly by some and compared with bounds that are not doubles: what those readers might round across
the bound is left out too.

In: a magnitude that bounds a set, and whether it belongs to it. Out: the same of the magnitudes to write.
"""

from __future__ import annotations

import math
from fractions import Fraction

from vllm_guided.frontends.json_schema.numbers import Exact, reduce

LARGEST = 2**1024 - 2**970
"""Halfway from the largest double to where the next would be: readers take it and all above for infinity."""

_EXACT = 2**53
_DIGITS = 20


def least(value: Exact, closed: bool, written: bool) -> tuple[Exact, bool] | None:
    """The lower bound of magnitudes; ``written``: with fraction or exponent too. ``None`` if none is left."""
    if value == 0:
        return value, closed
    if value >= LARGEST:
        return None
    if (closed or not written) and value < _EXACT:
        return value, closed
    double = _double(value)
    if (closed or not written) and double == value:
        return value, closed
    if not closed and written:
        return _beyond(value, 1), True
    if double < value:
        return (_beyond(value, 1) if written else value), closed
    return math.ceil(double), closed


def most(value: Exact, closed: bool, written: bool) -> tuple[Exact, bool]:
    """The upper bound of magnitudes, likewise."""
    if value >= LARGEST:
        return LARGEST, closed or value > LARGEST
    if value == 0 or ((closed or not written) and value < _EXACT):
        return value, closed
    double = _double(value)
    if (closed or not written) and double == value:
        return value, closed
    if not closed and written:
        return _beyond(value, -1), True
    if double > value:
        return (_beyond(value, -1) if written else value), closed
    return math.floor(double), closed


def _double(value: Exact) -> Fraction:
    return Fraction(float(value))


def _beyond(value: Exact, direction: int) -> Exact:
    """A number of few digits whose double, and those of all beyond it, are beyond the double of ``value``."""
    double = float(value)
    following = math.nextafter(double, math.inf * direction)
    if math.isinf(following):
        return LARGEST
    middle = (Fraction(double) + Fraction(following)) / 2
    exponent = math.floor(math.log10(following or 5e-324)) - _DIGITS
    unit = Fraction(10) ** exponent
    count = middle / unit
    steps = math.floor(count) + 1 if direction > 0 else math.ceil(count) - 1
    return reduce(steps * unit)
