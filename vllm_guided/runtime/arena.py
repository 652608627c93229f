"""The tables of the runtime: one struct of growing arrays that compiled code reads and extends.

An arena belongs to one vocabulary and serves all grammars bound to it. Everything in it is interned:
equal rules, stacks, configurations and masks of different grammars and requests are the same number.
Entries are only ever added; memory is bounded by starting a new arena (see ``binding.py``).

=========== =================================================================================
trie_*      the token trie in preorder (``vocab/trie.py``); level_*: the same level by level (``slices.py``)
token_*     bytes of each token
edge/call/tok_*  moves of automaton states, by state; state ids below ``VIRTUAL`` are real
counter_*   counted repetitions; state ``VIRTUAL + n`` is "counter c has counted n - base[c]"
bag_*, member_*  bags and their members; state ``BAG + n`` is a bag's situation, ``situation_*[n]``
state_like  a state that texts of ``state_reach`` bytes do not tell from each, or -1 (``horizon.py``)
choice_*    what a bag calls where a member may begin, by situation and set of stacks
flagset_*   sets of a bag's flags that are set (``bags.py``)
text_*      texts of distinct items, each its parent and one more byte; used_*: lists of such texts
tail_*, entry_*, gap_*, pair_*  tokens that go on behind a comma (``straddling.py``)
stack_*     sets of stacks: (state to return to, set of stacks below) by state, hash-consed
union_*     unions of sets of stacks met so far
config_*    configurations: (state, set of stacks) by state, with flags, closed under calls and returns
map_*       byte-class maps, shared by configurations; ``next`` holds their transitions by class
slice_*, pure_*  rows of tokens by their bytes (``slices.py``)
tier1_*     masks per automaton state with an unknown stack below (DESIGN.md, "Two tiers of masks")
suffix_*    small tries of what is left of a token when it leaves the frame
mask_*      finished masks: a dense row and a list of further token ids
rows        dense rows, ``words`` int32 each
=========== =================================================================================
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types
from numba.experimental import structref

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.address_space import spacious
from vllm_guided.runtime.arena_fields import ARRAY_FIELDS, COUNT_FIELDS
from vllm_guided.runtime.borrowing import RETIRED_LIMIT, View, address_of, view_at
from vllm_guided.runtime.memory import set_all

#: State ids from here on stand for a counter and its count.
VIRTUAL = 1 << 30
#: ... and from here on for a bag and what it has had.
BAG = 3 << 29
#: Sets of stacks: the empty stack alone, and "whatever was below when this walk began".
BOTTOM = 0
UNKNOWN = 1
#: Configuration ids: no continuation, and ended by a stop token.
DEAD = 0
TERMINATED = 1
#: Flags of configurations (the output may end; the frame may be left) and of sets of stacks (the empty
#: stack, or the unknown one, is a member).
FINAL = 1
ESCAPE = 2
#: Further flags of configurations, and ``stack_mode`` of sets of stacks: distinct items are not compared
#: (PLAIN), are compared (TRUE), and one is being read (RECORDING); see ``bags.py``.
PLAIN = 4
TRUE = 8
RECORDING = 16
#: ... and a counter is on top of one of the stacks (of sets of stacks alone).
COUNTED = 32
#: ``state_kind``: byte moves alone; those, and the frame may be left; moves for many bytes; calls;
#: and (set later) rests were run on it before.
SIMPLE, LEAVES, MANY, CALLS, SEEN = 1, 2, 4, 8, 16
#: ... a byte may lead to several states: the rule could not be made deterministic.
BRANCHES = 32
#: Phases of a bag's situation: a member was read; one may begin; from ``BEFORE + 1`` on, member k's distinct
#: item is being read.
AFTER = 0
BEFORE = 1
#: Limits of an ambiguous grammar: states of a configuration, and depth of stacks that are united. What
#: goes beyond is not followed, which is counted in ``overflowed``: the mask is still sound, and a
#: request that dies of it is told why.
ITEM_LIMIT = 1 << 14
UNION_DEPTH = 1 << 12

#: Closings of pairs that are remembered (a power of two).
CLOSED = 1 << 12

#: Of so many configurations the loops are remembered during a walk (a power of two).
LOOPS = 16

#: ``counter_maximum``: without limit; the counter never ends (it loops, and its frame cannot be left).
UNLIMITED = -1
NEVER = -2

_ints = types.int32[::1]
_bytes = types.uint8[::1]


@structref.register
class OwnerType(types.StructRef):  # type: ignore[misc]
    """numba's type of an arena as Python holds it."""


