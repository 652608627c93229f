"""The compiled functions that Python calls: one for each public operation, and one for a whole batch.

They take the arena's address (:func:`vllm_guided.runtime.arena.address`); the caller keeps the arena alive.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import BAG, BEFORE, BOTTOM, DEAD, FINAL, TERMINATED, arena_at, arena_type
from vllm_guided.runtime.bags import ALWAYS, SOME, situation
from vllm_guided.runtime.bags import flagset as flagset_of
from vllm_guided.runtime.borrowing import settle
from vllm_guided.runtime.collecting import add, begin
from vllm_guided.runtime.corrections import find_cut
from vllm_guided.runtime.distinct import finish, step_bytes, step_token
from vllm_guided.runtime.memory import copy_into, set_all, with_room
from vllm_guided.runtime.rows import fill_row
from vllm_guided.runtime.sizes import sizes_of
from vllm_guided.runtime.straddling import index_tokens
from vllm_guided.runtime.twins import append_twins

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]
_bitmask = types.int32[:, ::1]


@jit(types.void(_int, _int, _int, _int, _int, _int))
def append_counter(address, base, minimum, maximum, body, twins):
    """Append a counter whose virtual states begin at ``base``; bases must ascend.

    ``twins``: where those of its body begin, made now if that is behind ``base``.
    """
    arena = arena_at(address)
    settle(arena)
    number = arena.counter_count
    arena.counter_base = with_room(arena.counter_base, number + 1)
    arena.counter_minimum = with_room(arena.counter_minimum, number + 1)
    arena.counter_maximum = with_room(arena.counter_maximum, number + 1)
    arena.counter_body = with_room(arena.counter_body, number + 1)
    arena.counter_base[number] = base
    arena.counter_minimum[number] = minimum
    arena.counter_maximum[number] = maximum
    arena.counter_body[number] = body
    arena.counter_twins = with_room(arena.counter_twins, number + 1)
    arena.counter_twins[number] = twins
    arena.counter_count = number + 1
    if twins > base:
        append_twins(arena, twins, body)


@jit(types.void(
    _int, _int, types.boolean, _int, _int, _int, _int, types.int64[::1], _ints,
    _ints, _ints, _ints, _ints, _ints, _ints,
    _ints,
))  # fmt: skip
def append_bag(
    address, separator, skips, minimum, maximum, groups, wanted, required, start, rest, rest_skips, own,
    member_wanted, distinct,
    first, last,
):  # fmt: skip
    """Append a bag; ``skips``: the separator may be empty, ``rest_skips``: a member's rest may.

    Its beginning is the next situation (``BAG + situation_count`` before the call).

    ``separator``, ``start`` and ``rest`` (-1: none) are states that rules start in.
    """
    arena = arena_at(address)
    settle(arena)
    bag = arena.bag_count
    arena.bag_separator = with_room(arena.bag_separator, bag + 1)
    arena.bag_skips = with_room(arena.bag_skips, bag + 1)
    arena.bag_minimum = with_room(arena.bag_minimum, bag + 1)
    arena.bag_maximum = with_room(arena.bag_maximum, bag + 1)
    arena.bag_groups = with_room(arena.bag_groups, bag + 1)
    arena.bag_wanted = with_room(arena.bag_wanted, bag + 1)
    arena.bag_clamp = with_room(arena.bag_clamp, bag + 1)
    arena.bag_distinct = with_room(arena.bag_distinct, bag + 1)
    arena.bag_free = with_room(arena.bag_free, bag + 1)
    arena.bag_word_offsets = with_room(arena.bag_word_offsets, bag + 2)
    arena.bag_offsets = with_room(arena.bag_offsets, bag + 2)
    words = np.int64(arena.bag_word_offsets[bag])
    arena.bag_required = with_room(arena.bag_required, words + required.size)
    copy_into(arena.bag_required, words, required, 0, required.size)
    low = np.int64(arena.bag_offsets[bag])
    past = low + start.size
    arena.member_start = with_room(arena.member_start, past)
    arena.member_rest = with_room(arena.member_rest, past)
    arena.member_skips = with_room(arena.member_skips, past)
    arena.member_own = with_room(arena.member_own, past)
    arena.member_wanted = with_room(arena.member_wanted, past)
    arena.member_distinct = with_room(arena.member_distinct, past)
    arena.member_first = with_room(arena.member_first, past)
    arena.member_last = with_room(arena.member_last, past)
    arena.member_reading = with_room(arena.member_reading, past)
    copy_into(arena.member_start, low, start, 0, start.size)
    copy_into(arena.member_rest, low, rest, 0, start.size)
    copy_into(arena.member_skips, low, rest_skips, 0, start.size)
    copy_into(arena.member_own, low, own, 0, start.size)
    copy_into(arena.member_wanted, low, member_wanted, 0, start.size)
    copy_into(arena.member_distinct, low, distinct, 0, start.size)
    copy_into(arena.member_first, low, first, 0, start.size)
    copy_into(arena.member_last, low, last, 0, start.size)
    set_all(arena.member_reading, low, start.size)
    free = 0
    any_distinct = False
    furthest = minimum
    for k in range(start.size):
        if own[k] < 0:
            free = max(free, ALWAYS if first[k] == 0 and last[k] < 0 else SOME)
        any_distinct |= distinct[k] != 0
        furthest = max(furthest, np.int64(first[k]), np.int64(last[k]) + 1)
    arena.bag_separator[bag] = separator
    arena.bag_skips[bag] = skips
    arena.bag_minimum[bag] = minimum
    arena.bag_maximum[bag] = maximum
    arena.bag_groups[bag] = groups
    arena.bag_wanted[bag] = wanted
    arena.bag_clamp[bag] = furthest if maximum < 0 else maximum
    arena.bag_distinct[bag] = any_distinct
    arena.bag_free[bag] = free
    arena.bag_word_offsets[bag + 1] = words + required.size
    arena.bag_offsets[bag + 1] = past
    arena.bag_count = bag + 1
    if any_distinct:
        if arena.distinct_count == 0:
            index_tokens(arena)
        arena.distinct_count += 1
    none = flagset_of(arena, np.zeros(required.size, np.int64), required.size)
    used = np.int64(0 if any_distinct else -1)
    situation(arena, np.int64(bag), np.int64(BEFORE), np.int64(0), none, used, np.int64(0))


@jit(_int(_int))
def next_situation(address):
    """The state that the beginning of the next bag appended will be."""
    arena = arena_at(address)
    settle(arena)
    return BAG + arena.situation_count


@jit(_int(_int, _ints))
def append_set(address, tokens):
    """Append a set of token ids, ascending; its number."""
    arena = arena_at(address)
    settle(arena)
    number = arena.set_count
    arena.set_offsets = with_room(arena.set_offsets, number + 2)
    arena.set_tokens = with_room(arena.set_tokens, arena.set_size + tokens.size)
    copy_into(arena.set_tokens, arena.set_size, tokens, 0, tokens.size)
    arena.set_size += tokens.size
    arena.set_offsets[number + 1] = arena.set_size
    arena.set_count = number + 1
    return number


@jit(_int(_int, _int, types.boolean))
def start_configuration(address, state, nullable):
    """The configuration a grammar starts in; ``state`` -1: only the empty string."""
    arena = arena_at(address)
    settle(arena)
    begin(arena)
    arena.tape = np.int64(0)
    if state >= 0:
        add(arena, state, np.int64(BOTTOM))
    return finish(arena, np.int64(FINAL if nullable else 0))


@jit(types.boolean(_int, _int))
def is_final(address, config):
    """Whether the output may end here."""
    arena = arena_at(address)
    settle(arena)
    return config == TERMINATED or (arena.config_flags[config] & FINAL) != 0


@jit(_int(arena_type, _int, _int))
def _advance(arena, config, token):
    """The configuration after ``token``; TERMINATED after a stop token, DEAD if it is not allowed."""
    if token < 0 or token + 1 >= arena.token_offsets.size or config <= 1:
        return DEAD
    if arena.config_flags[config] & FINAL:
        for stop in arena.stop_tokens:
            if stop == token:
                return TERMINATED
    return step_token(arena, config, token)


@jit(_int(_int, _int, _int))
def advance(address, config, token):
    """The configuration after ``token``; TERMINATED after a stop token, DEAD if it is not allowed."""
    arena = arena_at(address)
    settle(arena)
    return _advance(arena, config, token)


@jit(_int(_int, _int, _ints, _ints))
def advance_all(address, config, tokens, out):
    """Advance over ``tokens`` as far as they are allowed, configurations to ``out``; how many were."""
    arena = arena_at(address)
    settle(arena)
    for k in range(tokens.size):
        config = _advance(arena, config, np.int64(tokens[k]))
        if config == DEAD:
            return k
        out[k] = config
    return tokens.size


@jit(_int(_int, _int, _bytes))
def advance_bytes(address, config, data):
    """The configuration after the text ``data``, however it is cut into tokens; DEAD if not allowed."""
    arena = arena_at(address)
    settle(arena)
    return step_bytes(arena, config, data)


@jit(_int(_int, _int, _bitmask, _int))
def fill(address, config, bitmask, place):
    """Write the mask of ``config`` to row ``place`` of ``bitmask``.

    Returns 1, 0 where no token is allowed, and -1 where there is no such row or it is too narrow.
    """
    arena = arena_at(address)
    settle(arena)
    if place < 0 or place >= bitmask.shape[0] or bitmask.shape[1] < arena.words:
        return np.int64(-1)
    return np.int64(1 if fill_row(arena, config, bitmask, place) else 0)


@jit(types.boolean(_int, _int, _bitmask, _int))
def fill_slowly(address, config, bitmask, place):
    """``fill``, every token tried where items must be distinct: the slow, obvious twin, for tests."""
    arena = arena_at(address)
    settle(arena)
    if config > 1 and arena.distinct_count > 0:
        find_cut(arena, config, True)
    return fill_row(arena, config, bitmask, place)


@jit(_int(_int, _ints, _bitmask, types.int64[::1]))
def fill_batch(address, configs, bitmask, places):
    """``fill`` for each configuration; a negative one gets an all-ones row. How many rows have no bit."""
    arena = arena_at(address)
    settle(arena)
    empty = 0
    for k in range(configs.size):
        if configs[k] < 0:
            set_all(bitmask[places[k]], 0, bitmask.shape[1])
        elif not fill_row(arena, np.int64(configs[k]), bitmask, places[k]):
            empty += 1
    return empty


@jit(types.void(_int, _ints, _ints, _ints))
def advance_batch(address, configs, tokens, out):
    """``advance`` for each pair of a configuration and a token."""
    arena = arena_at(address)
    settle(arena)
    for k in range(configs.size):
        out[k] = _advance(arena, np.int64(configs[k]), np.int64(tokens[k]))


@jit(types.void(_int, _ints, _ints, _ints, _ints))
def advance_many(address, configs, tokens, offsets, out):
    """``advance`` for each configuration over its tokens (``offsets``), configurations to ``out``."""
    arena = arena_at(address)
    settle(arena)
    for r in range(configs.size):
        config = np.int64(configs[r])
        for k in range(offsets[r], offsets[r + 1]):
            config = _advance(arena, config, np.int64(tokens[k]))
            out[k] = config


@jit(types.void(_int, _ints, _ints, _ints, _ints, _ints, _ints, _ints))
def walk_drafts(address, configs, drafts, offsets, fed_from, masked_from, out, refused):
    """See :func:`vllm_guided.runtime.steps.draft_states`."""
    arena = arena_at(address)
    settle(arena)
    for r in range(configs.size):
        config = np.int64(configs[r])
        first = np.int64(offsets[r])
        count = np.int64(offsets[r + 1]) - first
        row = first + r
        refused[r] = -1
        padded = False
        for position in range(count + 1):
            if refused[r] >= 0:
                out[row + position] = out[row + position - 1]
                continue
            out[row + position] = config if not padded and position >= masked_from[r] else -1
            if position == count or padded:
                continue
            token = np.int64(drafts[first + position])
            if token < 0:
                padded = True
            elif position >= fed_from[r]:
                after = _advance(arena, config, token)
                if after == DEAD:
                    refused[r] = position
                else:
                    config = after


@jit(_int(_int, _int))
def only_token(address, config):
    """The one token that is allowed, or -1 where several (or none) are."""
    arena = arena_at(address)
    settle(arena)
    row = np.empty((1, arena.words), np.int32)
    if config in (TERMINATED, DEAD) or not fill_row(arena, config, row, np.int64(0)):
        return np.int64(-1)
    found = np.int64(-1)
    for word in range(arena.words):
        bits = np.int64(row[0, word]) & 0xFFFFFFFF
        if bits == 0:
            continue
        if found >= 0 or bits & (bits - 1) != 0:
            return np.int64(-1)
        found = np.int64(32 * word)
        while bits > 1:
            bits >>= 1
            found += 1
    return found


@jit(types.int64[::1](_int))
def sizes(address):
    """See :func:`vllm_guided.runtime.sizes.sizes_of`."""
    return sizes_of(arena_at(address))
