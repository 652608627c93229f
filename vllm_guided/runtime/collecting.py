"""Collecting the (state, set of stacks) pairs of a new configuration, each state once.

In: states and stacks, one after another. Out: the arena's ``work_*`` lists, and a queue of the pairs that
are still to be closed under calls and returns (``configurations.py``).
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import ITEM_LIMIT, arena_type
from vllm_guided.runtime.memory import clear, mixed, with_room
from vllm_guided.runtime.stacks import union, union_of_all

_int = types.int64

#: To a set with so many states on top, further ones are added all at once.
WIDE = 8
#: ``work_pending``: the pair's stacks have changed since it was closed; or others were added late.
CHANGED, PERHAPS_CHANGED = 1, 2


@jit(types.void(arena_type))
def begin(arena):
    """Start collecting pairs for a new configuration."""
    arena.work_count = 0
    arena.queue_count = 0
    arena.late_count = 0
    arena.mark += 1
    if arena.mark > 2_000_000_000:
        clear(arena.seen_mark, 0, arena.seen_mark.size)
        arena.mark = 1


@jit(types.void(arena_type, _int))
def _enqueue(arena, place):
    if arena.queue_count == arena.work_queue.size:
        arena.work_queue = with_room(arena.work_queue, arena.queue_count + 1)
    arena.work_queue[arena.queue_count] = place
    arena.queue_count += 1


@jit(types.void(arena_type, _int, _int), apart=True)
def _add_late(arena, place, stack):
    """Add a set of stacks to those that ``enter_late`` will unite with the pair's at ``place``."""
    number = arena.late_count
    arena.late_stack = with_room(arena.late_stack, number + 1)
    arena.late_next = with_room(arena.late_next, number + 1)
    arena.late_stack[number] = stack
    arena.late_next[number] = arena.work_late[place]
    arena.work_late[place] = number
    arena.late_count = number + 1
    if arena.work_pending[place] == 0:
        _enqueue(arena, place)
        arena.work_pending[place] = PERHAPS_CHANGED


@jit(types.boolean(arena_type, _int), apart=True)
def enter_late(arena, place):
    """Unite the stacks of the pair at ``place`` with those added late; whether some of these were new."""
    before = np.int64(arena.work_stack[place])
    count = np.int64(1)
    late = np.int64(arena.work_late[place])
    while late >= 0:
        count += 1
        late = np.int64(arena.late_next[late])
    sets = np.empty(count, np.int64)
    sets[0] = before
    late = np.int64(arena.work_late[place])
    for k in range(1, count):
        sets[k] = arena.late_stack[late]
        late = np.int64(arena.late_next[late])
    arena.work_late[place] = -1
    arena.work_stack[place] = union_of_all(arena, sets, count)
    return arena.work_stack[place] != before


@jit(types.void(arena_type))
def enter_all_late(arena):
    """``enter_late`` for all collected pairs."""
    for place in range(arena.work_count):
        if arena.work_late[place] >= 0:
            enter_late(arena, np.int64(place))
    arena.late_count = 0


@jit(types.void(arena_type, _int, _int), apart=True)
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
            if arena.stack_offsets[before + 1] - arena.stack_offsets[before] >= WIDE:
                _add_late(arena, place, stack)
                return
            after = union(arena, before, stack, 0)
            if after != before:
                arena.work_stack[place] = after
                if arena.work_pending[place] == 0:
                    _enqueue(arena, place)
                arena.work_pending[place] = CHANGED
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
        arena.work_late = with_room(arena.work_late, count + 1)
    arena.work_state[count] = state
    arena.work_stack[count] = stack
    arena.work_late[count] = -1
    arena.work_count = count + 1
    _enqueue(arena, count)
    arena.work_pending[count] = CHANGED
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


@jit(_int(arena_type, _int), apart=True)
def return_to(arena, stack):
    """Leave the frame: add what is on top of the stacks; the flags this sets."""
    for k in range(arena.stack_offsets[stack], arena.stack_offsets[stack + 1]):
        add(arena, np.int64(arena.stack_state[k]), np.int64(arena.stack_below[k]))
    return np.int64(arena.stack_flags[stack])
