"""Which states of a deterministic automaton accept the same strings: partition refinement by signatures.

A state's signature is what its edges say: byte ranges, adjacent ones with equivalent heads joined, with the
classes of their heads. States of a class whose signatures differ are parted until none do (Blom and Orzan,
"Distributed branching bisimulation reduction of state spaces", 2003). Only states with an edge into
a class that is new are looked at again, and of the parts of a class the largest is not new, so each
edge is looked at O(log n) times (Hopcroft 1971). Other than with refinement by single labels, ranges need
not be cut along each other.

Signatures are hashes; at the end each state is compared with one of its class, so that the classes are right
whatever the hashes are. The input must be trimmed, and the edges of a state sorted by label.
"""

# Compiled functions have numba signatures instead of annotations, and numba's rules for integers.
# mypy: allow-untyped-defs, disable-error-code="assignment,operator"

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.automaton.labels import CALL
from vllm_guided.numba_setup import jit

_ints = types.int32[::1]
_bools = types.boolean[::1]
_words = types.uint64[::1]


@jit(types.UniTuple(types.int64, 2)(types.int64, types.int64, _ints, _ints, _ints))
def _joined(k, past, labels, heads, classes):
    """The label of edge ``k`` with the ranges behind it that lead to the same class, and the next edge."""
    label = np.int64(labels[k])
    target = classes[heads[k]]
    k += 1
    while (
        k < past and labels[k] < CALL and label < CALL and classes[heads[k]] == target
        and labels[k] & 255 == (label >> 8) + 1
    ):  # fmt: skip
        label = (label & 255) | (labels[k] >> 8) << 8
        k += 1
    return label, k


@jit(types.uint64(types.int64, _ints, _ints, _ints, _ints))
def _signature(state, offsets, labels, heads, classes):
    key = np.uint64(14695981039346656037)
    k, past = np.int64(offsets[state]), np.int64(offsets[state + 1])
    while k < past:
        target = np.uint64(classes[heads[k]])
        label, k = _joined(k, past, labels, heads, classes)
        key = (key ^ (np.uint64(label) << np.uint64(32)) ^ target) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(29)
    return key


@jit(types.boolean(types.int64, types.int64, _ints, _ints, _ints, _ints))
def _alike(one, other, offsets, labels, heads, classes):
    """Whether two states make the same moves to the same classes."""
    i, i_past = np.int64(offsets[one]), np.int64(offsets[one + 1])
    j, j_past = np.int64(offsets[other]), np.int64(offsets[other + 1])
    while i < i_past and j < j_past:
        if classes[heads[i]] != classes[heads[j]]:
            return False
        first, i = _joined(i, i_past, labels, heads, classes)
        second, j = _joined(j, j_past, labels, heads, classes)
        if first != second:
            return False
    return i == i_past and j == j_past


@jit(types.void(_ints, types.int64, types.int64, _words, _ints))
def _sort_by(elements, first, past, keys, work):
    """Sort ``elements[first:past]`` by their keys."""
    if past - first > 24:
        found = np.empty(past - first, np.uint64)
        for i in range(first, past):
            found[i - first] = keys[elements[i]]
        order = np.argsort(found)
        for i in range(first, past):
            work[i] = elements[i]
        for i in range(first, past):
            elements[i] = work[first + order[i - first]]
        return
    for i in range(first + 1, past):
        element = elements[i]
        j = i - 1
        while j >= first and keys[elements[j]] > keys[element]:
            elements[j + 1] = elements[j]
            j -= 1
        elements[j + 1] = element


