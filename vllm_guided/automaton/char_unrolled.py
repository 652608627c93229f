"""Patterns without lookaround: counts written out, and sets of states, in compiled code.

Comes in: an expression. Goes out: its automaton as :mod:`.char_subset` makes it, or ``None`` where that is
the better way. The construction is the one of rules (:mod:`.thompson`, :mod:`.subsets`), which reads classes
of characters as it reads bytes. It does not see that counts overlap, as derivatives do, so it is for
expressions of bounded size, and gives up where there are many more sets of states than states.
"""

# Compiled functions have numba signatures instead of annotations, and numba's rules for integers.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from vllm_guided.automaton.analysis import adjacency
from vllm_guided.automaton.char_expression import (
    Alternation,
    Chars,
    Concat,
    Expression,
    Look,
    Repetition,
    length_bounds,
)
from vllm_guided.automaton.char_sets import Partition, Ranges, partition
from vllm_guided.automaton.inlining import measured
from vllm_guided.automaton.program import CHOICE, REPEAT, SEQUENCE, SET, byte_fragment
from vllm_guided.automaton.subsets import subsets
from vllm_guided.automaton.thompson import ACCEPT, START, thompson
from vllm_guided.numba_setup import jit

LARGEST = 1024
"""The size, counts written out, up to which this is the better way."""
MOST_SETS = 64
"""Sets of states that are always allowed."""
MOST_CLASSES = 256
"""Labels are ranges of bytes."""

Table = npt.NDArray[np.int32]
_ints = types.int32[::1]


def unrolled(expression: Expression, max_states: int) -> tuple[Partition, Table, set[int]] | None:
    """Classes, targets by state and class (-1: none) and accepting states; state 0 is the start."""
    sets: dict[Ranges, int] = {}
    size = _size(expression, sets)
    if size > LARGEST:
        return None
    classes, masks = partition(list(sets))
    if classes.count > MOST_CLASSES:
        return None
    ops: list[int] = []
    _write(expression, sets, ops)
    program, begins = np.array(ops, np.int32), np.zeros(1, np.int32)
    spans = [byte_fragment(mask)[1] for mask in masks]  # classes are numbers of a byte, too
    end, sizes, inline = measured(program, begins, np.ones(len(masks), np.int32), np.ones(1, np.bool_))
    edges, table, states = thompson(
        program, end, sizes, inline, np.zeros(1, np.uint8), begins,
        np.cumsum([0, *map(len, spans)], dtype=np.int32), np.zeros(len(masks), np.int32),
        np.array([number for each in spans for number in each], np.int32), False, np.empty(0, np.int32),
    )  # fmt: skip
    if states < 0:
        return None
    offsets, labels, heads, accepting, count = subsets(
        0, states, table[0, START], table[0, ACCEPT], *adjacency(states, edges), np.zeros(1, np.bool_),
        np.ones(1, np.bool_), np.empty(states + 1, np.int32), np.zeros(states + 1, np.int32),
        min(max_states, 2 * size + MOST_SETS),
    )  # fmt: skip
    if count < 0 or count > max_states:
        return None
    final = set(np.flatnonzero(accepting).tolist())
    if length_bounds(expression)[0] == 0:
        final.add(0)  # which no state leads to, then
    return classes, _rows(offsets, labels, heads, classes.count), final


def _size(expression: Expression, sets: dict[Ranges, int]) -> int:
    """How many sets of characters there are, counts written out; the different ones go into ``sets``.

    More than ``LARGEST`` where there is lookaround, which has another construction.
    """
    match expression:
        case Chars(ranges):
            sets.setdefault(ranges, len(sets))
            return 1
        case Concat(parts) | Alternation(parts):
            return sum([_size(part, sets) for part in parts])
        case Repetition(item, minimum, maximum):
            return _size(item, sets) * max(1, minimum, maximum or 0)
        case Look():
            return LARGEST + 1


def _write(expression: Expression, sets: dict[Ranges, int], ops: list[int]) -> None:
    """The expression as a program (:mod:`.program`)."""
    match expression:
        case Chars(ranges):
            ops += (SET, sets[ranges])
        case Concat(parts) | Alternation(parts):
            ops += (SEQUENCE if type(expression) is Concat else CHOICE, len(parts))
            for part in parts:
                _write(part, sets, ops)
        case Repetition(item, minimum, maximum):
            ops += (REPEAT, minimum, -1 if maximum is None else maximum)
            _write(item, sets, ops)
        case Look():
            raise AssertionError("lookaround has another construction")


@jit(types.int32[:, ::1](_ints, _ints, _ints, types.int64))
def _rows(offsets, labels, heads, classes):
    """A table of targets by state and class."""
    states = offsets.size - 1
    rows = np.full((states, classes), np.int32(-1), np.int32)
    for state in range(states):
        for k in range(offsets[state], offsets[state + 1]):
            for label in range(labels[k] & 255, (labels[k] >> 8) + 1):
                rows[state, label] = heads[k]
    return rows
