"""Tier 1: the mask of an automaton state whatever its stack, and what is left of tokens that leave it.

A token whose every byte is consumed from (state, unknown stack) is allowed in any context. Where the frame
may be left in the middle of a token (the configuration has the ESCAPE flag), the rest of the token depends
on the stack: these rests are gathered in a small trie, which tier 2 runs on the real stack (``rests.py``).
xgrammar calls the two kinds of token context-independent and context-dependent.

Few states need a walk of the whole trie. One that loops on a class of bytes is walked only where a token
leaves the loop (``slices.py``). One that most bytes lead away from to another configuration, as inside a
property name that may still become any other, or that differs from another only in a count, is walked only
where it differs from that one, and is kept as the differences from its row.

A counter that the state stands directly in is taken along, as its representative (``twins.py``).
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import DEAD, MANY, UNKNOWN, arena_type
from vllm_guided.runtime.records import has_special_moves, record_differences, record_few, record_walk
from vllm_guided.runtime.splitting import over
from vllm_guided.runtime.twins import ENDLESS, find_twin, is_counted
from vllm_guided.runtime.walks import SHARE, dominant

_int = types.int64

#: A configuration in counters, so many bytes from their limits, is compared with one that does not count.
SLACK = 16
#: A reference's record may itself need one, and so on; so many are followed.
CHAIN = 4


@jit(types.boolean(arena_type, _int))
def _has_row(arena, record):
    """Whether others can be kept as differences from ``record``."""
    return arena.tier1_row[record] >= 0 and arena.tier1_shared[record] < 0


@jit(types.UniTuple(_int, 2)(arena_type, _int), apart=True)
def _nearest(arena, config):
    """What to compare ``config`` with, or DEAD; and where most bytes lead from it (its twin, if it counts).

    Compared is a twin that counts no more, where the limits are far, or a loop that most bytes lead to.
    """
    if arena.config_twin[config] < 0:
        find_twin(arena, config)
    twin = np.int64(arena.config_twin[config])
    if twin != config and arena.config_twin[twin] < 0:
        find_twin(arena, twin)
    if twin != config and is_counted(arena, config):
        if arena.config_slack[config] >= SLACK and not has_special_moves(arena, twin):
            return twin, np.int64(DEAD)
        return np.int64(DEAD), dominant(arena, twin)
    if twin != config:
        known = np.int64(arena.config_tier1[twin])
        if (known < 0 or _has_row(arena, known)) and not has_special_moves(arena, twin):
            return twin, np.int64(DEAD)
    other = dominant(arena, config)
    if other in (DEAD, config) or has_special_moves(arena, other):
        return np.int64(DEAD), other
    if arena.config_twin[other] < 0:
        find_twin(arena, other)
    if dominant(arena, other) == other:
        return other, other
    return np.int64(DEAD), other


@jit(types.boolean(arena_type, _int))
def _takes_few(arena, config):
    """Whether no more than 1 token in SHARE begins with a byte that ``config`` takes."""
    weight = np.int64(0)
    most = arena.trie_tokens.size // SHARE
    weights = arena.byte_weight
    for item in range(arena.config_offsets[config], arena.config_offsets[config + 1]):
        state = np.int64(arena.item_state[item])
        if arena.state_kind[state] & MANY:
            return False
        for k in range(arena.edge_offsets[state], arena.edge_offsets[state + 1]):
            for byte in range(arena.edge_low[k], np.int64(arena.edge_high[k]) + 1):
                weight += weights[byte]
        if weight > most:
            return False
    return True


@jit(_int(arena_type, _int), apart=True)
def tier1(arena, config):
    """The tier-1 record of a configuration over the unknown stack, made on first need."""
    if arena.config_tier1[config] >= 0:
        return np.int64(arena.config_tier1[config])
    if _takes_few(arena, config):
        record_few(arena, config)
        return np.int64(arena.config_tier1[config])
    chain = np.empty(CHAIN, np.int64)
    chain[0] = config
    count = 1
    while count > 0:
        last = chain[count - 1]
        reference, end = _nearest(arena, last)
        if reference != DEAD:
            if arena.config_tier1[reference] < 0 and count < CHAIN:
                chain[count] = reference
                count += 1
                continue
            known = np.int64(arena.config_tier1[reference])
            if known >= 0 and _has_row(arena, known):
                # What loops over a counter's body is compared with, later, by what counts.
                whole = count > 1 or arena.config_slack[last] < ENDLESS
                record_differences(arena, last, reference, whole)
                count -= 1
                continue
            if end == DEAD and not is_counted(arena, last):
                end = dominant(arena, last)
        record_walk(arena, last, end)
        count -= 1
    return np.int64(arena.config_tier1[config])


@jit(_int(arena_type, _int), apart=True)
def record_of(arena, state):
    """The tier-1 record of a state over the unknown stack."""
    known = np.int64(arena.state_tier1[state])
    if known >= 0:
        return known
    made = tier1(arena, over(arena, state, np.int64(UNKNOWN)))
    arena.state_tier1[state] = made
    return made
