"""The pairs of states that two automata reach side by side: the textbook product, as far as it is met.

In: two transition tables (-1: none) over a common refinement of their classes. Out: the product's table and
the pair behind each of its states, -1 for a side that has died.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit

_table = types.int32[:, ::1]
_ints = types.int32[::1]


@jit(types.int64(types.int64[::1], types.int64))
def _slot(keys, key):
    """Where ``key`` is in the hash table, or would go."""
    last = keys.size - 1
    i = ((key * np.int64(0x9E3779B1)) >> 7) & last
    while keys[i] >= 0 and keys[i] != key:
        i = (i + 1) & last
    return i


@jit(
    types.Tuple((_table, _ints, _ints))(
        _table, _table, _ints, _ints, types.boolean, types.boolean, types.int64
    )
)
def product(left, right, left_class, right_class, keep_left, keep_right, limit):
    """The product of ``left`` and ``right``; a table without rows if it has more than ``limit`` states.

    Args:
        left_class, right_class: int32 [classes of the product], the class of either side behind each.
        keep_left, keep_right: whether a pair matters of which only that side is alive.
    """
    classes = left_class.size
    width = np.int64(right.shape[0] + 1)
    keys = np.full(1024, -1, np.int64)
    values = np.empty(1024, np.int32)
    room = 256
    table = np.empty((room, classes), np.int32)
    lefts = np.empty(room, np.int32)
    rights = np.empty(room, np.int32)
    lefts[0] = 0
    rights[0] = 0
    first = _slot(keys, width + 1)
    keys[first] = width + 1
    values[first] = 0
    count = 1
    position = 0
    while position < count:
        a = lefts[position]
        b = rights[position]
        for label in range(classes):
            x = left[a, left_class[label]] if a >= 0 else np.int32(-1)
            y = right[b, right_class[label]] if b >= 0 else np.int32(-1)
            if (x < 0 and not keep_right) or (y < 0 and not keep_left) or (x < 0 and y < 0):
                table[position, label] = -1
                continue
            key = np.int64(x + 1) * width + np.int64(y + 1)
            slot = _slot(keys, key)
            if keys[slot] < 0:
                if count >= limit:
                    return table[:0].copy(), lefts[:0].copy(), rights[:0].copy()
                if count == room:
                    room *= 2
                    more = np.empty((room, classes), np.int32)
                    more[:count] = table
                    table = more
                    longer = np.empty(room, np.int32)
                    longer[:count] = lefts
                    lefts = longer
                    longer = np.empty(room, np.int32)
                    longer[:count] = rights
                    rights = longer
                keys[slot] = key
                values[slot] = count
                lefts[count] = x
                rights[count] = y
                count += 1
                if 2 * count > keys.size:
                    old_keys = keys
                    old_values = values
                    keys = np.full(2 * old_keys.size, -1, np.int64)
                    values = np.empty(2 * old_keys.size, np.int32)
                    for i in range(old_keys.size):
                        if old_keys[i] >= 0:
                            moved = _slot(keys, old_keys[i])
                            keys[moved] = old_keys[i]
                            values[moved] = old_values[i]
                    slot = _slot(keys, key)
            table[position, label] = values[slot]
        position += 1
    return table[:count].copy(), lefts[:count].copy(), rights[:count].copy()
