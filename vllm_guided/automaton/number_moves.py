"""Moves of an automaton that reads the JSON texts of numbers between two magnitudes.

In: the digits of bounds, as ``frontends/json_schema/number_moves.py`` writes them. Out: the moves of one
nondeterministic automaton for all of them, to be made deterministic as any other. It is the compiled twin of
``decimal_text.py`` and ``scientific_text.py`` beside that file, where no multiple but 1 has to be kept; why
the texts are those is said there.

A part of the input is a head of ``HEAD`` numbers, then the digits of the lower and of the upper bound:

==================== =============================================================================
KIND                 PLAIN or SCIENTIFIC
SIGN                 0: without a sign, 1: with a minus, 2: either way
WHOLE                whether only zeros may stand behind the point (of the value, where it is SCIENTIFIC)
LOW_CLOSED, ...      whether the bound belongs to the set
LOW_DIGITS, ...      PLAIN: integer digits. SCIENTIFIC: digits, without zeros at either end (0: no bound)
LOW_SCALE, ...       PLAIN: fraction digits. SCIENTIFIC: the exponent of the first digit
HAS_HIGH             whether there is an upper bound (SCIENTIFIC: always)
BARE, POINTED        PLAIN: whether it may be written without a fraction, and with one
==================== =============================================================================
"""

# Compiled functions have numba signatures instead of annotations, and numba's rules for integers.
# mypy: allow-untyped-defs, disable-error-code="assignment,operator"

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.automaton.labels import EPSILON
from vllm_guided.numba_setup import jit

(
    KIND, SIGN, WHOLE, LOW_CLOSED, LOW_DIGITS, LOW_SCALE, HAS_HIGH, HIGH_CLOSED, HIGH_DIGITS, HIGH_SCALE,
    BARE, POINTED, HEAD,
) = range(13)  # fmt: skip
PLAIN, SCIENTIFIC = 0, 1
LESS, EQUAL, GREATER = 0, 1, 2
START, END = 0, 1

#: Room for the moves of one part; no bound that ``frontends/json_schema/number_moves.py`` lets through needs
#: as many.
ROOM = 8_192
#: Intervals of exponents of one part: a bound is met or not, and whole numbers have two kinds of mantissas.
INTERVALS = 8

_ints = types.int32[::1]


@jit()
def _move(moves, counts, source, label, target):
    """``counts``: numbers in ``moves``, vertices. What has no room is counted, not written."""
    at = counts[0]
    counts[0] = at + 3
    if at + 3 <= moves.size:
        moves[at] = source
        moves[at + 1] = label
        moves[at + 2] = target


@jit()
def _digits(moves, counts, source, first, last, target):
    """A move by the digits ``first`` to ``last``."""
    _move(moves, counts, source, (0x30 + first) | (0x30 + last) << 8, target)


@jit()
def _vertex(counts):
    counts[1] += 1
    return counts[1] - 1


@jit()
def _compared(so_far, digit, other):
    if so_far != EQUAL:
        return so_far
    return np.int64(LESS) if digit < other else np.int64(GREATER) if digit > other else np.int64(EQUAL)


@jit()
def _digit_of(ops, first, count, position):
    """A bound's digit; 0 beyond its end."""
    return np.int64(ops[first + position]) if position < count else np.int64(0)


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
        known[count] = _vertex(counts)
        if count > 0:
            _move(moves, counts, known[count], EPSILON, END)
        if count > first:
            _digits(moves, counts, known[count - 1], 0, last, known[count])
        count += 1
    if count > first:
        _digits(moves, counts, known[count - 1], 0, last, known[count])
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
        vertices[place] = _vertex(counts)
    return np.int64(vertices[place])


