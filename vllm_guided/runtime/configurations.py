"""Configurations: what a request may be in the middle of, as one interned integer.

A configuration is the set of all (state, stack) pairs the output so far can have led to, closed under
calls (push the return state, enter the rule) and returns (the state accepts: pop), reduced to states
that can consume a byte or a token. It is kept by state, each with its set of stacks (``stacks.py``), so
it is a short list of integers, and equal ones are one. Transitions are memoised per byte class as they
are met: the lazy subset construction of Thompson's matcher, here for a pushdown automaton.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import (
    BAG,
    COUNTED,
    DEAD,
    ESCAPE,
    FINAL,
    NEVER,
    RECORDING,
    TRUE,
    UNION_DEPTH,
    VIRTUAL,
    arena_type,
)
from vllm_guided.runtime.bags import expand_bag, plain_situation
from vllm_guided.runtime.collecting import CHANGED, add, begin, enter_all_late, enter_late, return_to
from vllm_guided.runtime.hash_tables import begin_larger, step_numbers
from vllm_guided.runtime.memory import same_bytes, set_all, with_room
from vllm_guided.runtime.stacks import hashed, intern_stack, push, sort_keys, union
from vllm_guided.runtime.texts import EMPTY

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]

#: Configurations of up to so many states take the short way where no state calls or returns.
PLAIN_ITEMS = 8
#: Words of ``map_key`` for each map.
KEY = 8


@jit(_int(arena_type, _int))
def counter_of(arena, state):
    """The counter a virtual state belongs to."""
    low = 0
    high = arena.counter_count
    while high - low > 1:
        middle = (low + high) >> 1
        if arena.counter_base[middle] <= state:
            low = middle
        else:
            high = middle
    return low


@jit(_int(arena_type), apart=True)
def closure(arena):
    """Close the collected pairs under calls and returns; the flags."""
    flags = np.int64(0)
    head = 0
    while head < arena.queue_count:
        place = arena.work_queue[head]
        head += 1
        pending = arena.work_pending[place]
        arena.work_pending[place] = 0
        if arena.work_late[place] >= 0 and not enter_late(arena, np.int64(place)) and pending != CHANGED:
            continue
        state = np.int64(arena.work_state[place])
        stack = np.int64(arena.work_stack[place])
        if state >= BAG:
            flags |= expand_bag(arena, state, stack)
            continue
        if state >= VIRTUAL:
            counter = counter_of(arena, state)
            base = np.int64(arena.counter_base[counter])
            least = np.int64(arena.counter_minimum[counter])
            most = np.int64(arena.counter_maximum[counter])
            count = state - base
            if count >= least and most != NEVER:
                flags |= return_to(arena, stack)
            if most < 0 or count < most:
                after = count + 1
                if most < 0 and after > least:
                    after = least
                # After the last one the counter has nothing left to do: come back to its caller.
                below = stack if after == most else push(arena, base + after, stack)
                add(arena, np.int64(arena.counter_body[counter]), below)
            continue
        if arena.accepting[state]:
            flags |= return_to(arena, stack)
        for k in range(arena.call_offsets[state], arena.call_offsets[state + 1]):
            back = np.int64(arena.call_return[k])
            below = stack if back < 0 else push(arena, back, stack)
            add(arena, np.int64(arena.call_start[k]), below)
    arena.late_count = 0
    return flags


@jit(_int(arena_type, _int), apart=True)
def intern(arena, flags):
    """The configuration of the collected pairs that can consume something, with ``flags``."""
    if arena.late_count > 0:
        enter_all_late(arena)
    states = arena.work_state
    stacks = arena.work_stack
    keys = arena.work_key
    edge_offsets = arena.edge_offsets
    tok_offsets = arena.tok_offsets
    mode = np.int64(0)
    count = 0
    for k in range(arena.work_count):
        state = states[k]
        if state < VIRTUAL and (
            edge_offsets[state + 1] > edge_offsets[state] or tok_offsets[state + 1] > tok_offsets[state]
        ):
            keys[count] = (np.int64(state) << 32) | np.int64(stacks[k])
            mode |= np.int64(arena.stack_mode[stacks[k]])
            count += 1
    if count == 0 and flags == 0:
        return DEAD
    flags |= mode & ~COUNTED
    tape = arena.tape if mode & RECORDING else np.int64(EMPTY)
    sort_keys(keys, count)
    code = np.int64(hashed(keys, count, flags | tape << 8) & np.uint64(0x7FFFFFFF))
    table = arena.config_table
    size = arena.config_slots
    slot = size | code & (size - 1)
    checks = arena.config_check
    check = code | flags << 31 | np.int64(count) << 39
    first = keys[0] if count > 0 else np.int64(-1)
    while table[slot] >= 0:
        found = np.int64(table[slot])
        if checks[2 * found] == check and checks[2 * found + 1] == first:
            same = mode & RECORDING == 0 or arena.config_tape[found] == tape
            if count > 1:
                low = np.int64(arena.config_offsets[found])
                item_state = arena.item_state
                item_stack = arena.item_stack
                for k in range(1, count):
                    if np.int64(item_state[low + k]) << 32 | np.int64(item_stack[low + k]) != keys[k]:
                        same = False
                        break
            if same:
                return found
        slot = size | (slot + 1) & (size - 1)
    made = arena.config_count
    used = np.int64(arena.config_offsets[made])
    if made + 1 >= arena.config_flags.size:
        before = arena.config_flags.size
        arena.config_offsets = with_room(arena.config_offsets, 2 * before + 1)
        arena.config_flags = with_room(arena.config_flags, 2 * before)
        arena.config_map = with_room(arena.config_map, 2 * before)
        arena.config_row = with_room(arena.config_row, 2 * before)
        arena.config_mask = with_room(arena.config_mask, 2 * before)
        arena.config_tier1 = with_room(arena.config_tier1, 2 * before)
        arena.config_tape = with_room(arena.config_tape, 2 * before)
        arena.config_plain = with_room(arena.config_plain, 2 * before)
        arena.config_cut = with_room(arena.config_cut, 2 * before)
        arena.config_cut_count = with_room(arena.config_cut_count, 2 * before)
        arena.config_room = with_room(arena.config_room, 2 * before)
        arena.config_twin = with_room(arena.config_twin, 2 * before)
        arena.config_slack = with_room(arena.config_slack, 2 * before)
        arena.config_check = with_room(arena.config_check, 4 * before)
        arena.config_byte = with_room(arena.config_byte, 2 * before)
        arena.config_after = with_room(arena.config_after, 2 * before)
    arena.item_state = with_room(arena.item_state, used + count)
    arena.item_stack = with_room(arena.item_stack, used + count)
    for k in range(count):
        arena.item_state[used + k] = keys[k] >> 32
        arena.item_stack[used + k] = keys[k] & 0xFFFFFFFF
    arena.config_offsets[made + 1] = used + count
    arena.item_count = used + count
    arena.config_check[2 * made] = check
    arena.config_check[2 * made + 1] = first
    arena.config_flags[made] = flags
    arena.config_map[made] = -1
    arena.config_row[made] = -1
    arena.config_byte[made] = -1
    arena.config_mask[made] = -1
    arena.config_tier1[made] = -1
    arena.config_tape[made] = tape
    arena.config_plain[made] = -1
    arena.config_cut_count[made] = -1
    arena.config_room[made] = -1
    arena.config_twin[made] = -1
    arena.config_count = made + 1
    table[slot] = made
    if made >= 3 * (size >> 3):
        arena.config_table = begin_larger(table, 1, size, made)
        arena.config_slots = step_numbers(arena.config_table, size, arena.config_check, 2, made, made)
    return made


@jit(_int(arena_type, _int), apart=True)
def close(arena, flags):
    """Close and intern the collected pairs without a look at distinct items; ``flags`` are added."""
    return intern(arena, flags | closure(arena))


@jit(_int(arena_type, _int, _int), apart=True)
def _plain_stack(arena, stack, depth):
    """The set of stacks without the items used in any bag's situation."""
    if arena.stack_mode[stack] & TRUE == 0:
        return stack
    known = np.int64(arena.stack_plain[stack])
    if known >= 0:
        return known
    if depth >= UNION_DEPTH:
        arena.overflowed += 1
        return stack
    whole = intern_stack(arena, arena.one_key, 0, np.int64(arena.stack_flags[stack]))
    for k in range(arena.stack_offsets[stack], arena.stack_offsets[stack + 1]):
        top = np.int64(arena.stack_state[k])
        below = _plain_stack(arena, np.int64(arena.stack_below[k]), depth + 1)
        if top >= BAG:
            top = plain_situation(arena, top)
        whole = union(arena, whole, push(arena, top, below), 0)
    arena.stack_plain[stack] = whole
    return whole


