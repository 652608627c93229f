"""One spelling for each value, and how many values a set has: what ``uniqueItems`` needs of scalars.

Two items of an array are equal where their values are, however they are spelt (``1``, ``1.0`` and ``1e0``;
``"a"`` and ``"\\u0061"``). With one spelling each, different texts are different values.

In: a :class:`~.strings.Strings` or a :class:`~.numbers.Numbers`. Out:

============================================ ===========================================================
:func:`string_node`, :func:`number_node`     an IR node of the set with at most one text for each value
:func:`string_values`, :func:`number_values` the values, if they are few; ``None`` if not (or not seen)
:func:`string_count`, :func:`number_count`   how many there are, likewise
:func:`number_text_of`                       the text of one number
============================================ ===========================================================

Strings are written as ``json.dumps(x, ensure_ascii=False)`` writes them. Numbers are
``-?(0|[1-9]\\d*)(\\.\\d*[1-9])?`` without ``-0``, and with a fraction they have at most 15 digits, so that
even readers that keep doubles tell any two of them apart.
"""

from __future__ import annotations

import math
from fractions import Fraction

from vllm_guided.bounded import bounded_cache
from vllm_guided.frontends.json_schema import number_text, string_text
from vllm_guided.frontends.json_schema import numbers as number_sets
from vllm_guided.frontends.json_schema.decimal_text import FRACTION_ROOM
from vllm_guided.frontends.json_schema.decimals import decimal
from vllm_guided.frontends.json_schema.numbers import DIGITS, NOT_DIGITS, Exact, Numbers
from vllm_guided.frontends.json_schema.strings import Strings, unbounded_automaton
from vllm_guided.grammar import ir

LIMIT = 10_000
"""More values than this are not counted."""

_STEPS = 200_000
"""States times lengths that a count may look at."""


def string_node(strings: Strings) -> ir.Node:
    """The quoted strings of the set, each in its one spelling; ``ir.NOTHING`` if there are none.

    Raises:
        ConstraintTooComplex: an automaton is beyond its budget.
    """
    return string_text.string_node(strings, plain=True)


def number_node(numbers: Numbers) -> ir.Node:
    """The numbers of the set, each in its one spelling; ``ir.NOTHING`` if there are none.

    Left out are numbers with a fraction and more than 15 digits, and those that are no integers only in
    draft 4, because of their spelling (``1.0``).

    Raises:
        ConstraintTooComplex: the bounds and multiples need more than the budget of states.
    """
    return number_text.number_node(numbers, canonical=True)


def number_text_of(value: Exact) -> bytes | None:
    """The one spelling of a number; ``None`` where :func:`number_node` leaves it out."""
    magnitude: Exact = -value if value < 0 else value
    bound = decimal(magnitude, True)
    fraction = bound.fraction.rstrip("0")
    if fraction and len(bound.whole.lstrip("0") or "0") + len(fraction) > FRACTION_ROOM:
        return None
    sign = "-" if value < 0 else ""
    return f"{sign}{bound.whole.lstrip('0') or '0'}{'.' + fraction if fraction else ''}".encode()


@bounded_cache(1024, 2 << 20)
def string_count(strings: Strings, limit: int = LIMIT) -> int | None:
    """How many strings the set has; ``None`` if more than ``limit``, or too many to be counted."""
    if strings.finite is not None:
        total = len(set(strings.finite))
        return total if total <= limit else None
    if strings.maximum is None and not strings.positive:
        return None
    automaton = unbounded_automaton(strings)
    sizes = [sum(high - low + 1 for low, high in ranges) for ranges in automaton.partition.members()]
    moves = [
        [(sizes[label], target) for label, target in enumerate(row) if target >= 0] for row in automaton.rows
    ]
    total, work, length = 0, 0, 0
    ways = {0: 1} if not automaton.is_empty() else {}
    while ways and (strings.maximum is None or length <= strings.maximum):
        if length >= strings.minimum:
            total += sum(count for state, count in ways.items() if state in automaton.accepting)
        work += len(ways)
        if total > limit or work > _STEPS:
            return None
        after: dict[int, int] = {}
        for state, count in ways.items():
            for size, target in moves[state]:
                after[target] = after.get(target, 0) + size * count
        ways, length = after, length + 1
    return total


@bounded_cache(1024, 2 << 20)
def string_values(strings: Strings, limit: int = LIMIT) -> tuple[str, ...] | None:
    """The strings of the set; ``None`` if they are more than ``limit``, or too many to be counted."""
    if strings.finite is not None:
        values = tuple(dict.fromkeys(strings.finite))
        return values if len(values) <= limit else None
    if string_count(strings, limit) is None:
        return None
    automaton = unbounded_automaton(strings)
    if strings.minimum or strings.maximum is not None:
        longest = automaton.maximum_length()
        maximum = strings.maximum
        if longest is not None and (maximum is None or longest < maximum):
            maximum = longest
        automaton = automaton.with_length(strings.minimum, maximum)
    texts = automaton.texts(limit)
    return None if texts is None else tuple(texts)


def number_count(numbers: Numbers, limit: int = LIMIT) -> int | None:
    """How many numbers the set has; ``None`` if more than ``limit``, or too many to be counted."""
    values = number_values(numbers, limit)
    return None if values is None else len(values)


@bounded_cache(1024, 2 << 20)
def number_values(numbers: Numbers, limit: int = LIMIT) -> tuple[Exact, ...] | None:
    """The numbers of the set, rising; ``None`` if they are more than ``limit``, or not seen to be few."""
    tidied = number_sets.tidy(numbers)
    if tidied is None:
        return ()
    low, high, multiple = tidied.low, tidied.high, tidied.multiple
    if low is None or high is None:
        return None
    if low == high:
        values: list[Exact] = [low]
    elif multiple is None:
        return None
    else:
        first, last = math.ceil(Fraction(low) / multiple), math.floor(Fraction(high) / multiple)
        if last - first + 1 > 4 * limit:
            return None
        values = [number_sets.reduce(number * multiple) for number in range(first, last + 1)]
    found = [value for value in values if number_sets.contains(tidied, value)]
    if tidied.form == DIGITS:
        found = [value for value in found if isinstance(value, int)]
    if tidied.form == NOT_DIGITS:
        found = [value for value in found if not isinstance(value, int)]
    return tuple(found) if len(found) <= limit else None
