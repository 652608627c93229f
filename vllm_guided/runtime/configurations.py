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
    DEAD,
    ITEM_LIMIT,
    VIRTUAL,
    arena_type,
    fill_with,
    with_room,
)
from vllm_guided.runtime.stacks import hashed, mixed, push, sort_keys, union

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]


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


@jit(types.void(arena_type))
def begin(arena):
    """Start collecting pairs for a new configuration."""
    arena.work_count = 0
    arena.queue_count = 0
    arena.mark += 1
    if arena.mark > 2_000_000_000:
        fill_with(arena.seen_mark, 0, arena.seen_mark.size, 0)
        arena.mark = 1


@jit(types.void(arena_type, _int))
def _enqueue(arena, place):
    if arena.queue_count == arena.work_queue.size:
        arena.work_queue = with_room(arena.work_queue, arena.queue_count + 1)
    arena.work_queue[arena.queue_count] = place
    arena.queue_count += 1
    arena.work_pending[place] = 1


@jit(types.void(arena_type, _int, _int))
def add(arena, state, stack):
    """Add a state on a set of stacks to the configuration being collected."""
    states = arena.seen_state
    marks = arena.seen_mark
    mark = arena.mark
    size = np.uint64(states.size - 1)
    slot = np.int64(mixed(state, np.int64(0)) & size)
    while marks[slot] == mark:
        if states[slot] == state:
            place = np.int64(arena.seen_place[slot])
            before = np.int64(arena.work_stack[place])
            after = union(arena, before, stack, 0)
            if after != before:
                arena.work_stack[place] = after
                if not arena.work_pending[place]:
                    _enqueue(arena, place)
            return
        slot = (slot + 1) & np.int64(size)
    count = arena.work_count
    if count >= ITEM_LIMIT:
        arena.overflowed += 1
        return
    if count == arena.work_state.size:
        arena.work_state = with_room(arena.work_state, count + 1)
        arena.work_stack = with_room(arena.work_stack, count + 1)
        arena.work_key = with_room(arena.work_key, count + 1)
        arena.work_pending = with_room(arena.work_pending, count + 1)
    arena.work_state[count] = state
    arena.work_stack[count] = stack
    arena.work_count = count + 1
    _enqueue(arena, count)
    states[slot] = state
    arena.seen_place[slot] = count
    marks[slot] = mark
    if 2 * (count + 1) > states.size:
        states = np.empty(4 * states.size, np.int32)
        places = np.empty(states.size, np.int32)
        marks = np.zeros(states.size, np.int32)
        size = np.uint64(states.size - 1)
        for k in range(count + 1):
            slot = np.int64(mixed(np.int64(arena.work_state[k]), np.int64(0)) & size)
            while marks[slot] == mark:
                slot = (slot + 1) & np.int64(size)
            states[slot] = arena.work_state[k]
            places[slot] = k
            marks[slot] = mark
        arena.seen_state = states
        arena.seen_place = places
        arena.seen_mark = marks


@jit(_int(arena_type, _int))
def return_to(arena, stack):
    """Leave the frame: add what is on top of the stacks; the flags this sets."""
    for k in range(arena.stack_offsets[stack], arena.stack_offsets[stack + 1]):
        add(arena, np.int64(arena.stack_state[k]), np.int64(arena.stack_below[k]))
    return np.int64(arena.stack_flags[stack])


@jit(_int(arena_type))
def _close(arena):
    """Close the collected pairs under calls and returns; the flags."""
    flags = np.int64(0)
    head = 0
    while head < arena.queue_count:
        place = arena.work_queue[head]
        head += 1
        arena.work_pending[place] = 0
        state = np.int64(arena.work_state[place])
        stack = np.int64(arena.work_stack[place])
        if state >= VIRTUAL:
            counter = counter_of(arena, state)
            base = np.int64(arena.counter_base[counter])
            least = np.int64(arena.counter_minimum[counter])
            most = np.int64(arena.counter_maximum[counter])
            count = state - base
            if count >= least:
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
    return flags


@jit(types.void(arena_type))
def _rehash(arena):
    table = np.full(2 * arena.config_table.size, -1, np.int32)
    size = np.uint64(table.size - 1)
    for config in range(2, arena.config_count):
        low = arena.config_offsets[config]
        count = arena.config_offsets[config + 1] - low
        code = mixed(np.int64(arena.config_flags[config]), np.int64(count))
        for k in range(low, low + count):
            key = (np.int64(arena.item_state[k]) << 32) | np.int64(arena.item_stack[k])
            code = mixed(np.int64(code >> np.uint64(1)), key)
        slot = np.int64(code & size)
        while table[slot] >= 0:
            slot = (slot + 1) & np.int64(size)
        table[slot] = config
    arena.config_table = table