@jit(_int(arena_type, _int), apart=True)
def plain(arena, config):
    """The configuration that compares no distinct items: what its mask is computed from."""
    if arena.config_flags[config] & TRUE == 0:
        return config
    known = np.int64(arena.config_plain[config])
    if known >= 0:
        return known
    begin(arena)
    for item in range(arena.config_offsets[config], arena.config_offsets[config + 1]):
        add(
            arena, np.int64(arena.item_state[item]),
            _plain_stack(arena, np.int64(arena.item_stack[item]), np.int64(0)),
        )  # fmt: skip
    made = intern(arena, np.int64(arena.config_flags[config]) & (FINAL | ESCAPE))
    arena.config_plain[config] = made
    return made


@jit()
def _mark_bytes(words, place, first, last):
    """Set the bits ``first`` to ``last`` of four words."""
    for word in range(first >> 6, (last >> 6) + 1):
        bits = ~np.uint64(0)
        if word == first >> 6:
            bits &= ~np.uint64(0) << np.uint64(first & 63)
        if word == last >> 6:
            bits &= ~np.uint64(0) >> np.uint64(63 - (last & 63))
        words[place + word] |= bits


@jit(_int(arena_type, _int, _int))
def _byte_classes(arena, low, high):
    """The number of the map from bytes to classes between which the items' edges do not differ.

    Bytes that no edge takes are class 0 where there are any. (There are at most 256 classes then.) A map is
    known by the bytes that some edge takes, and those of them where a class begins: KEY words of bits.
    """
    item_state = arena.item_state
    offsets = arena.edge_offsets
    edge_low = arena.edge_low
    edge_high = arena.edge_high
    number = arena.map_count
    if 256 * (number + 1) > arena.map_class.size:
        arena.map_class = with_room(arena.map_class, 512 * (number + 1))
        arena.map_size = with_room(arena.map_size, 2 * (number + 1))
        arena.map_key = with_room(arena.map_key, 2 * KEY * (number + 1))
    keys = arena.map_key
    place = KEY * number
    for k in range(place, place + KEY):
        keys[k] = 0
    for item in range(low, high):
        state = item_state[item]
        for k in range(offsets[state], offsets[state + 1]):
            first = np.int64(edge_low[k])
            last = np.int64(edge_high[k])
            _mark_bytes(keys, place, first, last)
            keys[place + 4 + (first >> 6)] |= np.uint64(1) << np.uint64(first & 63)
            if last < 255:
                past = last + 1
                keys[place + 4 + (past >> 6)] |= np.uint64(1) << np.uint64(past & 63)
    code = np.uint64(0)
    for k in range(4):
        keys[place + 4 + k] &= keys[place + k]
        code = (code ^ keys[place + k]) * np.uint64(0x9E3779B97F4A7C15)
        code ^= code >> np.uint64(32)
        code = (code ^ keys[place + 4 + k]) * np.uint64(0xC2B2AE3D27D4EB4F)
        code ^= code >> np.uint64(32)
    table = arena.map_table
    size = np.uint64(table.size - 1)
    slot = np.int64(code & size)
    while table[slot] >= 0:
        found = np.int64(table[slot])
        if same_bytes(keys, KEY * found, keys, place, np.int64(KEY)):
            return found
        slot = (slot + 1) & np.int64(size)
    classes = arena.map_class[256 * number : 256 * number + 256]
    gap = False
    for k in range(4):
        gap |= keys[place + k] != ~np.uint64(0)
    group = np.int64(0 if gap else -1)
    for byte in range(256):
        bit = np.uint64(1) << np.uint64(byte & 63)
        if keys[place + (byte >> 6)] & bit == 0:
            classes[byte] = 0
            continue
        # (Behind a gap an edge begins.)
        if keys[place + 4 + (byte >> 6)] & bit:
            group += 1
        classes[byte] = group
    arena.map_size[number] = group + 1
    table[slot] = number
    arena.map_count = number + 1
    if 2 * (number + 1) > table.size:
        # Maps are few; forgetting the old ones only costs a little sharing.
        arena.map_table = np.full(2 * table.size, -1, np.int32)
    return number


