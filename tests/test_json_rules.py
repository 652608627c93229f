"""Rules that say a JSON value at once, against the general nodes that they stand for.

The twins are compiled apart and walked side by side over random tokens: every mask must be the same, bit for
bit. Schemas are written both ways, too, by the front end.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import random_schemas
from hypothesis import given, settings
from hypothesis import strategies as st

import vllm_guided as vg
from vllm_guided.errors import GrammarError
from vllm_guided.frontends.json_schema import json_schema_grammar
from vllm_guided.frontends.json_schema.common import common_schema
from vllm_guided.frontends.json_schema.layout import layout_of
from vllm_guided.frontends.json_schema.names import RULES
from vllm_guided.frontends.json_schema.string_text import string_node
from vllm_guided.frontends.json_schema.strings import Strings
from vllm_guided.frontends.structural_tag import structural_tag_grammar
from vllm_guided.grammar import ir
from vllm_guided.grammar.expansion import expanded
from vllm_guided.grammar.json_rules import JsonArray, JsonObject, JsonValue

WORDS = (
    b'{"', b'":', b'": ', b'","', b'"a', b'a"', b'ab', b'"}', b'"]', b"},", b"true", b"null", b'\\u00',
    b'\\"',     b'{"a":', b'"b":"', b"  ", b", ", b"\xc3\xa9", b"[[", b"]}", b'"ab":1', b"x", b"12", b"0.5",
)  # fmt: skip
VOCABULARY = vg.Vocabulary(
    [*(bytes([byte]) for byte in range(256)), *WORDS, None], stop_token_ids=[256 + len(WORDS)]
)
NAMES = ("", "a", "ab", "abc", "b", "~", " ", "a b", "é", 'q"', "longer name")


def walk_both(one: ir.Grammar, other: ir.Grammar, seed: int, walks: int = 4, steps: int = 40) -> None:
    """Both grammars allow the same tokens wherever the same tokens led."""
    compiler = vg.GrammarCompiler(VOCABULARY)
    left, right = compiler.compile_grammar_ir(one), compiler.compile_grammar_ir(other)
    choices = random.Random(seed)
    masks = vg.allocate_token_bitmask(2, VOCABULARY.size)
    for _ in range(walks):
        matchers = left.matcher(), right.matcher()
        text = b""
        for _ in range(steps):
            for row, matcher in enumerate(matchers):
                matcher.fill_bitmask(masks, row)
            allowed = [np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")) for row in masks]
            assert allowed[0].tolist() == allowed[1].tolist(), text
            # Words and structure lead further than the many characters of a string.
            tokens = [token for token in allowed[0].tolist() if token >= 256 or token in b'{}[]",:aben0t']
            token = choices.choice(tokens or allowed[0].tolist())
            if token in VOCABULARY.stop_token_ids:
                break
            text += (*(bytes([byte]) for byte in range(256)), *WORDS)[token]
            assert all(matcher.accept_tokens([token]) for matcher in matchers), text


def whole(rules: dict[str, Any], compact: bool) -> ir.Grammar:
    """A grammar of ``rules`` with those of JSON that they may need."""
    layout = layout_of(not compact, None)
    known = {
        "string": ir.Rule(string_node(Strings()), shared=True),
        "digit": ir.Rule(ir.byte_set(b"01"), shared=True),
        "loose": ir.Rule(ir.choice(ir.text("1"), ir.sequence(ir.text("1"), ir.text("2")))),
        "separator": layout.separator,
        **layout.rules,
        **RULES[False],
    }
    return ir.Grammar({**known, **{name: ir.Rule(rule) for name, rule in rules.items()}})


@st.composite
def json_rules(draw: st.DrawFn) -> ir.Grammar:
    """Rules that refer to one another, in circles as well; each derives something."""
    compact = draw(st.booleans())
    names = ("start", "one", "two", "three")
    safe = st.sampled_from(("string", "digit", "loose"))
    any_rule = st.sampled_from((*names, "string", "digit", "loose"))
    rules: dict[str, Any] = {}
    for name in names:
        kind = draw(st.sampled_from(("object", "object", "array", "value")))
        if kind == "array":
            least = draw(st.integers(0, 1))
            rules[name] = JsonArray(draw(safe if least else any_rule), least, compact)
        elif kind == "value":
            texts = draw(
                st.sets(st.sampled_from((b"1", b"12", b'"a"', b'"ab"', b"null", b"nul")), max_size=4)
            )
            others = draw(st.lists(safe, unique=True, min_size=not texts, max_size=2))
            rules[name] = JsonValue(tuple(sorted(texts)), tuple(others))
        else:
            other = draw(st.none() | any_rule)
            least, ordered = draw(st.integers(0, 1)), draw(st.booleans())
            known = NAMES if other is None else [each for each in NAMES if each.isascii() and '"' not in each]
            taken = draw(st.lists(st.sampled_from(known), unique=True, max_size=5))
            least = least if taken or other is not None else 0
            required = draw(st.sets(st.sampled_from(range(len(taken))), max_size=2)) if taken else set()
            values = [draw(safe if place in required or least else any_rule) for place in range(len(taken))]
            if least and other is not None:
                other = draw(safe)
            texts_of = tuple(json.dumps(each, ensure_ascii=False).encode() for each in taken)
            rules[name] = JsonObject(
                texts_of, tuple(values), frozenset(required), other, compact, least, ordered
            )
    return whole(rules, compact)


@settings(max_examples=150, deadline=None)
@given(json_rules(), st.integers(0, 1 << 20))
def test_rules_are_what_they_stand_for(grammar: ir.Grammar, seed: int) -> None:
    walk_both(grammar, expanded(grammar), seed)


def written(schema: Any, **options: Any) -> tuple[ir.Grammar | None, str]:
    try:
        return json_schema_grammar(schema, **options), ""
    except GrammarError as error:
        return None, f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("draft", [4, 7, 2020])
@pytest.mark.parametrize("seed", range(60))
def test_random_schemas_both_ways(draft: int, seed: int) -> None:
    schema = random_schemas.document(random.Random(1000 * draft + seed), draft)
    options = {
        "any_whitespace": seed % 3 > 0,
        "additional_properties": False if seed % 5 == 0 else None,
        "property_order": "any" if seed % 2 else "schema",
    }
    quick, fault = written(schema, json_rules=True, **options)
    general, other_fault = written(schema, **options)
    assert fault == other_fault
    if quick is not None and general is not None:
        try:
            vg.GrammarCompiler(VOCABULARY).compile_grammar_ir(general)
        except vg.InvalidConstraint:
            with pytest.raises(vg.InvalidConstraint):
                vg.GrammarCompiler(VOCABULARY).compile_grammar_ir(quick)
            return
        walk_both(quick, general, seed)


NODE = {"type": "object", "properties": {"next": {"$ref": "#"}, "a": {"$ref": "#/$defs/a"}}}
DEAD = {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/$defs/y"}}}
SCHEMAS = (
    {**NODE, "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}},
    {**NODE, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{}, {"$ref": "#/$defs/a"}]}}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}}}},
    {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"not": {}}}}}},
    {"type": "object", "properties": {"a": False, "b": {"type": "integer"}}},
    {"type": "object", "properties": {"a": False}, "additionalProperties": False},
    {"type": "object", "required": ["a", "z", "z"], "properties": {"a": {"enum": ["x", "xy"]}}},
    {"type": "object", "minProperties": 1, "additionalProperties": {"type": "boolean"}},
    {"type": "object", "minProperties": 2, "properties": {"a": {}, "b": {}}},
    {"type": "object", "properties": {"é": {"type": "null"}, "a": {"minimum": 3}}},
    {"properties": {"a": {"type": ["integer", "number", "string"]}}, "additionalProperties": {"const": 1}},
    {"type": "array", "minItems": 1, "items": {"oneOf": [{"type": "string"}, {"type": ["integer", "null"]}]}},
    {"type": "array", "items": {"oneOf": [{"type": "number"}, {"type": "integer"}]}},
    {"anyOf": [{"type": "string"}, {"type": "string", "format": "date"}, {"enum": [None, True, "a"]}]},
    {"allOf": [NODE, {"required": ["a"]}], "$defs": {"a": {"type": "string", "minLength": 2}}},
    {"type": "object", "patternProperties": {"^a": {"type": "null"}}, "properties": {"b": {"type": "null"}}},
    {"type": "object", "properties": {name: {"type": "string", "maxLength": 2} for name in "ab"}},
    {"definitions": {"x": {"$id": "/x", "type": "string"}}, "properties": {"a": {"$ref": "#/definitions/x"}}},
    {"type": ["string", "null"], "maxLength": 2},
    {"type": ["integer", "string", "number"], "minimum": 3},
    {"type": ["integer", "array"], "maximum": 12},
    {"pattern": "^a", "minLength": 1},
    {"type": ["null", "boolean"], "maxLength": 2},
    {"type": ["string", "number"], "maxLength": 2, "minimum": 3},
    {"type": ["string", "word"], "maxLength": 2},
    {"type": ["string", "null"], "maxLength": -2},
    {"$id": "http://x/y", "properties": {"a": {"$id": "z", "type": "null"}}},
    {"$defs": {"x": {"$id": "/x", "properties": {"a": {"$ref": "#"}}}}, "items": {"$ref": "#/$defs/x"}},
    {"enum": ["a", "b", 1]},
    {"properties": {"a": {"$ref": "#/$defs/x"}, "b": {}}, "$defs": {"x": {"$ref": "#/$defs/y"}, "y": DEAD}},
    {"properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/y"}}}, "$defs": {"y": DEAD}},
    {"anyOf": [{"$ref": "#/$defs/y"}, {"type": "null"}], "$defs": {"y": DEAD}},
    {"type": "object", "additionalProperties": {"$ref": "#/$defs/y"}, "$defs": {"y": DEAD}},
    {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/$defs/y"}}, "$defs": {"y": DEAD}},
    {"enum": []},
    {"type": 5, "properties": {"a": {}}},
    {"type": ["object", 5], "properties": {"a": {}}},
    {"type": "string", "properties": {"a": 3}},
    {"type": [], "properties": {"a": {}}},
    {"type": {}, "items": {}},
    {"anyOf": {}, "oneOf": []},
    {"anyOf": []},
    {"oneOf": 3},
    {"$ref": 3},
    {"minProperties": -1, "properties": {"a": {}}},
    {"type": "array", "items": 3},
    {"type": "array", "minItems": True},
    {"type": "string", "maxLength": "x"},
    {"type": "object", "properties": {"a": 3}},
    {"type": "object", "required": "a"},
    {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
    {"$ref": "#"},
    {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
    {"properties": {"b": {"type": "array", "minItems": 1, "items": {"$ref": "#/properties/b"}}}},
    {"type": "object", "required": ["a"], "additionalProperties": False},
)  # fmt: skip


@pytest.mark.parametrize("schema", [*SCHEMAS, common_schema()])
@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("order", ["any", "schema"])
def test_schemas_both_ways(schema: Any, compact: bool, order: str) -> None:
    options = {"any_whitespace": not compact, "property_order": order}
    quick, fault = written(schema, json_rules=True, **options)
    general, other_fault = written(schema, **options)
    assert fault == other_fault
    if quick is not None and general is not None:
        walk_both(quick, general, 0, walks=12)


@pytest.mark.parametrize("schema", [SCHEMAS[6], SCHEMAS[7], SCHEMAS[13]])
@pytest.mark.parametrize("blanks", [True, False])
def test_tags_both_ways(schema: Any, blanks: bool) -> None:
    contents = [{"type": "json_schema", "json_schema": each} for each in (schema, {"type": "object"})]
    tags = [{"begin": f"<{n}>", "content": each, "end": "</>"} for n, each in enumerate(contents)]
    elements = [{"type": "tag", **each} for each in tags]
    tag = {"type": "structural_tag", "format": {"type": "or", "elements": elements}}
    options = {"any_whitespace": blanks, "property_order": "any"}
    quick = structural_tag_grammar(tag, json_rules=True, **options)
    walk_both(quick, structural_tag_grammar(tag, **options), 0)


@pytest.mark.parametrize("other", [None, "digit"])
@pytest.mark.parametrize("required", [(), (0,), (40,), (7, 8, 63)])
def test_names_in_order_share_their_beginnings(other: str | None, required: tuple[int, ...]) -> None:
    choices = random.Random(len(required))
    found = {"".join(choices.choices("aab ", k=choices.randrange(7))) for _ in range(400)}
    names = tuple(json.dumps(name).encode() for name in choices.sample(sorted(found), 64))
    body = JsonObject(names, ("digit",) * len(names), frozenset(required), other, True, ordered=True)
    grammar = whole({"start": body}, True)
    walk_both(grammar, expanded(grammar), 0, walks=12, steps=200)


def test_distinct_objects_keep_their_order() -> None:
    items = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "null"}}}
    schema = {
        "type": "object",
        "properties": {
            "plain": {"type": "object", "properties": {"a": {}, "b": {}}},
            "distinct": {"type": "array", "uniqueItems": True, "items": items},
        },
    }
    walk_both(json_schema_grammar(schema, json_rules=True), json_schema_grammar(schema), 0, walks=12)


def test_nested_too_deeply_for_recursion() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(150):
        schema = {"type": "object", "properties": {"a": schema}, "additionalProperties": False}
    grammar = json_schema_grammar(schema, json_rules=True)
    matcher = vg.GrammarCompiler(VOCABULARY).compile_grammar_ir(grammar).matcher()
    assert matcher.accept_tokens(list(b'{"a":' * 150 + b'""' + b"}" * 150))
    assert matcher.is_accepting()


DRAFT4 = "http://json-schema.org/draft-04/schema#"
DRAFT2020 = "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize(
    ("one", "other", "draft", "same"),
    [
        ({"type": "string", "maxLength": 7}, {"maxLength": 7, "type": "string"}, DRAFT2020, True),
        ({"type": "string", "pattern": "^a+b$"}, {"type": "string", "pattern": "^a+b$"}, DRAFT4, True),
        ({"type": "number", "minimum": 3}, {"minimum": 3, "type": "number"}, DRAFT2020, True),
        # 3.0 is no integer in draft 4.
        ({"type": "integer", "minimum": 3}, {"type": "integer", "minimum": 3}, DRAFT4, False),
        # It is an annotation there.
        (
            {"type": "string", "contentEncoding": "base64", "maxLength": 8},
            {"type": "string", "contentEncoding": "base64", "maxLength": 8},
            DRAFT2020,
            False,
        ),
    ],
)
def test_leaves_that_other_schemas_have(
    one: dict[str, Any], other: dict[str, Any], draft: str, same: bool
) -> None:
    """A leaf is one node for all schemas that say the same by it, in any order and draft."""
    schemas = (
        {"type": "object", "properties": {"a": one}},
        {"$schema": draft, "type": "object", "properties": {"b": other}},
    )
    bodies = []
    for schema in schemas:
        rules = json_schema_grammar(schema, json_rules=True).rules
        bodies.append(next(rule.body for name, rule in rules.items() if name.startswith(f"{one['type']}_")))
    assert (bodies[0] is bodies[1]) == same