@jit(_int(arena_type, _int))
def intern(arena, flags):
    """The configuration of the collected pairs that can consume something, with ``flags``."""
    states = arena.work_state
    stacks = arena.work_stack
    keys = arena.work_key
    edge_offsets = arena.edge_offsets
    tok_offsets = arena.tok_offsets
    count = 0
    for k in range(arena.work_count):
        state = states[k]
        if state < VIRTUAL and (
            edge_offsets[state + 1] > edge_offsets[state] or tok_offsets[state + 1] > tok_offsets[state]
        ):
            keys[count] = (np.int64(state) << 32) | np.int64(stacks[k])
            count += 1
    if count == 0 and flags == 0:
        return DEAD
    sort_keys(keys, count)
    code = hashed(keys, count, flags)
    table = arena.config_table
    size = np.uint64(table.size - 1)
    slot = np.int64(code & size)
    while table[slot] >= 0:
        found = np.int64(table[slot])
        low = arena.config_offsets[found]
        if arena.config_flags[found] == flags and arena.config_offsets[found + 1] - low == count:
            same = True
            item_state = arena.item_state
            item_stack = arena.item_stack
            for k in range(count):
                if np.int64(item_state[low + k]) << 32 | np.int64(item_stack[low + k]) != keys[k]:
                    same = False
                    break
            if same:
                return found
        slot = (slot + 1) & np.int64(size)
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
    arena.item_state = with_room(arena.item_state, used + count)
    arena.item_stack = with_room(arena.item_stack, used + count)
    for k in range(count):
        arena.item_state[used + k] = keys[k] >> 32
        arena.item_stack[used + k] = keys[k] & 0xFFFFFFFF
    arena.config_offsets[made + 1] = used + count
    arena.config_flags[made] = flags
    arena.config_map[made] = -1
    arena.config_row[made] = -1
    arena.config_mask[made] = -1
    arena.config_tier1[made] = -1
    arena.config_count = made + 1
    table[slot] = made
    if 2 * (made + 1) > table.size:
        _rehash(arena)
    return made


@jit(_int(arena_type, _int))
def finish(arena, flags):
    """Close and intern the collected pairs; ``flags`` are added to those the closure finds."""
    return intern(arena, flags | _close(arena))


@jit(_int(arena_type, _int, _int))
def _byte_classes(arena, low, high):
    """The number of the map from bytes to classes between which the items' edges do not differ.

    Bytes that no edge takes are class 0 where there are any. (There are at most 256 classes then.)
    """
    bound = np.zeros(257, np.uint8)
    cover = np.zeros(257, np.int32)
    item_state = arena.item_state
    offsets = arena.edge_offsets
    edge_low = arena.edge_low
    edge_high = arena.edge_high
    for item in range(low, high):
        state = item_state[item]
        for k in range(offsets[state], offsets[state + 1]):
            first = np.int64(edge_low[k])
            past = np.int64(edge_high[k]) + 1
            bound[first] = 1
            bound[past] = 1
            cover[first] += 1
            cover[past] -= 1
    covered = 0
    gap = False
    for byte in range(256):
        covered += cover[byte]
        if covered == 0:
            gap = True
    number = arena.map_count
    if 256 * (number + 1) > arena.map_class.size:
        arena.map_class = with_room(arena.map_class, 512 * (number + 1))
        arena.map_size = with_room(arena.map_size, 2 * (number + 1))
    classes = arena.map_class[256 * number : 256 * number + 256]
    last = 0 if gap else -1
    covered = 0
    for byte in range(256):
        covered += cover[byte]
        if covered == 0:
            classes[byte] = 0
            continue
        if bound[byte] or byte == 0:
            last += 1
        classes[byte] = last
    code = np.uint64(0)
    for k in range(0, 256, 4):
        word = (
            np.int64(classes[k]) | np.int64(classes[k + 1]) << 8
            | np.int64(classes[k + 2]) << 16 | np.int64(classes[k + 3]) << 24
        )  # fmt: skip
        code = (code ^ np.uint64(word)) * np.uint64(0x9E3779B97F4A7C15)
        code ^= code >> np.uint64(32)
    table = arena.map_table
    size = np.uint64(table.size - 1)
    slot = np.int64(code & size)
    while table[slot] >= 0:
        found = np.int64(table[slot])
        if arena.map_size[found] == last + 1:
            same = True
            known = arena.map_class[256 * found : 256 * found + 256]
            for k in range(256):
                if known[k] != classes[k]:
                    same = False
                    break
            if same:
                return found
        slot = (slot + 1) & np.int64(size)
    arena.map_size[number] = last + 1
    table[slot] = number
    arena.map_count = number + 1
    if 2 * (number + 1) > table.size:
        # Maps are few; forgetting the old ones only costs a little sharing.
        arena.map_table = np.full(2 * table.size, -1, np.int32)
    return number


