"""Random schemas against ``jsonschema``: what a grammar takes is valid, and what is valid it takes.

In any order of members they agree. In the order of the schema, a valid object that is refused must be taken
once its members stand in another order.
"""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import islice, permutations, product
from random import Random
from typing import Any

import jsonschema
import prefixes
import pytest
import random_schemas
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends.json_schema import json_schema_grammar
from vllm_guided.frontends.json_schema import numbers as number_sets
from vllm_guided.frontends.json_schema.number_text import number_node
from vllm_guided.grammar import ir

VALIDATORS = {
    4: jsonschema.Draft4Validator,
    7: jsonschema.Draft7Validator,
    2020: jsonschema.Draft202012Validator,
}


def orders(value: Any) -> Any:
    """The value with its members in every order."""
    if isinstance(value, list):
        for items in product(*(list(islice(orders(item), 24)) for item in value)):
            yield list(items)
    elif isinstance(value, dict):
        for names in permutations(value):
            for items in product(*(list(islice(orders(value[name]), 24)) for name in names)):
                yield dict(zip(names, items, strict=True))
    else:
        yield value


def takes(grammar: ir.Grammar, value: Any) -> bool:
    return prefixes.accepts(grammar, json.dumps(value, ensure_ascii=False).encode())


@pytest.mark.parametrize("order", ["any", "schema"])
@pytest.mark.parametrize("draft", VALIDATORS)
@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 1 << 40))
def test_grammar_and_validator_agree(draft, order, seed):
    random = Random(seed)
    schema = random_schemas.document(random, draft)
    validator = VALIDATORS[draft](schema)
    values = [random_schemas.value(random) for _ in range(12)]
    try:
        valid = [validator.is_valid(value) for value in values]
    except RecursionError:
        return  # it refers to itself at one place; test_json_schema.py has what is said then
    try:
        grammar = json_schema_grammar(schema, property_order=order)
    except InvalidConstraint as error:
        assert "refers to itself" in error.message or not any(valid), (schema, error)
        return
    except (UnsupportedConstraint, ConstraintTooComplex):
        return
    for value, is_valid in zip(values, valid, strict=True):
        taken = takes(grammar, value)
        assert is_valid or not taken, (schema, value)
        if is_valid and not taken:
            assert order == "schema", (schema, value)
            assert any(takes(grammar, other) for other in islice(orders(value), 5000)), (schema, value)


BOUNDS = st.sampled_from([None, 0, 1, -5, 2.5, -0.1, 100, -1e5, 1e-7, 12.75, 1e16, 1e300, -0.001])
SAMPLES = st.one_of(
    st.integers(-20, 20),
    st.integers(-(10**20), 10**20),
    st.floats(-20, 20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(10**6), 10**6).map(lambda value: value / 100),
    BOUNDS.filter(lambda value: value is not None),
)


@example(None, None, None, (), 0, False, [2.2250738585072014e-308, 1e-322, -1e-323])
@example(0, None, None, (), 0, True, [2.2250738585072014e-308, 1e-322, 0, -1e-323])
@example(None, 1e300, None, (), 0, False, [1e300, 9e299])
@settings(max_examples=150, deadline=None)
@given(
    BOUNDS,
    BOUNDS,
    st.sampled_from([None, None, 1, 2, 0.5, 0.01, 7, 2.5]),
    st.sampled_from([(), (), (1,), (3,), (0.5,)]),
    st.integers(0, 2),
    st.booleans(),
    st.lists(SAMPLES, min_size=10, max_size=30),
)
def test_numbers_are_written_if_and_only_if_they_are_members(
    low, high, multiple, excluded, form, strict, samples
):
    def exact(value):
        return None if value is None else number_sets.exact(value)

    numbers = number_sets.tidy(
        number_sets.Numbers(
            exact(low),
            strict and low is not None,
            exact(high),
            strict and high is not None,
            exact(multiple),
            tuple(exact(value) for value in excluded),
            form,
        )
    )
    if numbers is None:
        return
    try:
        node = number_node(numbers)
    except ConstraintTooComplex:
        return
    grammar = ir.Grammar({"start": ir.Rule(node)})
    for sample in samples:
        text = json.dumps(sample)
        digits = text.lstrip("-").isdigit()
        member = number_sets.contains(numbers, number_sets.exact(sample))
        member = member and form != (number_sets.NOT_DIGITS if digits else number_sets.DIGITS)
        taken = prefixes.accepts(grammar, text.encode())
        assert member or not taken, (numbers, text)
        scientific = "e" in text and (numbers.excluded or numbers.multiple not in (None, 1))
        far = len(text.partition(".")[0]) > 18 and numbers.multiple not in (None, 1)
        narrowed = "." in text and (numbers.excluded or numbers.multiple not in (None, 1))
        # 1e300 is no double: at that bound readers of exact numbers and of doubles differ (double_bounds).
        exactly_double = Fraction(sample) == number_sets.exact(sample)
        disputed = abs(sample) >= 2**53 and sample in (low, high) and not exactly_double
        if not (scientific or far or 0 < abs(sample) < 1e-323 or narrowed or disputed):
            assert taken or not member, (numbers, text)
