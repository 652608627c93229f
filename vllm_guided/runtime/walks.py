"""Walks of the token trie from a configuration: all of it, what is beside a loop, what differs from another.

In: a configuration over the unknown stack. Out: the tokens it allows whatever the stack, as bits of
``scratch_row`` and as lists of what a walk changed there, and the nodes behind which the frame may be left.
Each walk is a loop over known transitions that takes arrays, and a caller that finds what is missing.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs
# numba has no any() over a generator.
# ruff: noqa: SIM110

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import BAG, DEAD, ESCAPE, VIRTUAL, arena_type
from vllm_guided.runtime.configurations import counter_of, expand, step
from vllm_guided.runtime.memory import copy_into, with_room
from vllm_guided.runtime.slices import SHORT, UP_TO, pure_row, utf8_step
from vllm_guided.runtime.twins import ENDLESS, find_twin

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]
_counts = types.int64[::1]
_word = types.uint64

#: Up to this many tokens are kept as a list of ids, more as a row of bits.
SPARSE_LIMIT = 1024
#: What many first bytes lead to counts as where most lead if that is so for 1 token in so many.
SHARE = 16


@jit(_int(
    _int, _bytes, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _bytes, _bytes, _ints, _ints, _ints,
    _counts, _counts, _ints, _counts, types.uint64[::1], _bytes, _bytes, _bytes, _word, _word, _int,
))  # fmt: skip
def _walk_known(
    node, trie_byte, trie_depth, trie_next, token_start, tokens, row, ids, moves, classes, flags, config_row,
    config_map, path, row_at, map_at, escapes, counts, below, height, in_loop, stays, interest_low,
    interest_high, reach,
):  # fmt: skip
    """Walk the trie from ``node`` on through known transitions; the node where one is missing, or the end.

    It takes arrays, not the arena: reading an array from a struct counts a reference, atomically, and
    in this loop that would cost many times the walk itself.

    Args:
        path: the configuration at each depth; ``row_at`` and ``map_at`` where its transitions and its
            byte classes begin, so that a node costs two dependent reads.
        row: bits to set. ids: where to list the first ids that were not set.
        counts: [tokens set, escapes, position in ids].
        in_loop: the bytes of the loop; ``stays[depth]`` whether the path kept to them. Subtrees below such a
            path without a byte of ``interest_*`` and no deeper than ``reach`` are passed over: their bits are
            in ``row``.
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
        if after > node + 1:
            if target == path[depth - 1]:
                row_at[depth] = row_at[depth - 1]
                map_at[depth] = map_at[depth - 1]
            else:
                following = config_row[target]
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


