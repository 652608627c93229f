"""The compiled functions that Python calls: one for each public operation, and one for a whole batch."""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import (
    BAG,
    BEFORE,
    BOTTOM,
    DEAD,
    FINAL,
    TERMINATED,
    arena_type,
    copy_into,
    fill_with,
    with_room,
)
from vllm_guided.runtime.bags import ALWAYS, SOME, situation
from vllm_guided.runtime.bags import flagset as flagset_of
from vllm_guided.runtime.collecting import add, begin
from vllm_guided.runtime.configurations import plain
from vllm_guided.runtime.corrections import find_cut, is_cut
from vllm_guided.runtime.distinct import finish, step_bytes, step_token
from vllm_guided.runtime.masks import mask_of
from vllm_guided.runtime.rows import fill_row
from vllm_guided.runtime.straddling import index_tokens

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]
_bitmask = types.int32[:, ::1]


@jit(types.void(arena_type, _ints, _bytes, _bytes, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _bytes))
def append_states(
    arena, edge_sizes, edge_low, edge_high, edge_target, call_sizes, call_start, call_return, tok_sizes,
    tok_set, tok_target, accepting,
):  # fmt: skip
    """Append automaton states; ``*_sizes`` say how many of the moves each state owns."""
    states = arena.state_count
    count = accepting.size
    arena.edge_offsets = with_room(arena.edge_offsets, states + count + 1)
    arena.call_offsets = with_room(arena.call_offsets, states + count + 1)
    arena.tok_offsets = with_room(arena.tok_offsets, states + count + 1)
    arena.accepting = with_room(arena.accepting, states + count)
    arena.state_map = with_room(arena.state_map, states + count)
    for k in range(count):
        arena.edge_offsets[states + k + 1] = arena.edge_offsets[states + k] + edge_sizes[k]
        arena.call_offsets[states + k + 1] = arena.call_offsets[states + k] + call_sizes[k]
        arena.tok_offsets[states + k + 1] = arena.tok_offsets[states + k] + tok_sizes[k]
        arena.accepting[states + k] = accepting[k]
        arena.state_map[states + k] = -1
    arena.state_count = states + count
    used = arena.edge_count
    arena.edge_low = with_room(arena.edge_low, used + edge_low.size)
    arena.edge_high = with_room(arena.edge_high, used + edge_low.size)
    arena.edge_target = with_room(arena.edge_target, used + edge_low.size)
    copy_into(arena.edge_low, used, edge_low, 0, edge_low.size)
    copy_into(arena.edge_high, used, edge_high, 0, edge_high.size)
    copy_into(arena.edge_target, used, edge_target, 0, edge_target.size)
    arena.edge_count = used + edge_low.size
    used = arena.call_count
    arena.call_start = with_room(arena.call_start, used + call_start.size)
    arena.call_return = with_room(arena.call_return, used + call_start.size)
    copy_into(arena.call_start, used, call_start, 0, call_start.size)
    copy_into(arena.call_return, used, call_return, 0, call_return.size)
    arena.call_count = used + call_start.size
    used = arena.tok_count
    arena.tok_set = with_room(arena.tok_set, used + tok_set.size)
    arena.tok_target = with_room(arena.tok_target, used + tok_set.size)
    copy_into(arena.tok_set, used, tok_set, 0, tok_set.size)
    copy_into(arena.tok_target, used, tok_target, 0, tok_target.size)
    arena.tok_count = used + tok_set.size


@jit(types.void(arena_type, _int, _int, _int, _int))
def append_counter(arena, base, minimum, maximum, body):
    """Append a counter whose virtual states begin at ``base``; bases must ascend."""
    number = arena.counter_count
    arena.counter_base = with_room(arena.counter_base, number + 1)
    arena.counter_minimum = with_room(arena.counter_minimum, number + 1)
    arena.counter_maximum = with_room(arena.counter_maximum, number + 1)
    arena.counter_body = with_room(arena.counter_body, number + 1)
    arena.counter_base[number] = base
    arena.counter_minimum[number] = minimum
    arena.counter_maximum[number] = maximum
    arena.counter_body[number] = body
    arena.counter_count = number + 1


@jit(types.void(
    arena_type, _int, types.boolean, _int, _int, _int, _int, types.int64[::1], _ints,
    _ints, _ints, _ints, _ints, _ints, _ints,
    _ints,
))  # fmt: skip
def append_bag(
    arena, separator, skips, minimum, maximum, groups, wanted, required, start, rest, rest_skips, own,
    member_wanted, distinct,
    first, last,
):  # fmt: skip
    """Append a bag; ``skips``: the separator may be empty, ``rest_skips``: a member's rest may.

    Its beginning is the next situation (``BAG + situation_count`` before the call).

    ``separator``, ``start`` and ``rest`` (-1: none) are states that rules start in.
    """
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
    fill_with(arena.member_reading, low, start.size, -1)
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


