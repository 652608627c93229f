"""Tier 2: the finished mask of a configuration, from tier 1 and what lies below on the stacks.

A mask is keyed by its pairs (tier-1 record, stack below): configurations that differ only in what no
token can see (a count far from its limits) share it. It is kept as a dense row that mostly belongs to
tier 1, a list of tokens to take out of it, and lists of further tokens; few masks have a row of their own.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import BOTTOM, CALLS, COUNTED, MANY, arena_type
from vllm_guided.runtime.hash_tables import begin_larger, step_numbers
from vllm_guided.runtime.memory import clear, copy_into, with_room
from vllm_guided.runtime.records import new_row
from vllm_guided.runtime.runs import run_rests
from vllm_guided.runtime.splitting import covered, is_free, rebased
from vllm_guided.runtime.stacks import hashed, sort_keys
from vllm_guided.runtime.tier1 import record_of, tier1

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]

#: Of up to so many rows, one that has all tokens of the others is looked for.
COVERED = 4
#: A mask with more ids than this besides its row gets a row of its own.
EXTRA_LIMIT = 2048


@jit(types.boolean(_ints, _int, _int))
def any_bit(rows, place, words):
    """Whether any bit of ``rows[place : place + words]`` is set."""
    bits = np.int32(0)
    for word in range(place, place + words):
        bits |= rows[word]
    return bits != 0


@jit(types.boolean(arena_type, _int), apart=True)
def _any_left(arena, record):
    """Whether the row of ``record`` has a bit that is not taken out of it."""
    words = arena.words
    left = np.int64(0)
    place = np.int64(arena.tier1_row[record]) * words
    for word in range(place, place + words):
        bits = np.int64(arena.rows[word]) & 0xFFFFFFFF
        while bits != 0:
            bits &= bits - 1
            left += 1
        if left > arena.tier1_less_count[record]:
            return True
    return False


@jit(types.void(arena_type, _int, types.int32[::1]))
def lay_out(arena, number, row):
    """Write mask ``number`` to the first words of ``row``; the others become 0."""
    words = arena.words
    ids = arena.ids
    # Unsigned numbers spare a look for negative indices.
    five, low = np.uint64(5), np.uint64(31)
    source = np.int64(arena.mask_row[number])
    if source >= 0:
        copy_into(row, 0, arena.rows, source * words, words)
        clear(row, words, row.size - words)
        first = np.int64(arena.mask_less[number])
        for k in range(first, first + np.int64(arena.mask_less_count[number])):
            token = np.uint64(ids[k])
            row[token >> five] &= ~(np.int32(1) << np.int32(token & low))
    else:
        clear(row, 0, row.size)
    for j in range(np.int64(arena.mask_list_offsets[number]), np.int64(arena.mask_list_offsets[number + 1])):
        first = np.int64(arena.list_ids[j])
        for k in range(first, first + np.int64(arena.list_id_count[j])):
            token = np.uint64(ids[k])
            row[token >> five] |= np.int32(1) << np.int32(token & low)


@jit(types.void(arena_type, _int, _int))
def _add_list(arena, first, count):
    """Give the mask that is being made a list of ids."""
    if count == 0:
        return
    used = np.int64(arena.mask_list_offsets[arena.mask_count + 1])
    arena.list_ids = with_room(arena.list_ids, used + 1)
    arena.list_id_count = with_room(arena.list_id_count, used + 1)
    arena.list_ids[used] = first
    arena.list_id_count[used] = count
    arena.mask_list_offsets[arena.mask_count + 1] = used + 1


@jit(types.UniTuple(_int, 2)(arena_type, _int, _int, _int), apart=True)
def _without(arena, first, count, record):
    """A list of ids without those that ``record`` drops from the rests it shares."""
    drop = np.int64(arena.tier1_drop[record])
    drops = np.int64(arena.tier1_drop_count[record])
    if drops == 0 or count == 0:
        return first, count
    place = arena.id_count
    arena.ids = with_room(arena.ids, place + count)
    ids = arena.ids
    kept = 0
    for k in range(first, first + count):
        is_dropped = False
        for j in range(drop, drop + drops):
            is_dropped |= ids[j] == ids[k]
        if not is_dropped:
            ids[place + kept] = ids[k]
            kept += 1
    arena.id_count = place + kept
    return place, np.int64(kept)


@jit(types.void(arena_type, _int, _int), apart=True)
def _merge_row(arena, place, record):
    """Add the row of ``record``, as far as it holds, to the row at ``place``."""
    words = arena.words
    rows = arena.rows
    ids = arena.ids
    source = np.int64(arena.tier1_row[record]) * words
    first = np.int64(arena.tier1_less[record])
    count = np.int64(arena.tier1_less_count[record])
    if count == 0:
        for word in range(words):
            rows[place + word] |= rows[source + word]
        return
    scratch = arena.scratch_row
    copy_into(scratch, 0, rows, source, words)
    for k in range(first, first + count):
        scratch[ids[k] >> 5] &= ~(np.int32(1) << np.int32(ids[k] & 31))
    for word in range(words):
        rows[place + word] |= scratch[word]
    clear(scratch, 0, words)


@jit(types.boolean(arena_type, _int, _int))
def _covers(arena, base, other):
    """Whether the row of record ``base`` has all tokens of that of ``other``."""
    words = arena.words
    rows = arena.rows
    place = np.int64(arena.tier1_row[base]) * words
    source = np.int64(arena.tier1_row[other]) * words
    if place != source:
        for word in range(words):
            if rows[source + word] & ~rows[place + word]:
                return False
    return True


@jit(_int(arena_type, types.int64[::1], _int), apart=True)
def _covering(arena, pairs, count):
    """The record among ``pairs`` whose row has all tokens of the others' rows; -1 if there is none."""
    for k in range(count):
        base = pairs[k] >> 32
        if arena.tier1_row[base] < 0:
            continue
        covers = True
        for j in range(count):
            other = pairs[j] >> 32
            if other != base and arena.tier1_row[other] >= 0 and not _covers(arena, base, other):
                covers = False
                break
        if covers:
            return base
    return np.int64(-1)


