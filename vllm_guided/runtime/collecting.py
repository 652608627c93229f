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
from vllm_guided.runtime.stacks import union

_int = types.int64


@jit(types.void(arena_type))
def begin(arena):
    """Start collecting pairs for a new configuration."""
    arena.work_count = 0
    arena.queue_count = 0
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
    arena.work_pending[place] = 1


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


@jit(_int(arena_type, _int), apart=True)
def return_to(arena, stack):
    """Leave the frame: add what is on top of the stacks; the flags this sets."""
    for k in range(arena.stack_offsets[stack], arena.stack_offsets[stack + 1]):
        add(arena, np.int64(arena.stack_state[k]), np.int64(arena.stack_below[k]))
    return np.int64(arena.stack_flags[stack])
