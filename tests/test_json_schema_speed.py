"""What keeps the JSON Schema frontend quick: the same results as the plain way, and nothing left behind."""

from __future__ import annotations

import gc
import json
import threading
from contextlib import suppress

import naive
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_guided.collector import paused
from vllm_guided.errors import GrammarError
from vllm_guided.frontends import bags
from vllm_guided.frontends.json_schema import json_schema_grammar
from vllm_guided.frontends.json_schema.drafts import LATEST, draft_of
from vllm_guided.frontends.json_schema.resources import Source
from vllm_guided.frontends.structural_tag import structural_tag_grammar
from vllm_guided.grammar import ir

SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"$ref": "#"}}},
    {"oneOf": [{"type": "integer"}, {"type": "array", "items": {"enum": [1, "a", {"b": None}]}}]},
    {
        "type": "array",
        "uniqueItems": True,
        "items": {"type": "object", "properties": {"a": {"type": "string"}}},
    },
    {"$id": "http://a.org/s", "$defs": {"x": {"$anchor": "y", "type": "null"}}, "$ref": "#y"},
    {"type": "object", "required": ["a"], "properties": {"a": False}},
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_compile_leaves_no_cycles(schema) -> None:
    def compiled() -> None:
        with suppress(GrammarError):
            json_schema_grammar(json.dumps(schema))

    compiled()  # fills the caches
    gc.collect()
    with paused():
        compiled()
        assert gc.collect() == 0


def test_one_pause_at_a_time() -> None:
    assert gc.isenabled()
    with paused():
        assert not gc.isenabled()
        with paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), paused():
        raise ZeroDivisionError
    assert gc.isenabled()
    begun, over = threading.Event(), threading.Event()

    def other() -> None:
        with paused():
            begun.set()
            over.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait(10)
    gc.enable()
    with paused():  # the other thread's pause
        assert gc.isenabled()
    over.set()
    thread.join()
    assert gc.isenabled()
    gc.disable()
    try:
        with paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


NAMES = [
    "$id",
    "id",
    "$schema",
    "$anchor",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
]
values = st.recursive(
    st.sampled_from([True, "a", "$id", "id", "http://json-schema.org/draft-04/schema#"]),
    lambda inner: (
        st.dictionaries(st.sampled_from([*NAMES, "items", "properties", "$ref"]), inner, max_size=3)
        | st.lists(inner, max_size=2)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*NAMES, "items", "allOf"]), values, max_size=4), st.booleans())
def test_names_are_seen_in_the_text(schema, escaped: bool) -> None:
    """A look at the text says whether identifiers have to be looked for in the value."""
    try:
        draft = draft_of(schema, LATEST)
    except GrammarError:
        return
    text = json.dumps(schema, indent=1)
    if escaped:
        text = text.replace("$", "\\u0024").replace("id", "\\u0069d")
    looked, read = Source(schema, "", draft), Source(schema, "", draft, text=text)
    assert (read.plain, read.mixed) == (looked.plain, looked.mixed)


@st.composite
def plain_bags(draw: st.DrawFn) -> ir.Bag:
    item = st.sampled_from([ir.Ref("a"), ir.Ref("b"), ir.Ref("c"), ir.text("d")])
    own = st.none() | st.integers(ir.MAX_WANTED, ir.MAX_WANTED + 4)
    entry = st.builds(ir.Entry, item, item, own)
    required = st.frozensets(st.integers(ir.MAX_WANTED, ir.MAX_WANTED + 4), max_size=3)
    most = st.none() | st.integers(0, 5)
    return ir.Bag(
        tuple(draw(st.lists(entry, max_size=6))),
        draw(item),
        draw(required),
        draw(st.integers(0, 5)),
        draw(most),
    )


@given(plain_bags(), st.frozensets(st.sampled_from("abc")))
def test_bags_without_flags_and_positions(bag: ir.Bag, usable: frozenset[str]) -> None:
    def is_usable(node: ir.Node) -> bool:
        return not isinstance(node, ir.Ref) or node.name in usable

    assert bags.plain_can_be_filled(bag, is_usable) == bags.flagged_can_be_filled(bag, is_usable)


def test_grammars_in_one_share_what_is_equal() -> None:
    """Tools' schemas share the rules of JSON and equal leaves; with other blanks they do not mix."""
    dates = {"type": "object", "properties": {"a": {"type": "string", "format": "date"}}}
    blanks = [None, None, 0, 2]
    formats = [
        {"type": "json_schema", "json_schema": {**dates, "title": str(place)}}
        | ({} if limit is None else {"max_whitespace_cnt": limit})
        for place, limit in enumerate(blanks)
    ]
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": formats}}
    language = structural_tag_grammar(tag)
    date = [name for name in language.rules if "string_" in name]
    assert 1 <= len(date) <= 3  # one for those that have the same blanks
    loose, tight = b'{ "a" : "2024-02-29" }', b'{"a":"2024-02-29"}'
    assert naive.accepts(language, loose + loose + tight + loose)
    assert naive.accepts(language, tight * 4)
    assert not naive.accepts(language, loose + loose + loose + loose)
    assert not naive.accepts(language, tight * 3 + b'{   "a":"2024-02-29"}')
