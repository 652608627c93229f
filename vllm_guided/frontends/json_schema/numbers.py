"""Sets of JSON numbers: an interval, a common multiple, and multiples that are left out.

In: the number keywords of a schema. Out: :class:`Numbers` s, closed under intersection, and lists of
them for a complement. Values are exact (``int`` or ``Fraction``); a float of the schema means its
shortest decimal form, or what the JSON text said beyond it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from vllm_guided.frontends.json_text import ExactFloat

Exact = int | Fraction

ANY_FORM, DIGITS, NOT_DIGITS = 0, 1, 2


class Numbers(NamedTuple):
    """The numbers between ``low`` and ``high`` that are multiples of ``multiple`` and of no ``excluded``.

    ``form`` is for draft 4, where ``1.0`` is no integer: :data:`DIGITS` is written without fraction and
    exponent, :data:`NOT_DIGITS` with one of them, :data:`ANY_FORM` either way.
    """

    low: Exact | None = None
    low_open: bool = False
    high: Exact | None = None
    high_open: bool = False
    multiple: Exact | None = None
    excluded: tuple[Exact, ...] = ()
    form: int = 0


ANY = Numbers()


def exact(value: float) -> Exact:
    """The number that the JSON text of ``value`` says."""
    if isinstance(value, int):
        return value
    fraction = value.exact if isinstance(value, ExactFloat) else Fraction(repr(value))
    return fraction.numerator if fraction.denominator == 1 else fraction


def reduce(value: Exact) -> Exact:
    """An ``int`` where it is one, so that equal numbers look the same."""
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value


def is_multiple(value: Exact, of: Exact) -> bool:
    """Whether ``value`` is a whole number of times ``of``."""
    return value % of == 0


def common_multiple(left: Exact | None, right: Exact | None) -> Exact | None:
    """The least number of which both are divisors (``None``: no condition)."""
    if left is None or right is None:
        return right if left is None else left
    a, b = Fraction(left), Fraction(right)
    return reduce(Fraction(math.lcm(a.numerator, b.numerator), math.gcd(a.denominator, b.denominator)))


def tidy(numbers: Numbers) -> Numbers | None:
    """The same set with bounds moved onto members where that is easy; ``None`` if it is empty."""
    low, low_open, high, high_open, multiple, excluded, form = numbers
    if multiple is not None:
        if low is not None:
            count = -((-low) // multiple)
            low = reduce(count * multiple) if not (low_open and count * multiple == low) else low + multiple
            low, low_open = reduce(low), False
        if high is not None:
            count = high // multiple
            high = (
                reduce(count * multiple) if not (high_open and count * multiple == high) else high - multiple
            )
            high, high_open = reduce(high), False
        if any(is_multiple(multiple, other) for other in excluded):
            return None
    if form == DIGITS and (1 in excluded or (low is not None and low == high and not is_multiple(low, 1))):
        return None
    if low is not None and high is not None:
        if low > high or (low == high and (low_open or high_open)):
            return None
        if low == high and any(is_multiple(low, other) for other in excluded):
            return None
        if low == high:
            excluded = ()
            multiple = 1 if is_multiple(low, 1) else None
    if multiple is not None and excluded:
        excluded = tuple(sorted(set(excluded)))
    return Numbers(low, low_open, high, high_open, multiple, excluded, form)


def contains(numbers: Numbers, value: Exact) -> bool:
    """Whether ``value`` is in the set (however it is written)."""
    low, low_open, high, high_open, multiple, excluded, _ = numbers
    if low is not None and (value < low or (low_open and value == low)):
        return False
    if high is not None and (value > high or (high_open and value == high)):
        return False
    if multiple is not None and not is_multiple(value, multiple):
        return False
    return not any(is_multiple(value, other) for other in excluded)


def intersect(left: Numbers, right: Numbers) -> Numbers | None:
    """The numbers in both; ``None`` if there are none."""
    if left in (ANY, right):
        return right
    if right == ANY:
        return left
    low, low_open = left.low, left.low_open
    if right.low is not None and (low is None or right.low > low):
        low, low_open = right.low, right.low_open
    elif right.low is not None and right.low == low:
        low_open = low_open or right.low_open
    high, high_open = left.high, left.high_open
    if right.high is not None and (high is None or right.high < high):
        high, high_open = right.high, right.high_open
    elif right.high is not None and right.high == high:
        high_open = high_open or right.high_open
    excluded = tuple(sorted({*left.excluded, *right.excluded}))
    multiple = common_multiple(left.multiple, right.multiple)
    if left.form + right.form == DIGITS + NOT_DIGITS:
        return None
    form = max(left.form, right.form)
    return tidy(Numbers(low, low_open, high, high_open, multiple, excluded, form))


def complement(numbers: Numbers) -> list[Numbers]:
    """Sets that together hold every number outside."""
    found: list[Numbers] = []
    low, low_open, high, high_open, multiple, excluded, form = numbers
    if low is not None:
        found.append(Numbers(high=low, high_open=not low_open))
    if high is not None:
        found.append(Numbers(low=high, low_open=not high_open))
    if multiple is not None:
        found.append(Numbers(excluded=(multiple,)))
    found.extend(Numbers(multiple=other) for other in excluded)
    if form != ANY_FORM:
        found.append(Numbers(form=DIGITS + NOT_DIGITS - form))
    return found
