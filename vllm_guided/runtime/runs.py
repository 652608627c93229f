"""Rests of tokens run on the real stacks below a frame: the tokens that go on there.

In: the number of some rests (``rests.py``) and a set of stacks. Out: a list of token ids, found once for each
pair. What is behind a frame is mostly a state that other rests, or these on other stacks, were run on: what
they come to in it whatever its stack is kept (``parts.py``), as tier 1 keeps what whole tokens come to.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import BOTTOM, DEAD, SEEN, UNKNOWN, arena_type
from vllm_guided.runtime.hash_tables import begin_larger, slot_of, step_records
from vllm_guided.runtime.memory import copy_into, sort_unique, with_room
from vllm_guided.runtime.parts import known_part, remember_part
from vllm_guided.runtime.rests import make_rests
from vllm_guided.runtime.spreading import after_return, enter, enter_state, spread

_int = types.int64


#: Numbers that an entry of ``run_table`` has: its key (rests << 32 | stack), and where its ids begin << 32 |
#: how many they are.
RUN = 2
#: The first runs on a stack are a list: ``run_entry`` has of each its rests << 32 | the next one, and ids.
LISTED = 8


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


@jit(_int(arena_type, _int, _int), apart=True)
def _part(arena, rests, state):
    """What ``rests`` come to in ``state`` whatever the stack below: the place in ``part_entry``.

    That is the tokens allowed, and rests of what goes on behind its frame (-1 if nothing does).
    """
    known = known_part(arena, rests, state)
    if known >= 0:
        return known
    first = np.int64(arena.id_count)
    arena.closings = np.int64(0)
    kept = np.int64(0)
    low = np.int64(arena.rests_large_offsets[rests])
    past = np.int64(arena.rests_large_offsets[rests + 1])
    if low < past:
        arena.escape_count = np.int64(0)
        for k in range(low, past):
            enter_state(arena, np.int64(arena.level_place[arena.rests_large[k]]), state)
        spread(arena, False)
        kept = np.int64(arena.escape_count)
        arena.kept_escapes = with_room(arena.kept_escapes, kept)
        for k in range(kept):
            arena.kept_escapes[k] = arena.level_node[arena.escapes[k]]
        kept = sort_unique(arena.kept_escapes, kept, arena.trie_byte.size)
    arena.escape_count = np.int64(0)
    enter_state(arena, np.int64(arena.rests_root[rests]), state)
    spread(arena, True)
    allowed = arena.id_count - first
    count = np.int64(arena.escape_count)
    behind = np.int64(-1)
    if kept + count > 0:
        suffixes = arena.escapes[:count]
        suffixes.sort()
        behind = make_rests(arena, arena.kept_escapes, kept, arena.scratch_row, np.int64(0), suffixes)
    return remember_part(arena, rests, state, first << 32 | allowed, behind)


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


@jit(_int(arena_type, _int, _int))
def _known_run(arena, rests, stack):
    """Where the ids of a run begin << 32 | how many they are; -1 where it was not made.

    Mostly the stack is new, so that its list is empty, which costs no look into a large table.
    """
    entry = np.int64(arena.stack_run[stack])
    length = 0
    while entry >= 0:
        head = arena.run_entry[2 * entry]
        if head >> 32 == rests:
            return arena.run_entry[2 * entry + 1]
        entry = np.int64(np.int32(head & 0xFFFFFFFF))
        length += 1
    if length < LISTED:
        return np.int64(-1)
    place = slot_of(arena.run_table, np.int64(RUN), arena.run_slots, rests << 32 | stack)
    return arena.run_table[place + 1] if arena.run_table[place] >= 0 else np.int64(-1)


@jit(types.void(arena_type, _int, _int, _int), apart=True)
def _remember_run(arena, rests, stack, ids):
    """Enter a run: into the list of its stack, or, where that is long, into the table."""
    length = 0
    entry = np.int64(arena.stack_run[stack])
    while entry >= 0 and length < LISTED:
        entry = np.int64(np.int32(arena.run_entry[2 * entry] & 0xFFFFFFFF))
        length += 1
    if length < LISTED:
        number = arena.run_count
        arena.run_entry = with_room(arena.run_entry, 2 * (number + 1))
        arena.run_entry[2 * number] = rests << 32 | (np.int64(arena.stack_run[stack]) & 0xFFFFFFFF)
        arena.run_entry[2 * number + 1] = ids
        arena.stack_run[stack] = number
        arena.run_count = number + 1
        return
    count = arena.run_rest_count
    arena.run_table = begin_larger(arena.run_table, RUN, arena.run_slots, count)
    table = arena.run_table
    place = slot_of(table, np.int64(RUN), arena.run_slots, rests << 32 | stack)
    table[place] = rests << 32 | stack
    table[place + 1] = ids
    arena.run_slots = step_records(table, np.int64(RUN), arena.run_slots, count, place)
    arena.run_rest_count = count + 1


@jit(_int(arena_type, _int, _int), apart=True)
def _once(arena, first, past):
    """Keep each of ``ids[first:past]`` once; the new end. (Ambiguous grammars find tokens many times.)"""
    ids = arena.ids
    row = arena.node_row
    used = first
    for k in range(first, past):
        token = ids[k]
        bit = np.int32(1) << np.int32(token & 31)
        if row[token >> 5] & bit == 0:
            row[token >> 5] |= bit
            ids[used] = token
            used += 1
    for k in range(first, used):
        row[ids[k] >> 5] = 0
    return used


@jit(types.UniTuple(_int, 2)(arena_type, _int, _int), apart=True)
def run_rests(arena, rests, stack):
    """The tokens of ``rests`` whose rest ``stack`` allows: where they begin in ``ids``, and how many.

    Found once for each pair: the many states of one frame mostly have the same rests. What is behind the
    frame is mostly a state that rests were run on before, on other stacks: a separator, a closing bracket.
    Then what is known of it whatever its stack is taken, and only what goes on behind it is run on the stack.
    """
    if stack in (BOTTOM, UNKNOWN):
        return np.int64(0), np.int64(0)
    known = _known_run(arena, rests, stack)
    if known >= 0:
        return known >> 32, known & 0xFFFFFFFF
    config = after_return(arena, stack)
    first = np.int64(arena.id_count)
    again = arena.rests_seen[rests] != 0
    arena.rests_seen[rests] = 1
    if config != DEAD and _all_seen(arena, config) and again:
        low = np.int64(arena.config_offsets[config])
        lists = 2 * (np.int64(arena.config_offsets[config + 1]) - low)
        # Of each list, where it begins << 32 | how many it has; runs inside of this one write behind it.
        base = np.int64(arena.run_top)
        arena.run_work = with_room(arena.run_work, base + lists)
        arena.run_top = base + lists
        total = np.int64(0)
        for k in range(0, lists, 2):
            item = low + (k >> 1)
            part = _part(arena, rests, np.int64(arena.item_state[item]))
            found = arena.part_entry[part + 1]
            behind = np.int64(arena.part_entry[part + 2])
            more = np.int64(0)
            if behind >= 0:
                begin, count = run_rests(arena, behind, np.int64(arena.item_stack[item]))
                more = begin << 32 | count
            arena.run_work[base + k] = found
            arena.run_work[base + k + 1] = more
            total += (found & 0xFFFFFFFF) + (more & 0xFFFFFFFF)
        first = np.int64(arena.id_count)
        arena.ids = with_room(arena.ids, first + total)
        used = first
        for k in range(base, base + lists):
            count = arena.run_work[k] & 0xFFFFFFFF
            copy_into(arena.ids, used, arena.ids, arena.run_work[k] >> 32, count)
            used += count
        if total > arena.trie_tokens.size:
            used = _once(arena, first, used)
        arena.id_count = used
        arena.run_top = base
    elif config != DEAD:
        follow(arena, rests, config)
    _remember_run(arena, rests, stack, first << 32 | arena.id_count - first)
    return first, arena.id_count - first
