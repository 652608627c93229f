"""Walks beside a loop: of a configuration from which text of a class of bytes goes on, as in a string.

The tokens made of such bytes alone are a ready row (``slices.py``): only what is beside them is walked.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import BAG, DEAD, ESCAPE, VIRTUAL, arena_type
from vllm_guided.runtime.configurations import counter_of, step
from vllm_guided.runtime.memory import copy_into
from vllm_guided.runtime.slices import (
    BUT_SEPARATORS,
    BUT_SPACES,
    ENDS_SEPARATOR,
    ENDS_SPACE,
    EVERY,
    NONE,
    SEPARATOR,
    SHORT,
    SPACE,
    UP_TO,
    class_step,
    pure_row,
)
from vllm_guided.runtime.twins import ENDLESS
from vllm_guided.runtime.walks import targets_of, walk

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]
_bool = types.boolean

#: Text goes through so many configurations at most, on so many ASCII bytes, for so many characters at least.
LOOP, LEAST_LOOP, LEAST_LENGTH = 128, 24, 6
#: Configurations inside of characters, by what is missing of them, that are looked at.
PARTIAL = 128


@jit(types.boolean(arena_type, _ints, _int, _ints, _int, _int), apart=True)
def _takes_characters(arena, configs, config_count, ends, end_count, characters):
    """Whether the given characters beyond ASCII, and nothing else above it, lead to ``ends``.

    U+2028 and U+2029, or white space, may lead anywhere where they are not given.
    """
    origins = np.empty(config_count + PARTIAL, np.int64)
    states = np.zeros(config_count + PARTIAL, np.int64)
    targets = np.empty(256, np.int32)
    for k in range(config_count):
        origins[k] = configs[k]
    count = config_count
    done = 0
    while done < count:
        state = states[done]
        targets_of(arena, origins[done], targets)
        done += 1
        before = np.int64(-1)
        before_after = np.int64(-1)
        for byte in range(128 if state == 0 else 0, 256):
            target = np.int64(targets[byte])
            after = class_step(characters, state, byte)
            if target == before and after == before_after:
                continue
            before = target
            before_after = after
            if after < 0:
                if target != DEAD and after == -1:
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


@jit(_int(arena_type, _ints, _int, _ints, _int))
def _characters(arena, configs, config_count, ends, end_count):
    """Which characters beyond ASCII, and nothing else above it, lead from ``configs`` to ``ends``."""
    for characters in (EVERY, BUT_SEPARATORS, BUT_SPACES):
        if _takes_characters(arena, configs, config_count, ends, end_count, np.int64(characters)):
            return np.int64(characters)
    return np.int64(NONE)


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
    types.Tuple((_int, _ints, _int))(arena_type, _int, _bytes, _bytes, _int, _bool, _bool, _int, _int),
    apart=True,
)
def _walk_beside(arena, config, in_loop, other, characters, wide, may_leave, length, reach):
    """``walk`` where all tokens of the bytes ``in_loop`` alone, up to ``length`` characters, are allowed.

    Args:
        in_loop, other: uint8[256], ASCII bytes of the loop, and bytes that may follow where it is left.
        characters: which characters beyond ASCII belong to the loop. wide: some may follow.
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
    if characters != NONE:
        in_loop[128:] = 1
    # Where these may follow, their last bytes are looked at.
    leaving = np.int64(0)
    if characters == BUT_SEPARATORS:
        interest_low |= SEPARATOR
        leaving = np.int64(ENDS_SEPARATOR)
    elif characters == BUT_SPACES:
        interest_low |= SPACE
        leaving = np.int64(ENDS_SPACE)
    if wide and (characters == NONE or may_leave):
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
    return walk(arena, config, in_loop, leaving, interest_low, interest_high, reach)


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


@jit(_bool(arena_type, _int, _int, _bytes, _int))
def _all_lead(arena, config, target, in_loop, characters):
    """Whether all bytes of a class, and the characters beyond ASCII, lead from ``config`` to ``target``."""
    for byte in range(128):
        if in_loop[byte] and step(arena, config, byte) != target:
            return False
    if characters == NONE:
        return True
    origins = np.full(1, config, np.int32)
    ends = np.full(1, target, np.int32)
    return _takes_characters(arena, origins, np.int64(1), ends, np.int64(1), characters)