@jit(_int(arena_type))
def next_situation(arena):
    """The state that the beginning of the next bag appended will be."""
    return BAG + arena.situation_count


@jit(_int(arena_type, _ints))
def append_set(arena, tokens):
    """Append a set of token ids, ascending; its number."""
    number = arena.set_count
    arena.set_offsets = with_room(arena.set_offsets, number + 2)
    arena.set_tokens = with_room(arena.set_tokens, arena.set_size + tokens.size)
    copy_into(arena.set_tokens, arena.set_size, tokens, 0, tokens.size)
    arena.set_size += tokens.size
    arena.set_offsets[number + 1] = arena.set_size
    arena.set_count = number + 1
    return number


@jit(_int(arena_type, _int, types.boolean))
def start_configuration(arena, state, nullable):
    """The configuration a grammar starts in; ``state`` -1: only the empty string."""
    begin(arena)
    arena.tape = np.int64(0)
    if state >= 0:
        add(arena, state, np.int64(BOTTOM))
    return finish(arena, np.int64(FINAL if nullable else 0))


@jit(types.boolean(arena_type, _int))
def is_final(arena, config):
    """Whether the output may end here."""
    return config == TERMINATED or (arena.config_flags[config] & FINAL) != 0


@jit(_int(arena_type, _int, _int))
def advance(arena, config, token):
    """The configuration after ``token``; TERMINATED after a stop token, DEAD if it is not allowed."""
    if token < 0 or token + 1 >= arena.token_offsets.size or config <= 1:
        return DEAD
    if arena.config_flags[config] & FINAL:
        for stop in arena.stop_tokens:
            if stop == token:
                return TERMINATED
    return step_token(arena, config, token)


@jit(_int(arena_type, _int, _ints, _ints))
def advance_all(arena, config, tokens, out):
    """Advance over ``tokens`` as far as they are allowed, configurations to ``out``; how many were."""
    for k in range(tokens.size):
        config = advance(arena, config, np.int64(tokens[k]))
        if config == DEAD:
            return k
        out[k] = config
    return tokens.size


@jit(_int(arena_type, _int, _bytes))
def advance_bytes(arena, config, data):
    """The configuration after the text ``data``, however it is cut into tokens; DEAD if not allowed."""
    return step_bytes(arena, config, data)


@jit(types.boolean(arena_type, _int, _bitmask, _int))
def fill(arena, config, bitmask, place):
    """Write the mask of ``config`` to row ``place`` of ``bitmask``; whether any token is allowed."""
    return fill_row(arena, config, bitmask, place)


@jit(types.boolean(arena_type, _int, _bitmask, _int))
def fill_slowly(arena, config, bitmask, place):
    """``fill``, every token tried where items must be distinct: the slow, obvious twin, for tests."""
    if config > 1 and arena.distinct_count > 0:
        find_cut(arena, config, True)
    return fill_row(arena, config, bitmask, place)


@jit(_int(arena_type, _ints, _bitmask, types.int64[::1]))
def fill_batch(arena, configs, bitmask, places):
    """``fill`` for each configuration; a negative one gets an all-ones row. How many rows have no bit."""
    empty = 0
    for k in range(configs.size):
        if configs[k] < 0:
            fill_with(bitmask[places[k]], 0, bitmask.shape[1], -1)
        elif not fill_row(arena, np.int64(configs[k]), bitmask, places[k]):
            empty += 1
    return empty


@jit(types.void(arena_type, _ints, _ints, _ints))
def advance_batch(arena, configs, tokens, out):
    """``advance`` for each pair of a configuration and a token."""
    for k in range(configs.size):
        out[k] = advance(arena, np.int64(configs[k]), np.int64(tokens[k]))


@jit(_int(arena_type, _int))
def only_token(arena, config):
    """The one token that is allowed, or -1 where several (or none) are."""
    if config in (TERMINATED, DEAD):
        return -1
    found = np.int64(-1)
    if arena.config_flags[config] & FINAL:
        if arena.stop_tokens.size > 1:
            return -1
        found = np.int64(arena.stop_tokens[0])
    number = mask_of(arena, plain(arena, config))
    first = np.int64(arena.mask_ids[number])
    for k in range(first, first + np.int64(arena.mask_id_count[number])):
        token = np.int64(arena.ids[k])
        if is_cut(arena, config, token):
            continue
        if found >= 0 and found != token:
            return -1
        found = token
    source = np.int64(arena.mask_row[number])
    if source >= 0:
        for word in range(arena.words):
            bits = arena.rows[source * arena.words + word]
            if bits == 0:
                continue
            for bit in range(32):
                if bits & (np.int32(1) << np.int32(bit)):
                    token = np.int64(32 * word + bit)
                    if is_cut(arena, config, token):
                        continue
                    if found >= 0 and found != token:
                        return -1
                    found = token
    return found
