"""The rules of an automaton that are new here, into the arena."""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.automaton.labels import TAIL
from vllm_guided.numba_setup import jit
from vllm_guided.runtime import merging
from vllm_guided.runtime.arena import arena_at, arena_type
from vllm_guided.runtime.borrowing import settle
from vllm_guided.runtime.entry import append_bag
from vllm_guided.runtime.horizon import LEAST_BYTES, LEAST_STATES, like_states

_ints = types.int32[::1]
_bytes = types.uint8[::1]
_longs = types.int64[::1]


@jit(types.void(
    arena_type, types.int64, types.int64, _ints, _ints, _bytes, _bytes, _ints, _ints, _ints, _bytes,
))  # fmt: skip
def _note_like_states(
    arena, first, past, numbers, edge_offsets, edge_low, edge_high, edge_target, call_offsets, token_offsets,
    accepting,
):  # fmt: skip
    """Set ``state_like`` and ``state_reach`` of a rule's states, ``numbers[first:past]`` in the arena."""
    chosen = np.empty(past - first, np.int32)
    count = 0
    free = 0
    for state in range(first, past):
        if call_offsets[state] < call_offsets[state + 1] or token_offsets[state] < token_offsets[state + 1]:
            continue
        chosen[count] = state - first
        count += 1
        taken = np.int64(0)
        for k in range(edge_offsets[state], edge_offsets[state + 1]):
            taken += np.int64(edge_high[k]) - np.int64(edge_low[k]) + 1
        if taken >= LEAST_BYTES:
            free += 1
    if free < LEAST_STATES:
        return
    low, high = np.int64(edge_offsets[first]), np.int64(edge_offsets[past])
    like, reach = like_states(
        chosen[:count], edge_offsets[first : past + 1] - np.int32(low), edge_low[low:high],
        edge_high[low:high], edge_target[low:high] - np.int32(first), accepting[first:past],
    )  # fmt: skip
    for k in range(past - first):
        state, other = numbers[first + k], numbers[first + like[k]]
        length = reach[k]
        while arena.state_like[other] >= 0:
            length = min(length, arena.state_reach[other])
            other = arena.state_like[other]
        if state != other and arena.state_like[state] < 0:
            arena.state_like[state] = other
            arena.state_reach[state] = length