@jit(types.Tuple((_int, _ints, _int))(arena_type, _int, _bytes, _word, _word, _int), apart=True)
def walk(arena, config, in_loop, interest_low, interest_high, reach):
    """Walk the trie from ``config``: set the bits of allowed tokens in ``scratch_row``.

    Args:
        in_loop: uint8[256], the bytes of ``config``'s loop where the row has the tokens made of them already;
            elsewhere all 0. interest_*, reach: which other bytes may follow on the loop; up to how many bytes
            the row is right.

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
        node = _walk_known(
            node, arena.trie_byte, arena.trie_depth, arena.trie_next, arena.trie_token_start,
            arena.trie_tokens, arena.scratch_row, arena.ids, arena.next, arena.map_class,
            arena.config_flags, arena.config_row, arena.config_map, path, row_at, map_at, escapes, counts,
            arena.trie_below, arena.trie_height, in_loop, stays, interest_low, interest_high, reach,
        )  # fmt: skip
        if node >= past:
            return counts[0], escapes, counts[1]
        origin = np.int64(path[arena.trie_depth[node] - 1])
        target = step(arena, origin, np.int64(arena.trie_byte[node]))
        if target != DEAD and arena.config_row[target] < 0:
            expand(arena, target)
        if counts[1] == escapes.size:
            escapes = with_room(escapes, 2 * escapes.size)


@jit(types.boolean(arena_type, _int, _int), apart=True)
def _takes_characters(arena, config, end):
    """Whether every character beyond ASCII, and nothing else above it, leads from ``config`` to ``end``."""
    origins = np.empty(16, np.int64)
    states = np.empty(16, np.int64)
    origins[0] = config
    states[0] = 0
    count = 1
    done = 0
    while done < count:
        origin = origins[done]
        state = states[done]
        done += 1
        for byte in range(128 if state == 0 else 0, 256):
            target = step(arena, origin, byte)
            after = utf8_step(state, byte)
            if after <= 0:
                if target != (DEAD if after < 0 else end):
                    return False
                continue
            if target in (DEAD, end):
                return False
            known = False
            for k in range(count):
                known |= origins[k] == target and states[k] == after
            if not known:
                if count == origins.size:
                    return False
                origins[count] = target
                states[count] = after
                count += 1
    return True


@jit(types.boolean(arena_type, _int, _bytes), apart=True)
def _add_interest(arena, config, other):
    """Mark in ``other`` the ASCII bytes that ``config`` may go on with; whether any byte from 0x80 on may."""
    # Where the frame may be left, anything may follow.
    may_leave = arena.config_flags[config] & ESCAPE != 0
    for byte in range(128):
        if may_leave or step(arena, config, byte) != DEAD:
            other[byte] = 1
    if may_leave:
        return True
    for byte in range(128, 256):
        if step(arena, config, byte) != DEAD:
            return True
    return False


@jit(_int(arena_type, _int), apart=True)
def _turns_left(arena, config):
    """How many turns of the counter directly below the top are left; ENDLESS without a limit.

    -1 where there is no counter, or several counts.
    """
    left = np.int64(-1)
    for item in range(arena.config_offsets[config], arena.config_offsets[config + 1]):
        stack = np.int64(arena.item_stack[item])
        for k in range(arena.stack_offsets[stack], arena.stack_offsets[stack + 1]):
            top = np.int64(arena.stack_state[k])
            if top < VIRTUAL or top >= BAG:
                continue
            counter = counter_of(arena, top)
            most = np.int64(arena.counter_maximum[counter])
            here = np.int64(ENDLESS) if most < 0 else most - top + np.int64(arena.counter_base[counter])
            if left >= 0 and left != here:
                return np.int64(-1)
            left = here
    return left


@jit(types.Tuple((_int, _ints, _int))(arena_type, _int, _int), apart=True)
def walk_chain(arena, config, end):
    """``walk`` for a configuration that most bytes lead to ``end``, and on through a chain or a loop of such.

    The tokens made of these bytes alone (and of characters, where all of them lead there) are allowed up to
    the chain's length: that is a ready row. Only what leaves the chain is walked.

    Returns:
        as ``walk``; the first is -1 where there is no such chain.
    """
    none = np.empty(1, np.int32)
    refused = np.int64(-1), none, np.int64(0)
    twin = np.int64(arena.config_twin[config])
    in_loop = np.zeros(256, np.uint8)
    other = np.zeros(256, np.uint8)
    example = np.int64(-1)
    for byte in range(128):
        if step(arena, twin, byte) == end:
            in_loop[byte] = 1
            example = np.int64(byte)
    if example < 0:
        return refused
    characters = _takes_characters(arena, twin, end)
    length = np.int64(1)
    here = end
    while True:
        # Where do the chain's bytes lead from here: back, further on, or nowhere?
        target = step(arena, here, example)
        for byte in range(128):
            if in_loop[byte] and step(arena, here, byte) != target:
                return refused
        if target != DEAD:
            if characters and not _takes_characters(arena, here, target):
                return refused
        elif characters:
            for byte in range(128, 256):
                if step(arena, here, byte) != DEAD:
                    return refused
        if target == here or length >= arena.longest_token:
            length = np.int64(ENDLESS)
            break
        if target == DEAD:
            break
        length += 1
        here = target
    if twin != config:
        turns = _turns_left(arena, config)
        if length != ENDLESS or turns < 0:
            return refused
        if turns < ENDLESS and (
            step(arena, end, example) != end or _turns_left(arena, step(arena, config, example)) != turns - 1
        ):
            # Bytes of the chain that end no turn, as those of an escape, do not count.
            return refused
        length = turns + 1 if turns < ENDLESS else np.int64(ENDLESS)
    wide = _add_interest(arena, config, other)
    may_leave = arena.config_flags[config] & ESCAPE != 0
    here = config
    for _ in range(min(length, arena.longest_token)):
        target = step(arena, here, example)
        if target == here:
            break
        here = target
        wide |= _add_interest(arena, here, other)
        may_leave |= arena.config_flags[here] & ESCAPE != 0
        if here == DEAD:
            return refused
    low, high, interest_low, interest_high = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
    for byte in range(128):
        bit = np.uint64(1) << np.uint64(byte & 63)
        if in_loop[byte]:
            if byte < 64:
                low |= bit
            else:
                high |= bit
        elif other[byte]:
            if byte < 64:
                interest_low |= bit
            else:
                interest_high |= bit
    if characters:
        in_loop[128:] = 1
    if wide and (not characters or may_leave):
        interest_low |= np.uint64(1)
    row = arena.scratch_row
    words = arena.words
    number = pure_row(arena, low, high, characters)
    copy_into(row, 0, arena.rows, number * words, words)
    reach = np.int64(ENDLESS)
    if length < ENDLESS:
        source = (UP_TO + (length if length < SHORT else np.int64(SHORT))) * words
        limits = arena.slice_rows
        for word in range(words):
            row[word] &= limits[source + word]
        if length > SHORT:
            reach = np.int64(SHORT)
        if may_leave:
            # Longer tokens of the chain's bytes may go on behind the frame.
            reach = min(reach, length)
    return walk(arena, config, in_loop, interest_low, interest_high, reach)


@jit(_int(arena_type, _int), apart=True)
def dominant(arena, config):
    """The configuration that most tokens' first bytes lead to from ``config``; DEAD where none has many."""
    if arena.config_row[config] < 0:
        expand(arena, config)
    number = np.int64(arena.config_map[config])
    size = np.int64(arena.map_size[number])
    weight = np.zeros(size, np.int64)
    example = np.zeros(size, np.int64)
    for byte in range(256):
        group = np.int64(arena.map_class[256 * number + byte])
        weight[group] += arena.byte_weight[byte]
        example[group] = byte
    targets = np.zeros(size, np.int64)
    best = np.int64(0)
    for kind in range(size):
        targets[kind] = DEAD
        if weight[kind] > 0:
            targets[kind] = step(arena, config, example[kind])
        if targets[kind] == DEAD:
            weight[kind] = 0
        if weight[kind] > weight[best]:
            best = np.int64(kind)
    total = np.int64(0)
    for kind in range(size):
        if targets[kind] == targets[best]:
            total += weight[kind]
    return targets[best] if SHARE * total >= arena.trie_tokens.size and total > 0 else DEAD


