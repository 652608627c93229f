"""Hash tables that grow by steps, beside a dictionary: whatever was entered is found, at every size."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from vllm_guided.runtime.hash_tables import LEAST, begin_larger, slot_of, step_numbers, step_records
from vllm_guided.runtime.memory import mixed

WIDTH = 3


@numba.njit  # type: ignore[untyped-decorator]
def enter_numbers(table: Any, codes: Any, numbers: Any, size: Any) -> Any:
    """Enter each number, and look every earlier one up before each step; how many looks failed, the size."""
    missed = 0
    for count in range(numbers.size):
        slot = size | codes[numbers[count]] & (size - 1)
        while table[slot] >= 0:
            slot = size | (slot + 1) & (size - 1)
        table[slot] = numbers[count]
        table = begin_larger(table, 1, size, count)
        size = step_numbers(table, size, codes, 1, count, numbers[count])
        for k in range(max(0, count - 300), count + 1) if count & (count + 1) else range(count + 1):
            slot = size | codes[numbers[k]] & (size - 1)
            while table[slot] >= 0 and table[slot] != numbers[k]:
                slot = size | (slot + 1) & (size - 1)
            missed += table[slot] < 0
    held = 0
    for k in range(size, 2 * size):
        held += table[k] >= 0
    return missed, held, size


@numba.njit  # type: ignore[untyped-decorator]
def enter_records(table: Any, keys: Any, size: Any) -> Any:
    """The same for records; a record's values are made of its key."""
    missed = 0
    for count in range(keys.size):
        place = slot_of(table, np.int64(WIDTH), np.int64(size), keys[count])
        missed += table[place] >= 0
        table = begin_larger(table, WIDTH, size, count)
        table[place] = keys[count]
        table[place + 1] = keys[count] ^ 5
        table[place + 2] = -1 - keys[count]
        size = step_records(table, np.int64(WIDTH), np.int64(size), np.int64(count), place)
        for k in range(max(0, count - 300), count + 1) if count & (count + 1) else range(count + 1):
            place = slot_of(table, np.int64(WIDTH), np.int64(size), keys[k])
            missed += table[place] != keys[k]
            missed += table[place + 1] != keys[k] ^ 5 or table[place + 2] != -1 - keys[k]
    held = 0
    for k in range(size, 2 * size):
        held += table[WIDTH * k] >= 0
    return missed, held, size


def empty(width: int, size: int, room: int, kind: Any) -> Any:
    """A table with ``room`` slots of an array that holds rubbish outside of it."""
    table = np.full(width * max(2 * size, room), 12345, kind)
    table[width * size : 2 * width * size] = -1
    return table


@pytest.mark.parametrize("room", [0, 1 << 16])
@pytest.mark.parametrize("spread", [1, 7, 1 << 20])
@pytest.mark.parametrize("count", [1, 23, 24, 31, 32, 33, 1000, 4096])
def test_numbers(count: int, spread: int, room: int) -> None:
    random = np.random.default_rng(count)
    numbers = np.sort(random.choice(3 * count, count, replace=False)).astype(np.int32)
    codes = random.integers(0, max(2, 3 * count // spread), 3 * count).astype(np.int32)
    missed, held, size = enter_numbers(empty(1, LEAST, room, np.int32), codes, numbers, LEAST)
    assert (missed, held) == (0, count)
    assert 2 * count < size <= max(LEAST, 4 * count)


@pytest.mark.parametrize("room", [0, 1 << 16])
@pytest.mark.parametrize("count", [1, 23, 24, 31, 32, 33, 1000, 4096])
def test_records(count: int, room: int) -> None:
    random = np.random.default_rng(count)
    keys = np.unique(random.integers(0, 1 << 62, count))
    random.shuffle(keys)
    missed, held, size = enter_records(empty(WIDTH, LEAST, room, np.int64), keys, LEAST)
    assert (missed, held) == (0, len(keys))
    assert 2 * len(keys) < size <= max(LEAST, 4 * len(keys))


def test_records_that_collide() -> None:
    """Keys that would all begin in one slot of the first table."""
    keys = [key for key in range(1 << 16) if int(mixed(key, 0)) & (LEAST - 1) == 3][:200]
    missed, held, _ = enter_records(empty(WIDTH, LEAST, 0, np.int64), np.array(keys, np.int64), LEAST)
    assert (missed, held) == (0, len(keys))
