"""Tokens that a mask computed without comparing distinct items allows, and that break the constraint.

In: a configuration and the mask of its plain twin (``configurations.plain``). Out: the ids of tokens to take
out of it, kept with the configuration. A way that a token leads is only given up where an item has the
critical beginning of another one (``critical.py``), so few tokens come into question:

1. Those on the way from an item that is being read to the critical beginning of a used one: the token trie
   is walked along them (``_walk_near``), and where they begin with blanks, tokens are looked up
   (``_try_gaps``).
2. Those that go on, behind a comma, with the critical beginning of a used item or of the one that is being
   read (``_try_tails``).
3. Those that hold two such items (``pair_tokens``), also where a bag has not begun yet.

Tokens that are looked up are tried by real steps.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs
# numba has no any() over a generator.

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import BAG, BEFORE, DEAD, RECORDING, TRUE, arena_type
from vllm_guided.runtime.configurations import plain, step
from vllm_guided.runtime.critical import LEAST_LIMIT, critical_length, limit_of, look_at_used, reach
from vllm_guided.runtime.distinct import begin_visit, situations, step_token, step_true
from vllm_guided.runtime.masks import lay_out, mask_of
from vllm_guided.runtime.memory import clear, copy_into, with_room
from vllm_guided.runtime.separators import look_at_bags
from vllm_guided.runtime.texts import (
    EMPTY,
    OUTSIDE,
    beginning,
    begins,
    first_begun,
    next_byte,
    text_from,
)

_int = types.int64
_bool = types.boolean
_ints = types.int32[::1]
_bytes = types.uint8[::1]
_cut = types.Tuple((_ints, _int))


@jit(_bool(arena_type, _int))
def _in_mask(arena, token):
    """Whether the mask that is laid out in ``scratch_row`` allows ``token``."""
    return (arena.scratch_row[token >> 5] >> np.int32(token & 31)) & 1 != 0


@jit(_int(arena_type, _int, _int, _int))
def _descend(arena, node, text, count):
    """The trie's node that the last ``count`` bytes of ``text`` lead to below ``node``; -1 if there is none.

    Where blanks may stand between them it ends, as if the rest were there.
    """
    data = np.empty(count, np.uint8)
    upto = count
    for k in range(count - 1, -1, -1):
        data[k] = arena.text_byte[text]
        text = np.int64(arena.text_parent[text])
        if k > 0 and arena.text_gap[text]:
            upto = k
    for k in range(upto):
        if node == 0:
            node = np.int64(arena.trie_child[data[k]])
            if node < 0:
                return node
            continue
        past = np.int64(arena.trie_next[node])
        node += 1
        while node < past and arena.trie_byte[node] < data[k]:
            node = np.int64(arena.trie_next[node])
        if node >= past or arena.trie_byte[node] != data[k]:
            return np.int64(-1)
    return node


@jit(_int(arena_type, _int, _int))
def _next_critical(arena, entry, text):
    """The beginning of a used text that matters next behind ``text``; -1 if none does within one token."""
    critical = np.int64(arena.used_critical[entry])
    length = np.int64(arena.text_length[text])
    more = np.int64(arena.text_length[critical]) - length
    if more <= 0:
        whole = np.int64(arena.used_text[entry])
        return beginning(arena, whole, length + 1) if begins(arena, whole, text) else np.int64(-1)
    if more <= reach(arena, critical) and begins(arena, critical, text):
        return critical
    return np.int64(-1)


@jit(_bool(arena_type, _int, _int, _int, _int, _int, _bytes))
def _mark_ways(arena, bag, used, text, node, place, marks):
    """Mark the bytes by which tokens below ``node`` lead from ``text`` to where used texts matter."""
    entry = first_begun(arena, used, text)
    if entry == 0:
        return False
    look_at_used(arena, used, bag)
    some = False
    blanks = False
    length = np.int64(arena.text_length[text])
    while entry > 0:
        critical = _next_critical(arena, entry, text)
        if critical >= 0:
            more = np.int64(arena.text_length[critical]) - length
            # Blanks at the beginning of a token are looked at apart, unless they may be what matters.
            blanks |= node > 0 or arena.text_length[arena.used_critical[entry]] <= length
            if more > 0 and _descend(arena, node, critical, more) >= 0:
                marks[place + next_byte(arena, critical, text)] = 1
                some = True
        entry = np.int64(arena.used_parent[entry])
    if blanks and arena.text_quoting[text] == OUTSIDE:
        for byte in (9, 10, 13, 32):
            marks[place + byte] = 1
        some = True
    return some


@jit(_bool(arena_type, _int, _int, _int, _bytes), apart=True)
def _mark_near(arena, config, node, place, marks):
    """Mark, in ``marks[place : place + 256]``, the bytes that real steps are to be made on below ``node``."""
    for byte in range(256):
        marks[place + byte] = 0
    if arena.config_flags[config] & RECORDING == 0:
        return False
    low = np.int64(arena.config_offsets[config])
    high = np.int64(arena.config_offsets[config + 1])
    tape = np.int64(arena.config_tape[config])
    found = np.empty(8, np.int64)
    count = np.int64(0)
    begin_visit(arena)
    for k in range(low, high):
        found, count = situations(
            arena, np.int64(arena.item_stack[k]), np.int64(RECORDING), found, count, np.int64(0)
        )
    some = False
    for j in range(count):
        here = found[j] - BAG
        if arena.situation_used[here] > 0:
            text = text_from(arena, tape, np.int64(arena.situation_from[here]))
            some |= _mark_ways(
                arena, np.int64(arena.situation_bag[here]), np.int64(arena.situation_used[here]), text, node,
                place, marks,
            )  # fmt: skip
    return some


@jit(_cut(arena_type, _int, _bool, _ints, _int), apart=True)
def _walk_near(arena, config, everything, cut, count):
    """Append the tokens of the laid out mask that real steps refuse, made near used items, or everywhere.

    Three configurations go down the trie: that of the mask; the real one as far as an item may be given up;
    and its plain twin, which is what is left of the mask where one was.
    """
    marks = arena.near_bytes
    if not everything and not _mark_near(arena, config, np.int64(0), np.int64(0), marks):
        return cut, count
    loose = np.empty(arena.longest_token + 2, np.int64)
    exact = np.empty(arena.longest_token + 2, np.int64)
    real = np.empty(arena.longest_token + 2, np.int64)
    real[0] = config
    exact[0] = plain(arena, config)
    loose[0] = exact[0]
    node = np.int64(1)
    past = arena.trie_byte.size
    while node < past:
        depth = np.int64(arena.trie_depth[node])
        byte = np.int64(arena.trie_byte[node])
        after = np.int64(arena.trie_next[node])
        is_near = real[depth - 1] != DEAD and (everything or marks[256 * (depth - 1) + byte] != 0)
        if not is_near and exact[depth - 1] == loose[depth - 1]:
            node = after
            continue
        allowed = step(arena, loose[depth - 1], byte)
        if allowed == DEAD:
            node = after
            continue
        if is_near:
            target = step_true(arena, real[depth - 1], byte)
            left = plain(arena, target)
        else:
            target = np.int64(DEAD)
            left = step(arena, exact[depth - 1], byte)
        if left == DEAD:
            for k in range(arena.trie_token_start[node], arena.trie_token_start[after]):
                token = np.int64(arena.trie_tokens[k])
                if _in_mask(arena, token):
                    cut = with_room(cut, count + 1)
                    cut[count] = token
                    count += 1
            node = after
            continue
        loose[depth] = allowed
        exact[depth] = left
        real[depth] = DEAD
        if is_near and (everything or _mark_near(arena, target, node, 256 * depth, marks)):
            real[depth] = target
        node = node + 1 if real[depth] != DEAD or left != allowed else after
    return cut, count


@jit(_cut(arena_type, _int, _int, _ints, _int), apart=True)
def _try_token(arena, config, token, cut, count):
    """Append ``token`` if the mask in ``scratch_row`` has it and real steps refuse it."""
    if _in_mask(arena, token):
        for k in range(count):
            if cut[k] == token:
                return cut, count
        if step_token(arena, config, token) == DEAD:
            cut = with_room(cut, count + 1)
            cut[count] = token
            count += 1
    return cut, count


@jit(_cut(arena_type, _int, _int, _int, _int, _ints, _int), apart=True)
def _try_tails(arena, config, node, skip, quoting, cut, count):
    """Try the tokens with a tail at or below ``node``, the commas before which may stand between items.

    ``skip``: -1, or a text that is being read: only longer tails are looked at, and where it is inside of
    quotes only tokens that begin with the byte that follows it in their tail.
    """
    length = np.int64(arena.tail_depth[node])
    inside = skip >= 0 and arena.text_quoting[skip] != OUTSIDE
    here = node
    branch = np.int64(0)
    while True:
        if arena.tail_depth[here] == length + 1:
            branch = np.int64(arena.tail_byte[here])
        if skip < 0 or here != node:
            entry = np.int64(arena.tail_entry[here])
            while entry >= 0:
                token = np.int64(arena.entry_token[entry])
                if arena.entry_quoting[entry] & quoting and not (
                    inside and arena.token_data[arena.token_offsets[token]] != branch
                ):
                    cut, count = _try_token(arena, config, token, cut, count)
                entry = np.int64(arena.entry_next[entry])
        below = np.int64(arena.tail_child[here])
        while below < 0:
            if here == node:
                return cut, count
            below = np.int64(arena.tail_sibling[here])
            here = np.int64(arena.tail_parent[here])
        here = below
    return cut, count


@jit(_cut(arena_type, _int, _int, _int, _int, _ints, _int), apart=True)
def _try_gaps(arena, config, bag, used, text, cut, count):
    """Try the tokens that begin with blanks and lead on from ``text`` to where a used item matters."""
    entry = first_begun(arena, used, text)
    if entry > 0:
        look_at_used(arena, used, bag)
    while entry > 0:
        critical = _next_critical(arena, entry, text)
        more = (
            np.int64(arena.text_length[critical]) - np.int64(arena.text_length[text]) if critical >= 0 else 0
        )
        if more > 0:
            gap = np.int64(arena.gap_first[next_byte(arena, critical, text)])
            while gap >= 0:
                node = _descend(arena, np.int64(arena.gap_node[gap]), critical, more)
                if node >= 0:
                    for k in range(
                        arena.trie_token_start[node], arena.trie_token_start[arena.trie_next[node]]
                    ):
                        token = np.int64(arena.trie_tokens[k])
                        cut, count = _try_token(arena, config, token, cut, count)
                gap = np.int64(arena.gap_next[gap])
        entry = np.int64(arena.used_parent[entry])
    return cut, count


@jit(_cut(arena_type, _int, _int, _int, _ints, _int), apart=True)
def _try_items(arena, config, state, quoting, cut, count):
    """Try tokens that go on, behind blanks or a comma, as an item that ``state`` used or is reading."""
    here = state - BAG
    bag = np.int64(arena.situation_bag[here])
    used = np.int64(arena.situation_used[here])
    if used > 0:
        look_at_used(arena, used, bag)
        entry = np.int64(arena.used_behind[used])
        while entry > 0:
            node = np.int64(arena.text_tail[arena.used_critical[entry]])
            cut, count = _try_tails(arena, config, node, np.int64(-1), quoting, cut, count)
            entry = np.int64(arena.used_parent[entry])
            if entry > 0:
                entry = np.int64(arena.used_behind[entry])
    text = np.int64(EMPTY)
    if arena.situation_phase[here] > BEFORE:
        text = text_from(arena, np.int64(arena.config_tape[config]), np.int64(arena.situation_from[here]))
    if used > 0 and arena.situation_phase[here] >= BEFORE and arena.text_quoting[text] == OUTSIDE:
        cut, count = _try_gaps(arena, config, bag, used, text, cut, count)
    if text == EMPTY:
        return cut, count  # then the token holds both items
    node = np.int64(arena.text_tail[text])
    depth = np.int64(arena.tail_depth[node])
    narrow = critical_length(arena, bag, text, depth + 1, limit_of(arena, used))
    if narrow <= depth:
        node = np.int64(arena.text_tail[beginning(arena, text, narrow)])
        cut, count = _try_tails(arena, config, node, np.int64(-1), quoting, cut, count)
    elif depth == arena.text_length[text]:
        cut, count = _try_tails(arena, config, node, text, quoting, cut, count)
    return cut, count


@jit(_bool(arena_type, _int, _ints), apart=True)
def may_be_cut(arena, config, row):
    """Whether ``find_cut`` has anything to do for a mask laid out in ``row``; if not, that is noted."""
    look_at_bags(arena)
    if arena.odd_bags > 0 or arena.config_flags[config] & TRUE:
        return True
    for k in range(arena.pair_count):
        token = arena.pair_tokens[k]
        if arena.pair_tried[k] and (row[token >> 5] >> np.int32(token & 31)) & 1 != 0:
            return True
    arena.config_cut[config] = 0
    arena.config_cut_count[config] = 0
    return False


@jit(types.void(arena_type, _int, _bool), apart=True)
def find_cut(arena, config, everything):
    """Find the tokens to take out of ``config``'s mask: ``config_cut_count`` ids from ``config_cut`` on.

    ``everything``: by real steps on every token, which is the slow, obvious way.
    """
    number = mask_of(arena, plain(arena, config))
    cut = np.empty(16, np.int32)
    count = np.int64(0)
    look_at_bags(arena)
    lay_out(arena, number, arena.scratch_row)
    if everything or arena.odd_bags > 0:
        cut, count = _walk_near(arena, config, True, cut, count)
    else:
        quoting = np.int64(7)
        many = False
        flags = arena.config_flags[config]
        if flags & RECORDING:
            quoting = np.int64(1) << np.int64(arena.text_quoting[arena.config_tape[config]])
        if flags & TRUE:
            cut, count = _walk_near(arena, config, False, cut, count)
            found = np.empty(8, np.int64)
            states = np.int64(0)
            begin_visit(arena)
            for k in range(arena.config_offsets[config], arena.config_offsets[config + 1]):
                found, states = situations(
                    arena, np.int64(arena.item_stack[k]), np.int64(TRUE), found, states, np.int64(0)
                )
            for j in range(states):
                many |= limit_of(arena, np.int64(arena.situation_used[found[j] - BAG])) > LEAST_LIMIT
                cut, count = _try_items(arena, config, found[j], quoting, cut, count)
        for k in range(arena.pair_count):
            if arena.pair_quoting[k] & quoting and (many or arena.pair_tried[k]):
                cut, count = _try_token(arena, config, np.int64(arena.pair_tokens[k]), cut, count)
    clear(arena.scratch_row, 0, arena.words)
    arena.ids = with_room(arena.ids, arena.id_count + count)
    copy_into(arena.ids, arena.id_count, cut, 0, count)
    arena.config_cut[config] = arena.id_count
    arena.config_cut_count[config] = count
    arena.id_count += count
