"""Tier 1: the mask of an automaton state whatever its stack, and what is left of tokens that leave it.

The token trie is walked once from (state, unknown stack). A token whose every byte is consumed is
allowed in any context. Where the frame may be left in the middle of a token (the configuration has
the ESCAPE flag), the rest of the token depends on the stack: these rests are gathered in a small trie
of suffixes, which tier 2 runs on the real stack (``masks.py``). xgrammar calls the two kinds of token
context-independent and context-dependent.

A counter that the state stands directly in is taken along: its count matters only within one token's
length of its limits, so counts are first brought to a representative, and a string of at most 100,000
characters has the masks of its last few positions and one for all others.
"""

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import (
    ESCAPE,
    UNKNOWN,
    VIRTUAL,
    arena_type,
    copy_into,
    fill_with,
    with_room,
)
from vllm_guided.runtime.configurations import add, begin, counter_of, expand, intern, push, step

_int = types.int64
_ints = types.int32[::1]

#: Up to this many allowed tokens are kept as a list of ids, more as a row of bits.
SPARSE_LIMIT = 256
#: This many counters directly above a state are taken into its mask's key.
COUNTERS_TAKEN = 4


@jit(_int(arena_type, _int))
def representative(arena, state):  # type: ignore[no-untyped-def]
    """The virtual state with the smallest count that no single token can tell from ``state``."""
    counter = counter_of(arena, state)
    base = np.int64(arena.counter_base[counter])
    least = np.int64(arena.counter_minimum[counter])
    most = np.int64(arena.counter_maximum[counter])
    reach = arena.longest_token
    count = state - base
    if most >= 0 and most - count <= reach:
        return state
    if count >= least:
        return base + least
    return base if least - count > reach else state


@jit(types.UniTuple(_int, 2)(arena_type, _int, _int))
def rebased(arena, state, stack):  # type: ignore[no-untyped-def]
    """The configuration of ``state`` over an unknown stack, and the real stack below that."""
    taken = 0
    below = stack
    while taken < COUNTERS_TAKEN and below > 1 and arena.stack_state[below] >= VIRTUAL:
        below = np.int64(arena.stack_parent[below])
        taken += 1
    base = np.int64(UNKNOWN)
    for position in range(taken - 1, -1, -1):
        place = stack
        for _ in range(position):
            place = np.int64(arena.stack_parent[place])
        base = push(arena, representative(arena, np.int64(arena.stack_state[place])), base)
    begin(arena)
    add(arena, state, base)
    return intern(arena, 0), below


@jit(types.Tuple((_int, _ints, _int))(arena_type, _int))
def _walk(arena, config):  # type: ignore[no-untyped-def]
    """Walk the trie from ``config``: set the bits of allowed tokens in ``scratch_row``.

    Returns:
        how many tokens were allowed (their ids follow ``arena.ids[:arena.id_count]`` as far as there
        are at most SPARSE_LIMIT), the trie nodes after which the frame may be left, how many those are.
    """
    trie_byte = arena.trie_byte
    trie_depth = arena.trie_depth
    trie_next = arena.trie_next
    token_start = arena.trie_token_start
    tokens = arena.trie_tokens
    row = arena.scratch_row
    arena.ids = with_room(arena.ids, arena.id_count + SPARSE_LIMIT)
    ids = arena.ids
    id_base = arena.id_count
    rows = np.empty(arena.path.size, np.int64)
    maps = np.empty(arena.path.size, np.int64)
    path = arena.path
    escapes = np.empty(64, np.int32)
    escape_count = 0
    allowed = 0
    if arena.config_row[config] < 0:
        expand(arena, config)
    path[0] = config
    rows[0] = arena.config_row[config]
    maps[0] = 256 * np.int64(arena.config_map[config])
    moves = arena.next
    classes = arena.map_class
    flags = arena.config_flags
    node = 1
    past = trie_byte.size
    while node < past:
        depth = trie_depth[node]
        byte = trie_byte[node]
        target = moves[rows[depth - 1] + classes[maps[depth - 1] + byte]]
        if target <= 0:
            if target == 0:
                node = trie_next[node]
                continue
            target = np.int32(step(arena, np.int64(path[depth - 1]), np.int64(byte)))
            moves = arena.next
            classes = arena.map_class
            flags = arena.config_flags
            if target == 0:
                node = trie_next[node]
                continue
        for k in range(token_start[node], token_start[node + 1]):
            token = tokens[k]
            row[token >> 5] |= np.int32(1) << np.int32(token & 31)
            if allowed < SPARSE_LIMIT:
                ids[id_base + allowed] = token
            allowed += 1
        if trie_next[node] > node + 1:
            if arena.config_row[target] < 0:
                expand(arena, np.int64(target))
                moves = arena.next
                classes = arena.map_class
            path[depth] = target
            rows[depth] = arena.config_row[target]
            maps[depth] = 256 * np.int64(arena.config_map[target])
            if flags[target] & ESCAPE:
                if escape_count == escapes.size:
                    escapes = with_room(escapes, escape_count + 1)
                escapes[escape_count] = node
                escape_count += 1
        node += 1
    return allowed, escapes, escape_count