@jit(types.void(
    types.int64, _ints, _ints, _ints, _ints, _ints, _ints, _bytes, _bytes, _ints, _ints, _ints, _ints, _ints,
    _ints, _ints, _bytes,
))  # fmt: skip
def append_rules(
    address, new, first_of, starts, symbols, rule_offsets, edge_offsets, edge_low, edge_high, edge_target,
    call_offsets, call_rule, call_return, token_offsets, token_symbol, token_target, accepting,
):  # fmt: skip
    """Append the states of rules, and set where these rules start.

    Args:
        new: int32, ascending: the rules whose states are appended, none twice.
        first_of: int32 [rules], the rule among ``new`` that is the same (itself, if it is one of them).
        starts: int32 [rules], states of the arena; -1 for the rules in ``new`` and those like them, of which
            the former are set.
        symbols: int32, the arena's set of tokens by number of the symbol.
        rule_offsets, …: as in ``Automaton``.
    """
    arena = arena_at(address)
    settle(arena)
    rules = new.size
    # By rule: the first of its states among the new ones; -1 for rules that are not in ``new``.
    place = np.full(starts.size, -1, np.int32)
    states = 0
    edges = 0
    calls = 0
    tokens = 0
    for i in range(rules):
        first, past = rule_offsets[new[i]], rule_offsets[new[i] + 1]
        place[new[i]] = states
        states += past - first
        edges += edge_offsets[past] - edge_offsets[first]
        calls += call_offsets[past] - call_offsets[first]
        tokens += token_offsets[past] - token_offsets[first]
    new_edge_offsets = np.zeros(states + 1, np.int32)
    new_call_offsets = np.zeros(states + 1, np.int32)
    new_token_offsets = np.zeros(states + 1, np.int32)
    new_low = np.empty(edges, np.uint8)
    new_high = np.empty(edges, np.uint8)
    new_target = np.empty(edges, np.int32)
    call_start = np.empty(calls, np.int32)
    new_return = np.empty(calls, np.int32)
    token_set = np.empty(tokens, np.int32)
    new_token_target = np.empty(tokens, np.int32)
    new_accepting = np.empty(states, np.uint8)
    state = 0
    edge = 0
    call = 0
    token = 0
    for i in range(rules):
        by = rule_offsets[new[i]] - place[new[i]]
        for old in range(rule_offsets[new[i]], rule_offsets[new[i] + 1]):
            for k in range(edge_offsets[old], edge_offsets[old + 1]):
                new_low[edge] = edge_low[k]
                new_high[edge] = edge_high[k]
                new_target[edge] = edge_target[k] - by
                edge += 1
            for k in range(call_offsets[old], call_offsets[old + 1]):
                callee = call_rule[k]
                start = starts[callee]
                if start < 0:
                    start = np.int32(-2) - place[first_of[callee]]
                call_start[call] = start
                new_return[call] = call_return[k] - by if call_return[k] >= 0 else np.int32(TAIL)
                call += 1
            for k in range(token_offsets[old], token_offsets[old + 1]):
                token_set[token] = symbols[token_symbol[k]]
                new_token_target[token] = token_target[k] - by
                token += 1
            new_accepting[state] = accepting[old]
            state += 1
            new_edge_offsets[state] = edge
            new_call_offsets[state] = call
            new_token_offsets[state] = token
    numbers = merging.append_states(
        arena, new_edge_offsets, new_low, new_high, new_target, new_call_offsets, call_start, new_return,
        new_token_offsets, token_set, new_token_target, new_accepting,
    )  # fmt: skip
    for i in range(rules):
        first = place[new[i]]
        starts[new[i]] = numbers[first]
        past = first + rule_offsets[new[i] + 1] - rule_offsets[new[i]]
        if past - first >= LEAST_STATES:
            _note_like_states(
                arena, np.int64(first), np.int64(past), numbers, new_edge_offsets, new_low, new_high,
                new_target, new_call_offsets, new_token_offsets, new_accepting,
            )  # fmt: skip


@jit(types.void(
    types.int64, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _longs, _ints, _ints, _ints,
    _ints, _ints, _ints, _ints, _ints, _ints,
))  # fmt: skip
def append_bags(
    address, bags, starts, separator, skips, minimum, maximum, groups, wanted, word_offsets, required,
    offsets, member_rule, member_rest, member_skips, member_own, member_wanted, member_distinct, member_first,
    member_last,
):  # fmt: skip
    """Append bags of an automaton, whose rules start in ``starts``; all other arrays: as in ``Automaton``.

    Each begins in the next situation (see ``append_bag``).
    """
    for i in range(bags.size):
        bag = bags[i]
        low, past = np.int64(offsets[bag]), np.int64(offsets[bag + 1])
        start = np.empty(past - low, np.int32)
        rest = np.empty(past - low, np.int32)
        for k in range(low, past):
            start[k - low] = starts[member_rule[k]]
            rest[k - low] = starts[member_rest[k]] if member_rest[k] >= 0 else np.int32(-1)
        append_bag(
            address, np.int64(starts[separator[bag]]), skips[bag] != 0, np.int64(minimum[bag]),
            np.int64(maximum[bag]), np.int64(groups[bag]), np.int64(wanted[bag]),
            required[word_offsets[bag] : word_offsets[bag + 1]], start, rest, member_skips[low:past],
            member_own[low:past], member_wanted[low:past], member_distinct[low:past], member_first[low:past],
            member_last[low:past],
        )  # fmt: skip