@jit(_int(arena_type, types.int64[::1], _int, _int), apart=True)
def _less_of_all(arena, pairs, count, base):
    """Append to ``ids`` the tokens taken out of the row of ``base`` that no other record has; how many."""
    first = np.int64(arena.tier1_less[base])
    total = np.int64(arena.tier1_less_count[base])
    place = arena.id_count
    arena.ids = with_room(arena.ids, place + total)
    ids = arena.ids
    rows = arena.rows
    kept = np.int64(0)
    for k in range(first, first + total):
        token = ids[k]
        is_less = True
        for j in range(count):
            other = pairs[j] >> 32
            row = np.int64(arena.tier1_row[other])
            if other == base or row < 0:
                continue
            if rows[row * arena.words + (token >> 5)] & (np.int32(1) << np.int32(token & 31)):
                low = np.int64(arena.tier1_less[other])
                has = True
                for i in range(low, low + np.int64(arena.tier1_less_count[other])):
                    has &= ids[i] != token
                is_less &= not has
        if is_less:
            ids[place + kept] = token
            kept += 1
    arena.id_count = place + kept
    return kept


@jit(_int(arena_type, types.int64[::1], _int), apart=True)
def _make(arena, pairs, count):
    words = arena.words
    number = arena.mask_count
    arena.mask_offsets = with_room(arena.mask_offsets, number + 2)
    arena.mask_list_offsets = with_room(arena.mask_list_offsets, number + 2)
    arena.mask_list_offsets[number + 1] = arena.mask_list_offsets[number]
    with_row = np.int64(-1)
    row_count = 0
    for k in range(count):
        record = pairs[k] >> 32
        below = pairs[k] & 0xFFFFFFFF
        if arena.tier1_rests[record] >= 0:
            first, some = run_rests(arena, np.int64(arena.tier1_rests[record]), below)
            _add_list(arena, first, some)
        if arena.tier1_shared[record] >= 0:
            first, some = run_rests(arena, np.int64(arena.tier1_shared[record]), below)
            first, some = _without(arena, first, some, record)
            _add_list(arena, first, some)
        _add_list(arena, np.int64(arena.tier1_ids[record]), np.int64(arena.tier1_id_count[record]))
        if arena.tier1_row[record] >= 0:
            with_row = record
            row_count += 1
    first_list = np.int64(arena.mask_list_offsets[number])
    last_list = np.int64(arena.mask_list_offsets[number + 1])
    total = np.int64(0)
    for k in range(first_list, last_list):
        total += arena.list_id_count[k]
    arena.mask_row = with_room(arena.mask_row, number + 1)
    arena.mask_less = with_room(arena.mask_less, number + 1)
    arena.mask_less_count = with_room(arena.mask_less_count, number + 1)
    arena.mask_any = with_room(arena.mask_any, number + 1)
    arena.mask_own = with_room(arena.mask_own, number + 1)
    arena.mask_row[number] = -1
    arena.mask_less[number] = 0
    arena.mask_less_count[number] = 0
    if 1 < row_count <= COVERED and total <= EXTRA_LIMIT:
        base = _covering(arena, pairs, count)
        if base >= 0:
            with_row = base
    else:
        base = np.int64(-1)
    has_own = (row_count > 1 and base < 0) or total > EXTRA_LIMIT
    if has_own:
        own = new_row(arena)
        place = own * words
        clear(arena.rows, place, words)
        for k in range(count):
            if arena.tier1_row[pairs[k] >> 32] >= 0:
                _merge_row(arena, place, pairs[k] >> 32)
        rows = arena.rows
        for j in range(first_list, last_list):
            first = np.int64(arena.list_ids[j])
            for k in range(first, first + arena.list_id_count[j]):
                token = arena.ids[k]
                rows[place + (token >> 5)] |= np.int32(1) << np.int32(token & 31)
        arena.mask_list_offsets[number + 1] = first_list
        arena.mask_row[number] = own
        arena.mask_any[number] = any_bit(rows, place, words)
    else:
        arena.mask_any[number] = total > 0
        if row_count > 0:
            arena.mask_row[number] = arena.tier1_row[with_row]
            arena.mask_less[number] = arena.tier1_less[with_row]
            arena.mask_less_count[number] = arena.tier1_less_count[with_row]
            if row_count > 1 and arena.tier1_less_count[with_row] > 0:
                arena.mask_less[number] = arena.id_count
                arena.mask_less_count[number] = _less_of_all(arena, pairs, count, with_row)
                if arena.mask_less_count[number] < arena.tier1_less_count[with_row]:
                    arena.mask_any[number] = True
                    total += 1
            if total == 0:
                arena.mask_any[number] = _any_left(arena, with_row)
    used = np.int64(arena.mask_offsets[number])
    arena.mask_pairs = with_room(arena.mask_pairs, used + 2 * count)
    for k in range(count):
        arena.mask_pairs[used + 2 * k] = pairs[k] >> 32
        arena.mask_pairs[used + 2 * k + 1] = pairs[k] & 0xFFFFFFFF
    arena.mask_offsets[number + 1] = used + 2 * count
    arena.mask_own[number] = has_own
    arena.mask_list_count = np.int64(arena.mask_list_offsets[number + 1])
    arena.mask_pair_count = used + 2 * count
    arena.mask_count = number + 1
    return number


