"""Moves of numbers in scientific form between two magnitudes: the compiled twin of ``scientific_text.py``.

In: a part (:mod:`.number_parts`). Out: moves from a start to the end.
"""

# Compiled functions have numba signatures instead of annotations, and numba's rules for integers.
# mypy: allow-untyped-defs, disable-error-code="assignment,operator"

from __future__ import annotations

import numpy as np

from vllm_guided.automaton.labels import EPSILON
from vllm_guided.automaton.number_parts import (
    END,
    EQUAL,
    GREATER,
    HEAD,
    HIGH_CLOSED,
    HIGH_DIGITS,
    HIGH_SCALE,
    LESS,
    LOW_CLOSED,
    LOW_DIGITS,
    LOW_SCALE,
    WHOLE,
    compared,
    digit_of,
    digits_move,
    move,
    new_vertex,
)
from vllm_guided.numba_setup import jit

#: Intervals of exponents of one part: a bound is met or not, and whole numbers have two kinds of mantissas.
INTERVALS = 8


@jit()
def _last_two(source, before, begin, first, last, moves, counts):
    """Two digits behind ``before``, the first at least ``begin``: numbers between ``first`` and ``last``."""
    run = np.int64(10)  # where a run of digits begins that any digit may follow
    for digit in range(begin, 11):
        value = 10 * (10 * before + digit)
        low, high = max(first, value), min(last, value + 9)
        if digit < 10 and high - low == 9:
            run = min(run, np.int64(digit))
            continue
        if run < digit:
            inner = new_vertex(counts)
            digits_move(moves, counts, source, run, digit - 1, inner)
            digits_move(moves, counts, inner, 0, 9, END)
        run = np.int64(10)
        if digit < 10 and low <= high:
            inner = new_vertex(counts)
            digits_move(moves, counts, source, digit, digit, inner)
            digits_move(moves, counts, inner, low - value, high - value, END)


@jit()
def _between(source, first, last, moves, counts):
    """The numbers from ``first`` to ``last`` (three digits at most); those of one digit with a zero, too."""
    if first <= 9:
        zero = new_vertex(counts)
        digits_move(moves, counts, source, first, min(last, 9), END)
        digits_move(moves, counts, source, 0, 0, zero)
        digits_move(moves, counts, zero, first, min(last, 9), END)
    if last >= 10:
        _last_two(source, 0, 1, first, min(last, 99), moves, counts)
    for digit in range(1, 10):
        low, high = max(first, 100 * digit), min(last, 100 * digit + 99)
        if low <= high:
            inner = new_vertex(counts)
            digits_move(moves, counts, source, digit, digit, inner)
            _last_two(inner, digit, 0, low, high, moves, counts)


@jit()
def _interval(least, most, known, moves, counts):
    """The place in ``known`` of an interval of exponents, which is made where it is new; -1: it is empty.

    ``known[0]`` counts them, of each come its ends and the vertex behind the ``e``.
    """
    if least > most:
        return np.int64(-1)
    for i in range(known[0]):
        if known[1 + 3 * i] == least and known[2 + 3 * i] == most:
            return np.int64(i)
    number = known[0]
    known[0] = number + 1
    vertex = new_vertex(counts)
    known[1 + 3 * number], known[2 + 3 * number], known[3 + 3 * number] = least, most, vertex
    if most >= 0:
        unsigned = new_vertex(counts)
        move(moves, counts, vertex, 0x2B2B, unsigned)
        move(moves, counts, vertex, EPSILON, unsigned)
        _between(unsigned, max(least, 0), most, moves, counts)
    if least < 0:
        negative = new_vertex(counts)
        move(moves, counts, vertex, 0x2D2D, negative)
        _between(negative, max(-most, 1), -least, moves, counts)
    return number


