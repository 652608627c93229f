"""Parts of a set of numbers, as numbers, and the moves that are written for them (:mod:`.number_moves`).

A part of the input is a head of ``HEAD`` numbers, then the digits of the lower and of the upper bound:

==================== =============================================================================
KIND                 PLAIN or SCIENTIFIC
SIGN                 0: without a sign, 1: with a minus, 2: either way
WHOLE                whether only zeros may stand behind the point (of the value, where it is SCIENTIFIC)
LOW_CLOSED, ...      whether the bound belongs to the set
LOW_DIGITS, ...      PLAIN: integer digits. SCIENTIFIC: digits, without zeros at either end (0: no bound)
LOW_SCALE, ...       PLAIN: fraction digits. SCIENTIFIC: the exponent of the first digit
HAS_HIGH             whether there is an upper bound (SCIENTIFIC: always)
BARE, POINTED        PLAIN: whether it may be written without a fraction, and with one
==================== =============================================================================
"""

# Compiled functions have numba signatures instead of annotations, and numba's rules for integers.
# mypy: allow-untyped-defs, disable-error-code="assignment,operator"

from __future__ import annotations

import numpy as np

from vllm_guided.numba_setup import jit

(
    KIND, SIGN, WHOLE, LOW_CLOSED, LOW_DIGITS, LOW_SCALE, HAS_HIGH, HIGH_CLOSED, HIGH_DIGITS, HIGH_SCALE,
    BARE, POINTED, HEAD,
) = range(13)  # fmt: skip
PLAIN, SCIENTIFIC = 0, 1
LESS, EQUAL, GREATER = 0, 1, 2
START, END = 0, 1


@jit()
def move(moves, counts, source, label, target):
    """``counts``: numbers in ``moves``, vertices. What has no room is counted, not written."""
    at = counts[0]
    counts[0] = at + 3
    if at + 3 <= moves.size:
        moves[at] = source
        moves[at + 1] = label
        moves[at + 2] = target


@jit()
def digits_move(moves, counts, source, first, last, target):
    """A move by the digits ``first`` to ``last``."""
    move(moves, counts, source, (0x30 + first) | (0x30 + last) << 8, target)


@jit()
def new_vertex(counts):
    counts[1] += 1
    return counts[1] - 1


@jit()
def compared(so_far, digit, other):
    if so_far != EQUAL:
        return so_far
    return np.int64(LESS) if digit < other else np.int64(GREATER) if digit > other else np.int64(EQUAL)


@jit()
def digit_of(ops, first, count, position):
    """A bound's digit; 0 beyond its end."""
    return np.int64(ops[first + position]) if position < count else np.int64(0)
