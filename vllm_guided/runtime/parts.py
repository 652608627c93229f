"""What rests of tokens come to in a state, whatever its stack is: where that is remembered.

Most states have few rests run on them, and those that are looked up together, as the names that an object may
go on with, were numbered and run together: a list for each state finds them side by side in memory. States
that many have, as a comma, go by a hash table.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import arena_type
from vllm_guided.runtime.hash_tables import begin_larger, slot_of, step_records
from vllm_guided.runtime.memory import with_room

_int = types.int64

#: Numbers that an entry of ``part_entry`` has: its rests << 32 | the state's next entry; where its ids begin
#: << 32 | how many they are; the rests that go on. Of ``part_table``: rests << 32 | state, and the entry.
PART, IN_TABLE = 3, 2
#: A state's list has so many entries at most.
LISTED = 3
#: ``state_part`` of states whose list is empty, and of those whose entries are in the table.
EMPTY, TABLE = -1, -2


@jit(types.void(arena_type, _int, _int, _int))
def _enter(arena, rests, state, number):
    count = arena.part_table_count
    arena.part_table = begin_larger(arena.part_table, IN_TABLE, arena.part_slots, count)
    table = arena.part_table
    place = slot_of(table, np.int64(IN_TABLE), arena.part_slots, rests << 32 | state)
    table[place] = rests << 32 | state
    table[place + 1] = number
    arena.part_slots = step_records(table, np.int64(IN_TABLE), arena.part_slots, count, place)
    arena.part_table_count = count + 1


@jit(_int(arena_type, _int, _int))
def known_part(arena, rests, state):
    """Where the entry of ``rests`` in ``state`` begins in ``part_entry``; -1 if there is none."""
    entry = np.int64(arena.state_part[state])
    if entry == TABLE:
        place = slot_of(arena.part_table, np.int64(IN_TABLE), arena.part_slots, rests << 32 | state)
        return PART * arena.part_table[place + 1] if arena.part_table[place] >= 0 else np.int64(-1)
    entries = arena.part_entry
    while entry >= 0:
        head = entries[PART * entry]
        if head >> 32 == rests:
            return PART * entry
        entry = np.int64(np.int32(head & 0xFFFFFFFF))
    return np.int64(-1)


@jit(_int(arena_type, _int, _int, _int, _int), apart=True)
def remember_part(arena, rests, state, ids, behind):
    """Remember what ``rests`` come to in ``state``; where the entry begins."""
    number = arena.part_count
    arena.part_entry = with_room(arena.part_entry, PART * (number + 1))
    entries = arena.part_entry
    first = np.int64(arena.state_part[state])
    entry = first
    length = 0
    while entry >= 0:
        entry = np.int64(np.int32(entries[PART * entry] & 0xFFFFFFFF))
        length += 1
    entries[PART * number] = rests << 32 | (first & 0xFFFFFFFF)
    entries[PART * number + 1] = ids
    entries[PART * number + 2] = behind
    arena.part_count = number + 1
    if first != TABLE and length < LISTED:
        arena.state_part[state] = number
        return PART * number
    _enter(arena, rests, state, number)
    while first >= 0:
        head = entries[PART * first]
        _enter(arena, head >> 32, state, first)
        first = np.int64(np.int32(head & 0xFFFFFFFF))
    arena.state_part[state] = TABLE
    return PART * number