@jit(types.void(arena_type, _int))
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
    fill_with(arena.next, row, classes, -1)
    arena.next_count = row + classes
    arena.config_row[config] = row
    arena.config_map[config] = number


@jit(_int(arena_type, _int, _int))
def step(arena, config, byte):
    """The configuration after one more byte; DEAD where the byte breaks the constraint."""
    if arena.config_row[config] < 0:
        if config <= 1:
            return DEAD
        expand(arena, config)
    place = (
        np.int64(arena.config_row[config]) + arena.map_class[256 * np.int64(arena.config_map[config]) + byte]
    )
    known = np.int64(arena.next[place])
    if known >= 0:
        return known
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
    target = DEAD if arena.work_count == 0 else finish(arena, 0)
    arena.next[place] = target
    return target


@jit(types.UniTuple(_int, 2)(_int, _bytes, _int, _int, _ints, _bytes, _ints, _ints))
def _follow_known(config, data, low, high, moves, classes, config_row, config_map):
    """Follow known transitions over ``data[low:high]``: the configuration and where it stopped."""
    while low < high and config != DEAD:
        row = np.int64(config_row[config])
        if row < 0:
            break
        target = np.int64(moves[row + classes[256 * np.int64(config_map[config]) + data[low]]])
        if target < 0:
            break
        config = target
        low += 1
    return config, low


@jit(_int(arena_type, _int, _bytes, _int, _int))
def step_range(arena, config, data, low, high):
    """The configuration after ``data[low:high]``, or DEAD."""
    while True:
        config, low = _follow_known(
            config, data, low, high, arena.next, arena.map_class, arena.config_row, arena.config_map
        )
        if low == high or config == DEAD:
            return config
        config = step(arena, config, np.int64(data[low]))
        low += 1


@jit(_int(arena_type, _int, types.uint8[::1]))
def step_bytes(arena, config, data):
    """The configuration after ``data``, or DEAD."""
    return step_range(arena, config, data, 0, data.size)


@jit(types.boolean(arena_type, _int, _int))
def in_set(arena, number, token):
    """Whether ``token`` is in token set ``number`` (ids ascend)."""
    low = np.int64(arena.set_offsets[number])
    high = np.int64(arena.set_offsets[number + 1])
    while low < high:
        middle = (low + high) >> 1
        if arena.set_tokens[middle] < token:
            low = middle + 1
        else:
            high = middle
    return low < arena.set_offsets[number + 1] and arena.set_tokens[low] == token


@jit(_int(arena_type, _int, _int))
def step_token(arena, config, token):
    """The configuration after ``token``, as text and as a special token; DEAD if neither is allowed."""
    spelt = DEAD
    low = arena.token_offsets[token]
    high = arena.token_offsets[token + 1]
    if high > low:
        spelt = step_range(arena, config, arena.token_data, low, high)
    if arena.tok_count == 0 or config <= 1:
        return spelt
    begin(arena)
    for item in range(arena.config_offsets[config], arena.config_offsets[config + 1]):
        state = arena.item_state[item]
        for k in range(arena.tok_offsets[state], arena.tok_offsets[state + 1]):
            if in_set(arena, np.int64(arena.tok_set[k]), token):
                add(arena, np.int64(arena.tok_target[k]), np.int64(arena.item_stack[item]))
    if arena.work_count == 0:
        return spelt
    flags = np.int64(0)
    if spelt != DEAD:
        flags = np.int64(arena.config_flags[spelt])
        for item in range(arena.config_offsets[spelt], arena.config_offsets[spelt + 1]):
            add(arena, np.int64(arena.item_state[item]), np.int64(arena.item_stack[item]))
    return finish(arena, flags)
