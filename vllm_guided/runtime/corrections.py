"""Tokens that a mask computed without comparing distinct items allows, and that break the constraint.

In: a configuration and the mask of its plain twin (``configurations.plain``). Out: the ids of tokens to take
out of it, kept with the configuration. Few tokens come into question:

1. Those whose text keeps the item that is being read at the beginning of a used one, or that pass the
   separator to the next item: the token trie is walked with real steps as far as that holds.
2. Those that complete an item somewhere, pass a separator and go on into the next item (``straddles``). They
   leave the frame that the output is in, so they are among the ids that tier 2 adds to tier 1.
3. Those that hold two equal items (``pair_tokens``), also where a bag has not begun yet.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs
# numba has no any() over a generator.
# ruff: noqa: SIM110

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import (
    BAG,
    BEFORE,
    DEAD,
    RECORDING,
    TRUE,
    UNION_DEPTH,
    arena_type,
    copy_into,
    with_room,
)
from vllm_guided.runtime.configurations import plain, step
from vllm_guided.runtime.distinct import begin_visit, is_near_used, recordings, step_token, step_true
from vllm_guided.runtime.masks import mask_of

_int = types.int64
_bool = types.boolean
_ints = types.int32[::1]

#: What ``straddles`` says of a token: it goes on behind a comma; it has the same on both sides of one.
GOES_ON, PAIR = 1, 2


@jit(_bool(types.uint8))
def _blank(byte):
    return byte == 32 or byte == 10 or byte == 9 or byte == 13


@jit(types.void(arena_type), apart=True)
def find_straddling_tokens(arena):
    """Fill ``straddles``, ``straddle_tokens`` and ``pair_tokens`` for the vocabulary."""
    data = arena.token_data
    offsets = arena.token_offsets
    count = offsets.size - 1
    kinds = np.zeros(count, np.uint8)
    going_on = 0
    pairs = 0
    for token in range(count):
        low = offsets[token]
        high = offsets[token + 1]
        kind = 0
        for comma in range(low, high):
            if data[comma] != 44:
                continue
            after = comma + 1
            while after < high and _blank(data[after]):
                after += 1
            if after == high:
                continue
            kind |= GOES_ON
            before = comma
            while before > low and _blank(data[before - 1]):
                before -= 1
            for length in range(1, min(before - low, high - after) + 1):
                same = True
                for k in range(length):
                    if data[before - length + k] != data[after + k]:
                        same = False
                        break
                if same:
                    kind |= PAIR
                    break
            for k in range(low, high):
                if data[k] == 58:  # a colon: members of objects, which are compared by their names
                    kind |= PAIR
        kinds[token] = kind
        going_on += 1 if kind & GOES_ON else 0
        pairs += 1 if kind & PAIR else 0
    arena.straddles = kinds
    tokens = np.empty(going_on, np.int32)
    both = np.empty(pairs, np.int32)
    going_on = 0
    pairs = 0
    for token in range(count):
        if kinds[token] & GOES_ON:
            tokens[going_on] = token
            going_on += 1
        if kinds[token] & PAIR:
            both[pairs] = token
            pairs += 1
    arena.straddle_tokens = tokens
    arena.pair_tokens = both


@jit(_bool(arena_type, _int, _int))
def _in_row(arena, row, token):
    """Whether the dense row, if there is one, has ``token``."""
    if row < 0:
        return False
    return (arena.rows[row * arena.words + (token >> 5)] >> np.int32(token & 31)) & 1 != 0


@jit(_bool(arena_type, _int, _int))
def in_mask(arena, number, token):
    """Whether mask ``number`` allows ``token``."""
    if _in_row(arena, np.int64(arena.mask_row[number]), token):
        return True
    first = np.int64(arena.mask_ids[number])
    for k in range(first, first + np.int64(arena.mask_id_count[number])):
        if arena.ids[k] == token:
            return True
    return False


@jit(_bool(arena_type, _int, _int), apart=True)
def _is_between(arena, stack, depth):
    """Whether the innermost comparing bag on some stack waits for its next item behind the separator."""
    if arena.stack_mode[stack] & TRUE == 0 or depth >= UNION_DEPTH:
        return False
    if arena.visit_mark[stack] == arena.visit:
        return False
    arena.visit_mark[stack] = arena.visit
    for k in range(arena.stack_offsets[stack], arena.stack_offsets[stack + 1]):
        top = np.int64(arena.stack_state[k])
        if top >= BAG and arena.bag_distinct[arena.situation_bag[top - BAG]]:
            if arena.situation_phase[top - BAG] == BEFORE:
                return True
        elif _is_between(arena, np.int64(arena.stack_below[k]), depth + 1):
            return True
    return False


@jit(_bool(arena_type, _int), apart=True)
def _is_near(arena, config):
    """Whether further bytes may meet a used item: one is near, or the next item is about to begin."""
    flags = arena.config_flags[config]
    if flags & TRUE == 0:
        return False
    low = np.int64(arena.config_offsets[config])
    high = np.int64(arena.config_offsets[config + 1])
    if flags & RECORDING:
        arena.tape = np.int64(arena.config_tape[config])
        found = np.empty(8, np.int64)
        count = np.int64(0)
        begin_visit(arena)
        for k in range(low, high):
            found, count = recordings(arena, np.int64(arena.item_stack[k]), found, count, np.int64(0))
        for j in range(count):
            if is_near_used(arena, found[j]):
                return True
    begin_visit(arena)
    for k in range(low, high):
        if _is_between(arena, np.int64(arena.item_stack[k]), np.int64(0)):
            return True
    return False


@jit(types.Tuple((_ints, _int))(arena_type, _int, _int, _ints, _int), apart=True)
def _walk_near(arena, config, number, cut, count):
    """Append the tokens of mask ``number`` that real steps near used items refuse."""
    if not _is_near(arena, config):
        return cut, count
    real = np.empty(arena.longest_token + 2, np.int64)
    loose = np.empty(arena.longest_token + 2, np.int64)
    real[0] = config
    loose[0] = plain(arena, config)
    node = np.int64(1)
    past = arena.trie_byte.size
    while node < past:
        depth = np.int64(arena.trie_depth[node])
        byte = np.int64(arena.trie_byte[node])
        after = np.int64(arena.trie_next[node])
        allowed = step(arena, loose[depth - 1], byte)
        if allowed == DEAD:
            node = after
            continue
        target = step_true(arena, real[depth - 1], byte)
        if target == DEAD:
            for k in range(arena.trie_token_start[node], arena.trie_token_start[after]):
                token = np.int64(arena.trie_tokens[k])
                if in_mask(arena, number, token):
                    cut = with_room(cut, count + 1)
                    cut[count] = token
                    count += 1
            node = after
            continue
        real[depth] = target
        loose[depth] = allowed
        # Where an item was dropped the mask's walk still goes on with it: so must this one.
        node = node + 1 if _is_near(arena, target) or plain(arena, target) != allowed else after
    return cut, count


@jit(types.void(arena_type, _int), apart=True)
def find_cut(arena, config):
    """Find the tokens to take out of ``config``'s mask: ``config_cut_count`` ids from ``config_cut`` on."""
    number = mask_of(arena, plain(arena, config))
    cut = np.empty(16, np.int32)
    count = np.int64(0)
    row = np.int64(arena.mask_row[number])
    tokens = arena.pair_tokens
    if arena.config_flags[config] & TRUE:
        cut, count = _walk_near(arena, config, number, cut, count)
        if arena.mask_own[number]:
            tokens = arena.straddle_tokens
    for k in range(tokens.size):
        token = np.int64(tokens[k])
        if _in_row(arena, row, token) and step_token(arena, config, token) == DEAD:
            cut = with_room(cut, count + 1)
            cut[count] = token
            count += 1
    first = np.int64(arena.mask_ids[number])
    for k in range(first, first + np.int64(arena.mask_id_count[number])):
        token = np.int64(arena.ids[k])
        if arena.straddles[token] and step_token(arena, config, token) == DEAD:
            cut = with_room(cut, count + 1)
            cut[count] = token
            count += 1
    arena.ids = with_room(arena.ids, arena.id_count + count)
    copy_into(arena.ids, arena.id_count, cut, 0, count)
    arena.config_cut[config] = arena.id_count
    arena.config_cut_count[config] = count
    arena.id_count += count


@jit(_bool(arena_type, _int, _int), apart=True)
def is_cut(arena, config, token):
    """Whether ``token`` is taken out of the mask of ``config``."""
    if arena.distinct_count == 0:
        return False
    if arena.config_cut_count[config] < 0:
        find_cut(arena, config)
    first = np.int64(arena.config_cut[config])
    for k in range(first, first + np.int64(arena.config_cut_count[config])):
        if arena.ids[k] == token:
            return True
    return False