@jit()
def _exponents(digits, low, high, ops, at, least, most_digits, known, moves, counts):
    """The place in ``known`` of the exponents that may follow a mantissa of ``digits`` digits, or -1.

    ``least``: the smallest where the lower bound does not say it; ``most_digits``: those behind the point.
    """
    if ops[at + LOW_DIGITS] > 0:
        below = np.int64(LESS) if low == EQUAL and digits < ops[at + LOW_DIGITS] else low
        fits = below == GREATER or (below == EQUAL and ops[at + LOW_CLOSED] != 0)
        least = np.int64(ops[at + LOW_SCALE]) + (0 if fits else 1)
    above = np.int64(LESS) if high == EQUAL and digits < ops[at + HIGH_DIGITS] else high
    fits = above == LESS or (above == EQUAL and ops[at + HIGH_CLOSED] != 0)
    most = np.int64(ops[at + HIGH_SCALE]) - (0 if fits else 1)
    if ops[at + WHOLE] != 0:
        least = max(least, 0 if digits == 1 else most_digits)
    return _interval(least, most, known, moves, counts)


@jit()
def _finish(source, interval, known, moves, counts):
    if interval >= 0:
        move(moves, counts, source, 0x4545, known[3 + 3 * interval])
        move(moves, counts, source, 0x6565, known[3 + 3 * interval])


@jit()
def write_scientific(ops, at, start, least, most_digits, known, behind, moves, counts):
    """Mantissas: a vertex for each number of digits and way in which they compare with those of both bounds,
    until that is clear; what follows then depends on the exponents, and on how many digits there may be."""
    low_digits, high_digits = np.int64(ops[at + LOW_DIGITS]), np.int64(ops[at + HIGH_DIGITS])
    low_at = at + HEAD
    high_at = low_at + low_digits
    longest = most_digits + 1
    if ops[at + WHOLE] != 0 and ops[at + HIGH_SCALE] < most_digits:
        longest = 1  # more digits ask for larger exponents
    vertices = np.full((most_digits + 2) * 9, -1, np.int32)
    vertices[(EQUAL if low_digits > 0 else GREATER) * 3 + EQUAL] = start
    for place in range(vertices.size):
        source = np.int64(vertices[place])
        if source < 0:
            continue
        count, low, high = place // 9, place // 3 % 3, place % 3
        free = count > 0 and low != EQUAL and high != EQUAL
        if count > 0:
            interval = _exponents(count, low, high, ops, at, least, most_digits, known, moves, counts)
            _finish(source, interval, known, moves, counts)
        if not free and count >= longest:
            continue
        interval = np.int64(-1)
        if free:
            interval = _exponents(
                max(longest, 2), low, high, ops, at, least, most_digits, known, moves, counts
            )
            if interval < 0:
                continue
        if count == 1:
            pointed = new_vertex(counts)
            move(moves, counts, source, 0x2E2E, pointed)
            source = pointed
        if free:
            room = max(longest - count, 1)
            while room > 0:
                room -= 1
                target = np.int64(behind[interval, room])
                if target >= 0:
                    digits_move(moves, counts, source, 0, 9, target)
                    break
                target = new_vertex(counts)
                behind[interval, room] = target
                digits_move(moves, counts, source, 0, 9, target)
                _finish(target, interval, known, moves, counts)
                source = target
            continue
        low_digit = digit_of(ops, low_at, low_digits, count)
        high_digit = digit_of(ops, high_at, high_digits, count)
        first, before = np.int64(0), np.int64(-1)
        for digit in range(11):
            target = np.int64(-1)
            if digit < 10 and count + digit > 0:
                below, above = compared(low, digit, low_digit), compared(high, digit, high_digit)
                found = ((count + 1) * 3 + below) * 3 + above
                if vertices[found] < 0:
                    vertices[found] = new_vertex(counts)
                target = np.int64(vertices[found])
            if target != before:
                if before >= 0:
                    digits_move(moves, counts, source, first, digit - 1, before)
                first, before = np.int64(digit), target