@jit(types.UniTuple(_int, 2)(arena_type, _ints, _int))
def _suffixes(arena, escapes, escape_count):  # type: ignore[no-untyped-def]
    """Gather, as a trie, what is left of tokens behind each of ``escapes`` that are not allowed yet.

    Returns:
        where the trie lies in ``arena.suffix_*`` (preorder, first nodes at depth 1), and its nodes.
    """
    trie_byte = arena.trie_byte
    trie_depth = arena.trie_depth
    trie_next = arena.trie_next
    token_start = arena.trie_token_start
    tokens = arena.trie_tokens
    row = arena.scratch_row
    path = arena.path
    path_byte = arena.path_byte
    capacity = 256
    byte_of = np.empty(capacity, np.uint8)
    child = np.full(capacity, -1, np.int32)
    sibling = np.full(capacity, -1, np.int32)
    first_id = np.full(capacity, -1, np.int32)
    of_root = np.full(256, -1, np.int32)
    list_token = np.empty(256, np.int32)
    list_next = np.empty(256, np.int32)
    listed = 0
    nodes = 1
    for e in range(escape_count):
        origin = escapes[e]
        base = trie_depth[origin]
        path[0] = 0
        node = origin + 1
        past = trie_next[origin]
        while node < past:
            depth = trie_depth[node] - base
            path[depth] = -1
            path_byte[depth] = trie_byte[node]
            for k in range(token_start[node], token_start[node + 1]):
                token = tokens[k]
                if row[token >> 5] & (np.int32(1) << np.int32(token & 31)):
                    continue
                if path[depth] < 0:
                    for d in range(1, depth + 1):
                        if path[d] >= 0:
                            continue
                        parent = path[d - 1]
                        byte = path_byte[d]
                        found = of_root[byte] if parent == 0 else child[parent]
                        if parent != 0:
                            while found >= 0 and byte_of[found] != byte:
                                found = sibling[found]
                        if found < 0:
                            found = nodes
                            nodes += 1
                            if nodes > capacity:
                                grown = 2 * capacity
                                byte_of = with_room(byte_of, grown)
                                child = with_room(child, grown)
                                sibling = with_room(sibling, grown)
                                first_id = with_room(first_id, grown)
                                capacity = grown
                            byte_of[found] = byte
                            child[found] = -1
                            first_id[found] = -1
                            if parent == 0:
                                sibling[found] = -1
                                of_root[byte] = found
                            else:
                                sibling[found] = child[parent]
                                child[parent] = found
                        path[d] = found
                if listed == list_token.size:
                    list_token = with_room(list_token, 2 * listed)
                    list_next = with_room(list_next, 2 * listed)
                list_token[listed] = token
                list_next[listed] = first_id[path[depth]]
                first_id[path[depth]] = listed
                listed += 1
            node += 1
    start = arena.suffix_count
    count = nodes - 1
    arena.suffix_byte = with_room(arena.suffix_byte, start + count)
    arena.suffix_depth = with_room(arena.suffix_depth, start + count)
    arena.suffix_next = with_room(arena.suffix_next, start + count)
    arena.suffix_ids = with_room(arena.suffix_ids, start + count)
    arena.suffix_id_count = with_room(arena.suffix_id_count, start + count)
    arena.ids = with_room(arena.ids, arena.id_count + listed)
    out = start
    # Preorder by a walk with a stack of nodes still to visit; negative entries close a subtree.
    pending = np.empty(2 * nodes + 256, np.int64)
    for byte in range(256):
        if of_root[byte] < 0:
            continue
        top = 1
        pending[0] = np.int64(of_root[byte]) << 32 | 1
        while top > 0:
            top -= 1
            entry = pending[top]
            if entry < 0:
                arena.suffix_next[-entry - 1] = out - start
                continue
            node = np.int32(entry >> 32)
            depth = entry & 0xFFFFFFFF
            arena.suffix_byte[out] = byte_of[node]
            arena.suffix_depth[out] = depth
            arena.suffix_ids[out] = arena.id_count
            k = first_id[node]
            ids_here = 0
            while k >= 0:
                arena.ids[arena.id_count] = list_token[k]
                arena.id_count += 1
                ids_here += 1
                k = list_next[k]
            arena.suffix_id_count[out] = ids_here
            pending[top] = -out - 1
            top += 1
            out += 1
            below = child[node]
            while below >= 0:
                pending[top] = np.int64(below) << 32 | (depth + 1)
                top += 1
                below = sibling[below]
    arena.suffix_count = out
    return np.int64(start), np.int64(out - start)


