"""Walks of the token trie from a configuration (what differs from another: ``differences.py``).

In: a configuration over the unknown stack. Out: the tokens it allows whatever the stack, as bits of
``scratch_row`` and as lists of what a walk changed there, and the nodes behind which the frame may be left.
Each walk is a loop over known transitions that takes arrays, and a caller that finds what is missing.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs
# numba has no any() over a generator.

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import DEAD, ESCAPE, LOOPS, arena_type
from vllm_guided.runtime.configurations import expand, step
from vllm_guided.runtime.differences import find_loop
from vllm_guided.runtime.memory import with_room

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]
_bool = types.boolean
_counts = types.int64[::1]
_word = types.uint64
_words = types.uint64[::1]

#: Up to this many tokens are kept as a list of ids, more as a row of bits.
SPARSE_LIMIT = 1024
#: What many first bytes lead to counts as where most lead if that is so for 1 token in so many.
SHARE = 16
#: ... and before others if so many bytes lead there.
MANY_BYTES = 24


@jit(_int(
    _int, _bytes, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _bytes, _bytes, _ints, _ints, _ints,
    _counts, _counts, _ints, _counts, _words, _bytes, _bytes, _bytes, _bytes, _int, _word, _word, _int, _ints,
    _words,
))  # fmt: skip
def _walk_known(
    node, trie_byte, trie_depth, trie_next, token_start, tokens, row, ids, moves, classes, flags, config_row,
    config_map, path, row_at, map_at, escapes, counts, below, height, in_loop, stays, mark, leaving,
    interest_low, interest_high, reach, loops, loop_bytes,
):  # fmt: skip
    """Walk the trie from ``node`` on through known transitions; the node where one is missing, or the end.

    It takes arrays, not the arena: reading an array from a struct counts a reference, atomically, and
    in this loop that would cost many times the walk itself.

    Args:
        path: the configuration at each depth; ``row_at`` and ``map_at`` where its transitions and its
            byte classes begin, so that a node costs two dependent reads.
        row: bits to set. ids: where to list the first ids that were not set.
        counts: [tokens set, escapes, position in ids].
        in_loop: the bytes of the loop, but for those on edges whose ``mark`` is one of ``leaving``;
            ``stays[depth]`` whether the path kept to them. Subtrees below such a
            path without a byte of ``interest_*`` and no deeper than ``reach`` are passed over: their bits are
            in ``row``.
        loops, loop_bytes: configurations met, and the ASCII bytes that lead from each back to it (as in
            ``below``): where nothing else follows, all tokens are allowed, and no node is looked at.
    """
    past = trie_byte.size
    allowed = counts[0]
    escape_count = counts[1]
    place = counts[2]
    while node < past:
        depth = trie_depth[node]
        byte = trie_byte[node]
        after = trie_next[node]
        inside = stays[depth - 1] & in_loop[byte]
        if leaving != 0 and mark[node] & leaving != 0:
            inside = np.uint8(0)
        if (
            inside and (below[2 * node] & interest_low) | (below[2 * node + 1] & interest_high) == 0
            and depth + np.int64(height[node]) <= reach
        ):  # fmt: skip
            node = np.int64(after)
            continue
        target = moves[row_at[depth - 1] + classes[map_at[depth - 1] + byte]]
        if target <= 0:
            if target < 0:
                break
            node = np.int64(after)
            continue
        following = np.int64(config_row[target])
        if (
            after > node + 1 and not inside and flags[target] & ESCAPE == 0 and following >= 0
            and moves[following + classes[256 * np.int64(config_map[target]) + trie_byte[node + 1]]] == target
        ):  # fmt: skip
            slot = np.int64(target) & (LOOPS - 1)
            if loops[slot] != target:
                find_loop(target, slot, moves, classes, config_row, config_map, loops, loop_bytes)
            if (
                (below[2 * node] & ~loop_bytes[2 * slot]) | (below[2 * node + 1] & ~loop_bytes[2 * slot + 1])
            ) == 0:
                for k in range(token_start[node], token_start[after]):
                    token = tokens[k]
                    bit = np.int32(1) << np.int32(token & 31)
                    if row[token >> 5] & bit == 0:
                        row[token >> 5] |= bit
                        if allowed < SPARSE_LIMIT:
                            ids[place + allowed] = token
                        allowed += 1
                node = np.int64(after)
                continue
        if after > node + 1:
            if target == path[depth - 1]:
                row_at[depth] = row_at[depth - 1]
                map_at[depth] = map_at[depth - 1]
            else:
                if following < 0:
                    break
                row_at[depth] = following
                map_at[depth] = 256 * np.int64(config_map[target])
            path[depth] = target
            stays[depth] = inside
            if flags[target] & ESCAPE:
                if escape_count == escapes.size:
                    break
                escapes[escape_count] = node
                escape_count += 1
        for k in range(token_start[node], token_start[node + 1]):
            token = tokens[k]
            bit = np.int32(1) << np.int32(token & 31)
            if row[token >> 5] & bit == 0:
                row[token >> 5] |= bit
                if allowed < SPARSE_LIMIT:
                    ids[place + allowed] = token
                allowed += 1
        node += 1
    counts[0] = allowed
    counts[1] = escape_count
    return node


@jit(types.Tuple((_int, _ints, _int))(arena_type, _int, _bytes, _int, _word, _word, _int), apart=True)
def walk(arena, config, in_loop, leaving, interest_low, interest_high, reach):
    """Walk the trie from ``config``: set the bits of allowed tokens in ``scratch_row``.

    Args:
        in_loop: uint8[256], the bytes of ``config``'s loop where the row has the tokens made of them already;
            elsewhere all 0. leaving: marks of edges (``trie_mark``) that leave the loop. interest_*, reach:
            which other bytes may follow on the loop; up to how many bytes the row is right.

    Returns:
        how many bits were set (their ids follow ``arena.ids[:arena.id_count]`` as far as there
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
    stays = np.zeros(path.size, np.uint8)
    stays[0] = 1
    row_at[0] = arena.config_row[config]
    map_at[0] = 256 * np.int64(arena.config_map[config])
    node = np.int64(1)
    past = arena.trie_byte.size
    while True:
        # More is known of them than before.
        arena.loop_config[:] = -1
        node = _walk_known(
            node, arena.trie_byte, arena.trie_depth, arena.trie_next, arena.trie_token_start,
            arena.trie_tokens, arena.scratch_row, arena.ids, arena.next, arena.map_class,
            arena.config_flags, arena.config_row, arena.config_map, path, row_at, map_at, escapes, counts,
            arena.trie_below, arena.trie_height, in_loop, stays, arena.trie_mark, leaving, interest_low,
            interest_high, reach,
            arena.loop_config, arena.loop_bytes,
        )  # fmt: skip
        if node >= past:
            return counts[0], escapes, counts[1]
        origin = np.int64(path[arena.trie_depth[node] - 1])
        target = step(arena, origin, np.int64(arena.trie_byte[node]))
        if target != DEAD and arena.config_row[target] < 0:
            expand(arena, target)
        if counts[1] == escapes.size:
            escapes = with_room(escapes, 2 * escapes.size)


@jit(types.void(arena_type, _int, _ints), apart=True)
def targets_of(arena, config, targets):
    """Write where each byte leads from ``config`` to ``targets[:256]``."""
    if config == DEAD:
        targets[:256] = DEAD
        return
    if arena.config_row[config] < 0:
        expand(arena, config)
    row = np.int64(arena.config_row[config])
    number = np.int64(arena.config_map[config])
    classes = arena.map_class[256 * number : 256 * number + 256]
    for byte in range(256):
        target = arena.next[row + classes[byte]]
        targets[byte] = target if target >= 0 else step(arena, config, byte)


@jit(_int(arena_type, _int), apart=True)
def dominant(arena, config):
    """The configuration that most tokens' first bytes lead to from ``config``; DEAD where none has many.

    One that many bytes lead to is preferred to one that few do: most of what follows are these, too, while
    after a blank, that nearly half of the tokens begin with, mostly something else follows.
    """
    if arena.config_row[config] < 0:
        expand(arena, config)
    number = np.int64(arena.config_map[config])
    size = np.int64(arena.map_size[number])
    weight = np.zeros(size, np.int64)
    count = np.zeros(size, np.int64)
    example = np.zeros(size, np.int64)
    classes = arena.map_class[256 * number : 256 * number + 256]
    weights = arena.byte_weight
    for byte in range(256):
        group = np.int64(classes[byte])
        weight[group] += weights[byte]
        count[group] += 1
        example[group] = byte
    targets = np.zeros(size, np.int64)
    best = np.int64(-1)
    most = np.int64(0)
    for kind in range(size):
        targets[kind] = step(arena, config, example[kind]) if weight[kind] > 0 else DEAD
        if targets[kind] == DEAD:
            continue
        # The first kind that leads there has the weight of all that do.
        first = np.int64(0)
        while targets[first] != targets[kind]:
            first += 1
        if first < kind:
            weight[first] += weight[kind]
            count[first] += count[kind]
        value = weight[first] if SHARE * weight[first] >= arena.trie_tokens.size else np.int64(0)
        if count[first] >= MANY_BYTES:
            value *= SHARE
        if value > most:
            most = value
            best = first
    return targets[best] if best >= 0 else DEAD
