"""Masks over a real vocabulary: a token is allowed where the engine accepts it, and only there.

Long tokens, duplicates, pieces of characters and counts near a token's length are where ready rows,
neighbours, twins and shared rests could differ from a plain walk; small vocabularies have too few tokens
for these ways to be taken.
"""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
import vocabularies
from numpy.typing import NDArray

import vllm_guided as vg
from vllm_guided.runtime import entry

POSITIONS = 8
"""Masks compared on each output, besides the first and the last."""


def string(**limits: Any) -> dict[str, Any]:
    return {"type": "string", **limits}


def opened(*names: str, **more: Any) -> dict[str, Any]:
    """An open object with these names declared, in turn a string, an integer and a boolean."""
    kinds = ["string", "integer", "boolean"]
    return {
        "type": "object",
        "properties": {name: {"type": kinds[i % 3]} for i, name in enumerate(names)},
        **more,
    }


TWENTY = [
    "name", "names", "nameless", "id", "identity", "identifier", "type", "types", "typed", "value", "values",
    "val", "description", "desc", "descend", "é", "état", "日本", "a b", "created_at",
]  # fmt: skip

LONG = "abc d and then some more words, which go on and on; " * 9
MIXED = "a\né—x\\ \U0001f600 日本語 and a tab\t"

LARK = """
start: "BEGIN " text " END"
text: /[^\\n]{1,200}/
"""

TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<tool"],
        "tags": [
            {
                "begin": "<tool=f>",
                "content": {"type": "json_schema", "json_schema": {"type": "object"}},
                "end": "</tool>",
            }
        ],
    },
}

CLOSED = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["circle", "circular", "square", "sq", 1, None, "é"]},
        "where": opened("x", "xs", required=["x"]),
        "tags": {"type": "array", "items": string(maxLength=12), "minItems": 1, "maxItems": 3},
    },
    "required": ["kind", "tags"],
    "additionalProperties": False,
}

