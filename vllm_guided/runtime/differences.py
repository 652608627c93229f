"""What a configuration does otherwise than another, found by a walk of the token trie where they differ.

In: a configuration, and a reference whose tokens are known. Out: the tokens that only one of them allows, and
the nodes behind which only one of them may leave the frame. The trie is walked by its levels: a node's
children stand side by side, so those on which both do the same, which are nearly all, cost a look at a byte.

The walk is a loop over known transitions that takes arrays, and a caller that finds what is missing. What it
writes lies in the arena's arrays, which count no references (``borrowing.py``).
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import DEAD, ESCAPE, LOOPS, arena_type
from vllm_guided.runtime.configurations import expand, step
from vllm_guided.runtime.memory import with_room
from vllm_guided.runtime.twins import find_twin

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]
_counts = types.int64[::1]
_words = types.uint64[::1]


@jit()
def find_loop(config, slot, moves, classes, config_row, config_map, loops, loop_bytes):
    """Write the ASCII bytes that are known to lead from ``config`` to itself to ``loop_bytes[2 * slot:]``."""
    loops[slot] = config
    loop_bytes[2 * slot] = 0
    loop_bytes[2 * slot + 1] = 0
    origin = np.int64(config_row[config])
    if origin < 0:
        return
    own_map = 256 * np.int64(config_map[config])
    for byte in range(1, 128):
        if moves[origin + classes[own_map + byte]] == config:
            loop_bytes[2 * slot + (byte >> 6)] |= np.uint64(1) << np.uint64(byte & 63)


@jit()
def _loops_on(config, byte, moves, classes, config_row, config_map):
    """Whether ``byte`` is known to lead from ``config`` back to it."""
    origin = np.int64(config_row[config])
    return origin >= 0 and moves[origin + classes[256 * np.int64(config_map[config]) + byte]] == config


@jit(types.void(
    _ints, _bytes, _ints, _ints, _bytes, _ints, _ints, _ints, _ints, _ints, _int, _ints, _bytes, _bytes,
    _ints, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _counts, _words, _ints,
    _words,
))  # fmt: skip
def _differ_known(
    kids, kid_byte, kid_start, kid_tokens, height, node_of, trie_next, token_start, tokens, row, place, moves,
    classes, flags, config_row, config_map, twin, slack, todo_node, todo_config, todo_other, more, less,
    escapes, drops, counts, below, loops, loop_bytes,
):  # fmt: skip
    """Walk two configurations side by side, as far as the entry on top of ``todo_*`` has known transitions.

    Args:
        kids, ..., node_of: the trie by levels (``slices.levels_of``); the next three of it in preorder.
        todo_*: a node's place, the configuration there, and the one that the row at ``place`` of ``row`` has
            the tokens of (DEAD behind where they part).
        more, less: lists of tokens to take out of the row, and of those to add then. escapes: nodes with
            children behind which the frame may be left. drops: nodes behind which nothing of the other's
            escapes holds (both in preorder's numbers, but in no order).
        counts: entries of [todo, more, less, escapes, drops].
        below: the bytes below each node in preorder. loops, loop_bytes: as in ``walks._walk_known``.
    """
    top = counts[0]
    while top > 0:
        here = np.int64(todo_node[top - 1])
        config = np.int64(todo_config[top - 1])
        other = np.int64(todo_other[top - 1])
        low = np.int64(kids[here])
        past = np.int64(kids[here + 1])
        if top + past - low > todo_node.size or config_row[config] < 0:
            break
        own_row = np.int64(config_row[config])
        own_map = 256 * np.int64(config_map[config])
        other_row = np.int64(0)
        other_map = np.int64(0)
        if other != DEAD:
            if config_row[other] < 0:
                break
            other_row = np.int64(config_row[other])
            other_map = 256 * np.int64(config_map[other])
        known = True
        for kid in range(low, past):
            byte = kid_byte[kid]
            target = moves[own_row + classes[own_map + byte]]
            beside = moves[other_row + classes[other_map + byte]] if other != DEAD else np.int32(DEAD)
            if target == beside:
                known &= target >= 0
            elif (
                target < 0
                or beside < 0
                or (target != DEAD and beside != DEAD and (twin[target] < 0 or twin[beside] < 0))
            ):
                known = False
        if not known:
            break
        top -= 1
        for kid in range(low, past):
            byte = kid_byte[kid]
            target = np.int64(moves[own_row + classes[own_map + byte]])
            beside = np.int64(DEAD)
            if other != DEAD:
                beside = np.int64(moves[other_row + classes[other_map + byte]])
            if target == beside:
                continue
            if (
                target != DEAD and beside != DEAD and twin[target] == twin[beside]
                and min(slack[target], slack[beside]) >= height[kid]
            ):  # fmt: skip
                continue
            has_children = kids[kid + 1] > kids[kid]
            if beside != DEAD and (target == DEAD or (has_children and flags[beside] & ESCAPE != 0)):
                node = np.int64(node_of[kid])
                first = np.int64(token_start[node if target == DEAD else node + 1])
                for k in range(first, np.int64(token_start[trie_next[node]])):
                    token = tokens[k]
                    if row[place + (token >> 5)] & (np.int32(1) << np.int32(token & 31)):
                        less[counts[2]] = token
                        counts[2] += 1
                drops[counts[4]] = node
                counts[4] += 1
                if target == DEAD:
                    continue
                beside = np.int64(DEAD)
            elif beside == DEAD:
                # Where both live, the row has the tokens.
                for k in range(kid_start[kid], kid_start[kid + 1]):
                    more[counts[1]] = kid_tokens[k]
                    counts[1] += 1
            if has_children:
                if flags[target] & ESCAPE:
                    escapes[counts[3]] = node_of[kid]
                    counts[3] += 1
                elif _loops_on(target, kid_byte[kids[kid]], moves, classes, config_row, config_map) and (
                    beside == DEAD
                    or (
                        flags[beside] & ESCAPE == 0
                        and _loops_on(beside, kid_byte[kids[kid]], moves, classes, config_row, config_map)
                    )
                ):
                    # Where nothing but loops of both goes on, all tokens are allowed.
                    node = np.int64(node_of[kid])
                    slot = target & (LOOPS - 1)
                    if loops[slot] != target:
                        find_loop(target, slot, moves, classes, config_row, config_map, loops, loop_bytes)
                    low_bytes = loop_bytes[2 * slot]
                    high_bytes = loop_bytes[2 * slot + 1]
                    if beside != DEAD:
                        slot = beside & (LOOPS - 1)
                        if loops[slot] != beside:
                            find_loop(beside, slot, moves, classes, config_row, config_map, loops, loop_bytes)
                        low_bytes &= loop_bytes[2 * slot]
                        high_bytes &= loop_bytes[2 * slot + 1]
                    if (below[2 * node] & ~low_bytes) | (below[2 * node + 1] & ~high_bytes) == 0:
                        if beside == DEAD:
                            for k in range(token_start[node + 1], token_start[trie_next[node]]):
                                more[counts[1]] = tokens[k]
                                counts[1] += 1
                        continue
                todo_node[top] = kid
                todo_config[top] = target
                todo_other[top] = beside
                top += 1
    counts[0] = top


@jit(types.void(arena_type, _int), apart=True)
def _know_entry(arena, top):
    """Find what ``_differ_known`` misses of the entry before ``top``."""
    here = np.int64(arena.spread_node[top - 1])
    config = np.int64(arena.spread_state[top - 1])
    other = np.int64(arena.spread_stack[top - 1])
    low = np.int64(arena.level_kids[here])
    past = np.int64(arena.level_kids[here + 1])
    arena.spread_node = with_room(arena.spread_node, top + past - low)
    arena.spread_state = with_room(arena.spread_state, top + past - low)
    arena.spread_stack = with_room(arena.spread_stack, top + past - low)
    if arena.config_row[config] < 0:
        expand(arena, config)
    if other != DEAD and arena.config_row[other] < 0:
        expand(arena, other)
    for kid in range(low, past):
        byte = np.int64(arena.level_byte[kid])
        target = step(arena, config, byte)
        beside = step(arena, other, byte)
        if target != DEAD and beside != DEAD and target != beside:
            if arena.config_twin[target] < 0:
                find_twin(arena, target)
            if arena.config_twin[beside] < 0:
                find_twin(arena, beside)


@jit(_counts(arena_type, _int, _int, _int), apart=True)
def walk_differences(arena, config, reference, row):
    """Walk only where ``config`` does otherwise than ``reference``, whose tokens are those of row ``row``.

    Returns:
        ``arena.differ_counts``, where [1] to [4] are how many entries of these hold, each in no order:
        ``differ_more``, the tokens to add to the row after those of ``differ_less`` were taken out of it;
        ``differ_escapes``, the nodes behind which the frame may be left; ``differ_drops``, the nodes behind
        which the reference's escapes do not hold.
    """
    counts = arena.differ_counts
    counts[:] = 0
    if arena.differ_more.size == 0:
        # A token is written at most once, a node, too. Memory is taken as it is used.
        arena.differ_more = np.empty(arena.trie_tokens.size, np.int32)
        arena.differ_less = np.empty(arena.trie_tokens.size, np.int32)
        arena.differ_escapes = np.empty(arena.trie_byte.size, np.int32)
        arena.differ_drops = np.empty(arena.trie_byte.size, np.int32)
    counts[0] = 1
    arena.spread_node[0] = 0
    arena.spread_state[0] = config
    arena.spread_stack[0] = reference
    while True:
        # More is known of them than before.
        arena.loop_config[:] = -1
        _differ_known(
            arena.level_kids, arena.level_byte, arena.level_start, arena.level_tokens, arena.level_height,
            arena.level_node, arena.trie_next, arena.trie_token_start, arena.trie_tokens, arena.rows,
            row * arena.words, arena.next, arena.map_class, arena.config_flags, arena.config_row,
            arena.config_map, arena.config_twin, arena.config_slack, arena.spread_node, arena.spread_state,
            arena.spread_stack, arena.differ_more, arena.differ_less, arena.differ_escapes,
            arena.differ_drops, counts, arena.trie_below, arena.loop_config, arena.loop_bytes,
        )  # fmt: skip
        if counts[0] == 0:
            return counts
        _know_entry(arena, np.int64(counts[0]))