@jit(_int(
    _int, _bytes, _ints, _ints, _ints, _ints, _bytes, _ints, _int, _ints, _bytes, _bytes, _ints, _ints, _ints,
    _ints, _ints, _ints, _ints, _ints, _ints, _ints, _counts,
))  # fmt: skip
def _differ_known(
    node, trie_byte, trie_depth, trie_next, token_start, tokens, height, row, place, moves, classes, flags,
    config_row, config_map, twin, slack, path, other, more, less, escapes, drops, counts,
):  # fmt: skip
    """Walk two configurations side by side through known transitions; the node where one is missing.

    Args:
        path, other: at each depth, the configuration and the one that the row at ``place`` has the tokens of.
        more, less: lists of tokens to take out of the row, and of those to add then. escapes: as in ``walk``.
        drops: nodes behind which nothing of the other's escapes holds.
        counts: entries of [more, less, escapes, drops].
    """
    past = trie_byte.size
    while node < past:
        up = trie_depth[node] - 1
        byte = trie_byte[node]
        after = np.int64(trie_next[node])
        origin = path[up]
        following = np.int64(config_row[origin])
        if following < 0:
            break
        target = moves[following + classes[256 * np.int64(config_map[origin]) + byte]]
        if target < 0:
            break
        beside = np.int32(DEAD)
        origin = other[up]
        if origin != DEAD:
            following = np.int64(config_row[origin])
            if following < 0:
                break
            beside = moves[following + classes[256 * np.int64(config_map[origin]) + byte]]
            if beside < 0:
                break
        if target == beside:
            node = after
            continue
        if target != DEAD and beside != DEAD:
            if twin[target] < 0:
                break
            if twin[target] == beside and slack[target] >= height[node]:
                node = after
                continue
        first = token_start[node]
        own = token_start[node + 1]
        end = token_start[after]
        if (
            counts[0] + own - first > more.size or counts[1] + end - first > less.size
            or counts[2] >= escapes.size or counts[3] >= drops.size
        ):  # fmt: skip
            break
        has_children = after > node + 1
        if beside != DEAD and (target == DEAD or (has_children and flags[beside] & ESCAPE != 0)):
            for k in range(first if target == DEAD else own, end):
                token = tokens[k]
                if row[place + (token >> 5)] & (np.int32(1) << np.int32(token & 31)):
                    less[counts[1]] = token
                    counts[1] += 1
            drops[counts[3]] = node
            counts[3] += 1
            if target == DEAD:
                node = after
                continue
            beside = np.int32(DEAD)
        elif beside == DEAD:
            # Where both live, the row has the tokens.
            for k in range(first, own):
                more[counts[0]] = tokens[k]
                counts[0] += 1
        path[up + 1] = target
        other[up + 1] = beside
        if has_children and flags[target] & ESCAPE:
            escapes[counts[2]] = node
            counts[2] += 1
        node += 1
    return node


