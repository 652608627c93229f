"""Tier 2: the finished mask of a configuration, from tier 1 and what lies below on the stacks.

A mask is keyed by its pairs (tier-1 record, stack below): configurations that differ only in what no
token can see (a count far from its limits) share it. It is kept as a dense row that may belong to
tier 1, and a list of further token ids; most masks have no row of their own.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import (
    BOTTOM,
    DEAD,
    UNKNOWN,
    arena_type,
    with_room,
)
from vllm_guided.runtime.collecting import begin, return_to
from vllm_guided.runtime.configurations import close, plain, step
from vllm_guided.runtime.stacks import hashed, mixed, sort_keys
from vllm_guided.runtime.tier1 import new_row, rebased, tier1

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]

#: A mask with more ids than this besides its row gets a row of its own.
EXTRA_LIMIT = 512


@jit(types.UniTuple(_int, 2)(
    _int, _int, _int, _bytes, _ints, _ints, _ints, _ints, _ints, _ints, _bytes, _ints, _ints, _ints,
))  # fmt: skip
def _run_known(
    node, past, used, suffix_byte, suffix_depth, suffix_next, suffix_ids, suffix_id_count, ids, moves,
    classes, config_row, config_map, path,
):  # fmt: skip
    """Run suffix nodes through known transitions, allowed ids to ``ids[used:]``.

    Returns the node where a transition or room for ids is missing (or ``past``) and the new ``used``.
    """
    start = np.int64(path[0])
    while node < past:
        depth = suffix_depth[node]
        origin = path[depth + 1]
        row = np.int64(config_row[origin])
        if row < 0:
            break
        target = moves[row + classes[256 * np.int64(config_map[origin]) + suffix_byte[node]]]
        if target < 0:
            break
        if target == DEAD:
            node = start + suffix_next[node]
            continue
        count = np.int64(suffix_id_count[node])
        if used + count > ids.size:
            break
        path[depth + 2] = target
        first = np.int64(suffix_ids[node])
        for k in range(count):
            ids[used + k] = ids[first + k]
        used += count
        node += 1
    return node, used


@jit(types.void(arena_type, _int, _int), apart=True)
def _run_suffixes(arena, record, stack):
    """Append to ``ids`` the tokens of ``record`` whose rest the real ``stack`` allows."""
    count = np.int64(arena.tier1_suffix_count[record])
    if count == 0 or stack in (BOTTOM, UNKNOWN):
        return
    begin(arena)
    return_to(arena, stack)
    arena.tape = np.int64(0)
    config = plain(arena, close(arena, np.int64(0)))
    if config == DEAD:
        return
    node = np.int64(arena.tier1_suffix[record])
    past = node + count
    # path[0] holds where the trie begins, path[1] the configuration at its root, and so on.
    path = arena.path
    path[0] = node
    path[1] = config
    while True:
        node, used = _run_known(
            node, past, arena.id_count, arena.suffix_byte, arena.suffix_depth, arena.suffix_next,
            arena.suffix_ids, arena.suffix_id_count, arena.ids, arena.next, arena.map_class,
            arena.config_row, arena.config_map, path,
        )  # fmt: skip
        arena.id_count = used
        if node >= past:
            return
        arena.ids = with_room(arena.ids, used + np.int64(arena.suffix_id_count[node]))
        step(arena, np.int64(path[arena.suffix_depth[node] + 1]), np.int64(arena.suffix_byte[node]))


@jit(types.boolean(_ints, _int, _int))
def any_bit(rows, place, words):
    """Whether any bit of ``rows[place : place + words]`` is set."""
    bits = np.int32(0)
    for word in range(place, place + words):
        bits |= rows[word]
    return bits != 0


@jit(_int(arena_type, types.int64[::1], _int), apart=True)
def _make(arena, pairs, count):
    words = arena.words
    ids = arena.id_count
    dense = np.int64(-1)
    dense_count = 0
    for k in range(count):
        record = pairs[k] >> 32
        _run_suffixes(arena, record, pairs[k] & 0xFFFFFFFF)
        if arena.tier1_row[record] >= 0:
            dense = np.int64(arena.tier1_row[record])
            dense_count += 1
    if count == 1 and dense < 0 and arena.id_count == ids:
        # Only a list of tier 1: share it.
        record = pairs[0] >> 32
        ids = np.int64(arena.tier1_ids[record])
        id_count = np.int64(arena.tier1_id_count[record])
    else:
        for k in range(count):
            record = pairs[k] >> 32
            here = np.int64(arena.tier1_id_count[record])
            used = arena.id_count
            arena.ids = with_room(arena.ids, used + here)
            first = np.int64(arena.tier1_ids[record])
            for j in range(here):
                arena.ids[used + j] = arena.ids[first + j]
            arena.id_count = used + here
        id_count = arena.id_count - ids
    has_own = dense_count > 1 or id_count > EXTRA_LIMIT
    if has_own:
        own = new_row(arena)
        rows = arena.rows
        place = own * words
        for w in range(words):
            rows[place + w] = 0
        for k in range(count):
            source = np.int64(arena.tier1_row[pairs[k] >> 32])
            if source >= 0:
                source *= words
                for w in range(words):
                    rows[place + w] |= rows[source + w]
        for k in range(ids, ids + id_count):
            token = arena.ids[k]
            rows[place + (token >> 5)] |= np.int32(1) << np.int32(token & 31)
        # The ids are in the row now, and they are the last ones: take them back.
        if ids + id_count == arena.id_count:
            arena.id_count = ids
        dense = own
        id_count = np.int64(0)
    number = arena.mask_count
    used = np.int64(arena.mask_offsets[number])
    arena.mask_offsets = with_room(arena.mask_offsets, number + 2)
    arena.mask_pairs = with_room(arena.mask_pairs, used + 2 * count)
    arena.mask_row = with_room(arena.mask_row, number + 1)
    arena.mask_ids = with_room(arena.mask_ids, number + 1)
    arena.mask_id_count = with_room(arena.mask_id_count, number + 1)
    arena.mask_any = with_room(arena.mask_any, number + 1)
    arena.mask_own = with_room(arena.mask_own, number + 1)
    for k in range(count):
        arena.mask_pairs[used + 2 * k] = pairs[k] >> 32
        arena.mask_pairs[used + 2 * k + 1] = pairs[k] & 0xFFFFFFFF
    arena.mask_offsets[number + 1] = used + 2 * count
    arena.mask_row[number] = dense
    arena.mask_ids[number] = ids
    arena.mask_id_count[number] = id_count
    arena.mask_own[number] = has_own
    arena.mask_any[number] = id_count > 0 or (dense >= 0 and any_bit(arena.rows, dense * words, words))
    arena.mask_count = number + 1
    return number


@jit(types.void(arena_type))
def _rehash(arena):
    table = np.full(2 * arena.mask_table.size, -1, np.int32)
    size = np.uint64(table.size - 1)
    for number in range(arena.mask_count):
        first = arena.mask_offsets[number]
        count = (arena.mask_offsets[number + 1] - first) >> 1
        code = mixed(np.int64(7), np.int64(count))
        for k in range(count):
            pair = np.int64(arena.mask_pairs[first + 2 * k]) << 32 | np.int64(
                arena.mask_pairs[first + 2 * k + 1]
            )
            code = mixed(np.int64(code >> np.uint64(1)), pair)
        slot = np.int64(code & size)
        while table[slot] >= 0:
            slot = (slot + 1) & np.int64(size)
        table[slot] = number
    arena.mask_table = table


@jit(_int(arena_type, _int), apart=True)
def mask_of(arena, config):
    """The mask of a configuration that compares no distinct items, made on first need."""
    number = np.int64(arena.config_mask[config])
    if number >= 0:
        return number
    low = np.int64(arena.config_offsets[config])
    count = np.int64(arena.config_offsets[config + 1]) - low
    most = np.int64(0)
    for k in range(low, low + count):
        stack = np.int64(arena.item_stack[k])
        most += np.int64(arena.stack_offsets[stack + 1] - arena.stack_offsets[stack]) + 1
    split = np.empty((most, 2), np.int64)
    found_pairs = np.int64(0)
    for k in range(low, low + count):
        found_pairs = rebased(
            arena, np.int64(arena.item_state[k]), np.int64(arena.item_stack[k]), split, found_pairs
        )
    count = found_pairs
    pairs = np.empty(count, np.int64)
    for k in range(count):
        record = tier1(arena, split[k, 0])
        # Where nothing of the mask depends on the stack, all stacks share it.
        below = split[k, 1] if arena.tier1_suffix_count[record] > 0 else np.int64(BOTTOM)
        pairs[k] = record << 32 | below
    sort_keys(pairs, count)
    unique = 0
    for k in range(count):
        if k == 0 or pairs[k] != pairs[k - 1]:
            pairs[unique] = pairs[k]
            unique += 1
    code = hashed(pairs, unique, np.int64(7))
    table = arena.mask_table
    size = np.uint64(table.size - 1)
    slot = np.int64(code & size)
    while table[slot] >= 0:
        found = np.int64(table[slot])
        first = arena.mask_offsets[found]
        if arena.mask_offsets[found + 1] - first == 2 * unique:
            same = True
            for k in range(unique):
                if (
                    arena.mask_pairs[first + 2 * k] != pairs[k] >> 32
                    or arena.mask_pairs[first + 2 * k + 1] != pairs[k] & 0xFFFFFFFF
                ):
                    same = False
                    break
            if same:
                arena.config_mask[config] = found
                return found
        slot = (slot + 1) & np.int64(size)
    number = _make(arena, pairs, unique)
    arena.mask_table[slot] = number
    arena.config_mask[config] = number
    if 2 * (number + 1) > arena.mask_table.size:
        _rehash(arena)
    return number
