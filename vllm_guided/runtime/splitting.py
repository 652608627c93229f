"""A configuration's pairs, split into what tier 1 may know and the real stacks below that.

A state is looked at on the unknown stack, mostly. What it calls for characters goes along with the middle of
free text, and counters that it stands directly in, as their representatives (``twins.py``).
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import BAG, BOTTOM, CALLS, MANY, UNKNOWN, VIRTUAL, arena_type
from vllm_guided.runtime.collecting import add, begin
from vllm_guided.runtime.configurations import closure, intern
from vllm_guided.runtime.stacks import intern_stack, push
from vllm_guided.runtime.twins import representative

_int = types.int64

#: This many counters directly above a state are taken into its mask's key.
COUNTERS_TAKEN = 4


@jit(types.boolean(arena_type, _int))
def is_free(arena, state):
    """Whether ``state`` takes many bytes and may end, now or after the next one."""
    if arena.state_kind[state] & MANY == 0:
        return False
    if arena.accepting[state]:
        return True
    for k in range(arena.edge_offsets[state], arena.edge_offsets[state + 1]):
        target = np.int64(arena.edge_target[k])
        if arena.accepting[target] and arena.state_kind[target] & MANY:
            return True
    return False


@jit(types.boolean(arena_type, _int))
def _takes_calls_along(arena, state):
    """Whether ``state`` takes many bytes itself and calls rules for the others.

    So does the middle of a name that may become any other: what it calls takes the other characters. Such a
    state is compared with the loop that it leads to as a whole; others share the masks of what they call.
    """
    kind = arena.state_kind[state]
    return kind & CALLS != 0 and kind & MANY != 0


@jit(_int(arena_type, _int, _int))
def over(arena, state, base):
    """The configuration of ``state`` on the stacks of ``base``, with what it calls if it takes that along."""
    begin(arena)
    add(arena, state, base)
    if _takes_calls_along(arena, state):
        closure(arena)
    return intern(arena, 0)


@jit(_int(arena_type, _int, _int))
def _onto(arena, stack, base):
    """``stack``, which lies on the unknown one, on ``base`` instead; -1 where it has several members."""
    tops = np.empty(COUNTERS_TAKEN, np.int64)
    count = 0
    while stack != UNKNOWN:
        first = np.int64(arena.stack_offsets[stack])
        if arena.stack_offsets[stack + 1] - first != 1 or arena.stack_flags[stack] != 0:
            return np.int64(-1)
        if count == tops.size:
            return np.int64(-1)
        tops[count] = arena.stack_state[first]
        stack = np.int64(arena.stack_below[first])
        count += 1
    for k in range(count - 1, -1, -1):
        base = push(arena, tops[k], base)
    return base


@jit(types.uint8[::1](arena_type, _int), apart=True)
def covered(arena, config):
    """Which items of ``config`` the tier-1 records of others know: what these call (``_over``)."""
    low = np.int64(arena.config_offsets[config])
    high = np.int64(arena.config_offsets[config + 1])
    known = np.zeros(high - low, np.uint8)
    if high - low == 1:
        return known
    for item in range(low, high):
        state = np.int64(arena.item_state[item])
        if known[item - low] or not _takes_calls_along(arena, state):
            continue
        closed = over(arena, state, np.int64(UNKNOWN))
        for k in range(np.int64(arena.config_offsets[closed]), np.int64(arena.config_offsets[closed + 1])):
            stack = _onto(arena, np.int64(arena.item_stack[k]), np.int64(arena.item_stack[item]))
            for other in range(low, high):
                if (
                    other != item and arena.item_state[other] == arena.item_state[k]
                    and arena.item_stack[other] == stack
                ):  # fmt: skip
                    known[other - low] = 1
    return known


@jit(_int(_int))
def _ground(below):
    """What stands for the stacks ``below`` in a mask's key: nothing is unknown of the empty one."""
    return np.int64(BOTTOM if below == BOTTOM else UNKNOWN)


@jit(_int(arena_type, _int, _int, types.int64[:, ::1], _int), apart=True)
def rebased(arena, state, stack, pairs, count):
    """Split ``state`` on ``stack`` into what tier 1 may know and the real stacks below that.

    Each pair appended to ``pairs`` from ``count`` on is a configuration over the unknown stack, and the
    set of stacks that the unknown one stands for (or a configuration over the empty stack, and that).
    Together they are the same as ``state`` on ``stack``.

    Returns the new count.
    """
    low = np.int64(arena.stack_offsets[stack])
    high = np.int64(arena.stack_offsets[stack + 1])
    keys = np.empty(high - low, np.int64)
    plain = 0
    # Where free text may end after each character, what follows is better known.
    may_end = is_free(arena, state)
    if may_end and stack == BOTTOM:
        pairs[count, 0] = over(arena, state, stack)
        pairs[count, 1] = stack
        return count + 1
    for k in range(low, high):
        top = np.int64(arena.stack_state[k])
        below = np.int64(arena.stack_below[k])
        if may_end and top < VIRTUAL:
            pairs[count, 0] = over(arena, state, push(arena, top, _ground(below)))
            pairs[count, 1] = below
            count += 1
            continue
        if top < VIRTUAL or top >= BAG:
            keys[plain] = top << 32 | below
            plain += 1
            continue
        # Counters directly inside counters: taken along while each has one stack below it.
        taken = 1
        tops = np.empty(COUNTERS_TAKEN, np.int64)
        tops[0] = top
        while taken < COUNTERS_TAKEN:
            first = np.int64(arena.stack_offsets[below])
            alone = arena.stack_offsets[below + 1] - first == 1 and arena.stack_flags[below] == 0
            if not alone or not VIRTUAL <= arena.stack_state[first] < BAG:
                break
            tops[taken] = arena.stack_state[first]
            below = np.int64(arena.stack_below[first])
            taken += 1
        base = _ground(below)
        # The frame below is taken along, too: a counter may be left after each item, and nothing but what
        # follows there would be known of all tokens that end the repetition.
        first = np.int64(arena.stack_offsets[below])
        alone = arena.stack_offsets[below + 1] - first == 1 and arena.stack_flags[below] == 0
        if alone and arena.stack_state[first] < VIRTUAL:
            below = np.int64(arena.stack_below[first])
            base = push(arena, np.int64(arena.stack_state[first]), _ground(below))
        for position in range(taken - 1, -1, -1):
            base = push(arena, representative(arena, tops[position]), base)
        pairs[count, 0] = over(arena, state, base)
        pairs[count, 1] = below
        count += 1
    flags = np.int64(arena.stack_flags[stack])
    if plain > 0 or flags != 0:
        pairs[count, 0] = over(arena, state, np.int64(UNKNOWN))
        pairs[count, 1] = stack if plain == high - low else intern_stack(arena, keys, plain, flags)
        count += 1
    return count
