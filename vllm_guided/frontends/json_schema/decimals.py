"""Magnitudes digit by digit: what the texts of numbers compare with.

In: exact magnitudes. Out: their decimal digits before and behind the point, and the nodes of digits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.json_schema import limits
from vllm_guided.frontends.json_schema.numbers import Exact
from vllm_guided.grammar import ir

DIGIT = ir.byte_range(0x30, 0x39)
NONZERO = ir.byte_range(0x31, 0x39)
ZERO = ir.text("0")
LESS, EQUAL, GREATER = -1, 0, 1


class Bound(NamedTuple):
    """A magnitude's decimal digits; ``closed`` says whether it belongs to the set."""

    whole: str
    fraction: str
    closed: bool


def decimal(value: Exact, closed: bool) -> Bound:
    """The digits of a magnitude."""
    if isinstance(value, int):
        return Bound(str(value), "", closed)
    scale, power = 0, 1
    while power % value.denominator:
        scale, power = scale + 1, power * 10
        if scale > limits.MAX_DECIMALS:
            raise ConstraintTooComplex(f"a bound has more than {limits.MAX_DECIMALS:,} decimals")
    digits = str(value.numerator * power // value.denominator).zfill(scale + 1)
    whole = digits[: len(digits) - scale]
    return Bound(whole, digits[len(digits) - scale :], closed)


@lru_cache(maxsize=1024)
def digits(mask: int) -> ir.Node:
    """One digit; bit ``d`` of the mask stands for ``d``."""
    return ir.ByteSet(mask << 0x30)


@lru_cache(maxsize=1024)
def runs(apart: frozenset[int]) -> tuple[tuple[int, int], ...]:
    """The digits, those of ``apart`` by themselves and all between two of them together: one, and a mask."""
    found: list[tuple[int, int]] = []
    open_run = False
    for digit in range(10):
        if open_run and digit not in apart:
            found[-1] = found[-1][0], found[-1][1] | 1 << digit
        else:
            found.append((digit, 1 << digit))
        open_run = digit not in apart
    return tuple(found)


EACH_DIGIT = runs(frozenset(range(10)))


def digit_of(bound: str, position: int) -> int:
    """The digit at ``position`` of the bound (0 beyond its end)."""
    return int(bound[position]) if position < len(bound) else 0


def compare(digit: int, bound: str, position: int, so_far: int) -> int:
    """``so_far`` after one more digit at ``position`` of the bound (0 beyond its end)."""
    if so_far != EQUAL:
        return so_far
    other = digit_of(bound, position)
    return (digit > other) - (digit < other)
