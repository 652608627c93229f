"""What an arena holds, in bytes and numbers."""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import arena_type


@jit(types.int64[::1](arena_type))
def sizes_of(arena):
    """Bytes in use, and the numbers of states, stacks, configurations, tier-1 masks, masks, rows; overflow.

    What is only reserved does not count. Only numbers and lengths are read, so it needs no lock.
    A hash table counts with those that it has grown from.
    """
    held = (
        arena.state_count * 43
        + arena.edge_count * 6
        + (arena.call_count + arena.tok_count) * 8
        + arena.state_slots * 8
        + arena.set_size * 4
        + arena.counter_count * 20
        + arena.bag_separator.size * 37
        + arena.member_start.size * 32
        + arena.situation_count * 32
        + arena.situation_slots * 8
        + arena.choice_slots * 32
        + arena.choice_size * 8
        + arena.flagset_words.size * 8
        + arena.flagset_table.size * 4
        + arena.text_count * 31
        + arena.text_table.size * 4
        + arena.used_count * 24
        + arena.used_table.size * 4
        + arena.tail_byte.size * 21
        + arena.neighbours.size
        + arena.near_bytes.size
        + arena.stack_count * 34
        + arena.stack_size * 8
        + arena.stack_slots * 8
        + arena.union_slots * 32
        + arena.config_count * 73
        + arena.item_count * 8
        + arena.config_slots * 8
        + arena.map_count * 324
        + arena.next_count * 4
        + arena.tier1_count * 40
        + arena.rests_count * 17
        + arena.rests_table.size * 4
        + arena.rests_large.size * 4
        + arena.rests_escapes.size * 4
        + arena.run_slots * 32
        + arena.run_count * 16
        + arena.part_count * 24
        + arena.part_slots * 32
        + arena.pure_count * 21
        + arena.suffix_count * 9
        + arena.closed_key.size * 12
        + arena.escapes.size * 4
        + arena.spread_node.size * 12
        + arena.mask_count * 30
        + arena.mask_list_count * 8
        + arena.mask_pair_count * 4
        + arena.mask_slots * 8
        + arena.id_count * 4
        + arena.row_count * arena.words * 4
        + arena.work_state.size * 21
        + arena.work_queue.size * 4
        + arena.seen_state.size * 12
    )
    out = np.empty(8, np.int64)
    out[0] = held
    out[1] = arena.state_count
    out[2] = arena.stack_count
    out[3] = arena.config_count
    out[4] = arena.tier1_count
    out[5] = arena.mask_count
    out[6] = arena.row_count
    out[7] = arena.overflowed
    return out
