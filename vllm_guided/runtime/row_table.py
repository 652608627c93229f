"""Rows by number: which mask rows a device holds already, so that a step names them instead of sending them.

A table of rows lies with each worker; this is its index, led by the process that fills the masks. In: the
configurations of a step. Out: a row number for each, and those rows that the workers do not hold yet. A row
is known by its content, so that states and grammars with equal masks share one, and each configuration
remembers the row that it had: in a step without news its number is one look-up.

Rows leave the table in the order of their last use, but never one that the current step names. Whoever
holds the rows must see the steps in order: a number means the row that was sent last under it.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import weakref
from typing import Final

import numpy as np
import numpy.typing as npt
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import arena_at
from vllm_guided.runtime.binding import Runtime
from vllm_guided.runtime.borrowing import settle
from vllm_guided.runtime.memory import copy_into, same_bytes
from vllm_guided.runtime.rows import fill_row

#: Row numbers with a meaning of their own.
EVERYTHING: Final = -1
NOTHING: Final = -2

# Columns of a slot.
CODE: Final = 0
NEXT: Final = 1
GENERATION: Final = 2
COLUMNS: Final = 3

# Entries of a table's counters.
STEP: Final = 0
ADDED: Final = 1
COUNTERS: Final = 2

_int = types.int64
_ints = types.int32[::1]
_longs = types.int64[::1]
_rows = types.int32[:, ::1]
_slots = types.int64[:, ::1]


@jit(_int(_ints))
def code_of(row):
    """A hash of a row's words; equal codes are compared word by word."""
    one = np.uint64(0x9E3779B97F4A7C15)
    two = np.uint64(0xC2B2AE3D27D4EB4F)
    for k in range(0, row.size - 1, 2):
        one = (one ^ np.uint64(np.uint32(row[k]))) * np.uint64(0xFF51AFD7ED558CCD)
        two = (two ^ np.uint64(np.uint32(row[k + 1]))) * np.uint64(0xC4CEB9FE1A85EC53)
        one ^= one >> np.uint64(29)
        two ^= two >> np.uint64(31)
    if row.size & 1:
        one = (one ^ np.uint64(np.uint32(row[row.size - 1]))) * np.uint64(0xFF51AFD7ED558CCD)
    mixed = (one ^ (two >> np.uint64(17)) ^ (two << np.uint64(11))) * np.uint64(0x9FB21C651E98DF25)
    return np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(0x7FFFFFFFFFFFFFFF))


@jit(types.void(_int, _slots, _longs))
def _unlink(slot, slots, buckets):
    """Take a slot that holds a row out of its chain, and let everybody forget it."""
    bucket = slots[slot, CODE] & (buckets.size - 1)
    at = buckets[bucket]
    if at == slot:
        buckets[bucket] = slots[slot, NEXT]
    else:
        while slots[at, NEXT] != slot:
            at = slots[at, NEXT]
        slots[at, NEXT] = slots[slot, NEXT]
    slots[slot, CODE] = -1
    slots[slot, GENERATION] += 1


@jit(_int(_ints, _slots, _longs, _longs, _rows, _ints, _longs))
def _place(row, slots, stamps, buckets, rows, added, counters):
    """The slot of a row with this content, new or not; -1 where the step names every slot already."""
    code = code_of(row)
    bucket = code & (buckets.size - 1)
    slot = buckets[bucket]
    while slot >= 0:
        if slots[slot, CODE] == code and same_bytes(rows[slot], 0, row, 0, row.size):
            stamps[slot] = counters[STEP]
            return slot
        slot = slots[slot, NEXT]
    slot = np.int64(0)
    for k in range(1, stamps.size):
        if stamps[k] < stamps[slot]:
            slot = np.int64(k)
    if stamps[slot] >= counters[STEP]:
        return np.int64(-1)
    if slots[slot, CODE] >= 0:
        _unlink(slot, slots, buckets)
    copy_into(rows[slot], 0, row, 0, row.size)
    slots[slot, CODE] = code
    slots[slot, NEXT] = buckets[bucket]
    buckets[bucket] = slot
    stamps[slot] = counters[STEP]
    added[counters[ADDED]] = slot
    counters[ADDED] += 1
    return slot


@jit(
    types.boolean(
        _int, _ints, _ints, types.int64[:, ::1], _rows, _slots, _longs, _longs, _rows, _ints, _longs
    )
)
def _number(address, configs, numbers, memory, scratch, slots, stamps, buckets, rows, added, counters):
    """Fill ``numbers``; whether every row found a slot. ``memory`` [configuration]: slot, generation."""
    arena = arena_at(address)
    settle(arena)
    for k in range(configs.size):
        config = np.int64(configs[k])
        if config < 0:
            numbers[k] = EVERYTHING
            continue
        slot = memory[config, 0]
        if slot >= 0 and slots[slot, GENERATION] == memory[config, 1]:
            stamps[slot] = counters[STEP]
            numbers[k] = slot
            continue
        if not fill_row(arena, config, scratch, np.int64(0)):
            numbers[k] = NOTHING
            continue
        slot = _place(scratch[0], slots, stamps, buckets, rows, added, counters)
        if slot < 0:
            return False
        memory[config, 0] = slot
        memory[config, 1] = slots[slot, GENERATION]
        numbers[k] = slot
    return True


