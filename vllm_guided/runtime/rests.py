"""What is left of tokens that leave their frame, as small tries that tier 2 runs on real stacks.

In: the trie nodes behind which a frame may be left (``escapes``). Out: a number, the *rests*: a trie of what
follows behind these nodes, for the tokens that are not allowed whatever the stack. Its nodes lie in
``suffix_*`` in preorder, the first ones at depth 0; ``rests_escapes`` keeps the nodes that it is made of.
Nodes with very many tokens behind them, as a blank, are not copied but walked where they are
(``rests_large``): most of what follows is refused at its first byte.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import BOTTOM, DEAD, UNKNOWN, arena_type
from vllm_guided.runtime.collecting import begin, return_to
from vllm_guided.runtime.configurations import close, plain, step
from vllm_guided.runtime.memory import copy_into, with_room
from vllm_guided.runtime.stacks import mixed

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]
_counts = types.int64[::1]

#: A node with at least so many tokens behind it is not copied.
LARGE = 512


@jit(types.boolean(
    _ints, _int, _bytes, _ints, _ints, _ints, _ints, _ints, _int, _ints, _bytes, _bytes, _ints, _ints, _ints,
    _ints, _ints, _ints, _counts,
))  # fmt: skip
def _gather(
    escapes, escape_count, trie_byte, trie_depth, trie_next, token_start, tokens, row, place, path, path_byte,
    byte_of, child, sibling, first_id, of_root, list_token, list_next, counts,
):  # fmt: skip
    """Insert what is left of the tokens behind ``escapes`` into a trie of linked children.

    Args:
        row: tokens allowed already, which are left out, from ``place`` on.
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
                if row[place + (token >> 5)] & (np.int32(1) << np.int32(token & 31)):
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


@jit(_int(arena_type, _ints, _int, _ints, _int), apart=True)
def make_rests(arena, escapes, escape_count, row, place):
    """Gather what is left of tokens behind each of ``escapes`` that are not in a row; the number.

    Args:
        escapes: trie nodes, ascending. row, place: an array of words, and where the row begins in it.
    """
    large = np.int64(arena.rests_large_offsets[arena.rests_count])
    few = np.empty(escape_count, np.int32)
    few_count = 0
    for k in range(escape_count):
        node = escapes[k]
        if arena.trie_token_start[arena.trie_next[node]] - arena.trie_token_start[node + 1] < LARGE:
            few[few_count] = node
            few_count += 1
        else:
            arena.rests_large = with_room(arena.rests_large, large + 1)
            arena.rests_large[large] = node
            large += 1
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
        few, np.int64(few_count), arena.trie_byte, arena.trie_depth, arena.trie_next, arena.trie_token_start,
        arena.trie_tokens, row, place, arena.path, arena.path_byte, byte_of, child, sibling,
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
    number = arena.rests_count
    used = np.int64(arena.rests_escape_offsets[number])
    arena.rests_offsets = with_room(arena.rests_offsets, number + 2)
    arena.rests_escape_offsets = with_room(arena.rests_escape_offsets, number + 2)
    arena.rests_escapes = with_room(arena.rests_escapes, used + escape_count)
    copy_into(arena.rests_escapes, used, escapes, 0, escape_count)
    arena.rests_offsets[number + 1] = past
    arena.rests_escape_offsets[number + 1] = used + escape_count
    arena.rests_large_offsets = with_room(arena.rests_large_offsets, number + 2)
    arena.rests_large_offsets[number + 1] = large
    arena.rests_count = number + 1
    return number


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


@jit(types.UniTuple(_int, 2)(
    _int, _int, _int, _int, _bytes, _ints, _ints, _ints, _ints, _ints, _ints, _bytes, _ints, _ints, _ints,
))  # fmt: skip
def _run_known_below(
    node, past, base, used, trie_byte, trie_depth, trie_next, token_start, tokens, ids, moves, classes,
    config_row, config_map, path,
):  # fmt: skip
    """``_run_known`` on the nodes of the token trie itself below one at depth ``base``."""
    while node < past:
        depth = trie_depth[node] - base
        origin = path[depth]
        row = np.int64(config_row[origin])
        if row < 0:
            break
        target = moves[row + classes[256 * np.int64(config_map[origin]) + trie_byte[node]]]
        if target < 0:
            break
        if target == DEAD:
            node = np.int64(trie_next[node])
            continue
        first = np.int64(token_start[node])
        count = np.int64(token_start[node + 1]) - first
        if used + count > ids.size:
            break
        path[depth + 1] = target
        for k in range(count):
            ids[used + k] = tokens[first + k]
        used += count
        node += 1
    return node, used


@jit(types.void(arena_type, _int, _int), apart=True)
def _run_below(arena, origin, config):
    """Append to ``ids`` the tokens below a trie node whose rest ``config`` allows."""
    path = arena.path
    path[1] = config
    base = np.int64(arena.trie_depth[origin])
    node = origin + 1
    past = np.int64(arena.trie_next[origin])
    while True:
        node, used = _run_known_below(
            node, past, base, arena.id_count, arena.trie_byte, arena.trie_depth, arena.trie_next,
            arena.trie_token_start, arena.trie_tokens, arena.ids, arena.next, arena.map_class,
            arena.config_row, arena.config_map, path,
        )  # fmt: skip
        arena.id_count = used
        if node >= past:
            return
        count = np.int64(arena.trie_token_start[node + 1] - arena.trie_token_start[node])
        arena.ids = with_room(arena.ids, used + count)
        step(arena, np.int64(path[arena.trie_depth[node] - base]), np.int64(arena.trie_byte[node]))


@jit(types.void(arena_type, _int, _int), apart=True)
def _run(arena, rests, stack):
    """Append to ``ids`` the tokens of ``rests`` whose rest the real ``stack`` allows."""
    first = np.int64(arena.rests_offsets[rests])
    past = np.int64(arena.rests_offsets[rests + 1])
    if stack in (BOTTOM, UNKNOWN):
        return
    begin(arena)
    return_to(arena, stack)
    arena.tape = np.int64(0)
    config = plain(arena, close(arena, np.int64(0)))
    if config == DEAD:
        return
    for k in range(arena.rests_large_offsets[rests], arena.rests_large_offsets[rests + 1]):
        _run_below(arena, np.int64(arena.rests_large[k]), config)
    # path[0] holds where the trie begins, path[1] the configuration at its root, and so on.
    path = arena.path
    path[0] = first
    path[1] = config
    node = first
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


@jit(types.UniTuple(_int, 2)(arena_type, _int, _int), apart=True)
def run_rests(arena, rests, stack):
    """The tokens of ``rests`` whose rest ``stack`` allows: where they begin in ``ids``, and how many.

    Found once for each pair: the many states of one frame mostly have the same rests.
    """
    if 2 * (arena.run_count + 1) > arena.run_key.size:
        _rehash_runs(arena)
    key = rests << 32 | stack
    size = np.uint64(arena.run_key.size - 1)
    slot = np.int64(mixed(key, np.int64(0)) & size)
    while arena.run_key[slot] >= 0:
        if arena.run_key[slot] == key:
            return np.int64(arena.run_ids[slot]), np.int64(arena.run_id_count[slot])
        slot = (slot + 1) & np.int64(size)
    first = arena.id_count
    _run(arena, rests, stack)
    arena.run_key[slot] = key
    arena.run_ids[slot] = first
    arena.run_id_count[slot] = arena.id_count - first
    arena.run_count += 1
    return first, arena.id_count - first
