"""One spelling for each value, and how many values a set has."""

from __future__ import annotations

from fractions import Fraction

import prefixes
import pytest

from vllm_guided.frontends.json_schema import canonical
from vllm_guided.frontends.json_schema.numbers import Numbers
from vllm_guided.frontends.json_schema.strings import Strings
from vllm_guided.grammar import ir

NUMBERS = [
    (Numbers(), ["0", "-1", "0.5", "-20.25", "1234567890123456"], ["-0", "1.0", "0.50", "1e3", "-0.0", "01"]),
    (Numbers(multiple=1), ["0", "7", "-7"], ["-0", "7.0", "7e1"]),
    (Numbers(low=0, multiple=1), ["0", "7"], ["-0", "-1"]),
    (Numbers(low=0, low_open=True), ["0.001", "7"], ["0", "-0", "0.0"]),
    (Numbers(low=-1, high=1), ["-1", "-0.5", "0", "0.5", "1"], ["-1.0", "-0", "1.5", "0.1234567890123456"]),
    (Numbers(multiple=Fraction(1, 100)), ["0.25", "-3.5", "7"], ["0.250", "3.50", "-0", "-0.00", "0.001"]),
    (Numbers(excluded=(1,)), ["0.5", "-2.25"], ["0", "1", "0.50", "1.0"]),
    (Numbers(multiple=1, form=1), ["0", "7"], ["7.0", "-0"]),
    (Numbers(form=2), ["0.5"], ["7", "7.0", "0.0"]),
]  # fmt: skip


@pytest.mark.parametrize(("numbers", "accepted", "refused"), NUMBERS)
def test_numbers_are_written_once(numbers, accepted, refused):
    grammar = ir.Grammar({"start": ir.Rule(canonical.number_node(numbers))})
    for text in accepted:
        assert prefixes.accepts(grammar, text.encode()), text
        assert canonical.number_text_of(Fraction(text)) == text.encode()
    for text in refused:
        assert not prefixes.accepts(grammar, text.encode()), text


STRINGS = [
    (Strings(), ['"a/é"', r'"\n\u0001\"\\"'], [r'"\/"', r'"\u000a"', r'"\u0061"', r'"\u00E9"', r'"\u001F"']),
    (Strings(maximum=2), ['"ab"', r'"\n\n"'], ['"abc"', r'"\u0061"']),
    (Strings(positive=(("pattern", "^[a\n]+$"),)), ['"a"', r'"a\n"'], [r'"\u0061"', r'"\u000a"']),
    (Strings(0, 3, (("pattern", "^[a\n]+$"),)), ['"a"', r'"a\n"'], [r'"\u0061"', r'"\u000a"', '"aaaa"']),
    (Strings(negative=(("in", ("a",)),)), ['"b"', '"aa"'], ['"a"', r'"\u0061"', r'"\u0062"']),
    (Strings(finite=("a\n", "b")), [r'"a\n"', '"b"'], [r'"a\u000a"', '"c"']),
]  # fmt: skip


@pytest.mark.parametrize(("strings", "accepted", "refused"), STRINGS)
def test_strings_are_written_once(strings, accepted, refused):
    grammar = ir.Grammar({"start": ir.Rule(canonical.string_node(strings))})
    for text in accepted:
        assert prefixes.accepts(grammar, text.encode()), text
    for text in refused:
        assert not prefixes.accepts(grammar, text.encode()), text


@pytest.mark.parametrize(
    ("numbers", "values"),
    [
        (Numbers(low=0, high=3, multiple=1), (0, 1, 2, 3)),
        (Numbers(low=0, high=3, multiple=1, excluded=(2,)), (1, 3)),
        (Numbers(low=Fraction(1, 2), high=Fraction(1, 2)), (Fraction(1, 2),)),
        (Numbers(low=0, high=1, multiple=Fraction(1, 2)), (0, Fraction(1, 2), 1)),
        (Numbers(low=0, high=1, multiple=Fraction(1, 2), form=1), (0, 1)),
        (Numbers(low=0, high=1), None),
        (Numbers(low=0, multiple=1), None),
        (Numbers(low=0, high=10**9, multiple=1), None),
        (Numbers(low=2, high=1), ()),
    ],
)
def test_values_of_numbers(numbers, values):
    assert canonical.number_values(numbers) == values
    assert canonical.number_count(numbers) == (None if values is None else len(values))


@pytest.mark.parametrize(
    ("strings", "count"),
    [
        (Strings(), None),
        (Strings(maximum=0), 1),
        (Strings(maximum=1), None),
        (Strings(finite=("a", "b", "a")), 2),
        (Strings(positive=(("pattern", "^[ab]{2}$"),)), 4),
        (Strings(1, 2, (("pattern", "^[ab]*$"),)), 6),
        (Strings(1, 10_000, (("pattern", "^[ab]*$"),)), None),
        (Strings(1, 9_000, (("pattern", "^a*$"),)), 9_000),
        (Strings(positive=(("pattern", "^(yes|no)$"),), negative=(("in", ("no",)),)), 1),
        (Strings(positive=(("pattern", "^a"), ("pattern", "^b"))), 0),
    ],
)
def test_values_of_strings(strings, count):
    assert canonical.string_count(strings) == count
    values = canonical.string_values(strings)
    assert (None if values is None else len(set(values))) == count
