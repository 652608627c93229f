"""The making of tier-1 records (``tier1.py``): by a walk, from few tokens, or as differences from another.

A record is a row of bits, or a list of ids; or another's row, with ids to take out of it and ids to add; and
the rests behind nodes where the frame may be left, its own or those of another but for some tokens.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import DEAD, arena_type
from vllm_guided.runtime.differences import walk_differences
from vllm_guided.runtime.loops import walk_chain, walk_loop
from vllm_guided.runtime.memory import clear, copy_into, sort_unique, with_room
from vllm_guided.runtime.rests import make_rests
from vllm_guided.runtime.spreading import enter, spread
from vllm_guided.runtime.twins import find_twin, is_counted
from vllm_guided.runtime.walks import SPARSE_LIMIT, dominant, walk

_int = types.int64
_ints = types.int32[::1]

#: A ready row with so few bits is kept as a list: masks of two rows would need one of their own.
FEW = 512


@jit(_int(arena_type, _ints, _int))
def keep_ids(arena, ids, count):
    """Append ``ids[:count]`` to ``arena.ids``; where they begin there."""
    first = arena.id_count
    arena.ids = with_room(arena.ids, first + count)
    copy_into(arena.ids, first, ids, 0, count)
    arena.id_count = first + count
    return first


@jit(_int(arena_type))
def new_row(arena):
    """The number of a fresh row; its words are not cleared."""
    number = arena.row_count
    arena.rows = with_room(arena.rows, (number + 1) * arena.words)
    arena.row_count = number + 1
    return number


@jit(types.boolean(arena_type, _int))
def has_special_moves(arena, config):
    """Whether ``config`` may consume special tokens."""
    for item in range(arena.config_offsets[config], arena.config_offsets[config + 1]):
        state = arena.item_state[item]
        if arena.tok_offsets[state + 1] > arena.tok_offsets[state]:
            return True
    return False


@jit(types.void(arena_type, _int))
def _add_special(arena, config):
    """Set the bits of the special tokens that ``config`` may consume."""
    row = arena.scratch_row
    for item in range(arena.config_offsets[config], arena.config_offsets[config + 1]):
        state = arena.item_state[item]
        for k in range(arena.tok_offsets[state], arena.tok_offsets[state + 1]):
            number = arena.tok_set[k]
            for j in range(arena.set_offsets[number], arena.set_offsets[number + 1]):
                token = arena.set_tokens[j]
                row[token >> 5] |= np.int32(1) << np.int32(token & 31)


@jit(_int(arena_type, _int))
def _new_record(arena, config):
    """A record with nothing in it."""
    number = arena.tier1_count
    arena.tier1_row = with_room(arena.tier1_row, number + 1)
    arena.tier1_ids = with_room(arena.tier1_ids, number + 1)
    arena.tier1_id_count = with_room(arena.tier1_id_count, number + 1)
    arena.tier1_less = with_room(arena.tier1_less, number + 1)
    arena.tier1_less_count = with_room(arena.tier1_less_count, number + 1)
    arena.tier1_rests = with_room(arena.tier1_rests, number + 1)
    arena.tier1_shared = with_room(arena.tier1_shared, number + 1)
    arena.tier1_drop = with_room(arena.tier1_drop, number + 1)
    arena.tier1_drop_count = with_room(arena.tier1_drop_count, number + 1)
    arena.tier1_row[number] = -1
    arena.tier1_ids[number] = 0
    arena.tier1_id_count[number] = 0
    arena.tier1_less[number] = 0
    arena.tier1_less_count[number] = 0
    arena.tier1_rests[number] = -1
    arena.tier1_shared[number] = -1
    arena.tier1_drop[number] = 0
    arena.tier1_drop_count[number] = 0
    arena.tier1_count = number + 1
    arena.config_tier1[config] = number
    return number


@jit(_int(arena_type, _int))
def _list_bits(arena, limit):
    """Write the ids of ``scratch_row`` behind the last of ``arena.ids``; how many, -1 beyond ``limit``."""
    arena.ids = with_room(arena.ids, arena.id_count + limit)
    ids = arena.ids
    first = arena.id_count
    row = arena.scratch_row
    count = 0
    for word in range(arena.words):
        if row[word] != 0:
            bits = np.int64(row[word])
            for bit in range(32):
                if (bits >> bit) & 1:
                    if count == limit:
                        return np.int64(-1)
                    ids[first + count] = 32 * word + bit
                    count += 1
    return np.int64(count)


@jit(types.void(arena_type, _int, _int), apart=True)
def record_walk(arena, config, end):
    """The record of a configuration from a walk of its own; ``end``: where most bytes lead, or DEAD."""
    words = arena.words
    row = arena.scratch_row
    allowed, escape_count = np.int64(-1), np.int64(0)
    escapes = np.empty(1, np.int32)
    if arena.config_twin[config] < 0:
        find_twin(arena, config)
    counted = arena.config_twin[config] != config and is_counted(arena, config)
    if not counted:
        allowed, escapes, escape_count = walk_loop(arena, config, end == config)
    if allowed < 0 and counted:
        # A turn of the counter may be many characters, as a word: then text goes on without a count.
        own = dominant(arena, config)
        if own != DEAD and dominant(arena, own) == own:
            allowed, escapes, escape_count = walk_chain(arena, config, own, False)
    if allowed < 0 and end != DEAD:
        allowed, escapes, escape_count = walk_chain(arena, config, end, counted)
    if allowed < 0 and counted:
        # A count that is far from mattering here, as of a host's labels.
        allowed, escapes, escape_count = walk_loop(arena, config, False)
    is_chain = allowed >= 0
    if not is_chain:
        none = np.uint64(0)
        allowed, escapes, escape_count = walk(
            arena, config, np.zeros(256, np.uint8), np.int64(0), none, none, np.int64(0)
        )
    has_special = has_special_moves(arena, config)
    if has_special:
        _add_special(arena, config)
    number = _new_record(arena, config)
    if is_chain and not has_special:
        # What the walk has listed is only what it has set itself.
        few = _list_bits(arena, np.int64(FEW))
        is_chain = few < 0
        allowed = few
    if is_chain or has_special or allowed > SPARSE_LIMIT:
        dense = new_row(arena)
        arena.tier1_row[number] = dense
        copy_into(arena.rows, dense * words, row, 0, words)
    else:
        arena.tier1_ids[number] = arena.id_count
        arena.tier1_id_count[number] = allowed
        arena.id_count += allowed
    if escape_count > 0:
        arena.tier1_rests[number] = make_rests(arena, escapes, escape_count, row, np.int64(0), escapes[:0])
    if arena.tier1_row[number] >= 0:
        clear(row, 0, words)
    else:
        first = np.int64(arena.tier1_ids[number])
        for k in range(first, first + allowed):
            row[arena.ids[k] >> 5] = 0


@jit(types.void(arena_type, _int), apart=True)
def record_few(arena, config):
    """The record of a configuration that few tokens begin with a byte of."""
    words = arena.words
    row = arena.scratch_row
    first = np.int64(arena.id_count)
    arena.closings = np.int64(0)
    enter(arena, np.int64(0), config)
    # Whether the frame may be left at once is not the record's matter.
    arena.escape_count = np.int64(0)
    spread(arena, False)
    allowed = arena.id_count - first
    escape_count = arena.escape_count
    has_special = arena.tok_count > 0 and has_special_moves(arena, config)
    number = _new_record(arena, config)
    is_dense = has_special or allowed > SPARSE_LIMIT
    if is_dense or escape_count > 0:
        ids = arena.ids
        for k in range(first, first + allowed):
            row[ids[k] >> 5] |= np.int32(1) << np.int32(ids[k] & 31)
    if escape_count > 0:
        escapes = arena.escapes[:escape_count].copy()
        for k in range(escape_count):
            escapes[k] = arena.level_node[escapes[k]]
        escape_count = sort_unique(escapes, escape_count, arena.trie_byte.size)
        arena.tier1_rests[number] = make_rests(arena, escapes, escape_count, row, np.int64(0), escapes[:0])
    if is_dense:
        if has_special:
            _add_special(arena, config)
        dense = new_row(arena)
        arena.tier1_row[number] = dense
        copy_into(arena.rows, dense * words, row, 0, words)
        clear(row, 0, words)
        if escape_count == 0:
            arena.id_count = first
        return
    arena.tier1_ids[number] = first
    arena.tier1_id_count[number] = allowed
    if escape_count > 0:
        ids = arena.ids
        for k in range(first, first + allowed):
            row[ids[k] >> 5] = 0


@jit(types.void(arena_type, _int, _ints, _int, _ints, _int))
def _change_row(arena, row, less, less_count, more, more_count):
    """Take tokens out of a row, then add others."""
    rows = arena.rows
    place = row * arena.words
    for k in range(less_count):
        rows[place + (less[k] >> 5)] &= ~(np.int32(1) << np.int32(less[k] & 31))
    for k in range(more_count):
        rows[place + (more[k] >> 5)] |= np.int32(1) << np.int32(more[k] & 31)


@jit(types.void(arena_type, _int, _int, _int, _ints, _int, _ints, _int, types.boolean), apart=True)
def _share_rests(arena, number, other, row, escapes, escape_count, drops, drop_count, whole):
    """Set the rests of record ``number``: those of ``other`` as far as they hold, and those of its own.

    Args:
        row: a row with the tokens of record ``number``.
        escapes: nodes behind which the frame may be left, where it does otherwise than ``other``.
        drops: nodes behind which nothing of ``other`` holds (both ascending).
        whole: make rests of all, none shared: the record is a reference for others.
    """
    shared = np.int64(arena.tier1_rests[other])
    place = row * arena.words
    if shared < 0:
        if escape_count > 0:
            arena.tier1_rests[number] = make_rests(
                arena, escapes, escape_count, arena.rows, place, escapes[:0]
            )
        return
    low = np.int64(arena.rests_escape_offsets[shared])
    high = np.int64(arena.rests_escape_offsets[shared + 1])
    kept = np.empty(high - low + escape_count, np.int32)
    kept_count = 0
    dropped = np.empty(SPARSE_LIMIT, np.int32)
    dropped_count = np.int64(0)
    fits = True
    j = 0
    past = np.int64(-1)
    for k in range(low, high):
        node = np.int64(arena.rests_escapes[k])
        while j < drop_count and drops[j] <= node:
            past = np.int64(arena.trie_next[drops[j]])
            j += 1
        if node >= past:
            kept[kept_count] = node
            kept_count += 1
            continue
        first = np.int64(arena.trie_token_start[node + 1])
        last = np.int64(arena.trie_token_start[arena.trie_next[node]])
        if dropped_count + last - first > dropped.size:
            fits = False
            continue
        copy_into(dropped, dropped_count, arena.trie_tokens, first, last - first)
        dropped_count += last - first
    if not whole and (kept_count == high - low or (fits and kept_count > 0)):
        arena.tier1_shared[number] = shared
        arena.tier1_drop[number] = keep_ids(arena, dropped, dropped_count)
        arena.tier1_drop_count[number] = dropped_count
    elif kept_count > 0:
        copy_into(kept, kept_count, escapes, 0, escape_count)
        kept_count += escape_count
        escapes = kept
        escape_count = sort_unique(kept, kept_count, arena.trie_byte.size)
    if escape_count > 0:
        arena.tier1_rests[number] = make_rests(arena, escapes, escape_count, arena.rows, place, escapes[:0])


@jit(types.void(arena_type, _int, _int, types.boolean), apart=True)
def record_differences(arena, config, reference, whole):
    """The record of a configuration as its differences from that of ``reference``, which has a row.

    ``whole``: it is to be a reference itself.
    """
    words = arena.words
    other = np.int64(arena.config_tier1[reference])
    base = np.int64(arena.tier1_row[other])
    is_own = arena.tier1_less_count[other] > 0 or arena.tier1_id_count[other] > 0
    if is_own:
        # The other is kept as differences itself.
        dense = new_row(arena)
        copy_into(arena.rows, dense * words, arena.rows, base * words, words)
        ids = arena.ids
        first = np.int64(arena.tier1_less[other])
        past = first + np.int64(arena.tier1_less_count[other])
        second = np.int64(arena.tier1_ids[other])
        last = second + np.int64(arena.tier1_id_count[other])
        _change_row(arena, dense, ids[first:past], past - first, ids[second:last], last - second)
        base = dense
    counts = walk_differences(arena, config, reference, base)
    more_count, less_count = np.int64(counts[1]), np.int64(counts[2])
    nodes = arena.trie_byte.size
    escapes = arena.differ_escapes[: sort_unique(arena.differ_escapes, counts[3], nodes)]
    drops = arena.differ_drops[: sort_unique(arena.differ_drops, counts[4], nodes)]
    more, less = arena.differ_more, arena.differ_less
    has_special = has_special_moves(arena, config)
    number = _new_record(arena, config)
    if not is_own and (more_count > SPARSE_LIMIT or less_count > SPARSE_LIMIT or has_special):
        dense = new_row(arena)
        copy_into(arena.rows, dense * words, arena.rows, base * words, words)
        base = dense
        is_own = True
    arena.tier1_row[number] = base
    # The row with all changes made: for good if it is the record's own, else while the rests are gathered.
    _change_row(arena, base, less, less_count, more, more_count)
    _share_rests(
        arena, number, other, base, escapes, np.int64(escapes.size), drops, np.int64(drops.size), whole
    )
    if is_own:
        if has_special:
            _add_special(arena, config)
            place = base * words
            for word in range(words):
                arena.rows[place + word] |= arena.scratch_row[word]
            clear(arena.scratch_row, 0, words)
        return
    _change_row(arena, base, more, more_count, less, np.int64(0))
    _change_row(arena, base, more, np.int64(0), less, less_count)
    arena.tier1_less[number] = keep_ids(arena, less, less_count)
    arena.tier1_less_count[number] = less_count
    arena.tier1_ids[number] = keep_ids(arena, more, more_count)
    arena.tier1_id_count[number] = more_count
