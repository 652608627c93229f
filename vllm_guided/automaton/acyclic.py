"""Which states of a deterministic automaton without cycles accept the same strings: from the ends on.

Where no string is endless (numbers, dates, lists of words), a state is looked at once all that it leads to is
known, so one look is enough: equal states are those that make equal moves (Revuz, "Minimisation of acyclic
deterministic automata in linear time", 1992, with a hash table in place of sorting).
"""

# Compiled functions have numba signatures instead of annotations, and numba's rules for integers.
# mypy: allow-untyped-defs, disable-error-code="assignment,operator"

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.automaton.minimise import _alike, _signature
from vllm_guided.numba_setup import jit

_ints = types.int32[::1]
_bools = types.boolean[::1]


@jit()
def _in_order(size, offsets, heads, order):
    """Write the states so that moves lead to later ones; False if there is a cycle (Kahn 1962).

    All states are reached from state 0.
    """
    waiting = np.zeros(size, np.int32)
    for k in range(heads.size):
        waiting[heads[k]] += 1
    if waiting[0] > 0:
        return False
    order[0] = 0
    head = 0
    tail = 1
    while head < tail:
        s = order[head]
        head += 1
        for k in range(offsets[s], offsets[s + 1]):
            t = heads[k]
            waiting[t] -= 1
            if waiting[t] == 0:
                order[tail] = t
                tail += 1
    return tail == size


@jit(types.boolean(types.int64, _ints, _ints, _ints, _bools, _ints))
def acyclic_classes(size, offsets, labels, heads, accepting, classes):
    """Write the class of each of ``size`` states, numbered from 0; False, and nothing, if there is a cycle.

    As for ``minimise.equivalence_classes``, the automaton is trimmed, and a state's edges are sorted.
    """
    order = np.empty(size, np.int32)
    if not _in_order(size, offsets, heads, order):
        return False
    slots = 16
    while slots < 2 * size:
        slots *= 2
    table = np.full(slots, -1, np.int32)  # of each class, one state
    count = 0
    for i in range(size - 1, -1, -1):
        s = np.int64(order[i])
        key = _signature(s, offsets, labels, heads, classes)
        if accepting[s]:
            key = ~key
        slot = np.int64((key ^ (key >> np.uint64(32))) & np.uint64(slots - 1))
        while True:
            other = np.int64(table[slot])
            if other < 0:
                table[slot] = s
                classes[s] = count
                count += 1
                break
            if accepting[s] == accepting[other] and _alike(s, other, offsets, labels, heads, classes):
                classes[s] = classes[other]
                break
            slot = (slot + 1) & (slots - 1)
    return True
