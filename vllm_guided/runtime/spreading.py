"""Which tokens below a trie's node continue an output: by pairs of a state and a set of stacks, mostly.

A configuration of one pair, whose state has byte moves alone, needs no number of its own while tokens are
looked for: its move on a byte is looked up among the state's edges, and the trie's children that an edge
takes stand side by side. So what costs is the nodes that are reached, not all children beside them, and no
configuration is interned, no row of transitions made. Calls and returns are closed as always, into an
interned configuration, whose pairs are followed one by one where no byte is taken by two of them. Where one
is (a declared name and any other), the configuration is followed as a whole, through its transitions.

The same code runs on the trie of the vocabulary and on those of rests (``rests.py``).
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import (
    BRANCHES,
    CALLS,
    DEAD,
    ESCAPE,
    LEAVES,
    MANY,
    SIMPLE,
    TRUE,
    UNKNOWN,
    arena_type,
)
from vllm_guided.runtime.collecting import add, begin, return_to
from vllm_guided.runtime.configurations import close, expand, intern, plain, step
from vllm_guided.runtime.memory import mixed, with_room

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]
_bool = types.boolean
_counts = types.int64[::1]

#: ``spread_stack``: the entry's state is a configuration.
WHOLE = -1
#: A configuration of more pairs is followed as a whole.
PAIRS = 8
#: After so many closings everything is followed as a whole: then transitions are met again.
CLOSINGS = 64
#: Of more children than this the first one that an edge takes is searched for by halving.
SEVERAL = 12


@jit(_int(arena_type, _int, _int), apart=True)
def closed(arena, state, stack):
    """The configuration of ``state`` on ``stack``, closed under calls and returns, items not compared."""
    key = state << 32 | stack
    slot = np.int64(mixed(key, np.int64(0)) & np.uint64(arena.closed_key.size - 1))
    if arena.closed_key[slot] == key:
        return np.int64(arena.closed_value[slot])
    begin(arena)
    add(arena, state, stack)
    arena.tape = np.int64(0)
    made = plain(arena, close(arena, np.int64(0)))
    # What was here before is forgotten: mostly the same run asks again.
    arena.closed_key[slot] = key
    arena.closed_value[slot] = made
    return made


@jit(_int(arena_type, _int), apart=True)
def after_return(arena, stack):
    """The configuration after the frame above ``stack`` is left, items not compared."""
    known = np.int64(arena.stack_after[stack])
    if known >= 0:
        return known
    begin(arena)
    return_to(arena, stack)
    arena.tape = np.int64(0)
    made = plain(arena, close(arena, np.int64(0)))
    arena.stack_after[stack] = made
    return made


@jit(_bool(arena_type, _int))
def are_apart(arena, config):
    """Whether no byte is taken by two pairs of ``config``, and none of them is the middle of free text.

    Free text calls the rules of some characters, so that it would be closed again behind each.
    """
    low = np.int64(arena.config_offsets[config])
    high = np.int64(arena.config_offsets[config + 1])
    if arena.closings > CLOSINGS or high - low > PAIRS or arena.config_flags[config] & TRUE:
        return False
    kinds = arena.state_kind
    for item in range(low, high):
        kind = kinds[arena.item_state[item]]
        if kind & BRANCHES != 0 or (high - low > 1 and kind & MANY != 0 and kind & CALLS != 0):
            return False
    if high - low == 1:
        return True
    offsets = arena.edge_offsets
    edge_low = arena.edge_low
    edge_high = arena.edge_high
    for item in range(low, high):
        state = np.int64(arena.item_state[item])
        first = np.int64(offsets[state])
        past = np.int64(offsets[state + 1])
        for other in range(low, item):
            beside = np.int64(arena.item_state[other])
            k = np.int64(offsets[beside])
            last = np.int64(offsets[beside + 1])
            j = first
            # Edges ascend.
            while j < past and k < last:
                if edge_high[j] < edge_low[k]:
                    j += 1
                elif edge_high[k] < edge_low[j]:
                    k += 1
                else:
                    return False
    return True


@jit(types.void(arena_type, _int))
def _escape(arena, node):
    count = arena.escape_count
    arena.escapes = with_room(arena.escapes, count + 1)
    arena.escapes[count] = node
    arena.escape_count = count + 1


@jit(types.void(arena_type, _int, _int, _int))
def enter_pair(arena, node, state, stack):
    """Have the moves of ``state`` itself on ``stack`` followed from a trie's ``node`` on."""
    top = arena.spread_count
    arena.spread_node = with_room(arena.spread_node, top + 1)
    arena.spread_state = with_room(arena.spread_state, top + 1)
    arena.spread_stack = with_room(arena.spread_stack, top + 1)
    arena.spread_node[top] = node
    arena.spread_state[top] = state
    arena.spread_stack[top] = stack
    arena.spread_count = top + 1