#: What it is: kind of constraint, the constraint, an output that meets it (or its beginning).
CASES: dict[str, tuple[str, Any, str]] = {
    **{
        f"maxLength {most}": ("json_schema", string(maxLength=most), json.dumps(LONG[:most]))
        for most in (1, 2, 3, 8, 14, 20, 50, 130, 400)
    },
    "maxLength 12, escapes": ("json_schema", string(maxLength=12), json.dumps(MIXED[:12])),
    "maxLength 40, no escapes": (
        "json_schema",
        string(maxLength=40),
        json.dumps(MIXED, ensure_ascii=False),
    ),
    **{
        f"minLength {least}": ("json_schema", string(minLength=least), json.dumps(LONG[: least + 5]))
        for least in (1, 20, 150)
    },
    **{
        f"{least} to {most} characters": (
            "json_schema",
            string(minLength=least, maxLength=most),
            json.dumps(LONG[: (least + most) // 2]),
        )
        for least, most in ((5, 20), (36, 36), (3, 3), (200, 300), (1, 255))
    },
    "host": ("json_schema", string(pattern="^[a-z0-9-]{3,63}$"), '"my-host-name-which-is-long-0123456789"'),
    "address": ("json_schema", string(pattern=r"^\S+@\S+$"), '"user.name@example.com"'),
    "few words": (
        "json_schema",
        string(pattern=r"^(?:\S+\s+){0,7}\S+$"),
        json.dumps("one tw\u00f6 \u4e09\u3000fo\u00a0five\n six seven", ensure_ascii=False),
    ),
    "words of some characters": (
        "json_schema",
        string(pattern=r"^(?:\S+\s+){0,29}\S+$", maxLength=60),
        json.dumps("\u65e5\u672c\u3000words and more " + LONG[:30] + "end", ensure_ascii=False),
    ),
    "characters but spaces": (
        "json_schema",
        string(pattern=r"^\S{3,50}$"),
        json.dumps(
            "a\u65e5\u672c\u8a9e-\u041f\u0440\u0438\u0432\u0435\u0442-" + "x" * 36, ensure_ascii=False
        ),
    ),
    "not a slash": ("json_schema", string(pattern="^[^/]{1,500}$"), json.dumps(MIXED * 3)),
    "codes": ("json_schema", string(pattern="^[A-Z]{2,4}-[0-9]{6,10}(-x)?$"), '"ABC-1234567-x"'),
    "one name": ("json_schema", opened("name"), '{"name": "a \\"b\\" c", "names": [1, "x"]}'),
    "three names": (
        "json_schema",
        opened("name", "names", "nam", required=["names"]),
        '{"named": {"name": null}, "names": 12, "nam": true}',
    ),
    "twenty names": (
        "json_schema",
        opened(*TWENTY),
        '{"identifiers": "no", "identifier": true, "état": 12, "日": "é\\u00e9"}',
    ),
    "closed": (
        "json_schema",
        CLOSED,
        '{"kind": "circle", "where": {"x": "abc", "z": []}, "tags": ["one", "exactly-12-c"]}',
    ),
    "few items": (
        "json_schema",
        {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 6},
        "[1, -20, 300,4000 , 5]",
    ),
    "many items": (
        "json_schema",
        {"type": "array", "items": string(maxLength=40), "minItems": 30},
        json.dumps(["ab", "", "some words in a string"] * 11),
    ),
    "nested": (
        "json_schema",
        {"type": "array", "items": {"type": "array", "items": opened("id", "ids")}, "maxItems": 500},
        '[[{"id": "x"}], [], [{"ids": 3, "idx": {"id": [[1]]}}]]',
    ),
    "any object": ("json_object", None, '{"a": {"b": [1, 2.5, "c\\n\\ud83d\\ude00"]}, "": null}'),
    "not deterministic": ("regex", r"1.{2,26}[^0-9]+\d{3}", "1ab.1a, 12 some 3x and 12"),
    "64 characters, then more": ("json_schema", string(pattern="^.{64}"), json.dumps(LONG[:80])),
    "60 characters, then some": ("regex", "[^,]{60}.{0,20}", "x y" * 19 + " and, then"),
    "a counter, then its own bytes": ("regex", "(.{48,64}a*\n)*", "a bc" * 15 + "aaaaaaaa\n" + "ab" * 20),
    "no quote": ("regex", '[^"]*', "free text, é and 日本語,\n\n    with lines and 'quotes'"),
    "up to 300": ("regex", ".{0,300}", LONG[:150] + MIXED[2:5] + LONG[:140]),
    "word and number": ("regex", r"(\w+ ){2,9}[0-9]{1,3}", "some wörds and others 42"),
    "lark": ("lark", LARK, "BEGIN any text with END in it, then the END"),
    "structural tag": ("structural_tag", TAG, 'I look <b>: <tool=f>{"a": "</tool>"}</tool> and <too'),
}


def compiled(compiler: vg.GrammarCompiler, name: str) -> vg.CompiledGrammar:
    kind, spec, _ = CASES[name]
    match kind:
        case "json_schema":
            return compiler.compile_json_schema(spec)
        case "json_object":
            return compiler.compile_json_object()
        case "regex":
            return compiler.compile_regex(spec)
        case "lark":
            return compiler.compile_lark(spec)
    return compiler.compile_structural_tag(spec)


@cache
def outputs(name: str) -> list[list[int]]:
    """The tokens of the given output, and of the same one cut at random into shorter tokens."""
    encoding, _ = vocabularies.llama3()
    text = CASES[name][2]
    choices = random.Random(name)
    cuts = sorted(choices.sample(range(len(text) + 1), min(len(text) // 3, 12)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return [encoding.encode(text), [token for part in parts for token in encoding.encode(part)]]


@cache
def compared(name: str, number: int) -> frozenset[int]:
    """The positions of output ``number`` at which masks are compared."""
    count = len(outputs(name)[number])
    choices = random.Random(f"{name} {number}")
    some = choices.sample(range(count + 1), min(POSITIONS, count + 1))
    return frozenset({*some, 0, count} if number == 0 else some)


def brute_force(matcher: vg.GrammarMatcher, size: int) -> NDArray[np.bool_]:
    """Which tokens are accepted, each tried."""
    states = np.full(size, matcher.state, np.int32)
    out = np.zeros(size, np.int32)
    entry.advance_batch(matcher._runtime.address, states, np.arange(size, dtype=np.int32), out)
    return out != 0


def bits(row: NDArray[np.int32], size: int) -> NDArray[np.bool_]:
    return np.unpackbits(row.view(np.uint8), bitorder="little")[:size].astype(bool)


def masks(grammar: vg.CompiledGrammar, name: str, *, every: bool = False) -> list[NDArray[np.int32]]:
    """The masks at the compared positions of all outputs; ``every``: the others are filled, too."""
    size = grammar.vocabulary.size
    row = vg.allocate_token_bitmask(1, size)
    found = []
    for number, tokens in enumerate(outputs(name)):
        matcher = grammar.matcher()
        for position, token in enumerate([*tokens, None]):
            if position in compared(name, number):
                matcher.fill_bitmask(row, 0)
                found.append(row[0].copy())
            elif every:
                matcher.fill_bitmask(row, 0)
            assert token is None or matcher.accept_tokens([token]), (name, position)
    return found


@pytest.fixture(scope="module")
def shared() -> vg.GrammarCompiler:
    """One compiler for all cases, so that later ones meet what earlier ones left."""
    return vg.GrammarCompiler(vocabularies.llama3()[1])


@pytest.mark.parametrize("name", CASES)
def test_every_token_is_tried(name: str, shared: vg.GrammarCompiler) -> None:
    encoding, vocabulary = vocabularies.llama3()
    grammar = compiled(shared, name)
    row = vg.allocate_token_bitmask(1, vocabulary.size)
    for number, tokens in enumerate(outputs(name)):
        matcher = grammar.matcher()
        for position, token in enumerate([*tokens, None]):
            matcher.fill_bitmask(row, 0)
            if position in compared(name, number):
                got, expected = bits(row[0], vocabulary.size), brute_force(matcher, vocabulary.size)
                wrong = [
                    (id, vocabulary.token_bytes(id), bool(got[id])) for id in np.flatnonzero(got != expected)
                ]
                assert not wrong, (encoding.decode(tokens[:position]), len(wrong), wrong[:5])
            assert token is None or matcher.accept_tokens([token]), (name, position)


@pytest.mark.parametrize("name", ["maxLength 50", "twenty names", "closed", "structural tag", "up to 300"])
def test_random_output(name: str, shared: vg.GrammarCompiler) -> None:
    """The same where tokens of the masks are taken at random, long and odd ones with them."""
    _, vocabulary = vocabularies.llama3()
    choices = random.Random(name)
    matcher = compiled(shared, name).matcher()
    row = vg.allocate_token_bitmask(1, vocabulary.size)
    for step in range(12):
        matcher.fill_bitmask(row, 0)
        allowed = bits(row[0], vocabulary.size)
        if step % 3 == 1:
            assert (allowed == brute_force(matcher, vocabulary.size)).all(), (name, step)
        going_on = [id for id in np.flatnonzero(allowed).tolist() if id not in vocabulary.stop_token_ids]
        if not going_on:
            break
        assert matcher.accept_tokens([choices.choice(going_on)])


def test_order_does_not_matter() -> None:
    """Masks beside what other grammars left are those of another order, and of a compiler of its own."""
    _, vocabulary = vocabularies.llama3()
    names = list(CASES)
    first, second = vg.GrammarCompiler(vocabulary), vg.GrammarCompiler(vocabulary)
    one = {name: masks(compiled(first, name), name, every=True) for name in names}
    backwards = {name: compiled(second, name) for name in reversed(names)}
    random.Random(1).shuffle(names)
    for name in names:
        other = masks(backwards[name], name)
        assert all((a == b).all() for a, b in zip(one[name], other, strict=True)), name
    for name in names[::6]:
        alone = masks(compiled(vg.GrammarCompiler(vocabulary), name), name)
        assert all((a == b).all() for a, b in zip(one[name], alone, strict=True)), name
