"""Moves of an automaton that reads the JSON texts of numbers between two magnitudes.

In: parts (:mod:`.number_parts`), as ``frontends/json_schema/number_moves.py`` writes them. Out: the moves of
one nondeterministic automaton for all of them, to be made deterministic as any other. It is the compiled
twin of ``decimal_text.py`` and ``scientific_text.py`` beside that file, where no multiple but 1 has to be
kept; why the texts are those is said there.
"""

# Compiled functions have numba signatures instead of annotations, and numba's rules for integers.
# mypy: allow-untyped-defs, disable-error-code="assignment,operator"

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.automaton.labels import EPSILON
from vllm_guided.automaton.number_parts import (
    END,
    HEAD,
    HIGH_DIGITS,
    HIGH_SCALE,
    KIND,
    LOW_DIGITS,
    LOW_SCALE,
    PLAIN,
    SCIENTIFIC,
    SIGN,
    START,
    move,
    new_vertex,
)
from vllm_guided.automaton.number_plain import write_plain
from vllm_guided.automaton.number_scientific import INTERVALS, write_scientific
from vllm_guided.numba_setup import jit

#: Room for the moves of one part; no bound that ``frontends/json_schema/number_moves.py`` lets through needs
#: as many.
ROOM = 8_192

_ints = types.int32[::1]


@jit()
def _length(at, ops):
    """How many numbers a part has."""
    length = np.int64(HEAD) + ops[at + LOW_DIGITS] + ops[at + HIGH_DIGITS]
    return length if ops[at + KIND] == SCIENTIFIC else length + ops[at + LOW_SCALE] + ops[at + HIGH_SCALE]


@jit()
def _derives(used, vertices, moves):
    """Whether the end can be reached from the start; most moves lead to later vertices."""
    alive = np.zeros(vertices, np.bool_)
    alive[END] = True
    changed = True
    while changed and not alive[START]:
        changed = False
        for k in range(used - 3, -1, -3):
            if alive[moves[k + 2]] and not alive[moves[k]]:
                alive[moves[k]] = True
                changed = True
    return alive[START]


@jit(types.Tuple((_ints, types.int64))(
    _ints, types.int64, types.int64, types.int64, types.int64, types.int64,
))  # fmt: skip
def number_moves(ops, most_digits, most_decimals, most_zeros, mantissa_digits, least_exponent):
    """The moves of all parts in ``ops``, from vertex 0 to vertex 1.

    Args:
        most_digits: integer digits where no bound has more and there is no upper bound.
        most_decimals: digits behind the point where nothing else bounds them; more than bounds have.
        most_zeros: zeros behind the digits of an open bound.
        mantissa_digits: those behind the point; as many as bounds tell apart.
        least_exponent: where no bound says it.

    Returns:
        Moves ``source, label, target`` flattened, and how many vertices there are: 0 if there is no such
        number, -1 if there was no room.
    """
    parts = 0
    at = np.int64(0)
    while at < ops.size:
        parts += 1
        at += _length(at, ops)
    moves = np.empty(3 * ROOM * parts, np.int32)
    counts = np.empty(2, np.int64)
    counts[0], counts[1] = 0, 2
    # What no bound looks at is shared by all parts: digits, and zeros, behind the point; intervals of
    # exponents (``_interval``), and the digits of mantissas before these.
    free = np.full(most_decimals + 1, -1, np.int32)
    zeros = np.full(most_decimals + 1, -1, np.int32)
    intervals = np.zeros(1 + 3 * INTERVALS * parts, np.int64)
    behind = np.full((INTERVALS * parts, mantissa_digits + 1), -1, np.int32)
    starts = np.full(3, -1, np.int64)
    starts[0] = START
    at = np.int64(0)
    while at < ops.size:
        sign = ops[at + SIGN]
        if starts[sign] < 0:
            starts[sign] = new_vertex(counts)
            move(moves, counts, START, 0x2D2D, starts[sign])
            if sign == 2:
                move(moves, counts, START, EPSILON, starts[sign])
        if ops[at + KIND] == PLAIN:
            write_plain(ops, at, starts[sign], most_digits, most_zeros, free, zeros, moves, counts)
        else:
            write_scientific(
                ops, at, starts[sign], least_exponent, mantissa_digits, intervals, behind, moves, counts
            )
        at += _length(at, ops)
    if counts[0] > moves.size:
        return np.empty(0, np.int32), np.int64(-1)
    if not _derives(counts[0], counts[1], moves):
        return np.empty(0, np.int32), np.int64(0)
    return moves[: counts[0]].copy(), np.int64(counts[1])
