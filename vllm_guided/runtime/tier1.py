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

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import (
    BAG,
    DEAD,
    ESCAPE,
    UNKNOWN,
    VIRTUAL,
    arena_type,
    copy_into,
    fill_with,
    with_room,
)
from vllm_guided.runtime.collecting import add, begin
from vllm_guided.runtime.configurations import counter_of, expand, intern, step
from vllm_guided.runtime.stacks import intern_stack, push

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]
_counts = types.int64[::1]

#: Up to this many allowed tokens are kept as a list of ids, more as a row of bits.
SPARSE_LIMIT = 256
#: This many counters directly above a state are taken into its mask's key.
COUNTERS_TAKEN = 4


@jit(_int(arena_type, _int))
def representative(arena, state):
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


@jit(_int(arena_type, _int, _int))
def _over(arena, state, base):
    """The configuration of ``state`` alone on the stacks of ``base``."""
    begin(arena)
    add(arena, state, base)
    return intern(arena, 0)


@jit(_int(arena_type, _int, _int, types.int64[:, ::1], _int), apart=True)
def rebased(arena, state, stack, pairs, count):
    """Split ``state`` on ``stack`` into what tier 1 may know and the real stacks below that.

    Each pair appended to ``pairs`` from ``count`` on is a configuration over the unknown stack, and the
    set of stacks that the unknown one stands for. Together they are the same as ``state`` on ``stack``.

    Returns the new count.
    """
    low = np.int64(arena.stack_offsets[stack])
    high = np.int64(arena.stack_offsets[stack + 1])
    keys = np.empty(high - low, np.int64)
    plain = 0
    for k in range(low, high):
        top = np.int64(arena.stack_state[k])
        below = np.int64(arena.stack_below[k])
        if top < VIRTUAL or top >= BAG:
            keys[plain] = top << 32 | below
            plain += 1
            continue
        # Counters directly inside counters: taken along while each has one stack below it.
        taken = 1
        tops = np.empty(COUNTERS_TAKEN, np.int64)
        tops[0] = top
        while taken < COUNTERS_TAKEN:
            first = np.int64(arena.stack_offsets[below])
            alone = arena.stack_offsets[below + 1] - first == 1 and arena.stack_flags[below] == 0
            if not alone or not VIRTUAL <= arena.stack_state[first] < BAG:
                break
            tops[taken] = arena.stack_state[first]
            below = np.int64(arena.stack_below[first])
            taken += 1
        base = np.int64(UNKNOWN)
        for position in range(taken - 1, -1, -1):
            base = push(arena, representative(arena, tops[position]), base)
        pairs[count, 0] = _over(arena, state, base)
        pairs[count, 1] = below
        count += 1
    flags = np.int64(arena.stack_flags[stack])
    if plain > 0 or flags != 0:
        pairs[count, 0] = _over(arena, state, np.int64(UNKNOWN))
        pairs[count, 1] = stack if plain == high - low else intern_stack(arena, keys, plain, flags)
        count += 1
    return count


@jit(_int(
    _int, _bytes, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _bytes, _bytes, _ints, _ints, _ints,
    _counts, _counts, _ints, _counts,
))  # fmt: skip
def _walk_known(
    node, trie_byte, trie_depth, trie_next, token_start, tokens, row, ids, moves, classes, flags, config_row,
    config_map, path, row_at, map_at, escapes, counts,
):  # fmt: skip
    """Walk the trie from ``node`` on through known transitions; the node where one is missing, or the end.

    It takes arrays, not the arena: reading an array from a struct counts a reference, atomically, and
    in this loop that would cost many times the walk itself.

    Args:
        path: the configuration at each depth; ``row_at`` and ``map_at`` where its transitions and its
            byte classes begin, so that a node costs two dependent reads.
        row: bits to set. ids: where to list the first allowed ids.
        counts: [allowed tokens, escapes, position in ids].
    """
    past = trie_byte.size
    allowed = counts[0]
    escape_count = counts[1]
    place = counts[2]
    while node < past:
        depth = trie_depth[node]
        target = moves[row_at[depth - 1] + classes[map_at[depth - 1] + trie_byte[node]]]
        after = trie_next[node]
        if target <= 0:
            if target < 0:
                break
            node = np.int64(after)
            continue
        if after > node + 1:
            if target == path[depth - 1]:
                row_at[depth] = row_at[depth - 1]
                map_at[depth] = map_at[depth - 1]
            else:
                below = config_row[target]
                if below < 0:
                    break
                row_at[depth] = below
                map_at[depth] = 256 * np.int64(config_map[target])
            path[depth] = target
            if flags[target] & ESCAPE:
                if escape_count == escapes.size:
                    break
                escapes[escape_count] = node
                escape_count += 1
        for k in range(token_start[node], token_start[node + 1]):
            token = tokens[k]
            row[token >> 5] |= np.int32(1) << np.int32(token & 31)
            if allowed < SPARSE_LIMIT:
                ids[place + allowed] = token
            allowed += 1
        node += 1
    counts[0] = allowed
    counts[1] = escape_count
    return node