@jit(_int(_ints, _slots, _longs, _longs, _rows, _ints, _longs))
def _number_row(row, slots, stamps, buckets, rows, added, counters):
    return _place(row, slots, stamps, buckets, rows, added, counters)


@jit(types.void(_slots, _longs, _longs, _ints, _longs))
def _forget_added(slots, stamps, buckets, added, counters):
    """Take the rows that this step has added out again."""
    for k in range(counters[ADDED]):
        slot = np.int64(added[k])
        if slots[slot, CODE] >= 0:
            _unlink(slot, slots, buckets)
        stamps[slot] = -1
    counters[ADDED] = 0


class RowTable:
    """The index of a table of ``capacity`` mask rows. Not for use by two threads at once.

    Args:
        capacity: rows.
        words: int32 words of a row.

    Example:
        >>> table = RowTable(4096, vocabulary_words)
        >>> table.begin()
        >>> numbers = table.number(runtime, states)     # int32 [states]; None: more rows than fit
        >>> slots, rows = table.added()                 # to send before the numbers are used
    """

    def __init__(self, capacity: int, words: int) -> None:
        self.capacity = capacity
        self.words = words
        self._slots = np.zeros((capacity, COLUMNS), np.int64)
        self._slots[:, CODE] = -1
        self._stamps = np.full(capacity, -1, np.int64)
        self._buckets = np.full(max(2, 1 << (2 * capacity - 1).bit_length()), -1, np.int64)
        # A copy of what the workers hold: equal codes are compared, as a hash alone could be forged.
        self._rows = np.empty((capacity, words), np.int32)
        self._added = np.zeros(capacity, np.int32)
        self._counters = np.zeros(COUNTERS, np.int64)
        self._scratch = np.zeros((1, words), np.int32)
        self._memory: weakref.WeakKeyDictionary[Runtime, npt.NDArray[np.int64]] = weakref.WeakKeyDictionary()

    @property
    def nbytes(self) -> int:
        """Bytes of the index, and of the rows as far as they were ever used."""
        memory = sum(array.nbytes for array in self._memory.values())
        used = int(np.count_nonzero(self._slots[:, GENERATION]) + np.count_nonzero(self._slots[:, CODE] >= 0))
        return memory + self._slots.nbytes + self._buckets.nbytes + min(used, self.capacity) * self.words * 4

    @property
    def rows_held(self) -> int:
        """Rows in the table."""
        return int(np.count_nonzero(self._slots[:, CODE] >= 0))

    def begin(self) -> None:
        """Begin a step: rows that it names stay until the next begins."""
        self._counters[STEP] += 1
        self._counters[ADDED] = 0

    def number(self, runtime: Runtime, states: npt.NDArray[np.int32]) -> npt.NDArray[np.int32] | None:
        """A row number for each state; None where the step needs more rows than there are.

        Args:
            runtime: whose states they are.
            states: int32 [states]; negative: everything is allowed.

        Returns:
            int32 [states], EVERYTHING for a negative state and NOTHING where no token is allowed.
        """
        memory = self._memory.get(runtime)
        most = int(states.max(initial=0))
        if memory is None or most >= len(memory):
            grown = np.full((max(1024, 2 * (most + 1)), 2), -1, np.int64)
            if memory is not None:
                grown[: len(memory)] = memory
            memory = self._memory[runtime] = grown
        numbers = np.empty(len(states), np.int32)
        with runtime.lock:
            found = _number(
                runtime.address, states, numbers, memory, self._scratch,
                self._slots, self._stamps, self._buckets, self._rows, self._added, self._counters,
            )  # fmt: skip
        return numbers if found else None

    def number_row(self, row: npt.NDArray[np.int32]) -> int | None:
        """The number of a finished row, int32 [words]; None as for ``number``."""
        slot = int(_number_row(
            row, self._slots, self._stamps, self._buckets, self._rows, self._added, self._counters
        ))  # fmt: skip
        return slot if slot >= 0 else None

    def added(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Slots, int32 [new], and rows, int32 [new, words], that this step has added (copies)."""
        count = self._counters[ADDED]
        if not count:
            return self._added[:0], self._rows[:0]
        slots = self._added[:count].copy()
        return slots, self._rows[slots]

    def forget_added(self) -> None:
        """Take out what this step has added: it was not sent."""
        _forget_added(self._slots, self._stamps, self._buckets, self._added, self._counters)