@jit(types.void(arena_type, _int, _int), apart=True)
def enter_state(arena, node, state):
    """Have the moves of ``state`` itself on the unknown stack followed from a trie's ``node`` on."""
    if arena.state_kind[state] & BRANCHES == 0:
        enter_pair(arena, node, state, np.int64(UNKNOWN))
        return
    begin(arena)
    add(arena, state, np.int64(UNKNOWN))
    enter_pair(arena, node, intern(arena, np.int64(0)), np.int64(WHOLE))


@jit(types.void(arena_type, _int, _int))
def _enter_pairs(arena, node, config):
    for item in range(arena.config_offsets[config], arena.config_offsets[config + 1]):
        enter_pair(arena, node, np.int64(arena.item_state[item]), np.int64(arena.item_stack[item]))


@jit(types.void(arena_type, _int, _int), apart=True)
def enter(arena, node, config):
    """Have ``config`` followed from a trie's ``node`` on; where the frame may be left, note the node."""
    if config == DEAD:
        return
    if arena.config_flags[config] & ESCAPE:
        _escape(arena, node)
    if not are_apart(arena, config):
        enter_pair(arena, node, config, np.int64(WHOLE))
        return
    _enter_pairs(arena, node, config)


@jit(types.void(
    _ints, _bytes, _ints, _ints, _ints, _bytes, _bytes, _ints, _bytes, _ints, _ints, _bytes, _ints, _ints,
    _bytes, _ints, _ints, _ints, _ints, _counts, _int,
))  # fmt: skip
def _spread_known(
    kids, kid_byte, token_start, tokens, edge_offsets, edge_low, edge_high, edge_target, kinds, ids, moves,
    classes, config_row, config_map, flags, spread_node, spread_state, spread_stack, escapes, counts, most,
):  # fmt: skip
    """Follow what was entered as far as the entry on top can be followed without the arena.

    It takes arrays, not the arena: in its loops nothing then has to be read again.

    Args:
        kids: the children of each node are ``kids[node]`` to ``kids[node + 1]``, their bytes ascend; a node's
            tokens are ``tokens[token_start[node] : token_start[node + 1]]``.
        counts: [entries, ids, escapes]. most: no node's children have more tokens (0: look).
    """
    top = counts[0]
    used = counts[1]
    left = counts[2]
    while top > 0:
        node = np.int64(spread_node[top - 1])
        state = np.int64(spread_state[top - 1])
        stack = np.int64(spread_stack[top - 1])
        kid = np.int64(kids[node])
        past = np.int64(kids[node + 1])
        room = most if most > 0 else np.int64(token_start[past]) - np.int64(token_start[kid])
        if (
            state < 0 or top + past - kid > spread_node.size or left + past - kid > escapes.size
            or used + room > ids.size
        ):  # fmt: skip
            break
        if stack >= 0:
            top -= 1
            edge = np.int64(edge_offsets[state])
            last = np.int64(edge_offsets[state + 1])
            while edge < last and kid < past:
                low = edge_low[edge]
                byte = kid_byte[kid]
                if byte < low:
                    if past - kid > SEVERAL:
                        high = past
                        while kid < high:
                            middle = (kid + high) >> 1
                            if kid_byte[middle] < low:
                                kid = middle + 1
                            else:
                                high = middle
                    else:
                        kid += 1
                    continue
                if byte > edge_high[edge]:
                    edge += 1
                    continue
                for j in range(token_start[kid], token_start[kid + 1]):
                    ids[used] = tokens[j]
                    used += 1
                if kids[kid + 1] > kids[kid]:
                    target = np.int64(edge_target[edge])
                    kind = kinds[target]
                    leaves = kind & LEAVES != 0 and stack == UNKNOWN
                    if leaves:
                        escapes[left] = kid
                        left += 1
                    spread_node[top] = kid
                    spread_state[top] = target if leaves or kind & SIMPLE != 0 else -1 - target
                    spread_stack[top] = stack
                    top += 1
                kid += 1
            continue
        row = np.int64(config_row[state])
        if row < 0:
            break
        place = 256 * np.int64(config_map[state])
        known = True
        for k in range(kid, past):
            known &= moves[row + classes[place + kid_byte[k]]] >= 0
        if not known:
            break
        top -= 1
        for k in range(kid, past):
            target = np.int64(moves[row + classes[place + kid_byte[k]]])
            if target == DEAD:
                continue
            for i in range(token_start[k], token_start[k + 1]):
                ids[used] = tokens[i]
                used += 1
            if kids[k + 1] > kids[k]:
                if flags[target] & ESCAPE:
                    escapes[left] = k
                    left += 1
                spread_node[top] = k
                spread_state[top] = target
                spread_stack[top] = WHOLE
                top += 1
    counts[0] = top
    counts[1] = used
    counts[2] = left