@jit(types.Tuple((_int, _ints, _int))(arena_type, _int), apart=True)
def _walk(arena, config):
    """Walk the trie from ``config``: set the bits of allowed tokens in ``scratch_row``.

    Returns:
        how many tokens were allowed (their ids follow ``arena.ids[:arena.id_count]`` as far as there
        are at most SPARSE_LIMIT), the trie nodes after which the frame may be left, how many those are.
    """
    arena.ids = with_room(arena.ids, arena.id_count + SPARSE_LIMIT)
    escapes = np.empty(64, np.int32)
    counts = np.zeros(3, np.int64)
    counts[2] = arena.id_count
    path = arena.path
    if arena.config_row[config] < 0:
        expand(arena, config)
    path[0] = config
    row_at = np.zeros(path.size, np.int64)
    map_at = np.zeros(path.size, np.int64)
    row_at[0] = arena.config_row[config]
    map_at[0] = 256 * np.int64(arena.config_map[config])
    node = np.int64(1)
    past = arena.trie_byte.size
    while True:
        node = _walk_known(
            node, arena.trie_byte, arena.trie_depth, arena.trie_next, arena.trie_token_start,
            arena.trie_tokens, arena.scratch_row, arena.ids, arena.next, arena.map_class,
            arena.config_flags, arena.config_row, arena.config_map, path, row_at, map_at, escapes, counts,
        )  # fmt: skip
        if node >= past:
            return counts[0], escapes, counts[1]
        origin = np.int64(path[arena.trie_depth[node] - 1])
        target = step(arena, origin, np.int64(arena.trie_byte[node]))
        if target != DEAD and arena.config_row[target] < 0:
            expand(arena, target)
        if counts[1] == escapes.size:
            escapes = with_room(escapes, 2 * escapes.size)


@jit(types.boolean(
    _ints, _int, _bytes, _ints, _ints, _ints, _ints, _ints, _ints, _bytes, _bytes, _ints, _ints, _ints,
    _ints, _ints, _ints, _counts,
))  # fmt: skip
def _gather(
    escapes, escape_count, trie_byte, trie_depth, trie_next, token_start, tokens, row, path, path_byte,
    byte_of, child, sibling, first_id, of_root, list_token, list_next, counts,
):  # fmt: skip
    """Insert what is left of the tokens behind ``escapes`` into a trie of linked children.

    Args:
        row: tokens allowed already, which are left out.
        counts: [nodes, listed tokens, current escape, current trie node], where to go on.

    Returns:
        True when done, False where the arrays are full (they are to be enlarged; then call again).
    """
    nodes = counts[0]
    listed = counts[1]
    node = counts[3]
    for e in range(counts[2], escape_count):
        origin = escapes[e]
        base = trie_depth[origin]
        past = trie_next[origin]
        if node < 0:
            node = np.int64(origin + 1)
            path[0] = 0
        while node < past:
            depth = trie_depth[node] - base
            first = token_start[node]
            last = token_start[node + 1]
            if nodes + depth >= child.size or listed + last - first > list_token.size:
                counts[0] = nodes
                counts[1] = listed
                counts[2] = e
                counts[3] = node
                return False
            path[depth] = -1
            path_byte[depth] = trie_byte[node]
            for k in range(first, last):
                token = tokens[k]
                if row[token >> 5] & (np.int32(1) << np.int32(token & 31)):
                    continue
                if path[depth] < 0:
                    # Nodes are made only on the way to a token that is needed.
                    for d in range(1, depth + 1):
                        if path[d] >= 0:
                            continue
                        parent = path[d - 1]
                        byte = path_byte[d]
                        found = of_root[byte] if parent == 0 else child[parent]
                        while parent != 0 and found >= 0 and byte_of[found] != byte:
                            found = sibling[found]
                        if found < 0:
                            found = np.int32(nodes)
                            nodes += 1
                            byte_of[found] = byte
                            child[found] = -1
                            first_id[found] = -1
                            if parent == 0:
                                of_root[byte] = found
                            else:
                                sibling[found] = child[parent]
                                child[parent] = found
                        path[d] = found
                list_token[listed] = token
                list_next[listed] = first_id[path[depth]]
                first_id[path[depth]] = listed
                listed += 1
            node += 1
        node = np.int64(-1)
    counts[0] = nodes
    counts[1] = listed
    return True