@jit(types.void(arena_type, _int))
def _add_special(arena, config):  # type: ignore[no-untyped-def]
    """Set the bits of the special tokens that ``config`` may consume."""
    row = arena.scratch_row
    for item in range(arena.config_offsets[config], arena.config_offsets[config + 1]):
        state = arena.item_state[item]
        for k in range(arena.tok_offsets[state], arena.tok_offsets[state + 1]):
            number = arena.tok_set[k]
            for j in range(arena.set_offsets[number], arena.set_offsets[number + 1]):
                token = arena.set_tokens[j]
                row[token >> 5] |= np.int32(1) << np.int32(token & 31)


@jit(_int(arena_type))
def new_row(arena):  # type: ignore[no-untyped-def]
    """The number of a fresh row; its words are not cleared."""
    number = arena.row_count
    arena.rows = with_room(arena.rows, (number + 1) * arena.words)
    arena.row_count = number + 1
    return number


@jit(_int(arena_type, _int))
def tier1(arena, config):  # type: ignore[no-untyped-def]
    """The tier-1 record of a configuration over the unknown stack, made on first need."""
    number = np.int64(arena.config_tier1[config])
    if number >= 0:
        return number
    words = arena.words
    row = arena.scratch_row
    allowed, escapes, escape_count = _walk(arena, config)
    has_special = False
    for item in range(arena.config_offsets[config], arena.config_offsets[config + 1]):
        state = arena.item_state[item]
        has_special |= arena.tok_offsets[state + 1] > arena.tok_offsets[state]
    if has_special:
        _add_special(arena, config)
    dense = np.int64(-1)
    ids = np.int64(0)
    id_count = np.int64(0)
    if allowed > SPARSE_LIMIT or has_special:
        dense = new_row(arena)
    else:
        ids = arena.id_count
        id_count = allowed
        arena.id_count += allowed
    suffix, suffix_count = np.int64(0), np.int64(0)
    if escape_count > 0:
        suffix, suffix_count = _suffixes(arena, escapes, escape_count)
    if dense >= 0:
        copy_into(arena.rows, dense * words, row, 0, words)
        fill_with(row, 0, words, 0)
    else:
        for k in range(ids, ids + id_count):
            row[arena.ids[k] >> 5] = 0
    number = arena.tier1_count
    arena.tier1_row = with_room(arena.tier1_row, number + 1)
    arena.tier1_ids = with_room(arena.tier1_ids, number + 1)
    arena.tier1_id_count = with_room(arena.tier1_id_count, number + 1)
    arena.tier1_suffix = with_room(arena.tier1_suffix, number + 1)
    arena.tier1_suffix_count = with_room(arena.tier1_suffix_count, number + 1)
    arena.tier1_row[number] = dense
    arena.tier1_ids[number] = ids
    arena.tier1_id_count[number] = id_count
    arena.tier1_suffix[number] = suffix
    arena.tier1_suffix_count[number] = suffix_count
    arena.tier1_count = number + 1
    arena.config_tier1[config] = number
    return number
