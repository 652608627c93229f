"""Structural tags as a table: format, accepted texts, refused texts; tokens; the older form."""

from __future__ import annotations

import json
from typing import Any

import naive
import pytest

from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint
from vllm_guided.frontends.structural_tag import structural_tag_grammar


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(begin: Any, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def text(*excludes: str, **fields: Any) -> dict[str, Any]:
    return {"type": "any_text", "excludes": list(excludes), **fields}


def schema(schema: Any, style: str = "json", **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema, "style": style, **fields}


def closed(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


A = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
CALL = [tag("<t>x", const("1"), "</t>"), tag("<t>y", const("2"), "</t>")]


def triggered(**fields: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": ["<t>"], "tags": CALL, **fields}


def separated(**fields: Any) -> dict[str, Any]:
    return {"type": "tags_with_separator", "tags": CALL, "separator": ", ", **fields}


X, Y = "<t>x1</t>", "<t>y2</t>"

FORMATS = [
    (const("a<b"), ["a<b"], ["a", "a<bc"]),
    (const(""), [""], ["a"]),
    (schema(A), ['{"a":1}', '{ "a" : 1 }'], ['{"a":"x"}', "{}"]),
    (schema(A, max_whitespace_cnt=0), ['{"a":1}'], ['{"a": 1}']),
    (schema(A, max_whitespace_cnt=2), ['{"a":  1}'], ['{"a":   1}']),
    ({"type": "grammar", "grammar": "root ::= [a-c]+"}, ["abc"], ["d", ""]),
    ({"type": "grammar", "grammar": 'start: A+ "."\nA: "a".."c"'}, ["abc."], ["abc", ""]),
    ({"type": "regex", "pattern": "\\d+"}, ["12"], ["a", "1a"]),
    (text(), ["", "any\nthing é"], []),
    (text("ab", "bc"), ["acb", "a"], ["xaby", "bc"]),
    (text(max_chars=2), ["", "éé"], ["abc"]),
    (text("ab", max_chars=3), ["ba", "aaa"], ["ab", "xab", "aaaa"]),
    ({"type": "sequence", "elements": [const("a"), text(), const("b")]}, ["ab", "axb", "abb"], ["a", "ba"]),
    ({"type": "or", "elements": [const("a"), const("b")]}, ["a", "b"], ["ab"]),
    ({"type": "optional", "content": const("a")}, ["", "a"], ["aa"]),
    ({"type": "plus", "content": const("a")}, ["a", "aa"], [""]),
    ({"type": "star", "content": const("a")}, ["", "aa"], ["b"]),
    ({"type": "repeat", "min": 2, "max": 3, "content": const("a")}, ["aa", "aaa"], ["a", "aaaa"]),
    ({"type": "repeat", "min": 1, "max": -1, "content": const("a")}, ["a", "aaaa"], [""]),
    (tag("<a>", text(), "</a>"), ["<a></a>", "<a>x</b></a>", "<a></</a>"], ["<a>x", "<a>x</a>y</a>"]),
    (tag("<a>", text("no"), "</a>"), ["<a>n</a>"], ["<a>no</a>"]),
    (tag("<a>", text(), ["</a>", "</b>"]), ["<a>x</a>", "<a>x</b>"], ["<a></b>x</a>"]),
    (tag("", text("</"), "</a>"), ["x</a>", "</a>"], ["</b></a>"]),
    (tag("<a>", text("<END>"), ""), ["<a>", "<a>x"], ["<a><END>"]),
    (tag("<a>", {"type": "optional", "content": text()}, "</a>"), ["<a></a>"], ["<a></a></a>"]),
    (triggered(), ["", "x", f"x{X}y{Y}", "<t", "<<t>x1</t>"], ["<t>", "<t>z", "<t>x2</t>", "<t>x1"]),
    (triggered(stop_after_first=True), ["", "a", f"a{X}"], [f"{X}a", X + Y]),
    (triggered(at_least_one=True), [X, f"{X}a{Y}b"], ["", "a", f"a{X}"]),
    (triggered(at_least_one=True, stop_after_first=True), [X, Y], ["", X + Y, f"{X}a"]),
    (triggered(excludes=["no"]), ["n", f"n{X}"], ["no", f"{X}no"]),
    (tag("<a>", triggered(), "</a>"), [f"<a>x{X}y</a>", "<a></a>"], ["<a></a></a>", f"<a>{X}"]),
    (separated(), ["", X, f"{X}, {Y}, {X}"], [f"{X}{Y}", f"{X}, ", "a"]),
    (separated(at_least_one=True), [X, f"{X}, {Y}"], [""]),
    (separated(stop_after_first=True), ["", X], [f"{X}, {Y}"]),
    (
        {"type": "dispatch", "rules": [["<a>", const("1")], ["<b>", const("2")]]},
        ["", "x<a>1y<b>2", "<a"],
        ["<a>", "<a>2"],
    ),
    ({"type": "dispatch", "rules": [["<a>", const("1")]], "loop": False}, ["x<a>1", "x"], ["<a>1x"]),
    ({"type": "dispatch", "rules": [["<a>", const("1")]], "excludes": ["no"]}, ["n<a>1"], ["no"]),
]

NESTED = {
    "type": "object",
    "properties": {"k": {"type": "string"}},
    "required": ["k"],
    "additionalProperties": False,
}
CITY = closed(city={"type": "string"}, days={"type": "integer"})
OPTIONAL = closed(["n"], s={"enum": ["a b", 3]}, n={"type": ["integer", "null"]}, o=NESTED)

STYLES = [
    (
        schema(CITY, "qwen_xml"),
        [
            "<parameter=city>Rome</parameter><parameter=days>3</parameter>",
            "<parameter=city>\nRome & <b>\n</parameter>\n<parameter=days>\n3\n</parameter>\n",
        ],
        [
            "<parameter=days>3</parameter><parameter=city>Rome</parameter>",
            "<parameter=city>Rome</parameter>",
            "<parameter=city>Rome</parameter><parameter=days>x</parameter>",
            "<parameter=town>Rome</parameter><parameter=days>3</parameter>",
        ],
    ),
    (
        schema(CITY, "qwen_xml", any_order=True),
        ["<parameter=days>3</parameter><parameter=city>Rome</parameter>"],
        ["<parameter=days>3</parameter>", "<parameter=days>3</parameter><parameter=days>3</parameter>"],
    ),
    (
        schema(OPTIONAL, "minimax_xml"),
        [
            '<parameter name="n">1</parameter>',
            '<parameter name="s">a b</parameter><parameter name="n">null</parameter>'
            '<parameter name="o">{"k": "v"}</parameter>',
            '<parameter name="s">3</parameter><parameter name="n">1</parameter>',
        ],
        [
            "",
            '<parameter name="s">"a b"</parameter><parameter name="n">1</parameter>',
            '<parameter name="n">1</parameter><parameter name="o">{}</parameter>',
        ],
    ),
    (
        schema(CITY, "glm_xml"),
        ["<arg_key>city</arg_key>\n<arg_value>x</arg_value><arg_key>days</arg_key><arg_value>3</arg_value>"],
        ["<arg_key>days</arg_key><arg_value>3</arg_value>"],
    ),
    (
        schema(closed(v={"type": ["string", "integer"]}), "deepseek_xml"),
        [
            '<｜DSML｜parameter name="v" string="true">12</｜DSML｜parameter>',
            '<｜DSML｜parameter name="v" string="false">12</｜DSML｜parameter>',
        ],
        ['<｜DSML｜parameter name="v" string="false">x</｜DSML｜parameter>'],
    ),
    (
        schema(closed(v={"const": "x"}), "deepseek_v4_1_xml"),
        ['<｜DSML｜ parameter name="v" string="true">x</｜DSML｜ parameter>'],
        ['<｜DSML｜ parameter name="v" string="false">x</｜DSML｜ parameter>'],
    ),
    (
        schema(closed(a={"type": "string"}, b={"type": "integer"}), "kimi_k3_xml", excludes=["<|open|>"]),
        [
            '<|open|>argument key="a" type="string"<|sep|>x<|close|>argument<|sep|>'
            '<|open|>argument key="b" type="number"<|sep|>1<|close|>argument<|sep|>'
        ],
        [
            '<|open|>argument key="a" type="string"<|sep|><|open|><|close|>argument<|sep|>'
            '<|open|>argument key="b" type="number"<|sep|>1<|close|>argument<|sep|>',
            '<|open|>argument key="a" type="string"<|sep|>x<|close|>argument<|sep|>'
            '<|open|>argument key="b" type="string"<|sep|>1<|close|>argument<|sep|>',
        ],
    ),
    (
        schema(
            closed(l={"type": "array", "items": {"type": "string"}, "maxItems": 2}, o=NESTED), "cohere_xml"
        ),
        [
            '<cofl:value name="l" type="list"><cofl:value type="raw">x</cofl:value></cofl:value>'
            '<cofl:value name="o" type="dict"><cofl:value name="k" type="raw">v</cofl:value></cofl:value>'
        ],
        [
            '<cofl:value name="l" type="list"><cofl:value type="json">1</cofl:value></cofl:value>'
            '<cofl:value name="o" type="dict"><cofl:value name="k" type="raw">v</cofl:value></cofl:value>',
        ],
    ),
    (
        schema(closed(l={"type": "array", "items": {"type": "integer"}}), "minimax_m3_xml"),
        ["]<]minimax[>[<l>]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>[</l>"],
        ["]<]minimax[>[<l>1]<]minimax[>[</l>"],
    ),
    (
        schema(
            closed(s={"type": "string", "pattern": "^a+$"}, t={"type": "string", "maxLength": 2}), "qwen_xml"
        ),
        ["<parameter=s>aa</parameter><parameter=t>éé</parameter>"],
        [
            "<parameter=s>b</parameter><parameter=t></parameter>",
            "<parameter=s>a</parameter><parameter=t>abc</parameter>",
        ],
    ),
    # every keyword counts beside enum and const
    (
        schema(closed(s={"enum": ["ab", "b", "abc"], "pattern": "^a", "maxLength": 2}), "qwen_xml"),
        ["<parameter=s>ab</parameter>"],
        ["<parameter=s>b</parameter>", "<parameter=s>abc</parameter>"],
    ),
    (
        schema(closed(s={"enum": ["a", 1, True], "const": 1.0}), "qwen_xml"),
        ["<parameter=s>1</parameter>"],
        ["<parameter=s>a</parameter>", "<parameter=s>true</parameter>"],
    ),
    (
        schema(closed(s={"enum": ["a", "b"], "const": "b"}), "qwen_xml"),
        ["<parameter=s>b</parameter>"],
        ["<parameter=s>a</parameter>"],
    ),
    (
        schema(closed(l={"type": "array", "items": {}, "minItems": 2.0, "maxItems": 1}, s={}), "cohere_xml"),
        [],
        ['<cofl:value name="s" type="raw">x</cofl:value>'],
    ),
    (
        schema(
            {"type": "object", "patternProperties": {"^a": True, "^ab": {}}, "additionalProperties": False},
            "qwen_xml",
        ),
        ["<parameter=abc>x</parameter>"],
        ["<parameter=b>x</parameter>"],
    ),
    (
        schema(closed(s={"type": "string", "format": "date"}), "qwen_xml"),
        ["<parameter=s>2024-02-29</parameter>"],
        ["<parameter=s>2023-02-29</parameter>"],
    ),
    (
        schema(
            {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1, "maxProperties": 1},
            "qwen_xml",
        ),
        ["<parameter=a>x</parameter>", "<parameter=b>x</parameter>"],
        ["", "<parameter=a>x</parameter><parameter=b>x</parameter>"],
    ),
    (
        schema(True, "qwen_xml"),
        ["", "<parameter=x>1</parameter><parameter=y>a</parameter>"],
        ["<parameter=>"],
    ),
    (
        schema(
            {"$ref": "#/$defs/t", "$defs": {"t": closed(a={"$ref": "#/$defs/n"}), "n": {"type": "integer"}}},
            "qwen_xml",
        ),
        ["<parameter=a>1</parameter>"],
        ["<parameter=a>x</parameter>"],
    ),
    (
        schema(closed(s={"type": "string"}), excludes=["<|x|>"]),
        ['{"s":"<|x"}', '{"s":"<"}'],
        ['{"s":"<|x|>"}', '{"s":"a<|x|>b"}'],
    ),
    (
        schema(closed(a={"type": "integer"}, b={"type": "string"}), any_order=True),
        ['{"b": "x", "a": 1}', '{"a":1,"b":""}'],
        ['{"a":1}', '{"a":1,"a":1}'],
    ),
    ({"type": "qwen_xml_parameter", "json_schema": closed(a={})}, ["<parameter=a>x</parameter>"], [""]),
]


@pytest.mark.parametrize(("format_", "accepted", "refused"), FORMATS + STYLES)
def test_language(format_: dict[str, Any], accepted: list[str], refused: list[str]) -> None:
    grammar = structural_tag_grammar({"type": "structural_tag", "format": format_})
    for word in accepted:
        assert naive.accepts(grammar, word.encode()), word
    for word in refused:
        assert not naive.accepts(grammar, word.encode()), word


def test_the_older_form_and_json_text() -> None:
    older = {
        "type": "structural_tag",
        "structures": [{"begin": "<f=add>", "schema": json.dumps(A), "end": "</f>"}],
        "triggers": ["<f="],
    }
    for form in (older, json.dumps(older)):
        grammar = structural_tag_grammar(form)
        for word in ("plain", '<f=add>{"a":1}</f>', 'x<f=add>{"a":1}</f>y', "<f"):
            assert naive.accepts(grammar, word.encode()), word
        for word in ("<f=", '<f=sub>{"a":1}</f>', '<f=add>{"a":1.5}</f>', '<f=add>{"a":1}'):
            assert not naive.accepts(grammar, word.encode()), word


def token(name: str | int) -> tuple[str, str | int]:
    return ("token", name)


# What the tags' text spells may be a special token of that name; what it does not spell may not.
TOKENS = [
    (
        triggered(),
        [[b"x", token("<t>"), b"x1", token("</t>"), b"y"], [b"<t>x1", token("</t>")]],
        [[token("<t>"), b"z"], [token("<u>")]],
    ),
    (
        tag("<a>", text(), "</a>"),
        [[token("<a>"), b"x", token("</a>")]],
        [[token("<a>"), token("<b>"), b"</a>"]],
    ),
    (const("<｜DSML｜x>"), [[b"<", token("｜DSML｜"), b"x>"], [token("<｜DSML｜x>")]], [[token("｜DSML｜")]]),
    (const("[TOOL_CALLS]x"), [[token("[TOOL_CALLS]"), b"x"], [b"[TOOL_CALLS]x"]], [[token("x")]]),
    (
        tag({"type": "token", "token": 7}, const("x"), {"type": "token", "token": "<e>"}),
        [[token(7), b"x", token("<e>")]],
        [[b"x"]],
    ),
    ({"type": "exclude_token", "exclude_tokens": [7]}, [[token(8)]], [[token(7)], []]),
    (
        {"type": "any_tokens", "exclude_tokens": [7], "max_tokens": 2},
        [[], [token(8), token(8)]],
        [[token(7)], [token(8)] * 3],
    ),
    (
        {"type": "token_dispatch", "rules": [[7, const("a")]], "exclude_tokens": [9]},
        [[], [token(8), token(7), b"a", token(8)]],
        [[token(7)], [token(9)]],
    ),
    (
        {
            "type": "token_triggered_tags",
            "trigger_tokens": [7],
            "tags": [tag({"type": "token", "token": 7}, const("a"), "b")],
            "at_least_one": True,
        },
        [[token(7), b"ab"], [token(7), b"ab", token(8)]],
        [[], [token(8)]],
    ),
]


@pytest.mark.parametrize(("format_", "accepted", "refused"), TOKENS)
def test_tokens(format_: dict[str, Any], accepted: list[naive.Data], refused: list[naive.Data]) -> None:
    grammar = structural_tag_grammar({"type": "structural_tag", "format": format_})
    for data in accepted:
        assert naive.accepts(grammar, data), data
    for data in refused:
        assert not naive.accepts(grammar, data), data


def test_depth_is_bounded() -> None:
    deep: dict[str, Any] = const("a")
    for _ in range(2000):
        deep = {"type": "optional", "content": deep}
    with pytest.raises(ConstraintTooComplex):
        structural_tag_grammar({"format": deep})


@pytest.mark.parametrize(
    "structure,triggers,where",
    [
        ({"begin": "<a>", "schema": {}, "end": "</a>"}, ["<b"], "#/structures/0"),
        ({"begin": "<a>", "schema": {"type": "x"}, "end": "</a>"}, ["<a"], "#/structures/0/schema/type"),
        ({"begin": 1, "schema": {}, "end": "</a>"}, ["<a"], "#/structures/0/begin"),
        ({"begin": "<a>", "schema": {}, "end": "</a>"}, [], "#/triggers"),
    ],
)
def test_errors_of_the_older_form_name_its_own_places(
    structure: dict[str, Any], triggers: list[str], where: str
) -> None:
    with pytest.raises(InvalidConstraint) as caught:
        structural_tag_grammar({"structures": [structure], "triggers": triggers})
    assert caught.value.where == where
