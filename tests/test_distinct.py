"""Distinct items: which tokens break the constraint is found as by trying every token."""

from __future__ import annotations

import random

import bag_strategies
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Words
from test_bags import STRING, long_first
from test_engine_properties import bits_of, compiled, mask_of

import vllm_guided as vg
from vllm_guided.grammar import ir
from vllm_guided.runtime import entry


def mask_slowly(matcher: vg.GrammarMatcher, words: Words) -> set[int]:
    """The mask, every token tried."""
    size = len(words.token_bytes)
    bitmask = vg.allocate_token_bitmask(1, size)
    entry.fill_slowly(matcher._runtime.address, matcher._history[-1], bitmask, 0)
    return bits_of(bitmask[0], size)


def agree_slowly(language: ir.Grammar, words: Words, choices: random.Random, steps: int) -> None:
    matcher = compiled(language, words).matcher()
    for _ in range(steps):
        mask = mask_of(matcher, words)
        if matcher.is_terminated():
            break
        slow = mask_slowly(matcher, words)
        assert mask == slow, f"extra {sorted(mask - slow)}, missing {sorted(slow - mask)}"
        assert matcher.accept_tokens([long_first(mask, words, choices)])


@st.composite
def situations(draw: st.DrawFn) -> tuple[ir.Grammar, Words, random.Random]:
    language = draw(bag_strategies.grammars(bag_strategies.AS_IN_JSON))
    return language, draw(bag_strategies.vocabularies(language)), draw(st.randoms(use_true_random=False))


@given(situations())
def test_random_bags(situation: tuple[ir.Grammar, Words, random.Random]) -> None:
    language, words, choices = situation
    agree_slowly(language, words, choices, 12)


ITEMS: dict[str, tuple[object, list[str]]] = {
    "strings": ({"type": "string"}, ['"a"', '"ab"', '""', '"\\""', '","', '"\\\\"', '"\\\\,"', '"b, "']),
    "integers": ({"type": "integer"}, ["1", "12", "122", "2", "21", "-1", "0"]),
    "words and numbers": (
        {"type": ["boolean", "null", "integer", "string"]},
        ["true", "false", "null", "1", "11", '"true"', '"1"'],
    ),
    "few strings": (
        {"type": "string", "pattern": "^[ab]{1,8}$"},
        ['"a"', '"ab"', '"b"', '"aab"', '"abbaabb"'],
    ),
    "sets": (
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 3},
        ["[]", "[1]", "[1, 2]", "[1,12]", "[2, 1,12]"],
    ),
    "objects": (
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}},
        ['{"a": 1}', '{"a":12, "b": true}', '{"b": true}', '{"b":false}', "{}", '{"c":1}'],
    ),
    "sets of strings": (
        {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        ["[]", '["a"]', '["a", "b"]', '["b","a"]', '["ab"]', '[""]'],
    ),
}


@pytest.mark.parametrize("name", ITEMS)
@settings(max_examples=25)
@given(st.data())
def test_json(name: str, data: st.DataObject) -> None:
    """Walks through arrays that repeat few values, with tokens cut out of such arrays."""
    choices = data.draw(st.randoms(use_true_random=False))
    item, values = ITEMS[name]
    values = choices.sample(values, choices.randint(2, 3))
    cuts: set[str] = set()
    for _ in range(20):
        comma = choices.choice([",", ", ", ",  ", ",\n"])
        text = f"[{comma.join(choices.choice(values) for _ in range(choices.randint(2, 6)))}]"
        for _ in range(8):
            begin = choices.randrange(len(text))
            cuts.add(text[begin : begin + choices.randint(1, choices.choice([3, 12]))])
    tokens: list[bytes | None] = [cut.encode() for cut in sorted(cuts)]
    tokens += [bytes([byte]) for byte in range(256)]
    words = Words([*tokens, None], [len(tokens)])
    schema = {"type": "array", "items": item, "uniqueItems": True}
    matcher = vg.GrammarCompiler(words.build()).compile_json_schema(schema).matcher()
    for _ in range(25):
        mask = mask_of(matcher, words)
        slow = mask_slowly(matcher, words)
        assert mask == slow, f"extra {[words.token_bytes[k] for k in mask - slow]}"
        going_on = [token for token in sorted(mask) if (tokens[token : token + 1] or [b""])[0] in known(cuts)]
        if matcher.is_terminated() or not going_on:
            break
        several = [token for token in going_on if len(tokens[token] or b"") > 1]
        chosen = several if several and choices.random() < 0.6 else going_on
        assert matcher.accept_tokens([choices.choice(chosen)])


def known(cuts: set[str]) -> set[bytes]:
    """The cuts, and every byte in them."""
    return {cut.encode() for cut in cuts} | {byte.encode() for cut in cuts for byte in cut}


def test_an_item_begins_behind_a_blank_that_must_be() -> None:
    """The used item lies in one token, which goes on with the separator."""
    language = ir.Grammar({"start": ir.Rule(ir.Bag((ir.Entry(STRING, distinct=True),), ir.Literal(b", ")))})
    tokens: list[bytes | None] = [b' "a"', b' "aa"', b' "a', b', "a"', b'"a"', b",", b" "]
    tokens += [bytes([byte]) for byte in range(256)]
    words = Words([*tokens, None], [len(tokens)])
    matcher = compiled(language, words).matcher()
    assert matcher.accept_tokens([4])
    assert mask_of(matcher, words) & set(range(7)) == {5}
    assert matcher.accept_tokens([5])
    mask = mask_of(matcher, words)
    assert mask & set(range(7)) == {1, 2, 6}
    assert mask == mask_slowly(matcher, words)