@jit(_int(arena_type, _int, _int))
def _pair(arena, record, stack):
    """The key of a record on what lies below; of one that does not depend on that, all stacks share it."""
    depends = arena.tier1_rests[record] >= 0 or arena.tier1_shared[record] >= 0
    return record << 32 | (stack if depends else np.int64(BOTTOM))


@jit(_int(arena_type, _int, _int, _int, _int, types.boolean), apart=True)
def _split(arena, low, past, most, config, takes_calls):
    """Write the pairs of the items ``low`` to ``past`` of ``config`` to ``mask_work``; how many."""
    split = np.empty((most, 2), np.int64)
    count = np.int64(0)
    found = np.int64(0)
    known = covered(arena, config) if takes_calls else np.zeros(past - low, np.uint8)
    for k in range(low, past):
        if known[k - low]:
            continue
        state = np.int64(arena.item_state[k])
        stack = np.int64(arena.item_stack[k])
        if arena.stack_mode[stack] & COUNTED == 0 and not is_free(arena, state):
            arena.mask_work[count] = _pair(arena, record_of(arena, state), stack)
            count += 1
            continue
        found = rebased(arena, state, stack, split, np.int64(0))
        for j in range(found):
            arena.mask_work[count] = _pair(arena, tier1(arena, split[j, 0]), split[j, 1])
            count += 1
    return count


@jit(_int(arena_type, _int), apart=True)
def mask_of(arena, config):
    """The mask of a configuration that compares no distinct items, made on first need."""
    number = np.int64(arena.config_mask[config])
    if number >= 0:
        return number
    low = np.int64(arena.config_offsets[config])
    past = np.int64(arena.config_offsets[config + 1])
    most = np.int64(0)
    is_plain = True
    takes_calls = False
    for k in range(low, past):
        stack = np.int64(arena.item_stack[k])
        most += np.int64(arena.stack_offsets[stack + 1] - arena.stack_offsets[stack]) + 1
        kind = arena.state_kind[arena.item_state[k]]
        is_plain &= arena.stack_mode[stack] & COUNTED == 0 and kind & MANY == 0
        takes_calls |= kind & MANY != 0 and kind & CALLS != 0
    arena.mask_work = with_room(arena.mask_work, most)
    count = np.int64(0)
    if is_plain:
        for k in range(low, past):
            record = record_of(arena, np.int64(arena.item_state[k]))
            arena.mask_work[count] = _pair(arena, record, np.int64(arena.item_stack[k]))
            count += 1
    else:
        count = _split(arena, low, past, most, config, takes_calls)
    pairs = arena.mask_work
    sort_keys(pairs, count)
    unique = 0
    for k in range(count):
        if k == 0 or pairs[k] != pairs[k - 1]:
            pairs[unique] = pairs[k]
            unique += 1
    code = np.int64(hashed(pairs, unique, np.int64(7)) & np.uint64(0x7FFFFFFF))
    table = arena.mask_table
    size = arena.mask_slots
    slot = size | code & (size - 1)
    while table[slot] >= 0:
        found = np.int64(table[slot])
        first = arena.mask_offsets[found]
        if arena.mask_offsets[found + 1] - first == 2 * unique:
            same = True
            for k in range(unique):
                if (
                    arena.mask_pairs[first + 2 * k] != pairs[k] >> 32
                    or arena.mask_pairs[first + 2 * k + 1] != pairs[k] & 0xFFFFFFFF
                ):
                    same = False
                    break
            if same:
                arena.config_mask[config] = found
                return found
        slot = size | (slot + 1) & (size - 1)
    number = _make(arena, pairs, unique)
    arena.mask_code = with_room(arena.mask_code, number + 1)
    arena.mask_code[number] = code
    arena.mask_table[slot] = number
    arena.config_mask[config] = number
    arena.mask_table = begin_larger(arena.mask_table, 1, size, number)
    arena.mask_slots = step_numbers(arena.mask_table, size, arena.mask_code, 1, number, number)
    return number