@jit()
def _plain(ops, at, start, most_digits, most_zeros, free, zeros, moves, counts):
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
            low_digit = _digit_of(ops, low_at, low_whole, count)
            high_digit = _digit_of(ops, high_at, high_whole, count)
            first, before = np.int64(0), np.int64(-1)
            for digit in range(11):
                target = np.int64(-1)
                if digit < 10:
                    starts_with_0 = np.int64(1) if count == 0 and digit == 0 else np.int64(0)
                    below = _compared(low, digit, low_digit) if count + 1 <= low_whole else np.int64(GREATER)
                    above = _compared(high, digit, high_digit)
                    left = np.int64(0) if starts_with_0 else longest - count - 1
                    if above == GREATER:
                        left = min(left, high_whole - count - 2)
                    if left >= 0:
                        target = (((count + 1) * 3 + below) * 3 + above) * 2 + starts_with_0
                        if vertices[target] < 0:
                            vertices[target] = _vertex(counts)
                        target = np.int64(vertices[target])
                if target != before:
                    if before >= 0:
                        _digits(moves, counts, source, first, digit - 1, before)
                    first, before = np.int64(digit), target
        if count == 0:
            continue
        below = low if count == low_whole else np.int64(GREATER if count > low_whole else LESS)
        above = high if has_high and count == high_whole else np.int64(LESS)
        if below == LESS or above == GREATER:
            continue
        ends = _ends(below, above, 0, facts)
        if bare and ends:
            _move(moves, counts, source, EPSILON, END)
        if pointed:
            if whole and decimals == 0:
                if not ends:
                    continue
                below, above = np.int64(GREATER), np.int64(LESS)
            target = _fraction_vertex(0, below, above, facts, whole, fractions, free, zeros, moves, counts)
            if target >= 0:
                _move(moves, counts, source, 0x2E2E, target)
    # Where the last zeros were read that may be, nothing follows, and no number ends.
    for place in range(fractions.size - 9):
        source = np.int64(fractions[place])
        if source < 0:
            continue
        count, low, high = place // 9, place // 3 % 3, place % 3
        if count > 0 and _ends(low, high, count, facts):
            _move(moves, counts, source, EPSILON, END)
        low_digit = _digit_of(ops, low_at + low_whole, low_decimals, count)
        high_digit = _digit_of(ops, high_at + high_whole, high_decimals, count)
        first, before = np.int64(0), np.int64(-1)
        for digit in range(11):
            target = np.int64(-1)
            if digit == 0 or (digit < 10 and not whole):
                below, above = _compared(low, digit, low_digit), _compared(high, digit, high_digit)
                if below != LESS and above != GREATER:
                    target = _fraction_vertex(
                        count + 1, below, above, facts, whole, fractions, free, zeros, moves, counts
                    )
            if target != before:
                if before >= 0:
                    _digits(moves, counts, source, first, digit - 1, before)
                first, before = np.int64(digit), target


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
            inner = _vertex(counts)
            _digits(moves, counts, source, run, digit - 1, inner)
            _digits(moves, counts, inner, 0, 9, END)
        run = np.int64(10)
        if digit < 10 and low <= high:
            inner = _vertex(counts)
            _digits(moves, counts, source, digit, digit, inner)
            _digits(moves, counts, inner, low - value, high - value, END)


@jit()
def _between(source, first, last, moves, counts):
    """The numbers from ``first`` to ``last`` (three digits at most); those of one digit with a zero, too."""
    if first <= 9:
        zero = _vertex(counts)
        _digits(moves, counts, source, first, min(last, 9), END)
        _digits(moves, counts, source, 0, 0, zero)
        _digits(moves, counts, zero, first, min(last, 9), END)
    if last >= 10:
        _last_two(source, 0, 1, first, min(last, 99), moves, counts)
    for digit in range(1, 10):
        low, high = max(first, 100 * digit), min(last, 100 * digit + 99)
        if low <= high:
            inner = _vertex(counts)
            _digits(moves, counts, source, digit, digit, inner)
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
    vertex = _vertex(counts)
    known[1 + 3 * number], known[2 + 3 * number], known[3 + 3 * number] = least, most, vertex
    if most >= 0:
        unsigned = _vertex(counts)
        _move(moves, counts, vertex, 0x2B2B, unsigned)
        _move(moves, counts, vertex, EPSILON, unsigned)
        _between(unsigned, max(least, 0), most, moves, counts)
    if least < 0:
        negative = _vertex(counts)
        _move(moves, counts, vertex, 0x2D2D, negative)
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
        _move(moves, counts, source, 0x4545, known[3 + 3 * interval])
        _move(moves, counts, source, 0x6565, known[3 + 3 * interval])