@jit(types.Tuple((_counts, _ints, _ints, _ints, _ints))(arena_type, _int, _int, _int), apart=True)
def walk_differences(arena, config, reference, row):
    """Walk only where ``config`` does otherwise than ``reference``, whose tokens are those of row ``row``.

    Returns:
        how many of each, then the tokens to take out of the row (second) and those to add then (first), the
        nodes behind which the frame may be left, the nodes behind which the reference's escapes do not hold.
    """
    more = np.empty(64, np.int32)
    less = np.empty(64, np.int32)
    escapes = np.empty(64, np.int32)
    drops = np.empty(64, np.int32)
    counts = np.zeros(4, np.int64)
    path = arena.path
    other = np.zeros(path.size, np.int32)
    path[0] = config
    other[0] = reference
    node = np.int64(1)
    past = arena.trie_byte.size
    while True:
        node = _differ_known(
            node, arena.trie_byte, arena.trie_depth, arena.trie_next, arena.trie_token_start,
            arena.trie_tokens, arena.trie_height, arena.rows, row * arena.words, arena.next, arena.map_class,
            arena.config_flags, arena.config_row, arena.config_map, arena.config_twin, arena.config_slack,
            path, other, more, less, escapes, drops, counts,
        )  # fmt: skip
        if node >= past:
            return counts, more, less, escapes, drops
        up = arena.trie_depth[node] - 1
        byte = np.int64(arena.trie_byte[node])
        target = step(arena, np.int64(path[up]), byte)
        if target != DEAD:
            if arena.config_row[target] < 0:
                expand(arena, target)
            if arena.config_twin[target] < 0:
                find_twin(arena, target)
        if other[up] != DEAD:
            beside = step(arena, np.int64(other[up]), byte)
            if beside != DEAD and arena.config_row[beside] < 0:
                expand(arena, beside)
        after = np.int64(arena.trie_next[node])
        many = np.int64(arena.trie_token_start[after] - arena.trie_token_start[node])
        more = with_room(more, counts[0] + many)
        less = with_room(less, counts[1] + many)
        escapes = with_room(escapes, counts[2] + 1)
        drops = with_room(drops, counts[3] + 1)
