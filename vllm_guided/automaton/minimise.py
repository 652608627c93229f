"""Minimisation of a partial DFA by partition refinement.

Valmari's algorithm ("Fast brief practical DFA minimization", Information Processing Letters 112,
2012): O(m log n) for m transitions, with two refinable partitions, of states and of transitions.
The input must be trimmed: every state reachable, and accepting or leading to an accepting state.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit

_ints = types.int32[::1]


@jit(types.int32(_ints, _ints, _ints, _ints, _ints, types.int32, types.int32, _ints))
def _mark(elements, location, set_of, first, marked, element, touched, work):
    s = set_of[element]
    i = location[element]
    j = first[s] + marked[s]
    elements[i] = elements[j]
    location[elements[i]] = i
    elements[j] = element
    location[element] = j
    if marked[s] == 0:
        work[touched] = s
        touched += np.int32(1)
    marked[s] += np.int32(1)
    return touched


@jit(types.int32(_ints, _ints, _ints, _ints, _ints, types.int32, types.int32, _ints))
def _split(elements, set_of, first, past, marked, sets, touched, work):
    while touched > 0:
        touched -= np.int32(1)
        s = work[touched]
        j = first[s] + marked[s]
        if j == past[s]:
            marked[s] = 0
            continue
        if marked[s] <= past[s] - j:
            first[sets] = first[s]
            past[sets] = j
            first[s] = j
        else:
            past[sets] = past[s]
            first[sets] = j
            past[s] = j
        for i in range(first[sets], past[sets]):
            set_of[elements[i]] = sets
        marked[s] = 0
        marked[sets] = 0
        sets += np.int32(1)
    return sets


@jit(_ints(types.int64, _ints, _ints, _ints, types.boolean[::1]))
def equivalence_classes(states, tails, labels, heads, accepting):
    """The class of each state, so that two states are in one class just if their languages are equal.

    Args:
        tails, labels, heads: int32 [transitions]; at most one head for each (tail, label).
        accepting: bool [states].
    """
    n = states
    m = tails.size
    # Blocks: the partition of states.
    b_elements = np.arange(n).astype(np.int32)
    b_location = np.arange(n).astype(np.int32)
    b_set = np.zeros(n, np.int32)
    b_first = np.zeros(n + 1, np.int32)
    b_past = np.zeros(n + 1, np.int32)
    b_past[0] = n
    size = max(n, m) + 1
    work = np.empty(size, np.int32)
    b_marked = np.zeros(size, np.int32)
    c_marked = np.zeros(size, np.int32)
    blocks = np.int32(1)
    touched = np.int32(0)
    for s in range(n):
        if accepting[s]:
            touched = _mark(b_elements, b_location, b_set, b_first, b_marked, np.int32(s), touched, work)
    blocks = _split(b_elements, b_set, b_first, b_past, b_marked, blocks, touched, work)
    if m == 0:
        return b_set
    # Cords: the partition of transitions, first by label.
    c_elements = np.argsort(labels, kind="mergesort").astype(np.int32)
    c_location = np.empty(m, np.int32)
    c_set = np.empty(m, np.int32)
    c_first = np.zeros(m + 1, np.int32)
    c_past = np.zeros(m + 1, np.int32)
    cords = np.int32(0)
    label = labels[c_elements[0]]
    for i in range(m):
        t = c_elements[i]
        if labels[t] != label:
            label = labels[t]
            c_past[cords] = i
            cords += np.int32(1)
            c_first[cords] = i
        c_set[t] = cords
        c_location[t] = i
    c_past[cords] = m
    cords += np.int32(1)
    # Transitions by head.
    offsets = np.zeros(n + 1, np.int32)
    for t in range(m):
        offsets[heads[t] + 1] += 1
    for s in range(n):
        offsets[s + 1] += offsets[s]
    fill = offsets.copy()
    incoming = np.empty(m, np.int32)
    for t in range(m):
        incoming[fill[heads[t]]] = t
        fill[heads[t]] += 1
    b = np.int32(1)
    c = np.int32(0)
    while c < cords:
        touched = np.int32(0)
        for i in range(c_first[c], c_past[c]):
            touched = _mark(
                b_elements, b_location, b_set, b_first, b_marked,
                tails[c_elements[i]], touched, work,
            )  # fmt: skip
        blocks = _split(b_elements, b_set, b_first, b_past, b_marked, blocks, touched, work)
        c += np.int32(1)
        while b < blocks:
            touched = np.int32(0)
            for i in range(b_first[b], b_past[b]):
                s = b_elements[i]
                for j in range(offsets[s], offsets[s + 1]):
                    touched = _mark(
                        c_elements, c_location, c_set, c_first, c_marked,
                        incoming[j], touched, work,
                    )  # fmt: skip
            cords = _split(c_elements, c_set, c_first, c_past, c_marked, cords, touched, work)
            b += np.int32(1)
    return b_set
