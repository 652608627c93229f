"""Sets of stacks, as one interned integer each.

All stacks that a state of a configuration may stand on are kept as one set: a list, by state, of the
states on top, each with the set of stacks below it, and whether the empty stack is a member. That is
the set's trie of stacks, deterministic and hash-consed, so it is the minimal acyclic automaton of the
set (Daciuk et al. 2000): equal sets are one number, and what ambiguity multiplies is shared. The
graph-structured stack of generalised LR parsing (Tomita 1987) shares the same way, but by position
in the input, so it could not be memoised between requests.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import (
    BAG,
    BEFORE,
    BOTTOM,
    COUNTED,
    ESCAPE,
    FINAL,
    PLAIN,
    RECORDING,
    TRUE,
    UNION_DEPTH,
    UNKNOWN,
    VIRTUAL,
    arena_type,
)
from vllm_guided.runtime.hash_tables import begin_larger, slot_of, step_numbers, step_records
from vllm_guided.runtime.memory import mixed, with_room

_int = types.int64
_keys = types.int64[::1]

#: Numbers that an entry of ``union_table`` has: its key (one set << 32 | other), and their union.
UNION = 2


@jit(types.void(types.int64[::1], _int))
def sort_keys(keys, count):
    """Sort ``keys[:count]`` in place (Shell's sort with gaps of ratio 9/4; most sets have a handful)."""
    gap = 1
    while 9 * gap < 4 * count:
        gap = (9 * gap) // 4 + 1
    while gap > 0:
        for i in range(gap, count):
            key = keys[i]
            j = i - gap
            while j >= 0 and keys[j] > key:
                keys[j + gap] = keys[j]
                j -= gap
            keys[j + gap] = key
        gap = 0 if gap == 1 else max(1, (4 * gap) // 9)


@jit(types.uint64(types.int64))
def nearby(key):
    """A hash of a pair ``one << 32 | other`` that keeps pairs of near numbers in one line of memory.

    What is looked up together are mostly states that were numbered together, on stacks that were, too. A
    table's line of 64 bytes has 16 slots of 4 bytes, so the low bits of both stay side by side.
    """
    one = key >> 32
    other = key & 0xFFFFFFFF
    code = mixed(one >> 2, other >> 2) << np.uint64(4)
    return code | np.uint64((one & 3) << 2 | (other & 3))


@jit(types.uint64(_keys, _int, _int))
def hashed(keys, count, flags):
    """A hash of ``keys[:count]`` and ``flags``."""
    if count == 1 and flags == 0:
        return nearby(keys[0])
    code = mixed(flags, count)
    for k in range(count):
        code = mixed(np.int64(code >> np.uint64(1)), keys[k])
    return code


@jit(_int(arena_type, _int))
def mode_of(arena, state):
    """PLAIN, TRUE, RECORDING of a bag's situation; 0 where its items need not be distinct."""
    situation = state - BAG
    if not arena.bag_distinct[arena.situation_bag[situation]]:
        return np.int64(0)
    if arena.situation_used[situation] < 0:
        return np.int64(PLAIN)
    return np.int64(TRUE | RECORDING if arena.situation_phase[situation] > BEFORE else TRUE)


@jit(_int(arena_type, _keys, _int, _int), apart=True)
def intern_stack(arena, keys, count, flags):
    """The set with the pairs ``keys[:count]`` (state << 32 | set below, ascending) and ``flags``."""
    if count == 0:
        # The set of the empty stack, and that of the unknown one, have fixed numbers.
        if flags == FINAL:
            return np.int64(BOTTOM)
        if flags == ESCAPE:
            return np.int64(UNKNOWN)
    table = arena.stack_table
    size = arena.stack_slots
    code = np.int64(hashed(keys, count, flags) & np.uint64(0x7FFFFFFF))
    slot = size | code & (size - 1)
    checks = arena.stack_check
    check = code | flags << 31 | count << 39
    first = keys[0] if count > 0 else np.int64(-1)
    while table[slot] >= 0:
        found = np.int64(table[slot])
        if checks[2 * found] == check and checks[2 * found + 1] == first:
            if count <= 1:
                return found
            low = np.int64(arena.stack_offsets[found])
            states = arena.stack_state
            belows = arena.stack_below
            k = 1
            while k < count and np.int64(states[low + k]) << 32 | np.int64(belows[low + k]) == keys[k]:
                k += 1
            if k == count:
                return found
        slot = size | (slot + 1) & (size - 1)
    made = arena.stack_count
    used = arena.stack_size
    arena.stack_offsets = with_room(arena.stack_offsets, made + 2)
    arena.stack_flags = with_room(arena.stack_flags, made + 1)
    arena.stack_mode = with_room(arena.stack_mode, made + 1)
    arena.stack_plain = with_room(arena.stack_plain, made + 1)
    arena.stack_state = with_room(arena.stack_state, used + count)
    arena.stack_below = with_room(arena.stack_below, used + count)
    mode = np.int64(0)
    for k in range(count):
        state = keys[k] >> 32
        below = keys[k] & 0xFFFFFFFF
        arena.stack_state[used + k] = state
        arena.stack_below[used + k] = below
        mode |= np.int64(arena.stack_mode[below]) & ~COUNTED
        if state >= BAG:
            mode |= mode_of(arena, state)
        elif state >= VIRTUAL:
            mode |= COUNTED
    arena.stack_mode[made] = mode
    arena.stack_plain[made] = -1
    arena.stack_after = with_room(arena.stack_after, made + 1)
    arena.stack_after[made] = -1
    arena.stack_run = with_room(arena.stack_run, made + 1)
    arena.stack_run[made] = -1
    arena.stack_check = with_room(arena.stack_check, 2 * made + 2)
    arena.stack_check[2 * made] = check
    arena.stack_check[2 * made + 1] = first
    arena.stack_offsets[made + 1] = used + count
    arena.stack_flags[made] = flags
    arena.stack_size = used + count
    arena.stack_count = made + 1
    table[slot] = made
    if made >= 3 * (size >> 3):
        arena.stack_table = begin_larger(table, 1, size, made)
        arena.stack_slots = step_numbers(arena.stack_table, size, arena.stack_check, 2, made, made)
    return made


@jit(_int(arena_type, _int, _int))
def push(arena, state, below):
    """The set of the stacks of ``below`` with ``state`` on top."""
    arena.one_key[0] = state << 32 | below
    return intern_stack(arena, arena.one_key, 1, 0)


@jit(types.void(arena_type, _int, _int))
def _remember_union(arena, key, value):
    count = arena.union_count
    arena.union_table = begin_larger(arena.union_table, UNION, arena.union_slots, count)
    table = arena.union_table
    place = slot_of(table, np.int64(UNION), arena.union_slots, key)
    table[place] = key
    table[place + 1] = value
    arena.union_slots = step_records(table, np.int64(UNION), arena.union_slots, count, place)
    arena.union_count = count + 1


@jit(_int(arena_type, _int, _int, _int), apart=True)
def union(arena, one, other, depth):
    """The union of two sets of stacks; ``depth`` is 0 at the outermost call."""
    if one == other:
        return one
    if one > other:
        one, other = other, one
    key = one << 32 | other
    place = slot_of(arena.union_table, np.int64(UNION), arena.union_slots, key)
    if arena.union_table[place] >= 0:
        return arena.union_table[place + 1]
    if depth >= UNION_DEPTH:
        arena.overflowed += 1
        return one
    i = np.int64(arena.stack_offsets[one])
    j = np.int64(arena.stack_offsets[other])
    i_past = np.int64(arena.stack_offsets[one + 1])
    j_past = np.int64(arena.stack_offsets[other + 1])
    keys = np.empty(i_past - i + j_past - j, np.int64)
    count = 0
    while i < i_past or j < j_past:
        left = np.int64(arena.stack_state[i]) if i < i_past else np.int64(1) << 32
        right = np.int64(arena.stack_state[j]) if j < j_past else np.int64(1) << 32
        if left == right:
            below = union(arena, np.int64(arena.stack_below[i]), np.int64(arena.stack_below[j]), depth + 1)
        elif left < right:
            below = np.int64(arena.stack_below[i])
        else:
            below = np.int64(arena.stack_below[j])
        keys[count] = min(left, right) << 32 | below
        count += 1
        if left <= right:
            i += 1
        if right <= left:
            j += 1
    flags = np.int64(arena.stack_flags[one]) | np.int64(arena.stack_flags[other])
    made = intern_stack(arena, keys, count, flags)
    _remember_union(arena, key, made)
    return made


@jit(_int(arena_type, _keys, _int), apart=True)
def union_of_all(arena, sets, total):
    """The union of ``sets[:total]``, which are reordered.

    Entering many sets one by one would make, and keep, ever larger ones on the way to the last. Below their
    tops they are united one by one, since those unions are met again.
    """
    sets[:total].sort()
    count = np.int64(0)
    size = np.int64(0)
    flags = np.int64(0)
    for k in range(total):
        one = sets[k]
        if count == 0 or sets[count - 1] != one:
            sets[count] = one
            count += 1
            size += np.int64(arena.stack_offsets[one + 1] - arena.stack_offsets[one])
            flags |= np.int64(arena.stack_flags[one])
    if count == 1:
        return sets[0]
    pairs = np.empty(size, np.int64)
    used = 0
    for k in range(count):
        for j in range(arena.stack_offsets[sets[k]], arena.stack_offsets[sets[k] + 1]):
            pairs[used] = np.int64(arena.stack_state[j]) << 32 | np.int64(arena.stack_below[j])
            used += 1
    pairs.sort()
    kept = np.int64(0)
    k = 0
    while k < size:
        state = pairs[k] >> 32
        below = pairs[k] & 0xFFFFFFFF
        k += 1
        while k < size and pairs[k] >> 32 == state:
            below = union(arena, below, pairs[k] & 0xFFFFFFFF, np.int64(1))
            k += 1
        pairs[kept] = state << 32 | below
        kept += 1
    return intern_stack(arena, pairs, kept, flags)