@jit()
def _scientific(ops, at, start, least, most_digits, known, behind, moves, counts):
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
            pointed = _vertex(counts)
            _move(moves, counts, source, 0x2E2E, pointed)
            source = pointed
        if free:
            room = max(longest - count, 1)
            while room > 0:
                room -= 1
                target = np.int64(behind[interval, room])
                if target >= 0:
                    _digits(moves, counts, source, 0, 9, target)
                    break
                target = _vertex(counts)
                behind[interval, room] = target
                _digits(moves, counts, source, 0, 9, target)
                _finish(target, interval, known, moves, counts)
                source = target
            continue
        low_digit = _digit_of(ops, low_at, low_digits, count)
        high_digit = _digit_of(ops, high_at, high_digits, count)
        first, before = np.int64(0), np.int64(-1)
        for digit in range(11):
            target = np.int64(-1)
            if digit < 10 and count + digit > 0:
                below, above = _compared(low, digit, low_digit), _compared(high, digit, high_digit)
                found = ((count + 1) * 3 + below) * 3 + above
                if vertices[found] < 0:
                    vertices[found] = _vertex(counts)
                target = np.int64(vertices[found])
            if target != before:
                if before >= 0:
                    _digits(moves, counts, source, first, digit - 1, before)
                first, before = np.int64(digit), target


@jit()
def _length(at, ops):
    """How many numbers a part has."""
    length = np.int64(HEAD) + ops[at + LOW_DIGITS] + ops[at + HIGH_DIGITS]
    return length if ops[at + KIND] == SCIENTIFIC else length + ops[at + LOW_SCALE] + ops[at + HIGH_SCALE]


@jit()
def _derives(used, vertices, moves):
    """Whether the end can be reached from the start; most moves lead to later vertices."""
    alive = np.zeros(vertices, np.bool_)
    alive[END] = True
    changed = True
    while changed and not alive[START]:
        changed = False
        for k in range(used - 3, -1, -3):
            if alive[moves[k + 2]] and not alive[moves[k]]:
                alive[moves[k]] = True
                changed = True
    return alive[START]


@jit(types.Tuple((_ints, types.int64))(
    _ints, types.int64, types.int64, types.int64, types.int64, types.int64,
))  # fmt: skip
def number_moves(ops, most_digits, most_decimals, most_zeros, mantissa_digits, least_exponent):
    """The moves of all parts in ``ops``, from vertex 0 to vertex 1.

    Args:
        most_digits: integer digits where no bound has more and there is no upper bound.
        most_decimals: digits behind the point where nothing else bounds them; more than bounds have.
        most_zeros: zeros behind the digits of an open bound.
        mantissa_digits: those behind the point; as many as bounds tell apart.
        least_exponent: where no bound says it.

    Returns:
        Moves ``source, label, target`` flattened, and how many vertices there are: 0 if there is no such
        number, -1 if there was no room.
    """
    parts = 0
    at = np.int64(0)
    while at < ops.size:
        parts += 1
        at += _length(at, ops)
    moves = np.empty(3 * ROOM * parts, np.int32)
    counts = np.empty(2, np.int64)
    counts[0], counts[1] = 0, 2
    # What no bound looks at is shared by all parts: digits, and zeros, behind the point; intervals of
    # exponents (``_interval``), and the digits of mantissas before these.
    free = np.full(most_decimals + 1, -1, np.int32)
    zeros = np.full(most_decimals + 1, -1, np.int32)
    intervals = np.zeros(1 + 3 * INTERVALS * parts, np.int64)
    behind = np.full((INTERVALS * parts, mantissa_digits + 1), -1, np.int32)
    starts = np.full(3, -1, np.int64)
    starts[0] = START
    at = np.int64(0)
    while at < ops.size:
        sign = ops[at + SIGN]
        if starts[sign] < 0:
            starts[sign] = _vertex(counts)
            _move(moves, counts, START, 0x2D2D, starts[sign])
            if sign == 2:
                _move(moves, counts, START, EPSILON, starts[sign])
        if ops[at + KIND] == PLAIN:
            _plain(ops, at, starts[sign], most_digits, most_zeros, free, zeros, moves, counts)
        else:
            _scientific(
                ops, at, starts[sign], least_exponent, mantissa_digits, intervals, behind, moves, counts
            )
        at += _length(at, ops)
    if counts[0] > moves.size:
        return np.empty(0, np.int32), np.int64(-1)
    if not _derives(counts[0], counts[1], moves):
        return np.empty(0, np.int32), np.int64(0)
    return moves[: counts[0]].copy(), np.int64(counts[1])
