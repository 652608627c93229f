"""What is left of tokens that leave their frame, as small tries that tier 2 runs on real stacks.

In: the trie nodes behind which a frame may be left (``escapes``). Out: a number, the *rests*: a trie of what
follows behind these nodes, for the tokens that are not allowed whatever the stack. Its nodes lie in
``suffix_*`` level by level; ``rests_escapes`` keeps the nodes that it is made of. Nodes with very many tokens
behind them, as a blank, are not copied but followed where they are (``rests_large``): most of what follows is
refused at its first byte.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import BOTTOM, DEAD, SEEN, UNKNOWN, arena_type
from vllm_guided.runtime.memory import copy_into, with_room
from vllm_guided.runtime.spreading import after_return, enter, enter_pair, spread
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


@jit(types.UniTuple(_int, 2)(_ints, _ints, _ints))
def _count_below(escapes, suffix_kids, suffix_ids):
    """How many nodes and tokens there are below nodes of the tries of rests."""
    nodes = np.int64(0)
    listed = np.int64(0)
    for e in range(escapes.size):
        # The nodes of one level below a node stand side by side.
        low = np.int64(suffix_kids[escapes[e]])
        past = np.int64(suffix_kids[escapes[e] + 1])
        while low < past:
            nodes += past - low
            listed += np.int64(suffix_ids[past] - suffix_ids[low])
            low, past = np.int64(suffix_kids[low]), np.int64(suffix_kids[past])
    return nodes, listed


@jit(types.void(
    _ints, _bytes, _ints, _ints, _ints, _bytes, _ints, _ints, _ints, _ints, _ints, _ints, _counts,
))  # fmt: skip
def _gather_suffixes(
    escapes, suffix_byte, suffix_kids, suffix_ids, ids, byte_of, child, sibling, first_id, of_root,
    list_token, list_next, counts,
):  # fmt: skip
    """``_gather`` for nodes of the tries of rests; there must be room.

    Args:
        counts: [nodes, listed tokens].
    """
    nodes = counts[0]
    listed = counts[1]
    origins = np.empty(child.size + 1, np.int64)
    made = np.empty(child.size + 1, np.int64)
    for e in range(escapes.size):
        origins[0] = escapes[e]
        made[0] = 0
        top = 1
        while top > 0:
            top -= 1
            origin = origins[top]
            parent = made[top]
            for kid in range(suffix_kids[origin], suffix_kids[origin + 1]):
                byte = suffix_byte[kid]
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
                for k in range(suffix_ids[kid], suffix_ids[kid + 1]):
                    list_token[listed] = ids[k]
                    list_next[listed] = first_id[found]
                    first_id[found] = listed
                    listed += 1
                origins[top] = kid
                made[top] = found
                top += 1
    counts[0] = nodes
    counts[1] = listed


@jit(_int(
    _bytes, _ints, _ints, _ints, _ints, _ints, _ints, _bytes, _ints, _ints, _ints, _int, _int,
))  # fmt: skip
def _flatten(
    byte_of, child, sibling, first_id, of_root, list_token, list_next, suffix_byte, suffix_kids, suffix_ids,
    ids, start, used,
):  # fmt: skip
    """Lay the linked trie out level by level, its root at ``start``, its tokens in ``ids[used:]``.

    Children stand side by side, by their bytes; one more entry ends the last node. Returns the new used.
    """
    queue = np.empty(child.size + 1, np.int32)
    queue[0] = 0
    count = 1
    suffix_ids[start] = used
    suffix_kids[start] = start + 1
    for byte in range(256):
        if of_root[byte] >= 0:
            queue[count] = of_root[byte]
            count += 1
    head = 1
    while head < count:
        node = queue[head]
        out = start + head
        suffix_byte[out] = byte_of[node]
        suffix_ids[out] = used
        k = first_id[node]
        while k >= 0:
            ids[used] = list_token[k]
            used += 1
            k = list_next[k]
        suffix_kids[out] = start + count
        first = count
        below = child[node]
        while below >= 0:
            place = count
            while place > first and byte_of[queue[place - 1]] > byte_of[below]:
                queue[place] = queue[place - 1]
                place -= 1
            queue[place] = below
            count += 1
            below = sibling[below]
        head += 1
    suffix_ids[start + count] = used
    suffix_kids[start + count] = start + count
    return used


@jit(_int(arena_type, _ints, _int, _ints, _int, _ints), apart=True)
def make_rests(arena, escapes, escape_count, row, place, suffixes):
    """Gather what is left of tokens behind each of ``escapes`` that are not in a row; the number.

    Args:
        escapes: trie nodes, ascending. row, place: an array of words, and where the row begins in it.
        suffixes: nodes of the tries of other rests, behind which everything is gathered, too.
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
    if suffixes.size > 0:
        nodes, listed = _count_below(suffixes, arena.suffix_kids, arena.suffix_ids)
        byte_of = with_room(byte_of, counts[0] + nodes)
        child = with_room(child, counts[0] + nodes)
        sibling = with_room(sibling, counts[0] + nodes)
        first_id = with_room(first_id, counts[0] + nodes)
        list_token = with_room(list_token, counts[1] + listed)
        list_next = with_room(list_next, counts[1] + listed)
        _gather_suffixes(
            suffixes, arena.suffix_byte, arena.suffix_kids, arena.suffix_ids, arena.ids, byte_of, child,
            sibling, first_id, of_root, list_token, list_next, counts,
        )  # fmt: skip
    start = arena.suffix_count
    past = start + counts[0] + 1
    arena.suffix_byte = with_room(arena.suffix_byte, past)
    arena.suffix_kids = with_room(arena.suffix_kids, past)
    arena.suffix_ids = with_room(arena.suffix_ids, past)
    arena.ids = with_room(arena.ids, arena.id_count + counts[1])
    arena.id_count = _flatten(
        byte_of, child, sibling, first_id, of_root, list_token, list_next, arena.suffix_byte,
        arena.suffix_kids, arena.suffix_ids, arena.ids, start, arena.id_count,
    )  # fmt: skip
    arena.suffix_count = past
    number = arena.rests_count
    used = np.int64(arena.rests_escape_offsets[number])
    arena.rests_root = with_room(arena.rests_root, number + 1)
    arena.rests_escape_offsets = with_room(arena.rests_escape_offsets, number + 2)
    arena.rests_escapes = with_room(arena.rests_escapes, used + escape_count)
    copy_into(arena.rests_escapes, used, escapes, 0, escape_count)
    arena.rests_root[number] = start
    arena.rests_seen = with_room(arena.rests_seen, number + 1)
    arena.rests_seen[number] = 0
    arena.rests_escape_offsets[number + 1] = used + escape_count
    arena.rests_large_offsets = with_room(arena.rests_large_offsets, number + 2)
    arena.rests_large_offsets[number + 1] = large
    arena.rests_count = number + 1
    return number


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
