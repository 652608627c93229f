"""Moves of plain decimals between two magnitudes: the compiled twin of ``decimal_text.py``.

In: a part (:mod:`.number_parts`). Out: moves from a start to the end.
"""

# Compiled functions have numba signatures instead of annotations, and numba's rules for integers.
# mypy: allow-untyped-defs, disable-error-code="assignment,operator"

from __future__ import annotations

import numpy as np

from vllm_guided.automaton.labels import EPSILON
from vllm_guided.automaton.number_parts import (
    BARE,
    END,
    EQUAL,
    GREATER,
    HAS_HIGH,
    HEAD,
    HIGH_CLOSED,
    HIGH_DIGITS,
    HIGH_SCALE,
    LESS,
    LOW_CLOSED,
    LOW_DIGITS,
    LOW_SCALE,
    POINTED,
    WHOLE,
    compared,
    digit_of,
    digits_move,
    move,
    new_vertex,
)
from vllm_guided.numba_setup import jit


@jit()
def _chain(moves, counts, known, count, last):
    """The vertex where ``count`` digits up to ``last`` were read of at most ``known.size - 1``.

    Any number of them may follow, but one there is in all.
    """
    first = count
    while known[count] < 0:
        if count == known.size - 1:
            known[count] = END
            break
        known[count] = new_vertex(counts)
        if count > 0:
            move(moves, counts, known[count], EPSILON, END)
        if count > first:
            digits_move(moves, counts, known[count - 1], 0, last, known[count])
        count += 1
    if count > first:
        digits_move(moves, counts, known[count - 1], 0, last, known[count])
    return np.int64(known[first])


@jit()
def _ends(low, high, count, facts):
    """Whether bounds let the number end behind ``count`` fraction digits."""
    if low == EQUAL and (count < facts[1] or facts[2] == 0):
        return False
    return not (high == EQUAL and count >= facts[3] and facts[4] == 0)


@jit()
def _fraction_vertex(count, low, high, facts, whole, vertices, free, zeros, moves, counts):
    """Where ``count`` fraction digits were read that compare so; -1 where no number is any more."""
    if count >= facts[0] and low == EQUAL and facts[2] != 0:
        low = np.int64(GREATER)
    if low == GREATER and high == LESS and not whole:
        return _chain(moves, counts, free, count, 9)
    if count >= facts[0] and (whole or high == EQUAL):
        return _chain(moves, counts, zeros, count, 0) if _ends(low, high, count, facts) else np.int64(-1)
    place = (count * 3 + low) * 3 + high
    if vertices[place] < 0:
        vertices[place] = new_vertex(counts)
    return np.int64(vertices[place])


@jit()
def write_plain(ops, at, start, most_digits, most_zeros, free, zeros, moves, counts):
    """Plain decimals: a vertex for each number of digits and way in which they compare with both bounds."""
    whole, has_high = ops[at + WHOLE] != 0, ops[at + HAS_HIGH] != 0
    bare, pointed = ops[at + BARE] != 0, ops[at + POINTED] != 0
    low_whole, low_decimals = np.int64(ops[at + LOW_DIGITS]), np.int64(ops[at + LOW_SCALE])
    high_whole, high_decimals = np.int64(ops[at + HIGH_DIGITS]), np.int64(ops[at + HIGH_SCALE])
    low_at = at + HEAD
    high_at = low_at + low_whole + low_decimals
    longest = high_whole if has_high else max(most_digits, low_whole)
    decimals = max(low_decimals, high_decimals)
    # Decimals of both bounds; the lower's without zeros at the end, whether it is closed; the upper's.
    facts = np.empty(5, np.int64)
    facts[0] = decimals
    facts[1] = low_decimals
    while facts[1] > 0 and ops[low_at + low_whole + facts[1] - 1] == 0:
        facts[1] -= 1
    facts[2] = ops[at + LOW_CLOSED]
    facts[3] = high_decimals
    while facts[3] > 0 and ops[high_at + high_whole + facts[3] - 1] == 0:
        facts[3] -= 1
    facts[4] = ops[at + HIGH_CLOSED]
    positive = low_decimals > 0 or ops[at + LOW_CLOSED] == 0
    for i in range(low_whole):
        positive = positive or ops[low_at + i] != 0
    # By integer digits, comparison with both bounds, and whether the number begins with 0.
    vertices = np.full((longest + 1) * 18, -1, np.int32)
    fractions = np.full((decimals + most_zeros + 1) * 9, -1, np.int32)
    vertices[((EQUAL if positive else GREATER) * 3 + (EQUAL if has_high else LESS)) * 2] = start
    for place in range(vertices.size):
        source = np.int64(vertices[place])
        if source < 0:
            continue
        count, zero = place // 18, place % 2
        low, high = place // 6 % 3, place // 2 % 3
        if zero == 0 and count < longest:
            low_digit = digit_of(ops, low_at, low_whole, count)
            high_digit = digit_of(ops, high_at, high_whole, count)
            first, before = np.int64(0), np.int64(-1)
            for digit in range(11):
                target = np.int64(-1)
                if digit < 10:
                    starts_with_0 = np.int64(1) if count == 0 and digit == 0 else np.int64(0)
                    below = compared(low, digit, low_digit) if count + 1 <= low_whole else np.int64(GREATER)
                    above = compared(high, digit, high_digit)
                    left = np.int64(0) if starts_with_0 else longest - count - 1
                    if above == GREATER:
                        left = min(left, high_whole - count - 2)
                    if left >= 0:
                        target = (((count + 1) * 3 + below) * 3 + above) * 2 + starts_with_0
                        if vertices[target] < 0:
                            vertices[target] = new_vertex(counts)
                        target = np.int64(vertices[target])
                if target != before:
                    if before >= 0:
                        digits_move(moves, counts, source, first, digit - 1, before)
                    first, before = np.int64(digit), target
        if count == 0:
            continue
        below = low if count == low_whole else np.int64(GREATER if count > low_whole else LESS)
        above = high if has_high and count == high_whole else np.int64(LESS)
        if below == LESS or above == GREATER:
            continue
        ends = _ends(below, above, 0, facts)
        if bare and ends:
            move(moves, counts, source, EPSILON, END)
        if pointed:
            if whole and decimals == 0:
                if not ends:
                    continue
                below, above = np.int64(GREATER), np.int64(LESS)
            target = _fraction_vertex(0, below, above, facts, whole, fractions, free, zeros, moves, counts)
            if target >= 0:
                move(moves, counts, source, 0x2E2E, target)
    # Where the last zeros were read that may be, nothing follows, and no number ends.
    for place in range(fractions.size - 9):
        source = np.int64(fractions[place])
        if source < 0:
            continue
        count, low, high = place // 9, place // 3 % 3, place % 3
        if count > 0 and _ends(low, high, count, facts):
            move(moves, counts, source, EPSILON, END)
        low_digit = digit_of(ops, low_at + low_whole, low_decimals, count)
        high_digit = digit_of(ops, high_at + high_whole, high_decimals, count)
        first, before = np.int64(0), np.int64(-1)
        for digit in range(11):
            target = np.int64(-1)
            if digit == 0 or (digit < 10 and not whole):
                below, above = compared(low, digit, low_digit), compared(high, digit, high_digit)
                if below != LESS and above != GREATER:
                    target = _fraction_vertex(
                        count + 1, below, above, facts, whole, fractions, free, zeros, moves, counts
                    )
            if target != before:
                if before >= 0:
                    digits_move(moves, counts, source, first, digit - 1, before)
                first, before = np.int64(digit), target
