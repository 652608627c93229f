"""Numbers in scientific form (``1e+20``, ``2.5e-07``) in an interval of magnitudes.

In: bounds. Out: an IR graph. The mantissa, one digit before the point, is compared with the digits of both
bounds; what that leaves open is an interval of exponents.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from vllm_guided.frontends.json_schema import limits
from vllm_guided.frontends.json_schema.decimal_text import Magnitude
from vllm_guided.frontends.json_schema.decimals import (
    EQUAL,
    GREATER,
    LESS,
    Bound,
    compare,
    digit_of,
    digits,
    runs,
)
from vllm_guided.grammar import ir

ANY_DIGIT = (1 << 10) - 1
LARGEST = Bound("17976931348623157" + "0" * 292, "", True)
"""The largest double: readers take what is above it for infinity."""


@lru_cache(maxsize=1024)
def _pointed(mask: int) -> ir.Node:
    return ir.sequence(ir.text("."), digits(mask))


def scientific_parts(bound: Bound) -> tuple[str, int] | None:
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
        whole = Magnitude(Bound(str(first), "", True), Bound(str(last), "", True)).build()
        short = ir.byte_range(0x30 + first, 0x30 + min(last, 9)) if first <= 9 else ir.NOTHING
        return ir.choice(whole, ir.sequence(ir.text("0"), short))

    if high >= 0:
        options.append(ir.sequence(ir.optional(ir.text("+")), between(max(low, 0), high)))
    if low < 0:
        options.append(ir.sequence(ir.text("-"), between(max(-high, 1), -low)))
    return ir.sequence(ir.byte_set(b"eE"), ir.choice(*options))


class _Mantissa(NamedTuple):
    """How the digits read so far compare with both bounds' digits."""

    digits: int
    low: int
    high: int


def scientific_node(low: Bound, high: Bound | None, whole: bool) -> ir.Node:
    """One digit, perhaps a point and more, then the exponents that both bounds leave."""
    if high is None:
        high = LARGEST
    low_parts = scientific_parts(low)
    high_parts = scientific_parts(high)
    if high_parts is None:
        return ir.NOTHING
    low_digits = low_parts[0] if low_parts else ""
    high_digits = high_parts[0]

    def interval(state: _Mantissa) -> tuple[int, int]:
        least = limits.MIN_EXPONENT
        if low_parts:
            below = LESS if state.low == EQUAL and state.digits < len(low_digits) else state.low
            fits = below == GREATER or (below == EQUAL and low.closed)
            least = low_parts[1] + (0 if fits else 1)
        above = LESS if state.high == EQUAL and state.digits < len(high_digits) else state.high
        fits = above == LESS or (above == EQUAL and high.closed)
        most = high_parts[1] - (0 if fits else 1)
        if whole:
            least = max(least, 0 if state.digits == 1 else limits.FLOAT_DIGITS)
        return least, most

    nodes: dict[object, int] = {}
    edges: list[tuple[int, ir.Node, int]] = []
    start = _Mantissa(0, EQUAL if low_parts else GREATER, EQUAL)
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

    def more(source: int, state: _Mantissa, room: int) -> None:
        """One to ``room`` digits more, which no bound looks at; all places share what is behind them."""
        span = interval(state._replace(digits=max(longest, 2)))
        if span[0] > span[1]:
            return
        label_of = _pointed if state.digits == 1 else digits
        while room:
            room -= 1
            behind = ("more", span, room)
            known = nodes.get(behind)
            target = nodes[behind] = len(nodes) if known is None else known
            edges.append((source, label_of(ANY_DIGIT), target))
            if known is not None:
                return
            finish(target, ir.EMPTY, span)
            source, label_of = target, digits

    longest = limits.FLOAT_DIGITS + 1
    if whole and high_parts[1] < limits.FLOAT_DIGITS:
        longest = 1  # more digits ask for larger exponents
    while queue:
        state = queue.pop()
        source = nodes[state]
        if state.digits >= 1:
            finish(source, ir.EMPTY, interval(state))
            if state.low != EQUAL and state.high != EQUAL:
                more(source, state, max(longest - state.digits, 1))
                continue
        if state.digits >= longest:
            continue
        apart = set()
        if state.digits == 0:
            apart.add(0)
        if state.low == EQUAL:
            apart.add(digit_of(low_digits, state.digits))
        if state.high == EQUAL:
            apart.add(digit_of(high_digits, state.digits))
        label_of = _pointed if state.digits == 1 else digits
        for digit, mask in runs(frozenset(apart)):
            if digit == 0 and state.digits == 0:
                continue
            after = _Mantissa(
                state.digits + 1,
                compare(digit, low_digits, state.digits, state.low),
                compare(digit, high_digits, state.digits, state.high),
            )
            if after not in nodes:
                nodes[after] = len(nodes)
                queue.append(after)
            edges.append((source, label_of(mask), nodes[after]))
    return ir.Graph(tuple(edges), frozenset([end])) if edges else ir.NOTHING
