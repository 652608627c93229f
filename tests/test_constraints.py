"""The table of constraints: what a frontend makes of one says nothing wrong of another in the cache."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_guided.automaton.automaton import Automaton
from vllm_guided.constraints import compile_constraint
from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint


def outcome(kind: str, spec: Any, **options: Any) -> Automaton | str:
    try:
        return compile_constraint(kind, spec, **options)
    except GrammarError as error:
        return str(error)


@pytest.mark.parametrize(
    ("kind", "bad", "good"),
    [
        ("json_schema", '{"type": "null", "type": "integer", "$id": "%s"}', {"type": "integer", "$id": "%s"}),
        (
            "structural_tag",
            '{"format": {"type": "const_string", "value": "%s", "value": "a"}}',
            {"format": {"type": "const_string", "value": "a"}},
        ),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_repeated_member_is_refused_whatever_came_before(
    kind: str, bad: str, good: dict[str, Any], first: bool
) -> None:
    text = bad.replace("%s", str(first))
    value = {key: item.replace("%s", str(first)) if item == "%s" else item for key, item in good.items()}
    results = [outcome(kind, spec) for spec in ((text, value) if first else (value, text))]
    refused, accepted = results if first else reversed(results)
    assert "twice" in str(refused)
    assert isinstance(accepted, Automaton)


@pytest.mark.parametrize(
    ("python", "plain"),
    [
        ({"const": (1, 2)}, {"const": [1, 2]}),
        ({"properties": {1: {"type": "null"}}}, {"properties": {"1": {"type": "null"}}}),
        ({"const": {1: True}}, {"const": {"1": True}}),
    ],
)
def test_python_values_mean_their_json(python: dict[str, Any], plain: dict[str, Any]) -> None:
    assert outcome("json_schema", python) is outcome("json_schema", plain)


def test_names_that_are_one_in_json() -> None:
    assert "twice" in str(outcome("json_schema", {"const": {1: True, "1": False}}))


@pytest.mark.parametrize("kind", ["regex", "grammar", "lark", "ebnf"])
@pytest.mark.parametrize("spec", [None, 1, b"a", ["a"], {"a": 1}])
def test_texts_are_strings(kind: str, spec: Any) -> None:
    with pytest.raises(InvalidConstraint, match="is a string, not"):
        compile_constraint(kind, spec)


@pytest.mark.parametrize("kind", ["json_schema", "structural_tag"])
@pytest.mark.parametrize(
    "text", ['{"items":' * 100_000 + "{}" + "}" * 100_000, '{"const":' + "[" * 2000 + "]" * 2000 + "}"]
)
def test_deep_json_is_too_complex(kind: str, text: str) -> None:
    with pytest.raises(ConstraintTooComplex, match="nested too deeply"):
        compile_constraint(kind, text)


def test_integers_longer_than_python_reads() -> None:
    with pytest.raises(InvalidConstraint, match="digits"):
        compile_constraint("json_schema", f'{{"const": {"1" * 5000}}}')


@pytest.mark.parametrize(
    "options",
    [
        {"any_whitespace": "no"},
        {"any_whitespace": 0},
        {"additional_properties": "no"},
        {"any_whitespace": False, "whitespace_pattern": " ?"},
    ],
)
def test_options_that_would_be_ignored(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConstraint, match=r"exclude|True or False"):
        compile_constraint("json_schema", {"type": "object"}, **options)