@jit(types.UniTuple(types.int64, 2)(
    types.int64, types.int64, types.int64, types.int64, _ints, _ints, _ints, _ints, _ints, _words, _ints,
    _ints,
))  # fmt: skip
def _parted(
    block, marked, blocks, moved_count, elements, location, classes, b_first, b_past, keys, moved, work
):
    """Part a class whose first ``marked`` elements have new keys; the numbers of classes and of ``moved``.

    The others share one key. ``moved`` gets the states whose class is new.
    """
    first, past = np.int64(b_first[block]), np.int64(b_past[block])
    if past - first == 1:
        return blocks, moved_count
    dirty = first + marked
    _sort_by(elements, first, dirty, keys, work)
    if dirty < past:
        # Those that have the others' key go next to them.
        key = keys[elements[dirty]]
        at = first
        held = 0
        for i in range(first, dirty):
            if keys[elements[i]] == key:
                work[held] = elements[i]
                held += 1
            else:
                elements[at] = elements[i]
                at += 1
        for i in range(held):
            elements[at + i] = work[i]
    largest = 0
    stays = first
    i = first
    while i < past:
        j = i + 1
        while j < dirty and keys[elements[j]] == keys[elements[i]]:
            j += 1
        if j == dirty and dirty < past and keys[elements[i]] == keys[elements[dirty]]:
            j = past
        if i >= dirty:
            j = past
        if j - i > largest:
            largest = j - i
            stays = i
        i = j
    i = first
    while i < past:
        j = i + 1
        while j < dirty and keys[elements[j]] == keys[elements[i]]:
            j += 1
        if j == dirty and dirty < past and keys[elements[i]] == keys[elements[dirty]]:
            j = past
        if i >= dirty:
            j = past
        number = np.int64(block)
        if i != stays:
            number = blocks
            blocks += 1
            for k in range(i, j):
                classes[elements[k]] = number
                moved[moved_count] = elements[k]
                moved_count += 1
        b_first[number] = i
        b_past[number] = j
        i = j
    for i in range(first, past):
        location[elements[i]] = i
    return blocks, moved_count


@jit(_ints(types.int64, _ints, _ints, _ints, _bools))
def equivalence_classes(size, offsets, labels, heads, accepting):
    """The class of each of ``size`` states; classes are numbered from 0 without gaps."""
    classes = np.zeros(size, np.int32)
    elements = np.empty(size, np.int32)
    location = np.empty(size, np.int32)
    b_first = np.zeros(size + 1, np.int32)
    b_past = np.zeros(size + 1, np.int32)
    at = 0
    blocks = 0
    for turn in range(2):
        begin = at
        for s in range(size):
            if accepting[s] == (turn == 0):
                elements[at] = s
                location[s] = at
                classes[s] = blocks
                at += 1
        if at > begin:
            b_first[blocks] = begin
            b_past[blocks] = at
            blocks += 1
    in_offsets = np.zeros(size + 1, np.int32)
    for k in range(heads.size):
        in_offsets[heads[k] + 1] += 1
    for s in range(size):
        in_offsets[s + 1] += in_offsets[s]
    fill = in_offsets.copy()
    incoming = np.empty(heads.size, np.int32)
    for s in range(size):
        for k in range(offsets[s], offsets[s + 1]):
            incoming[fill[heads[k]]] = s
            fill[heads[k]] += 1
    keys = np.zeros(size, np.uint64)
    dirty = np.arange(size).astype(np.int32)
    dirty_count = size
    stamp = np.zeros(size, np.int32)
    marked = np.zeros(size + 1, np.int32)
    touched = np.empty(size, np.int32)
    moved = np.empty(size, np.int32)
    work = np.empty(size, np.int32)
    turn = np.int32(0)
    while dirty_count > 0:
        touched_count = 0
        for i in range(dirty_count):
            s = dirty[i]
            keys[s] = _signature(np.int64(s), offsets, labels, heads, classes)
            block = classes[s]
            if marked[block] == 0:
                touched[touched_count] = block
                touched_count += 1
            place = b_first[block] + marked[block]
            other = elements[place]
            elements[location[s]] = other
            location[other] = location[s]
            elements[place] = s
            location[s] = place
            marked[block] += 1
        moved_count = np.int64(0)
        for i in range(touched_count):
            block = np.int64(touched[i])
            blocks, moved_count = _parted(
                block, np.int64(marked[block]), blocks, moved_count, elements, location, classes, b_first,
                b_past, keys, moved, work,
            )  # fmt: skip
            marked[block] = 0
        turn += np.int32(1)
        dirty_count = 0
        for i in range(moved_count):
            for k in range(in_offsets[moved[i]], in_offsets[moved[i] + 1]):
                s = incoming[k]
                if stamp[s] != turn:
                    stamp[s] = turn
                    dirty[dirty_count] = s
                    dirty_count += 1
    for s in range(size):
        speaker = np.int64(elements[b_first[classes[s]]])
        if not _alike(np.int64(s), speaker, offsets, labels, heads, classes):
            return np.arange(size).astype(np.int32)
    return classes