@jit(types.void(arena_type, _int), apart=True)
def expand(arena, config):
    """Give ``config`` its byte-class map and a row of transitions, none of them known yet."""
    low = np.int64(arena.config_offsets[config])
    high = np.int64(arena.config_offsets[config + 1])
    number = np.int64(-1)
    if high - low == 1:
        number = np.int64(arena.state_map[arena.item_state[low]])
    if number < 0:
        number = _byte_classes(arena, low, high)
        if high - low == 1:
            arena.state_map[arena.item_state[low]] = number
    classes = np.int64(arena.map_size[number])
    row = arena.next_count
    arena.next = with_room(arena.next, row + classes)
    set_all(arena.next, row, classes)
    arena.next_count = row + classes
    arena.config_row[config] = row
    arena.config_map[config] = number
    byte = np.int64(arena.config_byte[config])
    if byte >= 0:
        arena.next[row + arena.map_class[256 * number + byte]] = arena.config_after[config]


@jit(types.void(arena_type, _int, _int), apart=True)
def collect(arena, config, byte):
    """Collect what ``config``'s moves on ``byte`` lead to."""
    begin(arena)
    item_state = arena.item_state
    offsets = arena.edge_offsets
    edge_low = arena.edge_low
    edge_high = arena.edge_high
    for item in range(arena.config_offsets[config], arena.config_offsets[config + 1]):
        state = item_state[item]
        for k in range(offsets[state], offsets[state + 1]):
            if edge_low[k] <= byte and byte <= edge_high[k]:
                add(arena, np.int64(arena.edge_target[k]), np.int64(arena.item_stack[item]))


