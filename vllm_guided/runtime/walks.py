"""Walks of the token trie from a configuration: all of it, what is beside a loop, what differs from another.

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
from vllm_guided.runtime.arena import BAG, DEAD, ESCAPE, VIRTUAL, arena_type
from vllm_guided.runtime.configurations import counter_of, expand, step
from vllm_guided.runtime.memory import copy_into, with_room
from vllm_guided.runtime.slices import SHORT, UP_TO, pure_row, utf8_step
from vllm_guided.runtime.twins import ENDLESS, find_twin

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]
_bool = types.boolean
_counts = types.int64[::1]
_word = types.uint64

#: Up to this many tokens are kept as a list of ids, more as a row of bits.
SPARSE_LIMIT = 1024
#: What many first bytes lead to counts as where most lead if that is so for 1 token in so many.
SHARE = 16
#: Text goes through so many configurations at most, on so many ASCII bytes, for so many characters at least.
LOOP, LEAST_LOOP, LEAST_LENGTH = 128, 24, 6


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


@jit(types.boolean(arena_type, _ints, _int, _ints, _int), apart=True)
def _takes_characters(arena, configs, config_count, ends, end_count):
    """Whether every character beyond ASCII, and nothing else above it, leads from ``configs`` to ``ends``."""
    origins = np.empty(config_count + 32, np.int64)
    states = np.zeros(config_count + 32, np.int64)
    targets = np.empty(256, np.int32)
    for k in range(config_count):
        origins[k] = configs[k]
    count = config_count
    done = 0
    while done < count:
        state = states[done]
        targets_of(arena, origins[done], targets)
        done += 1
        last = np.int64(-1)
        last_after = np.int64(-1)
        for byte in range(128 if state == 0 else 0, 256):
            target = np.int64(targets[byte])
            after = utf8_step(state, byte)
            if target == last and after == last_after:
                continue
            last = target
            last_after = after
            if after < 0:
                if target != DEAD:
                    return False
                continue
            is_end = False
            for k in range(end_count):
                is_end |= ends[k] == target
            if is_end != (after == 0):
                return False
            if after == 0:
                continue
            if target == DEAD:
                return False
            known = False
            for k in range(config_count, count):
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
    if arena.config_flags[config] & ESCAPE != 0:
        other[:128] = 1
        return True
    targets = np.empty(256, np.int32)
    targets_of(arena, config, targets)
    wide = False
    for byte in range(256):
        if targets[byte] != DEAD:
            if byte < 128:
                other[byte] = 1
            else:
                wide = True
    return wide


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


@jit(
    types.Tuple((_int, _ints, _int))(arena_type, _int, _bytes, _bytes, _bool, _bool, _bool, _int, _int),
    apart=True,
)
def _walk_beside(arena, config, in_loop, other, characters, wide, may_leave, length, reach):
    """``walk`` where all tokens of the bytes ``in_loop`` alone, up to ``length`` characters, are allowed.

    Args:
        in_loop, other: uint8[256], ASCII bytes of the loop, and bytes that may follow where it is left.
        characters: all characters beyond ASCII belong to the loop. wide: some may follow.
        may_leave: the frame may be left from the loop. length: ENDLESS without a limit.
        reach: longer tokens, in bytes, may be allowed, too.
    """
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
    if length < ENDLESS:
        source = (UP_TO + (length if length < SHORT else np.int64(SHORT))) * words
        limits = arena.slice_rows
        for word in range(words):
            row[word] &= limits[source + word]
        if length > SHORT:
            reach = min(reach, np.int64(SHORT))
        if may_leave:
            # Longer tokens of the chain's bytes may go on behind the frame.
            reach = min(reach, length)
    return walk(arena, config, in_loop, interest_low, interest_high, reach)


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
    origins = np.empty(1, np.int32)
    ends = np.empty(1, np.int32)
    origins[0] = twin
    ends[0] = end
    characters = _takes_characters(arena, origins, np.int64(1), ends, np.int64(1))
    length = np.int64(1)
    here = end
    while True:
        # Where do the chain's bytes lead from here: back, further on, or nowhere?
        target = step(arena, here, example)
        for byte in range(128):
            if in_loop[byte] and step(arena, here, byte) != target:
                return refused
        if target != DEAD:
            origins[0] = here
            ends[0] = target
            if characters and not _takes_characters(arena, origins, np.int64(1), ends, np.int64(1)):
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
    return _walk_beside(arena, config, in_loop, other, characters, wide, may_leave, length, np.int64(ENDLESS))


@jit(_bool(arena_type, _ints, _bytes, _bool))
def _end_all(arena, configs, in_loop, characters):
    """Whether text of a class of bytes (and of other characters) goes on from none of ``configs``."""
    targets = np.empty(256, np.int32)
    for k in range(configs.size):
        targets_of(arena, np.int64(configs[k]), targets)
        for byte in range(256):
            if targets[byte] != DEAD and (characters if byte >= 128 else in_loop[byte] != 0):
                return False
    return True


@jit(types.Tuple((_int, _ints, _int))(arena_type, _int), apart=True)
def walk_loop(arena, config):
    """``walk`` for a configuration from which text of a class of bytes goes on for some characters.

    It may go through many configurations, as in text that must somewhere hold a word: how much of the word
    was read differs, but any text may follow. The tokens made of these bytes alone are allowed, up to the
    number of characters that certainly may follow: that is a ready row. Only others are walked.

    Returns:
        as ``walk``; the first is -1 where there is no such class.
    """
    none = np.empty(1, np.int32)
    refused = np.int64(-1), none, np.int64(0)
    targets = np.empty((LOOP, 256), np.int32)
    configs = np.empty(LOOP, np.int32)
    distance = np.empty(LOOP, np.int64)
    configs[0] = config
    distance[0] = 0
    targets_of(arena, config, targets[0])
    in_loop = np.zeros(256, np.uint8)
    size = np.int64(0)
    for byte in range(128):
        if targets[0, byte] != DEAD:
            in_loop[byte] = 1
            size += 1
    count = 1
    done = 0
    length = np.int64(ENDLESS)
    in_step = True
    while done < count:
        if size < LEAST_LOOP:
            return refused
        if distance[done] >= SHORT:
            length = distance[done]
            break
        here = configs[done]
        targets_of(arena, np.int64(here), targets[done])
        live = np.int64(0)
        for byte in range(128):
            live += in_loop[byte] != 0 and targets[done, byte] != DEAD
        if live < size:
            # The class is smaller; or it does not hold what leads here; or text ends before here.
            if 2 * live >= size:
                for byte in range(128):
                    in_loop[byte] &= targets[done, byte] != DEAD
            elif distance[done] == 1:
                for byte in range(128):
                    in_loop[byte] &= targets[0, byte] != here
            else:
                length = distance[done]
                break
            size = np.int64(in_loop.sum())
            count = 1
            done = 0
            in_step = True
            continue
        last = np.int32(-1)
        for byte in range(128):
            target = targets[done, byte]
            if in_loop[byte] and target != last:
                last = target
                known = False
                for k in range(count):
                    if configs[k] == target:
                        known = True
                        in_step &= distance[k] == distance[done] + 1
                if not known:
                    if count == LOOP:
                        return refused
                    configs[count] = target
                    distance[count] = distance[done] + 1
                    count += 1
        done += 1
    if length < LEAST_LENGTH:
        return refused
    wide = False
    may_leave = False
    other = np.zeros(256, np.uint8)
    for k in range(count):
        here = np.int64(configs[k])
        wide |= _add_interest(arena, here, other)
        may_leave |= arena.config_flags[here] & ESCAPE != 0
    # Other characters count as those of the class do: where text may end, none may lead nearer to that.
    last = count
    if length < ENDLESS:
        while last > 1 and distance[last - 1] > 1:
            last -= 1
    characters = _takes_characters(arena, configs, np.int64(done), configs, np.int64(last))
    if not characters and length < ENDLESS:
        characters = True
        first = 0
        while first < done and characters:
            upto = first
            while upto < done and distance[upto] == distance[first]:
                upto += 1
            last = upto
            while last < count and distance[last] <= distance[first] + 1:
                last += 1
            characters = _takes_characters(
                arena, configs[first:], np.int64(upto - first), configs, np.int64(last)
            )  # fmt: skip
            first = upto
    reach = length
    if length < SHORT and in_step and _end_all(arena, configs[done:count], in_loop, characters):
        # No text is longer.
        reach = np.int64(ENDLESS)
    return _walk_beside(arena, config, in_loop, other, characters, wide, may_leave, length, reach)


@jit(_int(arena_type, _int), apart=True)
def dominant(arena, config):
    """The configuration that most tokens' first bytes lead to from ``config``; DEAD where none has many."""
    if arena.config_row[config] < 0:
        expand(arena, config)
    number = np.int64(arena.config_map[config])
    size = np.int64(arena.map_size[number])
    weight = np.zeros(size, np.int64)
    example = np.zeros(size, np.int64)
    classes = arena.map_class[256 * number : 256 * number + 256]
    weights = arena.byte_weight
    for byte in range(256):
        group = np.int64(classes[byte])
        weight[group] += weights[byte]
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
    _int,
))  # fmt: skip
def _differ_known(
    node, trie_byte, trie_depth, trie_next, token_start, tokens, height, row, place, moves, classes, flags,
    config_row, config_map, twin, slack, path, other, more, less, escapes, drops, counts, past,
):  # fmt: skip
    """Walk two configurations side by side through known transitions; where one is missing, or ``past``.

    Args:
        path, other: at each depth, the configuration and the one that the row at ``place`` has the tokens of.
        more, less: lists of tokens to take out of the row, and of those to add then. escapes: as in ``walk``.
        drops: nodes behind which nothing of the other's escapes holds.
        counts: entries of [more, less, escapes, drops].
    """
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


