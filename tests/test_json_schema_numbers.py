# ruff: noqa: E501 - the rows of the tables are read best whole
"""Numbers of JSON Schema: exact values, and values as readers of doubles see them."""

from __future__ import annotations

import json
import re
from decimal import Decimal, localcontext
from fractions import Fraction

import prefixes
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vllm_guided.automaton.build import build_automaton
from vllm_guided.constraints import constraint_key
from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint
from vllm_guided.frontends.json_schema import canonical, json_schema_grammar, number_text
from vllm_guided.frontends.json_schema import numbers as number_sets
from vllm_guided.frontends.json_schema.number_text import number_node
from vllm_guided.frontends.json_schema.numbers import DIGITS, NOT_DIGITS, Numbers
from vllm_guided.grammar import ir

BIG = 2**63 - 1
TABLE = [
    # A double on the wrong side of a bound, or on it.
    ({"type": "number", "exclusiveMaximum": 1}, ["0.9999999999999999", "0.5", "-3", "9e-01"], ["1", "1.0", "0.99999999999999999999"]),
    ({"type": "number", "exclusiveMinimum": 0.3}, ["0.30000000000000004", "0.31"], ["0.3", "0.30000000000000000001", "3e-1"]),
    ({"type": "number", "maximum": 0.3}, ["0.3", "0.30", "3e-01"], ["0.30000000000000000001", "0.31"]),
    ({"type": "number", "maximum": BIG}, [str(BIG), "9223372036854775800", "9.2e18"], [f"{BIG}.0", str(BIG + 1), "9223372036854775806.5", "9.223372036854775807e18"]),
    ({"type": "integer", "minimum": -BIG - 1, "maximum": BIG}, [str(BIG), str(-BIG - 1), "7.0"], [str(BIG + 1), f"{BIG}.0"]),
    ({"type": "number", "minimum": 1e23}, ["100000000000000000000000", "2e23"], ["99999999999999991611392", "1e22"]),
    # A double that is an integer, or a multiple.
    ({"not": {"type": "integer"}}, ["0.5", "0.30000000000000004", "0.00000000000000001", "-2.25"], ["7", "7.0", "481891212147122497644.5594", "0.99999999999999999999", "3.0000000000000000001"]),
    ({"type": "number", "not": {"multipleOf": 3}}, ["1", "2.0", "3.5", "-4"], ["3", "6.0", "3.00000000000000000000001", "455266986655702476.0"]),
    ({"type": "number", "not": {"const": 0.5}}, ["0.51", "0", "0.05"], ["0.5", "0.50", "0.50000000000000000001", "5e-1"]),
    ({"type": "number", "not": {"multipleOf": 0.01}}, ["0.001", "2.505"], ["0.01", "2.5", "2.50000000000000000001"]),
    # Decimals of the text that a double does not keep.
    ('{"type": "number", "maximum": 1.00000000000000000000001}', ["1", "1.00000000000000000000001"], ["1.00000000000000000000002"]),
    ('{"const": 0.1000000000000000000001}', ["0.1000000000000000000001"], ["0.2", "0.10"]),
    ('{"enum": [0.1000000000000000000001, 0.1]}', ["0.1000000000000000000001", "0.1"], ["0.2"]),
    # Multiples.
    ({"multipleOf": 1_000_000, "type": "number"}, ["0", "7000000", "-1000000.0"], ["100000", "1000001"]),
    ({"multipleOf": 86_400_000, "type": "integer"}, ["86400000", "172800000", "-86400000"], ["86400001", "8640000"]),
    ({"multipleOf": 0.5, "type": "number"}, ["0.5", "1.50", "2", "-3.000"], ["0.25", "0.51"]),
    ({"type": "integer"}, ["1.00", "12345678901234567890.0"], ["1.01", "1."]),
    ({"allOf": [{"multipleOf": 33}, {"not": {"multipleOf": 8}}, {"not": {"multipleOf": 7}}], "type": "number"}, ["33", "-66"], ["264", "231", "34"]),
    ({"type": "number", "multipleOf": 123456789}, ["0", "123456789", "-246913578"], ["1", "123456788"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "accepted", "refused"), TABLE, ids=lambda value: str(value)[:60])
def test_table(schema, accepted, refused):
    grammar = json_schema_grammar(schema)
    for text in accepted:
        assert prefixes.accepts(grammar, text.encode()), text
    for text in refused:
        assert not prefixes.accepts(grammar, text.encode()), text


def test_numbers_beyond_doubles_are_refused():
    for text in ('{"maximum": 1e400}', '{"minimum": 1e-999999999}', '{"const": -1e999999999}'):
        with pytest.raises(ConstraintTooComplex, match="doubles"):
            json_schema_grammar(text)


def test_keys_tell_long_decimals_apart():
    texts = ['{"maximum": 1.00000000000000000001}', '{"maximum": 1.0}', '{"maximum": 1.00000000000000000002}']
    assert len({constraint_key("json_schema", text, {}) for text in texts}) == 3


def test_key_of_a_value_is_that_of_its_text():
    value = {"é": [1, 1.0, -0.0, 2**70, True, None, "\ud83d"], "b": {"x": {}, "": []}}
    for kind in ("json_schema", "structural_tag"):
        key = constraint_key(kind, value, {})
        assert constraint_key(kind, json.dumps(value, indent=2), {}) == key
        assert constraint_key(kind, json.dumps(value, ensure_ascii=False), {}) == key
    assert constraint_key("json_schema", '"a"', {}) != constraint_key("json_schema", "a", {})
    assert constraint_key("json_schema", "1.0", {}) != constraint_key("json_schema", "1", {})
    assert constraint_key("json_schema", "0.0", {}) != constraint_key("json_schema", "-0.0", {})


# Random sets and texts, judged by arithmetic.

_small = st.integers(-120, 120)
_decimals = st.builds(
    lambda n, k: number_sets.reduce(Fraction(n, 10**k)), st.integers(-3000, 3000), st.integers(1, 3)
)
_bound = st.none() | _small | _decimals | st.integers(-(10**20), 10**20)
_multiple = st.sampled_from(
    [
        1,
        1,
        2,
        3,
        7,
        10,
        25,
        1000,
        Fraction(1, 2),
        Fraction(1, 10),
        Fraction(1, 100),
        Fraction(3, 10),
        Fraction(5, 4),
    ]
)
_sets = st.builds(
    Numbers, _bound, st.booleans(), _bound, st.booleans(), st.none() | _multiple,
    st.lists(_multiple, max_size=2).map(lambda found: tuple(sorted(set(found)))), st.sampled_from([0, 0, DIGITS, NOT_DIGITS]),
)  # fmt: skip
_digits = st.text("0123456789", min_size=1, max_size=4)
_texts = st.builds(
    lambda sign, whole, fraction: f"{sign}{whole}{fraction}",
    st.sampled_from(["", "-"]), st.integers(0, 150) | st.integers(0, 10**18),
    st.just("") | _digits.map(lambda digits: f".{digits}") | st.integers(1, 20).map(lambda n: f".{'0' * n}1") | st.integers(1, 25).map(lambda n: f".{'9' * n}"),
)  # fmt: skip


@st.composite
def _near(draw, bound):
    """The text of a number at a bound, or a little beside it."""
    step = draw(st.sampled_from([0, 1, -1])) * Fraction(1, 10 ** draw(st.integers(0, 30)))
    with localcontext(prec=90):
        value = Fraction(bound) + step
        return format(Decimal(value.numerator) / Decimal(value.denominator), "f")


def _readings(numbers, text):
    """The set and the number as readers see them: exact, and in doubles."""
    yield numbers, number_sets.reduce(Fraction(text))
    if "." in text:
        ends = [
            None if end is None else number_sets.reduce(Fraction(float(end)))
            for end in (numbers.low, numbers.high)
        ]
        yield numbers._replace(low=ends[0], high=ends[1]), number_sets.reduce(Fraction(float(text)))


@settings(max_examples=50, deadline=None)
@given(_sets, st.data())
def test_random_sets(numbers, data):
    numbers = number_sets.tidy(numbers)
    assume(numbers is not None)
    nodes = [number_node(numbers), canonical.number_node(numbers)]
    every, once = (ir.Grammar({"start": ir.Rule(node)}) for node in nodes)
    bounds = [bound for bound in (numbers.low, numbers.high) if bound is not None]
    texts = st.one_of(_texts, *(_near(bound) for bound in bounds))
    for text in data.draw(st.lists(texts, min_size=20, max_size=20)):
        form = DIGITS if "." not in text else NOT_DIGITS
        member = number_sets.contains(numbers, number_sets.reduce(Fraction(text))) and numbers.form in (
            0,
            form,
        )
        accepted = prefixes.accepts(every, text.encode())
        assert member or not accepted, text
        if accepted and numbers.multiple is None:
            assert all(number_sets.contains(*reading) for reading in _readings(numbers, text)), text
        short = sum(character.isdigit() for character in text) <= 14
        assert accepted or not (member and short), text
        written_once = member and re.fullmatch(r"-?(0|[1-9]\d*)(\.\d*[1-9])?", text) and text != "-0"
        accepted_once = prefixes.accepts(once, text.encode())
        assert written_once or not accepted_once, text
        assert accepted_once or not (written_once and short), text


def _written_generally(numbers):
    parts = [
        number_text._part(numbers, magnitudes, False)
        for magnitudes in number_text._magnitudes(numbers, False)
    ]
    return number_text.parts_node(numbers, parts, False)


def _rule_key(node):
    """What the automaton of a number says of its language: minimal automata of one language are the same."""
    grammar = ir.Grammar({"start": ir.Rule(ir.Ref("number")), "number": ir.Rule(node, shared=True)})
    try:
        automaton = build_automaton(grammar)
    except InvalidConstraint:
        return None
    return automaton.rule_keys[automaton.names.index("number")]


def _same_by_compiled_code(numbers):
    node = number_node(numbers)
    assert ir.is_nothing(node) or isinstance(node, ir.ByteGraph)
    assert _rule_key(node) == _rule_key(_written_generally(numbers))


_LIMIT = 2**1024 - 2**970
BOUNDED = [
    Numbers(low=256),
    Numbers(low=Fraction(1, 2), high=Fraction(1, 2)),
    Numbers(low=0, low_open=True, high=0, high_open=True),
    Numbers(low=-5, high=700, multiple=1),
    Numbers(low=-5, high=700, multiple=1, form=NOT_DIGITS),
    Numbers(low=10**20, high=10**21, multiple=1),
    Numbers(low=10**18 + 1, low_open=True, multiple=1, form=DIGITS),
    Numbers(low=-(10**63), high=10**64 - 1),
    Numbers(low=Fraction(-3, 10**39), high=Fraction(1, 10**38)),
    Numbers(high=0, high_open=True),
    Numbers(low=Fraction(99, 100), low_open=True, high=1, high_open=True),
    Numbers(low=Fraction(25, 10**9), high=Fraction(26, 10**9), high_open=True),
    Numbers(low=-1, low_open=True, high=1, high_open=True),
    Numbers(low=17976931348623157, high=2**64),
]


@pytest.mark.parametrize("numbers", BOUNDED, ids=str)
def test_usual_bounds_are_written_by_compiled_code_as_by_general_code(numbers):
    _same_by_compiled_code(numbers)


@settings(max_examples=40, deadline=None)
@given(_bound, st.booleans(), _bound, st.booleans(), st.sampled_from([None, 1]), st.integers(0, 2))
def test_random_bounds_are_written_by_compiled_code_as_by_general_code(
    low, low_open, high, high_open, multiple, form
):
    numbers = number_sets.tidy(Numbers(low, low_open, high, high_open, multiple, (), form))
    assume(numbers is not None)
    _same_by_compiled_code(numbers)


@pytest.mark.parametrize("numbers", [Numbers(low=10**70), Numbers(high=Fraction(1, 10**40))], ids=str)
def test_long_bounds_are_written_by_general_code(numbers):
    node = number_node(numbers)
    assert not isinstance(node, ir.ByteGraph) and _rule_key(node) is not None


def test_no_number_is_above_all_doubles():
    # The least number that doubles do not hold: it is nearer to infinity.
    assert ir.is_nothing(number_node(Numbers(low=_LIMIT)))
    assert not ir.is_nothing(number_node(Numbers(low=_LIMIT - 1)))