@jit(_int(arena_type, _int, _int), apart=True)
def place_of(arena, config, byte):
    """Where ``next`` has ``config``'s transition on ``byte``; its row is made on first need."""
    if arena.config_row[config] < 0:
        expand(arena, config)
    return (
        np.int64(arena.config_row[config]) + arena.map_class[256 * np.int64(arena.config_map[config]) + byte]
    )


@jit(types.boolean(arena_type, _int, _int), apart=True)
def collect_plain(arena, config, byte):
    """``collect`` where none of the targets calls or returns, so that they need no closing; else False.

    That is most bytes of literals, names and strings.
    """
    states = arena.work_state
    stacks = arena.work_stack
    offsets = arena.edge_offsets
    edge_low = arena.edge_low
    edge_high = arena.edge_high
    calls = arena.call_offsets
    low = np.int64(arena.config_offsets[config])
    high = np.int64(arena.config_offsets[config + 1])
    if high - low > PLAIN_ITEMS:
        return False
    count = 0
    for item in range(low, high):
        state = arena.item_state[item]
        for k in range(offsets[state], offsets[state + 1]):
            if byte < edge_low[k] or edge_high[k] < byte:
                continue
            target = arena.edge_target[k]
            if arena.accepting[target] or calls[target + 1] > calls[target] or count == PLAIN_ITEMS:
                return False
            for j in range(count):
                if states[j] == target:
                    return False
            states[count] = target
            stacks[count] = arena.item_stack[item]
            count += 1
    arena.work_count = count
    arena.queue_count = 0
    arena.late_count = 0
    return True


@jit(_int(arena_type, _int, _int), apart=True)
def step(arena, config, byte):
    """The configuration after one more byte, distinct items not compared; DEAD where the byte breaks it.

    This is the step of the walks that compute masks; outputs go by ``distinct.step_true``.
    """
    if config <= 1:
        return DEAD
    place = place_of(arena, config, byte)
    known = np.int64(arena.next[place])
    if known >= 0:
        return known
    target = DEAD
    if arena.config_flags[config] & TRUE == 0 and collect_plain(arena, config, byte):
        if arena.work_count > 0:
            arena.tape = np.int64(EMPTY)
            target = plain(arena, intern(arena, np.int64(0)))
        arena.next[place] = target
        return target
    collect(arena, config, byte)
    if arena.work_count > 0:
        arena.tape = np.int64(EMPTY)
        target = plain(arena, close(arena, np.int64(0)))
    arena.next[place] = target
    return target
