"""Writing the states of automata that need no construction, one after the other: their moves, then their end.

``counts`` are the states that a rule has so far, and all moves so far.
"""

# Compiled functions have numba signatures instead of annotations, and numba's rules for integers.
# mypy: allow-untyped-defs

from __future__ import annotations

from numba import types

from vllm_guided.automaton.labels import CALL
from vllm_guided.numba_setup import jit

COLON = 0x3A

_ints = types.int32[::1]
_bytes = types.uint8[::1]
_longs = types.int64[::1]


@jit(types.void(_longs, types.int64, types.int64, _ints, _ints))
def move(counts, label, target, labels, targets):
    labels[counts[1]] = label
    targets[counts[1]] = target
    counts[1] += 1


@jit(types.void(_longs, types.int64, types.int64, types.int64, _ints, _ints))
def bytes_move(counts, low, high, target, labels, targets):
    if low <= high:
        labels[counts[1]] = low | high << 8
        targets[counts[1]] = target
        counts[1] += 1


@jit(types.void(_longs, types.boolean, types.int64, _ints, _bytes))
def state_ends(counts, accepts, base, edge_offsets, accepting):
    """The state whose moves were written last has no more."""
    accepting[base + counts[0]] = accepts
    counts[0] += 1
    edge_offsets[base + counts[0]] = counts[1]


@jit(types.void(_longs, types.int64, types.int64, types.int64, types.int64, _ints, _ints, _ints, _bytes))
def value_states(counts, blanks, value, after, base, edge_offsets, labels, targets, accepting):
    """What follows a name: a colon with blanks around it, and the value, as four states, or as two.

    ``blanks`` (-1: none) and ``value`` are places among the callees; ``after`` is where the value leads.
    """
    colon = counts[0]
    behind = colon + 2 if blanks >= 0 else colon + 1
    bytes_move(counts, COLON, COLON, behind, labels, targets)
    if blanks >= 0:
        move(counts, CALL | blanks, colon + 1, labels, targets)
        state_ends(counts, False, base, edge_offsets, accepting)
        bytes_move(counts, COLON, COLON, behind, labels, targets)
    state_ends(counts, False, base, edge_offsets, accepting)
    if blanks >= 0:
        move(counts, CALL | blanks, behind + 1, labels, targets)
        move(counts, CALL | value, after, labels, targets)
        state_ends(counts, False, base, edge_offsets, accepting)
    move(counts, CALL | value, after, labels, targets)
    state_ends(counts, False, base, edge_offsets, accepting)