class Arena(structref.StructRefProxy):  # type: ignore[misc]
    """Python's handle of an arena; made by :func:`new_arena`, opaque otherwise. It keeps the arena alive."""


structref.define_boxing(OwnerType, Arena)
owner_type = OwnerType([*ARRAY_FIELDS.items(), *((name, types.int64) for name in COUNT_FIELDS)])
#: What compiled functions work on.
arena_type = View("Arena", owner_type)
#: The arena at an address. Functions that Python calls take the address: to look into a struct costs numba's
#: dispatcher 0.4 to 0.8 us a call, an integer 0.05.
arena_at = view_at(arena_type)


@jit()
def table_of(size, room):
    """A hash table of ``size`` slots (``hash_tables.py``), with room for tables of up to ``room``."""
    table = spacious(max(2 * size, room), np.int32)
    set_all(table, size, size)
    return table


@jit()
def table_of_records(width, size, room):
    """``table_of`` for records of ``width`` int64."""
    table = spacious(width * max(2 * size, room), np.int64)
    set_all(table, width * size, width * size)
    return table


@jit(types.int64(owner_type))
def address(owner):
    """The address of an arena, for the functions of ``entry.py``; valid while ``owner`` is referenced."""
    return address_of(owner)


@jit(
    owner_type(
        _bytes, _ints, _ints, _ints, _ints, types.uint64[::1], _bytes, _ints, _ints, _bytes, _ints, _bytes,
        _ints, _ints, _ints, _ints, _bytes, types.int64[::1], _bytes, _ints, types.int64, types.int64,
        types.int64,
    )
)  # fmt: skip
def new_arena(
    trie_byte, trie_depth, trie_next, trie_token_start, trie_tokens, trie_below, trie_height, byte_weight,
    slice_rows, trie_mark, level_kids, level_byte, level_start, level_tokens, level_node, level_place,
    level_height, token_offsets, token_data, stop_tokens, words, longest_token, reserve,
):  # fmt: skip
    """An empty arena for a vocabulary; ``words`` int32 words make a row.

    ``reserve``: bytes that it may grow to. Address space is taken at once, two to three times as much, so
    that no large array is copied while requests wait, whichever of them grow; memory is taken as it is used.
    """
    many = max(1024, reserve >> 8)
    moves = max(8192, reserve >> 6)
    states = max(256, reserve >> 9)
    situations = max(64, reserve >> 10)
    records = max(256, reserve >> 12)
    masks = max(256, reserve >> 10)
    owner = structref.new(owner_type)
    arena = arena_at(address_of(owner))
    arena.retired = np.zeros(RETIRED_LIMIT, np.int64)
    arena.trie_byte = trie_byte
    arena.trie_depth = trie_depth
    arena.trie_next = trie_next
    arena.trie_token_start = trie_token_start
    arena.trie_tokens = trie_tokens
    arena.trie_below = trie_below
    arena.trie_height = trie_height
    arena.trie_mark = trie_mark
    arena.level_height = level_height
    arena.byte_weight = byte_weight
    arena.slice_rows = slice_rows
    arena.level_kids = level_kids
    arena.level_byte = level_byte
    arena.level_start = level_start
    arena.level_tokens = level_tokens
    arena.level_node = level_node
    arena.level_place = level_place
    arena.pure_low = np.empty(8, np.uint64)
    arena.pure_high = np.empty(8, np.uint64)
    arena.pure_wide = np.empty(8, np.uint8)
    arena.pure_row = np.empty(8, np.int32)
    arena.token_offsets = token_offsets
    arena.token_data = token_data
    arena.stop_tokens = stop_tokens
    arena.words = words
    arena.longest_token = longest_token
    arena.edge_offsets = spacious(states + 1, np.int32)
    arena.edge_offsets[0] = 0
    arena.edge_low = spacious(4 * states, np.uint8)
    arena.edge_high = spacious(4 * states, np.uint8)
    arena.edge_target = spacious(4 * states, np.int32)
    arena.call_offsets = spacious(states + 1, np.int32)
    arena.call_offsets[0] = 0
    arena.call_start = spacious(states, np.int32)
    arena.call_return = spacious(states, np.int32)
    arena.tok_offsets = spacious(states + 1, np.int32)
    arena.tok_offsets[0] = 0
    arena.tok_set = np.empty(16, np.int32)
    arena.tok_target = np.empty(16, np.int32)
    arena.accepting = spacious(states, np.uint8)
    arena.state_map = spacious(states, np.int32)
    arena.state_kind = spacious(states, np.uint8)
    arena.state_tier1 = spacious(states, np.int32)
    arena.state_part = spacious(states, np.int32)
    arena.state_like = spacious(states, np.int32)
    arena.state_reach = spacious(states, np.uint8)
    arena.state_code = spacious(states, np.uint64)
    arena.state_slots = 1 << 14
    arena.state_table = table_of(arena.state_slots, 4 * states)
    arena.set_offsets = np.zeros(17, np.int32)
    arena.set_tokens = np.empty(16, np.int32)
    arena.counter_base = np.empty(16, np.int32)
    arena.counter_minimum = np.empty(16, np.int32)
    arena.counter_maximum = np.empty(16, np.int32)
    arena.counter_body = np.empty(16, np.int32)
    arena.counter_twins = np.empty(16, np.int32)
    arena.bag_separator = np.empty(16, np.int32)
    arena.bag_skips = np.empty(16, np.uint8)
    arena.bag_minimum = np.empty(16, np.int32)
    arena.bag_maximum = np.empty(16, np.int32)
    arena.bag_groups = np.empty(16, np.int32)
    arena.bag_wanted = np.empty(16, np.int32)
    arena.bag_clamp = np.empty(16, np.int32)
    arena.bag_distinct = np.empty(16, np.uint8)
    arena.bag_free = np.empty(16, np.uint8)
    arena.bag_word_offsets = np.zeros(17, np.int32)
    arena.bag_required = np.zeros(16, np.int64)
    arena.bag_offsets = np.zeros(17, np.int32)
    arena.member_start = np.empty(16, np.int32)
    arena.member_rest = np.empty(16, np.int32)
    arena.member_skips = np.empty(16, np.int32)
    arena.member_own = np.empty(16, np.int32)
    arena.member_wanted = np.empty(16, np.int32)
    arena.member_distinct = np.empty(16, np.int32)
    arena.member_first = np.empty(16, np.int32)
    arena.member_last = np.empty(16, np.int32)
    arena.situation_bag = spacious(situations, np.int32)
    arena.situation_phase = spacious(situations, np.int32)
    arena.situation_members = spacious(situations, np.int32)
    arena.situation_flags = spacious(situations, np.int32)
    arena.situation_used = spacious(situations, np.int32)
    arena.situation_from = spacious(situations, np.int32)
    arena.situation_then = spacious(situations, np.int32)
    arena.situation_code = spacious(situations, np.int32)
    arena.situation_slots = 256
    arena.situation_table = table_of(256, 4 * situations)
    arena.choice_slots = 256
    arena.choice_table = table_of_records(2, 256, 4 * situations)
    arena.choice_start = spacious(16 * situations, np.int32)
    arena.choice_stack = spacious(16 * situations, np.int32)
    arena.flagset_offsets = np.zeros(65, np.int32)
    arena.flagset_words = np.zeros(64, np.int64)
    arena.flagset_table = np.full(256, -1, np.int32)
    arena.scratch_words = np.zeros(1, np.int64)
    arena.text_parent = np.full(64, -1, np.int32)
    arena.text_byte = np.zeros(64, np.uint8)
    arena.text_quoting = np.zeros(64, np.uint8)
    arena.text_length = np.zeros(64, np.int32)
    arena.text_table = np.full(256, -1, np.int32)
    arena.text_count = 1
    arena.used_parent = np.full(64, -1, np.int32)
    arena.used_text = np.zeros(64, np.int32)
    arena.used_table = np.full(256, -1, np.int32)
    arena.used_count = 1
    arena.text_jump = np.zeros(64, np.int32)
    arena.text_tail = np.zeros(64, np.int32)
    arena.text_reach = np.zeros(64, np.int32)
    arena.text_gap = np.zeros(64, np.uint8)
    arena.text_asked = np.full(64, -1, np.int32)
    arena.text_answer = np.zeros(64, np.int32)
    arena.used_length = np.zeros(64, np.int32)
    arena.used_key = np.full(64, -1, np.int32)
    arena.used_critical = np.zeros(64, np.int32)
    arena.used_behind = np.zeros(64, np.int32)
    arena.tail_byte = np.zeros(1, np.uint8)
    arena.tail_depth = np.zeros(1, np.int32)
    arena.tail_parent = np.full(1, -1, np.int32)
    arena.tail_child = np.full(1, -1, np.int32)
    arena.tail_sibling = np.full(1, -1, np.int32)
    arena.tail_entry = np.full(1, -1, np.int32)
    arena.entry_token = np.empty(1, np.int32)
    arena.entry_next = np.empty(1, np.int32)
    arena.entry_quoting = np.empty(1, np.uint8)
    arena.pair_tokens = np.empty(0, np.int32)
    arena.pair_quoting = np.empty(0, np.uint8)
    arena.pair_text = np.empty(0, np.int32)
    arena.pair_tried = np.empty(0, np.uint8)
    arena.gap_first = np.full(256, -1, np.int32)
    arena.gap_next = np.empty(1, np.int32)
    arena.gap_node = np.empty(1, np.int32)
    arena.neighbours = np.zeros(1, np.uint8)
    arena.trie_child = np.zeros(1, np.int32)
    arena.near_bytes = np.zeros(1, np.uint8)
    arena.member_reading = np.full(16, -1, np.int32)
    arena.config_room = spacious(many, np.int32)
    arena.stack_mode = spacious(many, np.uint8)
    arena.stack_plain = spacious(many, np.int32)
    arena.config_tape = spacious(many, np.int32)
    arena.config_plain = spacious(many, np.int32)
    arena.config_cut = spacious(many, np.int32)
    arena.config_cut_count = spacious(many, np.int32)
    arena.config_twin = spacious(many, np.int32)
    arena.config_slack = spacious(many, np.int32)
    arena.visit_mark = spacious(many, np.int32)
    arena.visit_value = spacious(many, np.int32)
    arena.stack_after = spacious(many, np.int32)
    arena.closed_key = np.full(CLOSED, -1, np.int64)
    arena.closed_value = np.empty(CLOSED, np.int32)
    arena.spread_node = np.empty(1024, np.int32)
    arena.spread_state = np.empty(1024, np.int32)
    arena.spread_stack = np.empty(1024, np.int32)
    arena.spread_counts = np.zeros(3, np.int64)
    arena.escapes = np.empty(1024, np.int32)
    arena.differ_more = np.empty(0, np.int32)
    arena.differ_less = np.empty(0, np.int32)
    arena.differ_escapes = np.empty(0, np.int32)
    arena.differ_drops = np.empty(0, np.int32)
    arena.differ_counts = np.zeros(5, np.int64)
    arena.kept_escapes = np.empty(64, np.int32)
    arena.loop_config = np.empty(LOOPS, np.int32)
    arena.loop_bytes = np.empty(2 * LOOPS, np.uint64)
    arena.stack_offsets = spacious(many + 1, np.int32)
    arena.stack_state = spacious(4 * many, np.int32)
    arena.stack_below = spacious(4 * many, np.int32)
    arena.stack_flags = spacious(many, np.uint8)
    arena.stack_flags[BOTTOM] = FINAL
    arena.stack_flags[UNKNOWN] = ESCAPE
    arena.stack_slots = 4096
    arena.stack_table = table_of(4096, 4 * many)
    arena.stack_count = 2
    arena.union_slots = 1024
    arena.union_table = table_of_records(2, 1024, many)
    arena.one_key = np.empty(1, np.int64)
    arena.config_offsets = spacious(many + 1, np.int32)
    arena.item_state = spacious(2 * many, np.int32)
    arena.item_stack = spacious(2 * many, np.int32)
    arena.config_flags = spacious(many, np.uint8)
    arena.config_map = spacious(many, np.int32)
    arena.config_row = spacious(many, np.int32)
    arena.config_mask = spacious(many, np.int32)
    arena.config_tier1 = spacious(many, np.int32)
    arena.config_slots = 4096
    arena.config_table = table_of(4096, 4 * many)
    arena.config_count = 2
    arena.map_class = spacious(max(64, reserve >> 14) * 256, np.uint8)
    arena.map_size = spacious(max(64, reserve >> 14), np.int32)
    arena.map_key = spacious(max(64, reserve >> 14) * 8, np.uint64)
    arena.map_table = np.full(256, -1, np.int32)
    arena.next = spacious(moves, np.int32)
    arena.tier1_row = spacious(records, np.int32)
    arena.tier1_ids = spacious(records, np.int32)
    arena.tier1_id_count = spacious(records, np.int32)
    arena.tier1_less = spacious(records, np.int32)
    arena.tier1_less_count = spacious(records, np.int32)
    arena.tier1_rests = spacious(records, np.int32)
    arena.tier1_shared = spacious(records, np.int32)
    arena.tier1_drop = spacious(records, np.int32)
    arena.tier1_drop_count = spacious(records, np.int32)
    arena.suffix_byte = spacious(4 * states, np.uint8)
    arena.suffix_kids = spacious(4 * states, np.int32)
    arena.suffix_ids = spacious(4 * states, np.int32)
    arena.rests_root = np.empty(64, np.int32)
    arena.rests_seen = np.empty(64, np.uint8)
    arena.rests_code = np.empty(64, np.int32)
    arena.rests_table = np.full(256, -1, np.int32)
    arena.rests_escape_offsets = np.zeros(65, np.int32)
    arena.rests_escapes = np.empty(1024, np.int32)
    arena.rests_large_offsets = np.zeros(65, np.int32)
    arena.rests_large = np.empty(64, np.int32)
    arena.run_slots = 1024
    arena.run_table = table_of_records(2, 1024, states)
    arena.part_slots = 1024
    arena.part_table = table_of_records(2, 1024, states)
    arena.part_entry = spacious(3 * many >> 2, np.int64)
    arena.run_work = np.empty(256, np.int64)
    arena.run_entry = spacious(2 * many, np.int64)
    arena.stack_run = spacious(many, np.int32)
    arena.mask_offsets = spacious(masks + 1, np.int32)
    arena.mask_offsets[0] = 0
    arena.mask_pairs = spacious(16 * masks, np.int32)
    arena.mask_row = spacious(masks, np.int32)
    arena.mask_less = spacious(masks, np.int32)
    arena.mask_less_count = spacious(masks, np.int32)
    arena.mask_list_offsets = spacious(masks + 1, np.int32)
    arena.mask_list_offsets[0] = 0
    arena.list_ids = spacious(8 * masks, np.int32)
    arena.list_id_count = spacious(8 * masks, np.int32)
    arena.mask_any = spacious(masks, np.uint8)
    arena.mask_work = np.empty(64, np.int64)
    arena.mask_own = spacious(masks, np.uint8)
    arena.mask_slots = 1024
    arena.mask_table = table_of(1024, 4 * masks)
    arena.ids = spacious(4 * moves, np.int32)
    arena.rows = spacious(max(16 * words, reserve >> 3), np.int32)
    arena.work_state = np.empty(256, np.int32)
    arena.work_stack = np.empty(256, np.int32)
    arena.work_key = np.empty(256, np.int64)
    arena.work_pending = np.empty(256, np.uint8)
    arena.work_queue = np.empty(1024, np.int32)
    arena.work_late = np.empty(256, np.int32)
    arena.late_stack = np.empty(64, np.int32)
    arena.late_next = np.empty(64, np.int32)
    arena.seen_state = np.empty(1024, np.int32)
    arena.seen_place = np.empty(1024, np.int32)
    arena.seen_mark = np.zeros(1024, np.int32)
    arena.scratch_row = np.zeros(words, np.int32)
    arena.node_row = np.zeros(words, np.int32)
    arena.path = np.zeros(longest_token + 3, np.int32)
    arena.path_byte = np.zeros(longest_token + 3, np.uint8)
    # The first configurations and sets of stacks have fixed numbers.
    arena.config_check = spacious(2 * many, np.int64)
    arena.config_byte = spacious(many, np.int32)
    arena.config_after = spacious(many, np.int32)
    arena.stack_check = spacious(2 * many, np.int64)
    arena.mask_code = spacious(masks, np.int32)
    for first in range(2):
        arena.config_offsets[first] = 0
        arena.stack_offsets[first] = 0
        arena.stack_mode[first] = 0
        arena.stack_plain[first] = -1
        arena.stack_after[first] = -1
        arena.stack_run[first] = -1
        arena.config_tape[first] = 0
        arena.config_plain[first] = -1
        arena.config_cut[first] = 0
        arena.config_cut_count[first] = -1
        arena.config_room[first] = -1
        arena.config_twin[first] = -1
        arena.config_slack[first] = 0
        arena.config_flags[first] = 0
        arena.config_map[first] = -1
        arena.config_byte[first] = -1
        arena.config_row[first] = -1
        arena.config_mask[first] = -1
        arena.config_tier1[first] = -1
    arena.config_offsets[2] = 0
    arena.stack_offsets[2] = 0
    return owner
