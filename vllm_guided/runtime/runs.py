"""Rests of tokens run on the real stacks below a frame: the tokens that go on there.

In: the number of some rests (``rests.py``) and a set of stacks. Out: a list of token ids, found once for each
pair. What is behind a frame is mostly a state that other rests, or these on other stacks, were run on: what
they come to in it whatever its stack is kept (``part_*``), as tier 1 keeps what whole tokens come to.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import BOTTOM, DEAD, SEEN, UNKNOWN, arena_type
from vllm_guided.runtime.memory import with_room
from vllm_guided.runtime.rests import make_rests
from vllm_guided.runtime.spreading import after_return, enter, enter_pair, spread
from vllm_guided.runtime.stacks import mixed

_int = types.int64


@jit(types.void(arena_type), apart=True)
def _rehash_runs(arena):
    keys = np.full(2 * arena.run_key.size, -1, np.int64)
    ids = np.empty(keys.size, np.int32)
    counts = np.empty(keys.size, np.int32)
    size = np.uint64(keys.size - 1)
    for k in range(arena.run_key.size):
        key = arena.run_key[k]
        if key < 0:
            continue
        slot = np.int64(mixed(key, np.int64(0)) & size)
        while keys[slot] >= 0:
            slot = (slot + 1) & np.int64(size)
        keys[slot] = key
        ids[slot] = arena.run_ids[k]
        counts[slot] = arena.run_id_count[k]
    arena.run_key = keys
    arena.run_ids = ids
    arena.run_id_count = counts


@jit(types.void(arena_type, _int, _int))
def follow(arena, rests, config):
    """Append to ``ids`` the tokens of ``rests`` whose rest ``config`` allows."""
    arena.escape_count = np.int64(0)
    arena.closings = np.int64(0)
    for k in range(arena.rests_large_offsets[rests], arena.rests_large_offsets[rests + 1]):
        enter(arena, np.int64(arena.level_place[arena.rests_large[k]]), config)
    spread(arena, False)
    enter(arena, np.int64(arena.rests_root[rests]), config)
    spread(arena, True)


@jit(types.void(arena_type), apart=True)
def _rehash_parts(arena):
    keys = np.full(2 * arena.part_key.size, -1, np.int64)
    ids = np.empty(keys.size, np.int32)
    counts = np.empty(keys.size, np.int32)
    rests = np.empty(keys.size, np.int32)
    size = np.uint64(keys.size - 1)
    for k in range(arena.part_key.size):
        key = arena.part_key[k]
        if key < 0:
            continue
        slot = np.int64(mixed(key, np.int64(0)) & size)
        while keys[slot] >= 0:
            slot = (slot + 1) & np.int64(size)
        keys[slot] = key
        ids[slot] = arena.part_ids[k]
        counts[slot] = arena.part_id_count[k]
        rests[slot] = arena.part_rests[k]
    arena.part_key = keys
    arena.part_ids = ids
    arena.part_id_count = counts
    arena.part_rests = rests


@jit(_int(arena_type, _int, _int), apart=True)
def _part(arena, rests, state):
    """What ``rests`` come to in ``state`` whatever the stack below: the place in ``part_*``.

    That is the tokens allowed, and rests of what goes on behind its frame (-1 if nothing does).
    """
    if 2 * (arena.part_count + 1) > arena.part_key.size:
        _rehash_parts(arena)
    key = rests << 32 | state
    size = np.uint64(arena.part_key.size - 1)
    slot = np.int64(mixed(key, np.int64(0)) & size)
    while arena.part_key[slot] >= 0:
        if arena.part_key[slot] == key:
            return slot
        slot = (slot + 1) & np.int64(size)
    first = np.int64(arena.id_count)
    arena.escape_count = np.int64(0)
    arena.closings = np.int64(0)
    for k in range(arena.rests_large_offsets[rests], arena.rests_large_offsets[rests + 1]):
        enter_pair(arena, np.int64(arena.level_place[arena.rests_large[k]]), state, np.int64(UNKNOWN))
    spread(arena, False)
    escapes = arena.escapes[: arena.escape_count].copy()
    for k in range(escapes.size):
        escapes[k] = arena.level_node[escapes[k]]
    arena.escape_count = np.int64(0)
    enter_pair(arena, np.int64(arena.rests_root[rests]), state, np.int64(UNKNOWN))
    spread(arena, True)
    suffixes = arena.escapes[: arena.escape_count].copy()
    arena.part_key[slot] = key
    arena.part_ids[slot] = first
    arena.part_id_count[slot] = arena.id_count - first
    arena.part_rests[slot] = -1
    arena.part_count += 1
    if escapes.size + suffixes.size > 0:
        escapes.sort()
        arena.part_rests[slot] = make_rests(
            arena, escapes, np.int64(escapes.size), arena.scratch_row, np.int64(0), suffixes
        )
    return slot


@jit(types.boolean(arena_type, _int))
def _all_seen(arena, config):
    """Whether rests were run on each state of ``config`` before; they are taken to be from now on."""
    seen = True
    kinds = arena.state_kind
    for item in range(arena.config_offsets[config], arena.config_offsets[config + 1]):
        state = arena.item_state[item]
        seen &= kinds[state] & SEEN != 0
        kinds[state] |= SEEN
    return seen


@jit(types.UniTuple(_int, 2)(arena_type, _int, _int), apart=True)
def run_rests(arena, rests, stack):
    """The tokens of ``rests`` whose rest ``stack`` allows: where they begin in ``ids``, and how many.

    Found once for each pair: the many states of one frame mostly have the same rests. What is behind the
    frame is mostly a state that rests were run on before, on other stacks: a separator, a closing bracket.
    Then what is known of it whatever its stack is taken, and only what goes on behind it is run on the stack.
    """
    if stack in (BOTTOM, UNKNOWN):
        return np.int64(0), np.int64(0)
    if 2 * (arena.run_count + 1) > arena.run_key.size:
        _rehash_runs(arena)
    key = rests << 32 | stack
    size = np.uint64(arena.run_key.size - 1)
    slot = np.int64(mixed(key, np.int64(0)) & size)
    while arena.run_key[slot] >= 0:
        if arena.run_key[slot] == key:
            return np.int64(arena.run_ids[slot]), np.int64(arena.run_id_count[slot])
        slot = (slot + 1) & np.int64(size)
    config = after_return(arena, stack)
    first = np.int64(arena.id_count)
    again = arena.rests_seen[rests] != 0
    arena.rests_seen[rests] = 1
    if config != DEAD and _all_seen(arena, config) and again:
        low = np.int64(arena.config_offsets[config])
        count = np.int64(arena.config_offsets[config + 1]) - low
        lists = np.empty((2 * count, 2), np.int64)
        for k in range(count):
            part = _part(arena, rests, np.int64(arena.item_state[low + k]))
            lists[2 * k, 0] = arena.part_ids[part]
            lists[2 * k, 1] = arena.part_id_count[part]
            behind = np.int64(arena.part_rests[part])
            lists[2 * k + 1, 1] = 0
            if behind >= 0:
                lists[2 * k + 1, 0], lists[2 * k + 1, 1] = run_rests(
                    arena, behind, np.int64(arena.item_stack[low + k])
                )
        total = np.int64(0)
        for k in range(2 * count):
            total += lists[k, 1]
        first = np.int64(arena.id_count)
        arena.ids = with_room(arena.ids, first + total)
        ids = arena.ids
        used = first
        for k in range(2 * count):
            for j in range(lists[k, 0], lists[k, 0] + lists[k, 1]):
                ids[used] = ids[j]
                used += 1
        arena.id_count = used
        # Others were entered meanwhile.
        size = np.uint64(arena.run_key.size - 1)
        slot = np.int64(mixed(key, np.int64(0)) & size)
        while arena.run_key[slot] >= 0:
            slot = (slot + 1) & np.int64(size)
    elif config != DEAD:
        follow(arena, rests, config)
    arena.run_key[slot] = key
    arena.run_ids[slot] = first
    arena.run_id_count[slot] = arena.id_count - first
    arena.run_count += 1
    return first, arena.id_count - first