@jit(types.Tuple((_int, _ints, _int))(arena_type, _int, _int, _bool), apart=True)
def walk_chain(arena, config, end, is_twin):
    """``walk`` for a configuration that most bytes lead to ``end``, and on through a chain or a loop of such.

    The tokens made of these bytes alone (and of characters, where all of them lead there) are allowed up to
    the chain's length: that is a ready row. Only what leaves the chain is walked.

    ``is_twin``: it is the configuration's twin, which counts no more, that leads to ``end``.

    Returns:
        as ``walk``; the first is -1 where there is no such chain.
    """
    none = np.empty(1, np.int32)
    refused = np.int64(-1), none, np.int64(0)
    twin = np.int64(arena.config_twin[config]) if is_twin else config
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
    characters = _characters(arena, origins, np.int64(1), ends, np.int64(1))
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
            if characters != NONE and not _takes_characters(
                arena, origins, np.int64(1), ends, np.int64(1), characters
            ):
                return refused
        elif characters != NONE:
            for byte in range(128, 256):
                if step(arena, here, byte) != DEAD:
                    return refused
        if target == here or length >= arena.longest_token:
            length = np.int64(ENDLESS)
            break
        if target == DEAD:
            break
        length += 1
        if length > SHORT and twin == config:
            # Rows are no longer, and to look on would cost more than it saves.
            break
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
        # Near a limit what follows the counter may take some of the bytes, too.
        if twin != config and not _all_lead(arena, here, target, in_loop, characters):
            return refused
        if target == here:
            break
        here = target
        wide |= _add_interest(arena, here, other)
        may_leave |= arena.config_flags[here] & ESCAPE != 0
        if here == DEAD:
            return refused
    reach = np.int64(ENDLESS)
    if length < ENDLESS:
        # Behind the chain, as behind a counter, such text may go on.
        origins[0] = here
        if not _end_all(arena, origins, in_loop, characters != NONE):
            reach = length
    return _walk_beside(arena, config, in_loop, other, characters, wide, may_leave, length, reach)


@jit(types.Tuple((_int, _ints, _int))(arena_type, _int, _bool), apart=True)
def walk_loop(arena, config, endless):
    """``walk`` for a configuration from which text of a class of bytes goes on for some characters.

    It may go through many configurations, as in text that must somewhere hold a word: how much of the word
    was read differs, but any text may follow. The tokens made of these bytes alone are allowed, up to the
    number of characters that certainly may follow: that is a ready row. Only others are walked.

    Args:
        endless: only where any number of characters may follow. (Text that must not hold a word may go on
            for the word's length with any characters, but for ever with all but its first.)

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
        if distance[done] >= SHORT and not endless:
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
    if length < LEAST_LENGTH or (endless and length < ENDLESS):
        return refused
    wide = False
    may_leave = False
    other = np.zeros(256, np.uint8)
    for k in range(count):
        here = np.int64(configs[k])
        wide |= _add_interest(arena, here, other)
        may_leave |= arena.config_flags[here] & ESCAPE != 0
    # Other characters count as those of the class do: where text may end, none may lead nearer to that.
    ends = np.int64(count)
    if length < ENDLESS:
        while ends > 1 and distance[ends - 1] > 1:
            ends -= 1
    characters = _characters(arena, configs, np.int64(done), configs, ends)
    if characters == NONE and length < ENDLESS:
        characters = np.int64(EVERY)
        first = 0
        while first < done and characters != NONE:
            upto = first
            while upto < done and distance[upto] == distance[first]:
                upto += 1
            ends = np.int64(upto)
            while ends < count and distance[ends] <= distance[first] + 1:
                ends += 1
            if not _takes_characters(
                arena, configs[first:], np.int64(upto - first), configs, ends, np.int64(EVERY)
            ):
                characters = np.int64(NONE)
            first = upto
    reach = length
    if length < SHORT and in_step and _end_all(arena, configs[done:count], in_loop, characters != NONE):
        # No text is longer.
        reach = np.int64(ENDLESS)
    return _walk_beside(arena, config, in_loop, other, characters, wide, may_leave, length, reach)