@jit(types.void(arena_type, _bool), apart=True)
def spread(arena, is_suffix):
    """Follow all that was entered: append to ``ids`` the tokens it allows, and to ``escapes`` the nodes with
    children behind which the frame may be left, in no order.

    ``is_suffix``: nodes are those of the tries of rests, else of the vocabulary's (by ``level_place``).
    """
    counts = arena.spread_counts
    most = np.int64(0 if is_suffix else arena.trie_tokens.size)
    while arena.spread_count > 0:
        counts[0] = arena.spread_count
        counts[1] = arena.id_count
        counts[2] = arena.escape_count
        if is_suffix:
            kids, kid_byte, token_start = arena.suffix_kids, arena.suffix_byte, arena.suffix_ids
            tokens = arena.ids
        else:
            kids, kid_byte, token_start = arena.level_kids, arena.level_byte, arena.level_start
            tokens = arena.level_tokens
        _spread_known(
            kids, kid_byte, token_start, tokens, arena.edge_offsets, arena.edge_low, arena.edge_high,
            arena.edge_target, arena.state_kind, arena.ids, arena.next, arena.map_class, arena.config_row,
            arena.config_map, arena.config_flags, arena.spread_node, arena.spread_state, arena.spread_stack,
            arena.escapes, counts, most,
        )  # fmt: skip
        top = counts[0]
        arena.spread_count = top
        arena.id_count = counts[1]
        arena.escape_count = counts[2]
        if top == 0:
            return
        node = np.int64(arena.spread_node[top - 1])
        state = np.int64(arena.spread_state[top - 1])
        stack = np.int64(arena.spread_stack[top - 1])
        if state < 0:
            arena.spread_count = top - 1
            arena.closings += 1
            enter(arena, node, closed(arena, -1 - state, stack))
            continue
        kid = np.int64(kids[node])
        past = np.int64(kids[node + 1])
        arena.spread_node = with_room(arena.spread_node, top + past - kid)
        arena.spread_state = with_room(arena.spread_state, top + past - kid)
        arena.spread_stack = with_room(arena.spread_stack, top + past - kid)
        arena.escapes = with_room(arena.escapes, arena.escape_count + past - kid)
        room = most if most > 0 else np.int64(token_start[past] - token_start[kid])
        arena.ids = with_room(arena.ids, arena.id_count + room)
        if stack == WHOLE:
            if arena.config_row[state] < 0:
                if are_apart(arena, state):
                    arena.spread_count = top - 1
                    _enter_pairs(arena, node, state)
                    continue
                expand(arena, state)
            row = np.int64(arena.config_row[state])
            place = 256 * np.int64(arena.config_map[state])
            for k in range(kid, past):
                if arena.next[row + arena.map_class[place + kid_byte[k]]] < 0:
                    step(arena, state, np.int64(kid_byte[k]))