@jit(_int(
    _bytes, _ints, _ints, _ints, _ints, _ints, _ints, _bytes, _ints, _ints, _ints, _ints, _ints, _int, _int,
))  # fmt: skip
def _flatten(
    byte_of, child, sibling, first_id, of_root, list_token, list_next, suffix_byte, suffix_depth,
    suffix_next, suffix_ids, suffix_id_count, ids, start, used,
):  # fmt: skip
    """Lay the linked trie out in preorder from ``start`` on, its tokens in ``ids[used:]``; the new used."""
    out = start
    # Negative entries close a subtree. A node stands in the list once itself and once to be closed.
    pending = np.empty(2 * child.size + 2, np.int64)
    for byte in range(256):
        if of_root[byte] < 0:
            continue
        pending[0] = np.int64(of_root[byte]) << 32
        top = 1
        while top > 0:
            top -= 1
            entry = pending[top]
            if entry < 0:
                suffix_next[-entry - 1] = out - start
                continue
            node = entry >> 32
            depth = entry & 0xFFFFFFFF
            suffix_byte[out] = byte_of[node]
            suffix_depth[out] = depth
            suffix_ids[out] = used
            k = first_id[node]
            while k >= 0:
                ids[used] = list_token[k]
                used += 1
                k = list_next[k]
            suffix_id_count[out] = used - suffix_ids[out]
            pending[top] = -out - 1
            top += 1
            out += 1
            below = child[node]
            while below >= 0:
                pending[top] = np.int64(below) << 32 | (depth + 1)
                top += 1
                below = sibling[below]
    return used


@jit(types.UniTuple(_int, 2)(arena_type, _ints, _int), apart=True)
def _suffixes(arena, escapes, escape_count):
    """Gather, as a trie, what is left of tokens behind each of ``escapes`` that are not allowed yet.

    Returns:
        where the trie lies in ``arena.suffix_*`` (preorder, first nodes at depth 0), and its nodes.
    """
    capacity = 1024
    byte_of = np.empty(capacity, np.uint8)
    child = np.empty(capacity, np.int32)
    sibling = np.empty(capacity, np.int32)
    first_id = np.empty(capacity, np.int32)
    list_token = np.empty(capacity, np.int32)
    list_next = np.empty(capacity, np.int32)
    of_root = np.full(256, -1, np.int32)
    counts = np.array([1, 0, 0, -1], np.int64)
    while not _gather(
        escapes, escape_count, arena.trie_byte, arena.trie_depth, arena.trie_next, arena.trie_token_start,
        arena.trie_tokens, arena.scratch_row, arena.path, arena.path_byte, byte_of, child, sibling,
        first_id, of_root, list_token, list_next, counts,
    ):  # fmt: skip
        capacity = 4 * capacity
        byte_of = with_room(byte_of, capacity)
        child = with_room(child, capacity)
        sibling = with_room(sibling, capacity)
        first_id = with_room(first_id, capacity)
        list_token = with_room(list_token, capacity)
        list_next = with_room(list_next, capacity)
    start = arena.suffix_count
    past = start + counts[0] - 1
    arena.suffix_byte = with_room(arena.suffix_byte, past)
    arena.suffix_depth = with_room(arena.suffix_depth, past)
    arena.suffix_next = with_room(arena.suffix_next, past)
    arena.suffix_ids = with_room(arena.suffix_ids, past)
    arena.suffix_id_count = with_room(arena.suffix_id_count, past)
    arena.ids = with_room(arena.ids, arena.id_count + counts[1])
    arena.id_count = _flatten(
        byte_of, child, sibling, first_id, of_root, list_token, list_next, arena.suffix_byte,
        arena.suffix_depth, arena.suffix_next, arena.suffix_ids, arena.suffix_id_count, arena.ids, start,
        arena.id_count,
    )  # fmt: skip
    arena.suffix_count = past
    return np.int64(start), np.int64(past - start)


@jit(types.void(arena_type, _int))
def _add_special(arena, config):
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
def new_row(arena):
    """The number of a fresh row; its words are not cleared."""
    number = arena.row_count
    arena.rows = with_room(arena.rows, (number + 1) * arena.words)
    arena.row_count = number + 1
    return number


@jit(_int(arena_type, _int), apart=True)
def tier1(arena, config):
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
