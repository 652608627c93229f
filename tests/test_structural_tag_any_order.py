"""JSON in any order inside structural tags, and objects that the server's setting closes, as tables."""

from __future__ import annotations

import json
from typing import Any

import naive
import pytest

from vllm_guided.frontends.structural_tag import structural_tag_grammar

INTEGER = {"type": "integer"}
PAIR = {"type": "object", "properties": {"a": INTEGER, "b": {"type": "string"}}, "required": ["a"]}
CLOSED = {**PAIR, "additionalProperties": False}
NODE = {
    "$ref": "#/$defs/n",
    "$defs": {
        "n": {
            "type": "object",
            "properties": {"v": INTEGER, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
            "required": ["v", "next"],
            "additionalProperties": False,
        }
    },
}


def grammar(schema: Any, **fields: Any) -> Any:
    options = {key: fields.pop(key) for key in ("additional_properties",) if key in fields}
    format_ = {"type": "json_schema", "json_schema": schema, "any_order": True, **fields}
    return structural_tag_grammar({"type": "structural_tag", "format": format_}, **options)


# schema, fields, accepted, refused
TABLE = [
    (CLOSED, {}, ['{"b":"x","a":1}', '{"a":1}'], ['{"b":"x"}', '{"a":1,"c":1}', '{"a":1,"b":"x","a":1}']),
    (
        PAIR,
        {},
        ['{"z":5,"a":1}', '{"a":1,"z":[{"q":1}],"b":"x","y":null}', '{"z":1, "z":2, "a":3}'],
        ["{}", '{"z":5}', '{"a":"x"}', '{"z":1,"a":1,"b":2}', '{"\\u0061":1}', '{"a":1,"z":}'],
    ),
    ({**PAIR, "additionalProperties": INTEGER}, {}, ['{"z":5,"a":1}'], ['{"z":"x","a":1}']),
    ({**PAIR, "required": ["q"]}, {}, ['{"q":[],"b":"x"}', '{"a":1,"q":1}'], ["{}", '{"a":1}']),
    ({"type": "object"}, {}, ["{}", '{"x":1,"y":2}'], ["[]", '{"x"}', '{,"x":1}']),
    ({"type": "object", "additionalProperties": False}, {}, ["{}"], ['{"x":1}']),
    (
        {"type": "array", "items": CLOSED, "minItems": 1, "maxItems": 2},
        {},
        ['[{"b":"x","a":1}]', '[{"a":1}, {"b":"","a":2}]'],
        ["[]", '[{"b":"x"}]', '[{"a":1},{"a":1},{"a":1}]', '[{"a":1},]'],
    ),
    ({"type": "array", "items": INTEGER}, {}, ["[]", "[1]", "[ 1 , 2 ]"], ["[1 2]", '["x"]']),
    (
        {"type": "object", "properties": {"p": {"type": "array", "items": PAIR}}, "required": ["p"]},
        {},
        ['{"q":0,"p":[{"b":"x","a":1}]}'],
        ['{"p":[{"b":"x"}]}'],
    ),
    (NODE, {}, ['{"next":{"next":null,"v":2},"v":1}'], ['{"next":null}', '{"next":{"v":1},"v":1}']),
    ({"anyOf": [CLOSED, {"type": "null"}]}, {}, ['{"b":"","a":1}', "null"], ["1"]),
    ({**CLOSED, "maxProperties": 1}, {}, ['{"a":1}'], ['{"a":1,"b":"x"}', '{"b":"x","a":1}']),
    (CLOSED, {"max_whitespace_cnt": 0}, ['{"b":"","a":1}'], ['{"b":"", "a":1}']),
    (PAIR, {"excludes": ["<x>"]}, ['{"<x":1,"a":1}'], ['{"<x>":1,"a":1}', '{"a":1,"b":"<x>"}']),
    (
        PAIR,
        {"style": "qwen_xml"},
        ["<parameter=b>x</parameter><parameter=a>1</parameter>"],
        ["<parameter=b>x</parameter>", "<parameter=a>1</parameter><parameter=z>1</parameter>"],
    ),
    (
        {**PAIR, "additionalProperties": INTEGER},
        {"style": "qwen_xml"},
        ["<parameter=z>2</parameter><parameter=a>1</parameter>", "<parameter=a>1</parameter>"],
        ["<parameter=z>2</parameter>", "<parameter=z>x</parameter><parameter=a>1</parameter>"],
    ),
    (
        {"type": "object", "properties": {"o": PAIR}, "required": ["o"], "additionalProperties": False},
        {"style": "glm_xml"},
        ['<arg_key>o</arg_key><arg_value>{"z":0,"a":1}</arg_value>'],
        ['<arg_key>o</arg_key><arg_value>{"z":0}</arg_value>'],
    ),
    # objects that do not say whether they are open
    (PAIR, {"additional_properties": False}, ['{"b":"x","a":1}'], ['{"z":5,"a":1}']),
    (PAIR, {"additional_properties": False, "any_order": False}, ['{"a":1,"b":"x"}'], ['{"a":1,"z":5}']),
    (
        {"type": "object", "additionalProperties": PAIR},
        {"additional_properties": False},
        ['{"k":{"a":1}}'],
        ['{"k":{"a":1,"z":1}}'],
    ),
    ({"type": "object"}, {"additional_properties": False}, ['{"z":5}'], []),
    (
        {"type": "object", "properties": {"o": PAIR}, "required": ["o"]},
        {"style": "qwen_xml", "additional_properties": False},
        ['<parameter=o>{"a":1}</parameter>'],
        ['<parameter=o>{"a":1,"z":1}</parameter>'],
    ),
]


@pytest.mark.parametrize(("schema", "fields", "accepted", "refused"), TABLE)
def test_language(schema: Any, fields: dict[str, Any], accepted: list[str], refused: list[str]) -> None:
    made = grammar(schema, **fields)
    for word in accepted:
        assert naive.accepts(made, word.encode()), word
    for word in refused:
        assert not naive.accepts(made, word.encode()), word


def test_two_formats_have_two_limits_of_white_space() -> None:
    def format_(limit: int) -> dict[str, Any]:
        return {
            "type": "json_schema",
            "json_schema": CLOSED,
            "style": "qwen_xml",
            "max_whitespace_cnt": limit,
        }

    made = structural_tag_grammar({"format": {"type": "sequence", "elements": [format_(3), format_(1)]}})
    for blanks, taken in ((1, True), (2, False)):
        second = f"<parameter=a>{' ' * blanks}1</parameter>"
        assert naive.accepts(made, f"<parameter=a>   1</parameter>{second}".encode()) is taken


def test_many_properties() -> None:
    names = [f"p{index}" for index in range(12)]
    schema = {
        "type": "object",
        "properties": dict.fromkeys(names, INTEGER),
        "required": names,
        "additionalProperties": False,
    }
    made = grammar(schema)
    assert naive.accepts(made, json.dumps(dict.fromkeys(reversed(names), 1)).encode())
    made = grammar(schema, style="qwen_xml")  # too many here: the declared order stays
    assert naive.accepts(made, "".join(f"<parameter={name}>1</parameter>" for name in names).encode())
