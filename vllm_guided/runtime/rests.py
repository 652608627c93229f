"""What is left of tokens that leave their frame, as small tries that tier 2 runs on real stacks.

In: the trie nodes behind which a frame may be left (``escapes``). Out: a number, the *rests*: a trie of what
follows behind these nodes, for the tokens that are not allowed whatever the stack. Its nodes lie in
``suffix_*`` level by level; ``rests_escapes`` keeps the nodes that it is made of (of the tries of other
rests: -1 - node). Nodes with very many tokens
behind them, as a blank, are not copied but followed where they are (``rests_large``): most of what follows is
refused at its first byte.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import arena_type
from vllm_guided.runtime.memory import copy_into, mixed, rehashed, with_room

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
    _bytes, _ints, _ints, _ints, _ints, _ints, _ints, _bytes, _ints, _ints, _ints, _int, _int, _ints,
))  # fmt: skip
def _flatten(
    byte_of, child, sibling, first_id, of_root, list_token, list_next, suffix_byte, suffix_kids, suffix_ids,
    ids, start, used, row,
):  # fmt: skip
    """Lay the linked trie out level by level, its root at ``start``, its tokens in ``ids[used:]``.

    Children stand side by side, by their bytes; one more entry ends the last node. A token that a node has
    several times, as rests of rests in ambiguous grammars may give it, is written once: else it would be ever
    more times in rests of these. Returns the new used.

    Args:
        row: an empty row of bits, which it is again afterwards.
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
        first = used
        while k >= 0:
            token = list_token[k]
            bit = np.int32(1) << np.int32(token & 31)
            if row[token >> 5] & bit == 0:
                row[token >> 5] |= bit
                ids[used] = token
                used += 1
            k = list_next[k]
        for j in range(first, used):
            row[ids[j] >> 5] = 0
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


@jit(_int(_ints, _int, _ints))
def _code_of(escapes, escape_count, suffixes):
    """A hash of the nodes that rests are made of; not negative."""
    code = mixed(escape_count, np.int64(suffixes.size))
    for k in range(escape_count):
        code = mixed(np.int64(code >> np.uint64(1)), np.int64(escapes[k]))
    for k in range(suffixes.size):
        code = mixed(np.int64(code >> np.uint64(1)), np.int64(suffixes[k]))
    return np.int64(code & np.uint64(0x7FFFFFFF))


@jit(types.boolean(arena_type, _ints, _int, _ints, _int))
def _any_allowed(arena, escapes, escape_count, row, place):
    """Whether some token behind ``escapes`` is in a row, but for those behind nodes that are not copied."""
    tokens = arena.trie_tokens
    for e in range(escape_count):
        node = escapes[e]
        first = np.int64(arena.trie_token_start[node + 1])
        past = np.int64(arena.trie_token_start[arena.trie_next[node]])
        if past - first < LARGE:
            for k in range(first, past):
                token = tokens[k]
                if row[place + (token >> 5)] & (np.int32(1) << np.int32(token & 31)):
                    return True
    return False


@jit(_int(arena_type, _ints, _int, _ints, _int), apart=True)
def _known_rests(arena, escapes, escape_count, suffixes, code):
    """The number of the rests of just these nodes, no token of which was left out; -1 if there are none."""
    table = arena.rests_table
    size = np.int64(table.size - 1)
    slot = code & size
    total = escape_count + suffixes.size
    while table[slot] >= 0:
        found = np.int64(table[slot])
        slot = (slot + 1) & size
        low = np.int64(arena.rests_escape_offsets[found])
        if arena.rests_code[found] != code or arena.rests_escape_offsets[found + 1] - low != total:
            continue
        nodes = arena.rests_escapes
        k = 0
        while k < escape_count and nodes[low + k] == escapes[k]:
            k += 1
        while escape_count <= k < total and nodes[low + k] == -1 - suffixes[k - escape_count]:
            k += 1
        if k == total:
            return found
    return np.int64(-1)


@jit(_int(arena_type, _ints, _int, _ints, _int, _ints), apart=True)
def make_rests(arena, escapes, escape_count, row, place, suffixes):
    """Gather what is left of tokens behind each of ``escapes`` that are not in a row; the number.

    Most are as those of another state: behind the closing quote, a digit, a bracket. These are one number.

    Args:
        escapes: trie nodes, ascending. row, place: an array of words, and where the row begins in it.
        suffixes: nodes of the tries of other rests, ascending, behind which everything is gathered, too.
    """
    code = _code_of(escapes, escape_count, suffixes)
    is_whole = not _any_allowed(arena, escapes, escape_count, row, place)
    if is_whole:
        known = _known_rests(arena, escapes, escape_count, suffixes, code)
        if known >= 0:
            return known
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
        arena.suffix_kids, arena.suffix_ids, arena.ids, start, arena.id_count, arena.node_row,
    )  # fmt: skip
    arena.suffix_count = past
    number = arena.rests_count
    used = np.int64(arena.rests_escape_offsets[number])
    arena.rests_root = with_room(arena.rests_root, number + 1)
    arena.rests_escape_offsets = with_room(arena.rests_escape_offsets, number + 2)
    arena.rests_escapes = with_room(arena.rests_escapes, used + escape_count + suffixes.size)
    copy_into(arena.rests_escapes, used, escapes, 0, escape_count)
    for k in range(suffixes.size):
        arena.rests_escapes[used + escape_count + k] = -1 - suffixes[k]
    arena.rests_root[number] = start
    arena.rests_seen = with_room(arena.rests_seen, number + 1)
    arena.rests_seen[number] = 0
    arena.rests_escape_offsets[number + 1] = used + escape_count + suffixes.size
    arena.rests_large_offsets = with_room(arena.rests_large_offsets, number + 2)
    arena.rests_large_offsets[number + 1] = large
    arena.rests_count = number + 1
    arena.rests_code = with_room(arena.rests_code, number + 1)
    # Others than whole ones are never found.
    arena.rests_code[number] = code if is_whole else -1
    if is_whole:
        table = arena.rests_table
        size = np.int64(table.size - 1)
        slot = code & size
        while table[slot] >= 0:
            slot = (slot + 1) & size
        table[slot] = number
        if 2 * (number + 1) > table.size:
            arena.rests_table = rehashed(table, arena.rests_code, 1, 0, number + 1)
    return number
