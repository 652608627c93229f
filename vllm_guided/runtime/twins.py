"""Counts that no single token can tell apart.

A count matters only within one token's length of its limits. So a mask is computed for a representative:
far from both limits that is a counter without limits, which loops; near the largest count it is a counter
that has as much left; and below the least count by more than a token's length it is one that never ends.
These twins belong to the counter's body, not to the counter: all strings of a process with some
``maxLength`` share their masks, and far from the limit these are the masks of a string without one.

Two configurations that differ only in counts agree on every text shorter than their distance from the
limits (``config_slack``), so a walk for the one can take over what is known of the other (``tier1.py``).
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import BAG, NEVER, UNLIMITED, VIRTUAL, arena_type
from vllm_guided.runtime.collecting import add, begin
from vllm_guided.runtime.configurations import counter_of, intern
from vllm_guided.runtime.memory import with_room
from vllm_guided.runtime.stacks import push, union

_int = types.int64

#: No limit is near.
ENDLESS = 1 << 20
#: The twins of a counter: without limits; one that never ends; with a largest count; with a least count.
FREE, ENDED_NEVER, LARGEST, LEAST = 0, 1, 2, 3


@jit(_int(arena_type, _int, _int))
def _twin_base(arena, counter, kind):
    """Where the counts of a twin of ``counter`` begin.

    A body's four twins stand side by side, each with ``longest_token + 1`` counts.
    """
    return np.int64(arena.counter_twins[counter]) + kind * (arena.longest_token + 1)


@jit(_int(arena_type, _int))
def representative(arena, state):
    """The state that stands for a counter's ``state`` in the masks' keys: no single token can tell them."""
    counter = counter_of(arena, state)
    base = np.int64(arena.counter_base[counter])
    least = np.int64(arena.counter_minimum[counter])
    most = np.int64(arena.counter_maximum[counter])
    reach = arena.longest_token
    count = state - base
    if most == NEVER:
        return state
    is_far = most < 0 or most - count > reach
    if count >= least:
        if is_far:
            return _twin_base(arena, counter, FREE)
        return _twin_base(arena, counter, LARGEST) + reach - (most - count)
    if not is_far:
        return state
    if least - count > reach:
        return _twin_base(arena, counter, ENDED_NEVER)
    return _twin_base(arena, counter, LEAST) + reach - (least - count)


@jit(types.UniTuple(_int, 2)(arena_type, _int))
def _loosened(arena, state):
    """The twin without limits of a counter's state, and how many bytes cannot tell them apart."""
    counter = counter_of(arena, state)
    least = np.int64(arena.counter_minimum[counter])
    most = np.int64(arena.counter_maximum[counter])
    if most == NEVER or (most < 0 and least == 0):
        return state, ENDLESS
    count = state - np.int64(arena.counter_base[counter])
    slack = np.int64(ENDLESS) if most < 0 else most - count
    if count >= least:
        return _twin_base(arena, counter, FREE), slack
    return _twin_base(arena, counter, ENDED_NEVER), min(slack, least - count - 1)


@jit(types.boolean(arena_type, _int))
def is_counted(arena, config):
    """Whether a state of ``config`` stands directly in a counter."""
    for item in range(arena.config_offsets[config], arena.config_offsets[config + 1]):
        stack = arena.item_stack[item]
        for k in range(arena.stack_offsets[stack], arena.stack_offsets[stack + 1]):
            if VIRTUAL <= arena.stack_state[k] < BAG:
                return True
    return False


@jit(types.boolean(arena_type, _int))
def has_like(arena, config):
    """Whether another state stands for one of ``config``."""
    for item in range(arena.config_offsets[config], arena.config_offsets[config + 1]):
        if arena.state_like[arena.item_state[item]] >= 0:
            return True
    return False


@jit(types.void(arena_type, _int), apart=True)
def find_twin(arena, config):
    """Set ``config_twin`` and ``config_slack``: the configuration with the counts below its tops loosened.

    Or, where there are none, with the states that stand for its own. The twin of a configuration without
    either is itself; its slack is ENDLESS, that of others less.
    """
    slack = np.int64(ENDLESS)
    low = np.int64(arena.config_offsets[config])
    high = np.int64(arena.config_offsets[config + 1])
    counted = is_counted(arena, config)
    twin = config
    if not counted and has_like(arena, config):
        begin(arena)
        for item in range(low, high):
            state = np.int64(arena.item_state[item])
            other = np.int64(arena.state_like[state])
            if other >= 0:
                slack = min(slack, np.int64(arena.state_reach[state]))
                state = other
            add(arena, state, np.int64(arena.item_stack[item]))
        arena.config_twin[config] = intern(arena, np.int64(arena.config_flags[config]))
        arena.config_slack[config] = slack
        return
    if counted:
        begin(arena)
        for item in range(low, high):
            stack = np.int64(arena.item_stack[item])
            whole = np.int64(-1)
            has_count = False
            for k in range(np.int64(arena.stack_offsets[stack]), np.int64(arena.stack_offsets[stack + 1])):
                top = np.int64(arena.stack_state[k])
                if VIRTUAL <= top < BAG:
                    has_count = True
                    top, least = _loosened(arena, top)
                    slack = min(slack, least)
                one = push(arena, top, np.int64(arena.stack_below[k]))
                whole = one if whole < 0 else union(arena, whole, one, np.int64(0))
            if not has_count:
                whole = stack
            elif arena.stack_flags[stack] != 0:
                # The empty or the unknown stack is a member beside counts: keep the set as it is.
                whole = stack
                slack = np.int64(0)
            add(arena, np.int64(arena.item_state[item]), whole)
        twin = intern(arena, np.int64(arena.config_flags[config]))
    arena.config_twin[config] = twin
    arena.config_slack[config] = min(slack, ENDLESS - 1) if counted else ENDLESS


@jit(types.void(arena_type, _int, _int))
def append_twins(arena, base, body):
    """Append the four twins of the counters over ``body``; their counts begin at ``base``."""
    span = arena.longest_token + 1
    for kind in range(4):
        number = arena.counter_count
        arena.counter_base = with_room(arena.counter_base, number + 1)
        arena.counter_minimum = with_room(arena.counter_minimum, number + 1)
        arena.counter_maximum = with_room(arena.counter_maximum, number + 1)
        arena.counter_body = with_room(arena.counter_body, number + 1)
        arena.counter_twins = with_room(arena.counter_twins, number + 1)
        arena.counter_base[number] = base + kind * span
        arena.counter_minimum[number] = span - 1 if kind == LEAST else 0
        limit = span - 1 if kind == LARGEST else UNLIMITED
        arena.counter_maximum[number] = NEVER if kind == ENDED_NEVER else limit
        arena.counter_body[number] = body
        arena.counter_twins[number] = base
        arena.counter_count = number + 1
