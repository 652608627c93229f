"""The least automaton with the same language, for partial transition tables.

Comes in: targets by state and class (-1: none) and which states accept, start 0. Goes out: the same, without
states that lead nowhere, equivalent ones (:mod:`.minimise`) made one, numbered in order of first visit.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from vllm_guided.automaton.labels import CALL
from vllm_guided.automaton.minimise import equivalence_classes
from vllm_guided.numba_setup import jit

Table = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

_table = types.int32[:, ::1]
_ints = types.int32[::1]
_mask = types.boolean[::1]


def minimised(table: Table, accepting: Mask) -> tuple[Table, Mask]:
    """The minimal automaton; one state without transitions where the language is empty.

    Args:
        table: int32 [states, classes].
        accepting: bool [states].
    """
    live = productive(table, accepting)
    if not live[0]:
        return np.full((1, table.shape[1]), -1, np.int32), np.zeros(1, np.bool_)
    table = np.where((table >= 0) & live[table] & live[:, None], table, np.int32(-1))
    moves = table >= 0
    offsets = np.zeros(len(table) + 1, np.int32)
    np.cumsum(moves.sum(axis=1), out=offsets[1:])
    # Classes have no order, so they are no ranges of bytes.
    labels = (np.nonzero(moves)[1] + CALL).astype(np.int32)
    blocks = equivalence_classes(len(table), offsets, labels, table[moves], accepting)
    kept, order = numbered(table, blocks)
    return kept, accepting[order]


@jit(_mask(_table, _mask))
def productive(table, accepting):
    """The states from which an accepting one can be reached."""
    states, classes = table.shape
    offsets = np.zeros(states + 1, np.int32)
    for state in range(states):
        for label in range(classes):
            if table[state, label] >= 0:
                offsets[table[state, label] + 1] += 1
    for state in range(states):
        offsets[state + 1] += offsets[state]
    fill = offsets.copy()
    sources = np.empty(max(offsets[states], 1), np.int32)
    for state in range(states):
        for label in range(classes):
            target = table[state, label]
            if target >= 0:
                sources[fill[target]] = state
                fill[target] += 1
    live = accepting.copy()
    queue = np.empty(states, np.int32)
    count = 0
    for state in range(states):
        if live[state]:
            queue[count] = state
            count += 1
    position = 0
    while position < count:
        state = queue[position]
        position += 1
        for i in range(offsets[state], offsets[state + 1]):
            source = sources[i]
            if not live[source]:
                live[source] = True
                queue[count] = source
                count += 1
    return live


@jit(types.Tuple((_table, _ints))(_table, _ints))
def numbered(table, blocks):
    """Blocks as states, in the order in which the start meets them, and a state of each."""
    states, classes = table.shape
    numbers = np.full(states + 1, -1, np.int32)
    order = np.empty(states, np.int32)
    order[0] = 0
    numbers[blocks[0]] = 0
    count = 1
    position = 0
    result = np.full((states, classes), -1, np.int32)
    while position < count:
        state = order[position]
        for label in range(classes):
            target = table[state, label]
            if target >= 0:
                block = blocks[target]
                if numbers[block] < 0:
                    numbers[block] = count
                    order[count] = target
                    count += 1
                result[position, label] = numbers[block]
        position += 1
    return result[:count].copy(), order[:count].copy()
