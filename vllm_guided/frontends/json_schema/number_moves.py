"""The texts of numbers between usual bounds, written by compiled code.

In: what :mod:`.number_text` found to write of a set of numbers. Out: an IR node; the same texts as those of
:mod:`.plain_text` and :mod:`.scientific_text` without multiples (but 1), in a twentieth of the time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vllm_guided.automaton.number_moves import number_moves
from vllm_guided.automaton.number_parts import PLAIN, SCIENTIFIC
from vllm_guided.frontends.json_schema import limits
from vllm_guided.frontends.json_schema.decimals import Bound
from vllm_guided.frontends.json_schema.numbers import DIGITS, NOT_DIGITS
from vllm_guided.frontends.json_schema.scientific_text import LARGEST, scientific_parts
from vllm_guided.grammar import ir

POSITIVE, NEGATIVE, EITHER = 0, 1, 2
MOST_DIGITS = limits.MAX_INTEGER_DIGITS
MOST_DECIMALS = limits.MAX_FRACTION_DIGITS - limits.MAX_ZEROS - 1
"""Bounds with more digits on either side of the point are left to general code."""

_NO_BOUND = Bound("", "", False)


class Part(NamedTuple):
    """Magnitudes with a sign: where they may be written without, and with, a fraction or exponent.

    Attributes:
        sign: ``POSITIVE``, ``NEGATIVE`` or ``EITHER``.
        plain: bounds of plain decimals, by the form (of ``Numbers``) that these have.
        scientific: bounds of the scientific form; ``None``: there are none.
    """

    sign: int
    plain: list[tuple[int, Bound, Bound | None]]
    scientific: tuple[Bound, Bound | None] | None


def moves_node(parts: list[Part], whole: bool) -> ir.Node | None:
    """The numbers of all parts; ``None`` where the bounds are too long for compiled code.

    Args:
        whole: only whole numbers.
    """
    numbers: list[int] = []
    for sign, plain, scientific in parts:
        for form, low, high in plain:
            top = _NO_BOUND if high is None else high
            if max(len(low.whole), len(top.whole)) > MOST_DIGITS:
                return None
            if max(len(low.fraction), len(top.fraction)) > MOST_DECIMALS:
                return None
            numbers += (
                PLAIN, sign, whole, low.closed, len(low.whole), len(low.fraction),
                high is not None, top.closed, len(top.whole), len(top.fraction),
                form != NOT_DIGITS, form != DIGITS,
            )  # fmt: skip
            numbers += map(int, low.whole + low.fraction + top.whole + top.fraction)
        if scientific is None:
            continue
        low, high = scientific
        top = LARGEST if high is None else high
        most = scientific_parts(top)
        if most is None:
            continue
        least = scientific_parts(low) or ("", 0)
        numbers += (
            SCIENTIFIC, sign, whole, low.closed, len(least[0]), least[1],
            True, top.closed, len(most[0]), most[1], False, False,
        )  # fmt: skip
        numbers += map(int, least[0] + most[0])
    moves, vertices = number_moves(
        np.array(numbers, np.int32), MOST_DIGITS, limits.MAX_FRACTION_DIGITS, limits.MAX_ZEROS,
        limits.FLOAT_DIGITS, limits.MIN_EXPONENT,
    )  # fmt: skip
    if vertices < 0:
        return None
    return ir.ByteGraph(vertices, moves.tobytes()) if vertices else ir.NOTHING
