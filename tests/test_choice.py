"""Choices: exactly the listed texts, whatever characters they hold and however many they are."""

from __future__ import annotations

import time

import naive
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_guided.errors import InvalidConstraint
from vllm_guided.frontends.choice import TRIE_FROM, choice_grammar

TABLE = [
    (["yes", "no"], ["y", "yesno", "", "Yes"]),
    (["New", "New York", "New York City"], ["New ", "York", "New York "]),
    (["a", "a", "a"], ["aa", ""]),
    (["", "x"], ["xx"]),
    (
        ['say "hi"', "C:\\new", "it's", "a|b", "[x]", "a.b", "$5", "nul\0x", "a\nb"],
        ["a", "x", "aXb", "C:new"],
    ),
    (["🐈", "🐕", "🐈\u200d⬛"], ["🐈\u200d", "🐁", ""]),
    ([f"item {number}" for number in range(TRIE_FROM)], ["item", "item ", "item 64", "item 1 "]),
    (["", *(f"{number:x}" for number in range(200))], ["g", "c8", "00"]),
]


@pytest.mark.parametrize(("choices", "refused"), TABLE)
def test_table(choices: list[str], refused: list[str]) -> None:
    grammar = choice_grammar(choices)
    for text in choices:
        assert naive.accepts(grammar, text.encode()), text
    for text in refused:
        assert not naive.accepts(grammar, text.encode()), text


@given(
    st.lists(st.text("ab€", max_size=5), min_size=1, max_size=150),
    st.lists(st.text("ab€", max_size=6), max_size=20),
)
def test_only_the_listed_texts(choices: list[str], others: list[str]) -> None:
    grammar = choice_grammar(choices)
    for text in {*others, *choices[:20]}:
        assert naive.accepts(grammar, text.encode()) == (text in choices)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "empty"),
        ("yes", "must be a list"),
        (b"yes", "must be a list"),
        (None, "must be a list"),
        ({"a": 1}, "must be a list"),
        (["a", 1], r"choice\[1\]: a choice must be a string, not int"),
        (["a", None], r"choice\[1\]"),
        (["\ud83d"], "surrogate"),
    ],
)
def test_refused(choices: object, message: str) -> None:
    with pytest.raises(InvalidConstraint, match=message):
        choice_grammar(choices)  # type: ignore[arg-type]


def test_thousands_of_choices_are_linear() -> None:
    begin = time.perf_counter()
    choice_grammar([f"{'prefix' * 20}{number}" for number in range(20_000)])
    assert time.perf_counter() - begin < 5
