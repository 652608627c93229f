"""Hash tables that grow by small steps, so that no request waits while one is doubled.

A table of ``size`` slots (a power of two) is ``table[size : 2 * size]`` of an array that has room for the
next, ``table[2 * size : 4 * size]``. While the last eighth before a table is half full is entered, the next
one is cleared, then filled, a few slots with each entry; then it is used, and nothing was copied at once.
(Litwin's linear hashing, 1980, splits buckets one by one for the same end, and needs chains for it.)

Two kinds: tables of numbers, whose entries' codes lie elsewhere; and tables of records, ``width`` int64 in a
slot, of which the first is the key. Slots are probed one after another; -1 is an empty one.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.memory import mixed, set_all, with_room

_int = types.int64
_records = types.int64[::1]

#: Slots that are cleared, and slots that are moved, with each entry.
CLEARED, MOVED = 32, 16
#: The least size that the steps come out even with.
LEAST = 64


@jit()
def begin_larger(table, width, size, count):
    """``table``, with room for the next one if its making begins with the entry after ``count`` others."""
    return with_room(table, 4 * width * size) if count == 3 * (size >> 3) else table


@jit()
def step_numbers(table, size, codes, stride, count, number):
    """A step towards the next table of numbers; the size to use from now on.

    Args:
        table: after ``begin_larger``. codes: the low bits of ``codes[stride * n]`` are the code of number n.
        count: the entries before this one. number: what was entered into ``table``.
    """
    begin = 3 * (size >> 3)
    half = 7 * (size >> 4)
    if count < begin:
        return size
    if count < half:
        set_all(table, 2 * size + CLEARED * (count - begin), CLEARED)
        return size
    mask = 2 * size - 1
    low = size + MOVED * (count - half)
    for k in range(low, low + MOVED + 1):
        moving = np.int64(table[k]) if k < low + MOVED else np.int64(number)
        if moving < 0:
            continue
        slot = np.int64(codes[stride * moving]) & mask
        while table[2 * size + slot] >= 0 and table[2 * size + slot] != moving:
            slot = (slot + 1) & mask
        table[2 * size + slot] = moving
    return 2 * size if 2 * (count + 1) >= size else size


@jit(_int(_records, _int, _int, _int), apart=True)
def slot_of(table, width, size, key):
    """Where the record of ``key`` is, or the empty slot (-1) that it would be in."""
    mask = size - 1
    slot = np.int64(mixed(key, np.int64(0)) & np.uint64(mask))
    place = width * (size + slot)
    while table[place] >= 0 and table[place] != key:
        slot = (slot + 1) & mask
        place = width * (size + slot)
    return place


@jit(_int(_records, _int, _int, _int, _int), apart=True)
def step_records(table, width, size, count, place):
    """``step_numbers`` for a table of records; ``place``: where the new one begins."""
    begin = 3 * (size >> 3)
    half = 7 * (size >> 4)
    if count < begin:
        return size
    if count < half:
        set_all(table, width * (2 * size + CLEARED * (count - begin)), width * CLEARED)
        return size
    low = size + MOVED * (count - half)
    for k in range(low, low + MOVED + 1):
        origin = width * k if k < low + MOVED else place
        if table[origin] >= 0:
            target = slot_of(table, width, 2 * size, table[origin])
            for j in range(width):
                table[target + j] = table[origin + j]
    return 2 * size if 2 * (count + 1) >= size else size