@jit(types.void(arena_type, _int, _ints, _ints))
def _know_both(arena, node, path, other):
    """Find the moves of both configurations to a node of the trie, and the twin of the first one's."""
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
    targets = np.empty(256, np.int32)
    besides = np.empty(256, np.int32)
    targets_of(arena, config, targets)
    targets_of(arena, reference, besides)
    for kid in range(arena.level_kids[0], arena.level_kids[1]):
        byte = arena.level_byte[kid]
        if targets[byte] != besides[byte]:
            node = np.int64(arena.level_node[kid])
            past = np.int64(arena.trie_next[node])
            while True:
                node = _differ_known(
                    node, arena.trie_byte, arena.trie_depth, arena.trie_next, arena.trie_token_start,
                    arena.trie_tokens, arena.trie_height, arena.rows, row * arena.words, arena.next,
                    arena.map_class, arena.config_flags, arena.config_row, arena.config_map,
                    arena.config_twin, arena.config_slack, path, other, more, less, escapes, drops, counts,
                    past,
                )  # fmt: skip
                if node >= past:
                    break
                _know_both(arena, node, path, other)
                after = np.int64(arena.trie_next[node])
                many = np.int64(arena.trie_token_start[after] - arena.trie_token_start[node])
                more = with_room(more, counts[0] + many)
                less = with_room(less, counts[1] + many)
                escapes = with_room(escapes, counts[2] + 1)
                drops = with_room(drops, counts[3] + 1)
    return counts, more, less, escapes, drops
