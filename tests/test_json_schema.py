# ruff: noqa: E501 - the rows of the tables are read best whole
"""JSON Schema, keyword by keyword: a schema, texts it takes, texts it refuses."""

from __future__ import annotations

import json

import naive
import prefixes
import pytest

from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends.json_schema import json_object_grammar, json_schema_grammar
from vllm_guided.grammar import ir

DRAFT4 = "http://json-schema.org/draft-04/schema#"
DRAFT7 = "http://json-schema.org/draft-07/schema#"
DRAFT2019 = "https://json-schema.org/draft/2019-09/schema"
NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["v", "next"],
    "additionalProperties": False,
}
DOTS = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}


def objects(**properties):
    return {"type": "object", "properties": properties, "additionalProperties": False}


BRANCHES = {
    # taking one branch from another must not multiply
    "oneOf": [
        *({"type": "object", "properties": {"t": {"enum": [str(n)]}, "v": {"type": "integer"}, "w": {}}, "required": ["t", "v", "w"]} for n in range(12)),
        {"type": "object", "required": ["t", "q"]},
    ]
}  # fmt: skip

TABLE = [
    # types
    (True, ["null", "-1.5e+3", '"x"', "[1, {}]", '{"a": [null]}'], ["", "nul", "01", "[1,]", "{a: 1}", " 1"]),
    ({"type": "null"}, ["null"], ["0", '"null"']),
    ({"type": ["boolean", "integer"]}, ["true", "false", "7", "7.0", "1e3"], ["7.5", '"true"', "1.5e0"]),
    ({"type": "number"}, ["0", "-0", "1.5", "1E5", "-2.5e-07", "1e+20", "1e-00001"], ["01", ".5", "5.", "1e", "+1"]),
    ({"$schema": DRAFT4, "type": "integer"}, ["7", "-7"], ["7.0", "1e3"]),
    ({"minLength": 2}, ["null", "1", '"ab"', "{}"], ['"a"']),
    # enum, const
    ({"enum": [1, "a", None, [1, {"b": 2}]]}, ["1", "1.0", '"a"', "null", '[ 1,{"b" :2} ]'], ["true", "2"]),
    ({"const": {"k": [True, "é"]}}, ['{"k": [true, "é"]}'], ['{"k": [true]}', "{}", '{"k":[true,"é"],"l":1}']),
    ({"const": 2.5}, ["2.5"], ["2", "25"]),
    ({"const": "a/b\n\"\\"}, [r'"a/b\n\"\\"'], ['"a/b"']),
    ({"type": "string", "enum": ["a", 1, "bcd"], "maxLength": 2}, ['"a"'], ["1", '"bcd"']),
    # strings
    ({"type": "string", "maxLength": 2}, ['""', '"😀é"', r'"\n\""', r'"\ud83d\ude00x"'], ['"abc"', r'"\ud83d"']),
    ({"type": "string", "maxLength": 100_000}, ['"' + "a" * 200 + '"'], ["1"]),
    ({"type": "string"}, [r'"\/\b\f\t\u00E9"', '"\x7f"'], ['"\t"', r'"\q"', '"\x1f"', r'"\udc00"', r'"\u12"']),
    ({"type": "string", "pattern": r"\d{3}"}, ['"123"', '"ab1234"', r'"\u0031\u0032\u0033"'], ['"12"', '"ab"']),
    ({"type": "string", "pattern": "^é+$"}, ['"éé"', r'"\u00e9"'], ['"e"', '""']),
    ({"type": "string", "pattern": '^"$'}, [r'"\""', r'"\u0022"'], ['"""', '""']),
    ({"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 4}, ['"ab"', '"abcd"'], ['"a"', '"abcde"']),
    ({"type": "string", "pattern": "^(a|bc)*$", "maxLength": 3}, ['"abc"', '"aaa"'], ['"bcbc"', '"b"']),
    ({"type": "string", "pattern": "^(ab|c)[0-9]*$", "maxLength": 5000}, ['"ab12"', '"c"'], ['"b1"', '"ab1x"']),
    ({"type": "string", "pattern": "^([a-z][0-9])+$", "minLength": 500}, ['"' + "a1" * 250 + '"'], ['"' + "a1" * 249 + '"']),
    ({"type": "string", "pattern": r"^[^@\s]+@[^@\s]+\.[^@\s]+$", "maxLength": 254}, ['"' + "é" * 248 + '@a.org"'], ['"' + "é" * 249 + '@a.org"']),
    ({"type": "string", "pattern": r"^(?:\S+\s+){0,19}\S+$", "maxLength": 200}, ['"many words, but no very long text at all"'], ['" a"']),
    ({"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$", "maxLength": 900}, ['"' + "ab-" * 299 + 'abc"'], ['"' + "ab-" * 300 + 'a"']),
    ({"type": "string", "format": "uri", "maxLength": 255}, ['"http://' + "a/" * 124 + '"'], ['"http://' + "a/" * 125 + '"']),
    ({"type": "string", "pattern": "^(?!tmp_)[a-z_]+$"}, ['"abc"', '"tm_p"'], ['"tmp_x"', '"ABC"']),
    ({"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "b$"}]}, ['"ab"', '"axb"'], ['"a"', '"ba"']),
    ({"type": "string", "contentEncoding": "base64"}, ['"YWI="', '""'], ['"YWI"', '"?"']),
    ({"type": "string", "format": "no-such-format"}, ['"x"'], ["1"]),
    ({"type": "string", "format": "email", "maxLength": 20}, ['"a@b.org"'], ['"ab"', '"aaaaaaaaaaaaaaaaaa@b.org"']),
    # numbers
    ({"type": "integer", "minimum": -5}, ["-5", "0", "123", "-0"], ["-6", "-10", "-", "2.5"]),
    ({"type": "integer", "exclusiveMinimum": 0, "maximum": 20}, ["1", "20"], ["0", "21", "-1"]),
    ({"type": "number", "minimum": 2.5}, ["2.5", "2.75", "3", "250.5", "1e+20"], ["2.4", "-3", "0", "2.49"]),
    ({"type": "number", "maximum": 0.001}, ["0.001", "1e-07", "-5", "0"], ["0.002", "1", "1e-02"]),
    ({"$schema": DRAFT4, "minimum": 1, "exclusiveMinimum": True}, ["1.5", "2"], ["1", "1.0", "0"]),
    ({"type": "integer", "multipleOf": 7}, ["0", "7", "-14", "700"], ["1", "8", "-13"]),
    ({"type": "number", "multipleOf": 0.01, "maximum": 1}, ["0.25", "1", "-3.5"], ["0.255", "1.01"]),
    ({"type": "integer", "multipleOf": 2.5}, ["5", "-10"], ["2.5", "1"]),
    ({"allOf": [{"multipleOf": 3}, {"multipleOf": 5}, {"type": "integer"}]}, ["15", "0"], ["3", "5", "20"]),
    # arrays
    ({"items": {"type": "integer"}}, ["[]", "[1]", "[ 1 , 2 ]", '"x"'], ["[1.5]", '["a"]', "[1 2]"]),
    ({"type": "array", "minItems": 2, "maxItems": 3, "items": {}}, ["[1, 2]", "[1, 2, 3]"], ["[1]", "[1,2,3,4]"]),
    ({"type": "array", "maxItems": 5000, "items": {"const": 1}}, ["[]", "[1, 1]"], ["[2]"]),
    (
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
        ["[]", '["a"]', '["a", 1]'],
        ['["a", "b"]', '["a", 1, 2]'],
    ),
    (
        {"$schema": DRAFT7, "type": "array", "items": [{"const": 1}], "additionalItems": {"const": 2}},
        ["[]", "[1]", "[1, 2, 2]"],
        ["[2]", "[1, 1]"],
    ),
    ({"type": "array", "contains": {"const": 1}}, ["[1]", "[2, 1]", "[2, 3, 1, 1]"], ["[]", "[2]"]),
    ({"type": "array", "contains": {"const": 1}, "minContains": 2, "maxContains": 2}, ["[1, 1]", "[1, 2, 1]"], ["[1]", "[1,1,1]"]),
    ({"$schema": DRAFT7, "type": "array", "contains": {"const": 1}, "maxContains": 1}, ["[1, 1]"], ["[2]"]),
    ({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True}, ["[]", '["c", "a", "b"]'], ['["a", "a"]']),
    # objects
    (DOTS, ['{"a":1}', '{"a":1,"b":2}', '{"a":1,"c":3,"d":4}'], ["{}", '{"b":2}', '{"a":1,"a":2}', '{"a":1,"b":3,"b":1}', '{"a":1,"c":0,"a":1}']),
    (DOTS, ['{"a": 1, "ab": 2}', '{"a": 1, "": 2}', '{"a": 1, "é": 2}'], [r'{"a": 1, "\u0061": 2}', r'{"a": 1, "\u0062": 2}']),
    (objects(a={"type": "integer"}), ["{}", '{"a": 1}', "{ }"], ['{"a": "1"}', '{"b": 1}', '{"a":1,}', '{"a":1 "a":1}']),
    # names beside declared ones, in other spellings
    ({"type": "object", "properties": {"é\"a": {"type": "null"}, "ab": {}}, "additionalProperties": {"type": "integer"}},
     [r'{"\u00e8":1}', r'{"é\"b":1}', r'{"a\u00e9":1}', r'{"x\u0062\/":1}', r'{"\uD83D\uDE00":1}', r'{"\u001e":1}', r'{"é\"a":null}'],
     [r'{"é\"a":1}', r'{"\u00e9\"a":1}', r'{"é\u0022a":1}', r'{"a\u0062":1}', r'{"\u0061b":1}']),
    ({"type": "object", "required": ["z"], "additionalProperties": {"type": "boolean"}}, ['{"z": true}'], ['{"z": 3}', "{}"]),
    ({"required": ["z", "y"], "type": "object"}, ['{"z":1,"y":2}', '{"q":0,"y":2,"r":1,"z":1,"s":2}'], ['{"z":1}', '{"z":1,"z":1,"y":1}', '{"q":1}']),
    ({"properties": {"a": {}}, "required": ["z", "a"], "type": "object"}, ['{"a":1,"q":1,"z":1}'], ['{"a":1}', '{"z":1}']),
    (objects(a={}, b={}, c={}) | {"required": ["b"]}, ['{"b":1}', '{"a":1,"b":1,"c":1}'], ["{}", '{"a":1,"c":1}', '{,"b":1}']),
    (
        {"patternProperties": {"^x": {"type": "integer"}, "y$": {"minimum": 5}}, "additionalProperties": {"type": "string"}},
        ['{"x": 1, "ay": 7, "xy": 5, "q": "s"}', '{"ay": "text"}'],
        ['{"x": "s"}', '{"ay": 1}', '{"xy": 1}', '{"xy": 5.5}', '{"q": 1}'],
    ),
    ({"type": "object", "propertyNames": {"pattern": "^a", "maxLength": 2}}, ['{"a": 1, "ab": 2}', "{}"], ['{"b": 1}', '{"abc": 1}']),
    ({"type": "object", "minProperties": 2, "maxProperties": 3}, ['{"a":1,"b":2}', '{"a":1,"b":2,"c":3}'], ["{}", '{"a":1}']),
    # readers keep the last member of a name: free names differ where their number or one of them matters
    ({"type": "object", "minProperties": 2}, ['{"a":1,"b":1}', '{"":1,"é":2,"a":3}'], ['{"a":1,"a":2}', r'{"a":1,"\u0061":2}']),
    ({"type": "object", "minProperties": 2, "properties": {"z": {}}}, ['{"z":1,"b":1}', '{"a":1,"b":1}'], ['{"a":1,"a":2}', '{"z":1,"z":2}']),
    ({"type": "object", "minProperties": 2, "properties": {"z": {}}, "required": ["z"]}, ['{"z":1,"b":1}', '{"z":1,"b":1,"b":2}'], ['{"z":1}']),
    ({"type": "object", "minProperties": 3, "required": ["z"]}, ['{"z":1,"b":1,"a":2}', '{"b":1,"z":1,"a":2}'], ['{"z":1,"b":1,"b":2}']),
    ({"type": "object", "not": {"additionalProperties": {"type": "integer"}}}, ['{"a":1,"b":"c"}', '{"b":"c","a":1}'], ['{"a":"b","a":1}', r'{"a":"b","\u0061":1}']),
    ({"type": "object", "patternProperties": {"^[ab]$": {}}, "additionalProperties": False, "minProperties": 2},
     ['{"b":1,"a":2}'], ['{"a":1,"a":2}', '{"a":1}', '{"a":1,"b":2,"a":3}']),
    ({"type": "object", "patternProperties": {"^[0-9]{3}$": {}}, "additionalProperties": False, "minProperties": 2, "maxProperties": 3},
     ['{"123":1,"321":2}'], ['{"123":1,"123":2}', '{"123":1,"1234":1}']),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "not": {"additionalProperties": {"type": "integer"}}},
     ['{"a":1,"b":"c"}', '{"a":"c"}'], ['{"a":"c","a":1}', '{"a":1}', '{"a":"c","b":"c","a":1}']),
    ({"type": "object", "properties": {"a": {}}, "allOf": [{"not": {"additionalProperties": {"type": "integer"}}}, {"minProperties": 2}]},
     ['{"a":1,"b":"c"}'], ['{"a":1,"b":"c","b":1}', '{"b":"c","b":"d"}', '{"a":1,"b":2}']),
    ({"type": "object", "patternProperties": {"^[0-9]$": {}}, "additionalProperties": False, "maxProperties": 2,
      "not": {"anyOf": [{"propertyNames": {"not": {"enum": names}}} for names in (["1", "3"], ["2", "7"], ["2", "3"], ["2", "4"], ["1", "2"])]}},
     ['{"2":1,"1":1}', '{"3":1,"2":2}'], ["{}", '{"2":1}', '{"1":1,"7":1}', '{"2":1,"4":1}']),
    (objects(a={}, b={}, c={}) | {"minProperties": 2}, ['{"a":1,"c":1}', '{"a":1,"b":1,"c":1}'], ["{}", '{"b":1}']),
    (objects(a={}, b={}, c={}) | {"maxProperties": 1}, ["{}", '{"c":1}'], ['{"a":1,"b":1}']),
    ({"dependentRequired": {"a": ["b"]}}, ["{}", '{"b":1}', '{"a":1,"b":1}', "3"], ['{"a":1}']),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, ["{}", '{"a":1,"b":1}', "[]"], ['{"a":1}', '{"a":1,"c":1}']),
    ({"$schema": DRAFT7, "dependencies": {"a": ["b"], "c": {"minProperties": 2}}}, ['{"a":1,"b":1}', '{"c":1,"x":1}'], ['{"a":1}', '{"c":1}']),
    # combinators
    ({"anyOf": [{"const": "abc"}, {"type": "string", "pattern": "^x+$"}, {"enum": [1]}]}, ['"abc"', '"xx"', "1"], ['"ab"', "2"]),
    (objects(h={"type": "integer"}, t={}) | {"anyOf": [{"required": ["h"]}, {"required": ["t"]}]}, ['{"h":1}', '{"t":1}'], ["{}", "5", '{"h":"a"}']),
    ({"oneOf": [{"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 3}]}, ["2", "3", "-9"], ["6", "0", "5"]),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["1.5"], ["1", "1.0"]),
    ({"oneOf": [{"enum": ["a", "b"]}, {"const": "c"}, {"enum": ["d"]}, False]}, ['"a"', '"b"', '"c"', '"d"'], ['"e"', "1"]),
    ({"oneOf": [{"enum": ["a", "b"]}, {"const": "b"}, {"enum": ["d"]}]}, ['"a"', '"d"'], ['"b"', '"c"']),
    ({"oneOf": [{"enum": ["a", 1]}, {"const": 1}, {"enum": ["d"]}]}, ['"a"', '"d"'], ["1", '"c"']),
    ({"oneOf": [{"enum": ["a"]}, {"type": "string", "minLength": 1}]}, ['"b"', '"aa"'], ['"a"', '""']),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, ['{"a":1}', '{"b":1}'], ["{}", '{"a":1,"b":1}']),
    ({"oneOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"a": {"const": 2}}}]}, ['{"a":1}', '{"a":2}'], ['{"a":3}', "{}"]),
    (BRANCHES, ['{"t":"0","v":1,"w":1}', '{"t":"z","q":1}', '{"t":"3","q":1}', '{"t":"3","v":"a","q":1}'], ['{"t":"3","v":1,"w":1,"q":1}', '{"t":"3","v":1}', '{"q":1}', '{"t":"z"}']),
    ({"not": {"properties": {"k": {"const": 1}, "v": {"type": "integer"}}, "required": ["v"]}, "type": "object"},
     ['{"k":2}', "{}", '{"k":1,"v":"a"}', '{"k":2,"v":1}'], ['{"v":1}', '{"k":1,"v":1}']),
    ({"not": {"properties": {"k": {"const": 1}}, "additionalProperties": {"type": "integer"}}, "type": "object"},
     ['{"k":2}', '{"k":1,"v":"a"}', '{"v":"a"}'], ["{}", '{"v":1}', '{"k":1,"v":1}']),
    ({"not": {"properties": {"k": {"const": 1}}, "not": {"additionalProperties": {"type": "integer"}}}, "type": "object"},
     ["{}", '{"k":2}', '{"k":3,"v":2}', '{"k":"a","v":1}', '{"k":1}'], ['{"k":1,"v":"a"}', '{"v":"a"}']),
    ({"not": {"type": "string"}}, ["1", "null"], ['"a"']),
    ({"type": "string", "not": {"enum": ["a", "b"]}}, ['"c"', '"ab"', '""'], ['"a"', r'"\u0061"', '"b"']),
    ({"type": "object", "not": {"required": ["a"]}}, ["{}", '{"b":1}'], ['{"a":1}', '{"b":1,"a":1}']),
    ({"type": "array", "not": {"items": {"type": "integer"}}}, ['["a"]', '[1,"a"]'], ["[]", "[1]"]),
    ({"type": "object", "not": {"additionalProperties": {"type": "integer"}}}, ['{"a":"b"}'], ["{}", '{"a":1}']),
    ({"type": "integer", "not": {"minimum": 3, "maximum": 7}}, ["2", "8"], ["3", "5", "7"]),
    ({"not": {"not": {"const": 1}}}, ["1"], ["2"]),
    (
        {"properties": {"k": {"enum": ["a", "b"]}}, "required": ["k"], "if": {"properties": {"k": {"const": "a"}}},
         "then": {"required": ["x"]}, "else": {"properties": {"x": False}}},
        ['{"k":"a","x":1}', '{"k":"b"}', "3"],
        ['{"k":"a"}', '{"k":"b","x":1}', '{"k":"c"}'],
    ),
    # references
    (NODE, ['{"v":1,"next":null}', '{"v":1,"next":{"v":2,"next":null}}'], ['{"v":1}', '{"v":1,"next":{"v":2}}']),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}}, ["null"], ["1"]),
    ({"$ref": "#here", "$defs": {"x": {"$anchor": "here", "const": 1}}}, ["1"], ["2"]),
    ({"$id": "http://x.org/s", "$ref": "t#/$defs/n", "$defs": {"t": {"$id": "t", "$defs": {"n": {"const": 5}}}}}, ["5"], ["6"]),
    ({"$schema": DRAFT7, "properties": {"a": {"$ref": "#/definitions/i", "maximum": 1}}, "definitions": {"i": {"type": "integer"}}}, ['{"a": 7}'], ['{"a": "x"}']),
    ({"properties": {"a": {"$ref": "#/$defs/i", "maximum": 1}}, "$defs": {"i": {"type": "integer"}}}, ['{"a": 1}'], ['{"a": 7}']),
    ({"$dynamicRef": "#n", "$defs": {"n": {"$dynamicAnchor": "n", "type": "null"}}}, ["null"], ["1"]),
    # unevaluated
    (
        {"allOf": [{"properties": {"a": {}}}], "anyOf": [{"properties": {"b": {"const": 1}}}, {"properties": {"c": {}}}],
         "unevaluatedProperties": False, "type": "object"},
        ['{"a":1}', '{"a":1,"b":1}', '{"a":1,"c":3}'],
        ['{"d":1}', '{"b":2}'],
    ),
    ({"type": "array", "prefixItems": [{"const": 1}], "unevaluatedItems": {"const": 2}}, ["[1]", "[1, 2, 2]"], ["[1, 1]", "[2]"]),
    ({"$schema": DRAFT2019, "type": "array", "items": [{"const": 1}], "unevaluatedItems": False}, ["[1]", "[]"], ["[1, 1]"]),
    # older drafts do not know younger keywords
    ({"$schema": DRAFT4, "const": 1}, ["2"], []),
    # annotations
    ({"title": 5, "x-anything": {"type": "null"}, "default": 3, "type": "null"}, ["null"], ["3"]),
]  # fmt: skip


@pytest.mark.parametrize("order", ["any", "schema"])
@pytest.mark.parametrize(("schema", "accepted", "refused"), TABLE, ids=lambda value: json.dumps(value)[:60])
def test_texts(schema, accepted, refused, order):
    grammar = json_schema_grammar(schema, property_order=order)
    for text in accepted:
        assert prefixes.accepts(grammar, text.encode()), f"refused: {text}"
    for text in refused:
        assert not prefixes.accepts(grammar, text.encode("utf-8", "surrogatepass")), f"accepted: {text}"


ABC = objects(a={"const": 1}, b={"const": 2}, c={"const": 3})
ORDERS = [
    # a schema, texts in the order of the schema, texts in another order
    (DOTS, ['{"a":1,"c":3,"d":4}', '{"a":1,"b":2}'], ['{"a":1,"c":3,"b":1}', '{"b":1,"a":1}', '{"q":1,"a":1}']),
    (ABC, ['{"a":1,"b":2,"c":3}', '{"a":1,"c":3}'], ['{"c":3,"b":2,"a":1}', '{"c" : 3 , "a" : 1}']),
    (ABC | {"required": ["c"], "maxProperties": 2}, ['{"b":2,"c":3}'], ['{"c":3,"a":1}']),
    (ABC | {"minProperties": 2}, ['{"b":2,"c":3}'], ['{"c":3,"a":1}', '{"b":2,"c":3,"a":1}']),
    ({"properties": {"a": {}}, "required": ["z", "a"], "type": "object"}, ['{"a":1,"z":1}'], ['{"z":1,"a":1}']),
    ({"properties": {"a": {}, "b": {}}, "patternProperties": {"^x": {}}, "additionalProperties": False, "type": "object"},
     ['{"a":1,"b":1,"x":1,"xy":1}', '{"b":1,"x":1}'], ['{"x":1,"a":1,"xy":1}', '{"b":1,"a":1}']),
    ({"allOf": [{"properties": {"a": {}, "b": {}}, "required": ["b"]}, {"properties": {"c": {}, "d": {}}}], "type": "object"},
     ['{"a":1,"b":1,"c":1,"d":1}', '{"c":1,"a":1,"b":1}'], ['{"b":1,"a":1}', '{"d":1,"c":1,"b":1}']),
    (objects(a={}, b={"type": "integer"}) | {"not": {"properties": {"a": {"const": 1}, "b": {"const": 1}}}},
     ['{"a":1,"b":2}', '{"a":2,"b":1}'], ['{"b":2,"a":1}', '{"b":1,"a":2}']),
    (NODE, ['{"v":1,"next":{"v":2,"next":null}}'], ['{"next":{"v":2,"next":null},"v":1}']),
    ({"const": {"k": 1, "l": {"m": 2, "n": 3}}}, ['{"k":1,"l":{"m":2,"n":3}}'], ['{"l":{"n":3,"m":2},"k":1}']),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "ordered", "others"), ORDERS, ids=lambda value: json.dumps(value)[:60])
def test_orders(schema, ordered, others):
    in_order = json_schema_grammar(schema, property_order="schema")
    in_any = json_schema_grammar(schema, property_order="any")
    for text in ordered + others:
        assert prefixes.accepts(in_any, text.encode()), f"refused: {text}"
        assert prefixes.accepts(in_order, text.encode()) == (text in ordered), text


@pytest.mark.parametrize("needed", [None, 3, 150, 199])
def test_many_properties(needed):
    """Long objects are cut into blocks where their order counts."""
    names = [f"p{n}" for n in range(200)]
    schema = objects(**{name: {"type": "null"} for name in names})
    if needed is not None:
        schema["required"] = [names[needed]]
    for order in ("any", "schema"):
        grammar = json_schema_grammar(schema, property_order=order)
        for picked in (
            [0, 3, 31, 32, 64, 150, 199],
            [3, 150, 199],
            [3],
            [150],
            [199],
            [150, 3],
            [199, 150, 3],
            [3, 3, 150, 199],
            [],
        ):
            text = json.dumps({names[n]: None for n in picked})
            if len(set(picked)) < len(picked):
                text = "{" + ", ".join(f'"{names[n]}": null' for n in picked) + "}"
            once = len(set(picked)) == len(picked) and (needed is None or needed in picked)
            fits = once and (order == "any" or picked == sorted(picked))
            assert prefixes.accepts(grammar, text.encode()) == fits, text


def test_members_are_written_once_in_any_order():
    grammar = json_schema_grammar(DOTS, property_order="any")
    for text in ['{"a":1,"a":1}', '{"b":1,"a":1,"b":1}', '{"a":1,"b":1,"c":1,"b":2}', r'{"a":1,"\u0061":2}']:
        assert not prefixes.accepts(grammar, text.encode()), text


def test_what_nothing_fits_is_left_out_of_bags():
    never = {"type": "object", "properties": {"n": {"$ref": "#/$defs/never"}}, "required": ["n"]}
    schema = objects(a={}, b={}, c={"$ref": "#/$defs/never"}) | {
        "$defs": {"never": never},
        "minProperties": 2,
    }
    grammar = json_schema_grammar(schema, property_order="any")
    assert prefixes.accepts(grammar, b'{"b":1,"a":1}')
    assert {len(node.entries) for node in bags_in(grammar)} == {2}
    with pytest.raises(InvalidConstraint, match="unsatisfiable"):
        json_schema_grammar(schema | {"minProperties": 3}, property_order="any")
    with pytest.raises(InvalidConstraint, match='"any" or "schema"'):
        json_schema_grammar({}, property_order="sorted")


def bags_in(grammar):
    """The bags of a grammar of objects."""
    waiting = [rule.body for rule in grammar.rules.values()]
    for node in waiting:  # grows while it is read
        waiting.extend(getattr(node, "options", ()) or getattr(node, "items", ()))
        if isinstance(node, ir.Bag):
            yield node


def test_both_references_agree():
    for schema, accepted, refused in TABLE[1:4] + TABLE[8:10]:
        grammar = json_schema_grammar(schema)
        for text in accepted + refused:
            assert naive.accepts(grammar, text.encode()) == prefixes.accepts(grammar, text.encode())


ERRORS = [
    ({"type": "strin"}, InvalidConstraint, "#/type", "not one of"),
    ({"type": "string", "minLength": "3"}, InvalidConstraint, "#/minLength", "integer"),
    ({"type": "string", "minLength": -1}, InvalidConstraint, "#/minLength", "from 0 on"),
    ({"minimum": "3"}, InvalidConstraint, "#/minimum", "number"),
    ({"multipleOf": 0}, InvalidConstraint, "#/multipleOf", "not be 0"),
    ({"properties": []}, InvalidConstraint, "#/properties", "object"),
    ({"properties": {"a/b": 5}}, InvalidConstraint, "#/properties/a~1b", "schema"),
    ({"required": "a"}, InvalidConstraint, "#/required", "list"),
    ({"enum": 3}, InvalidConstraint, "#/enum", "list"),
    ({"anyOf": []}, InvalidConstraint, "#/anyOf", "not empty"),
    ({"uniqueItems": 1}, InvalidConstraint, "#/uniqueItems", "true or false"),
    ({"type": "string", "pattern": "("}, InvalidConstraint, "#/pattern", "pattern"),
    ({"properties": {"a": {"$ref": "#/$defs/none"}}}, InvalidConstraint, "#/properties/a/$ref", "points to nothing"),
    ({"$ref": "/$defs/a", "$defs": {"a": {}}}, InvalidConstraint, "#/$ref", "begin with #"),
    ({"$ref": "#"}, InvalidConstraint, "#", "refers to itself"),
    ({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}, InvalidConstraint, "#", "itself"),
    ({"$ref": "http://x.org/other.json"}, UnsupportedConstraint, "#/$ref", "nothing is fetched"),
    ({"type": "string", "pattern": r"(a)\1"}, UnsupportedConstraint, "#/pattern", "back"),
    ({"type": "array", "uniqueItems": True, "minContains": 2, "contains": {"type": "null"}}, UnsupportedConstraint, "#", "uniqueItems"),
    ({"type": "array", "uniqueItems": True, "items": {"enum": [1, 2, 1.0]}, "minItems": 3}, InvalidConstraint, "#", "unsatisfiable"),
    ({"type": "array", "uniqueItems": True, "items": {"type": "boolean"}, "minItems": 3}, InvalidConstraint, "#", "unsatisfiable"),
    ({"$schema": "http://json-schema.org/draft-03/schema#"}, UnsupportedConstraint, "#/$schema", "draft"),
    (False, InvalidConstraint, "#", "unsatisfiable"),
    ({"type": "string", "enum": []}, InvalidConstraint, "#", "unsatisfiable"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, InvalidConstraint, "#", "unsatisfiable"),
    ({"type": "number", "minimum": 5.5, "exclusiveMaximum": 5.5}, InvalidConstraint, "#", "unsatisfiable"),
    ({"type": "object", "required": ["a", "b"], "maxProperties": 1}, InvalidConstraint, "#", "unsatisfiable"),
    (objects(a={}) | {"minProperties": 2}, InvalidConstraint, "#", "unsatisfiable"),
    ({"type": "object", "patternProperties": {"^[ab]$": {}}, "additionalProperties": False, "minProperties": 3}, InvalidConstraint, "#", "unsatisfiable"),
    (objects(a=objects(b={"enum": []}) | {"required": ["b"]}) | {"required": ["a"]}, InvalidConstraint, "#/properties/a", "unsatisfiable"),
    ({"allOf": [{"type": "string"}, {"type": "null"}]}, InvalidConstraint, "#", "unsatisfiable"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, InvalidConstraint, "#", "unsatisfiable"),
    ({"type": "array", "prefixItems": [{}, {}], "minItems": 3, "items": False}, InvalidConstraint, "#", "unsatisfiable"),
    ("{", InvalidConstraint, "line 1, column 2", "not JSON"),
    ('{"a": 1, "a": 2}', InvalidConstraint, "", "twice"),
    ('{"minimum": NaN}', InvalidConstraint, "", "NaN"),
    ("[" * 100_000, ConstraintTooComplex, "", "nested"),
    (5, InvalidConstraint, "#", "object, true or false"),
    ({"multipleOf": 7919, "minimum": 10**11, "maximum": 10**12}, ConstraintTooComplex, "#", "multipleOf"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "kind", "where", "words"), ERRORS, ids=lambda value: str(value)[:60])
def test_errors(schema, kind, where, words):
    with pytest.raises(GrammarError) as caught:
        json_schema_grammar(schema)
    assert type(caught.value) is kind
    assert caught.value.where == where
    assert words in caught.value.message


def test_deep_schemas_end_in_a_grammar_or_an_error_of_their_own():
    schema: dict = {"type": "null"}
    for _ in range(400):
        schema = {"type": "array", "items": schema}
    assert prefixes.accepts(json_schema_grammar(schema), b"[[[]]]")
    nested: dict = {"type": "null"}
    for _ in range(2000):
        nested = {"allOf": [nested]}
    with pytest.raises(ConstraintTooComplex):
        json_schema_grammar(nested)


LAYOUTS = [
    ({}, ['{"a": [1, 2]}', '{"a":[1,2]}', '{\n "a" : [1,\t2]\r}', '{"a":' + " " * 32 + "[1]}"], ['{"a":' + " " * 33 + "[1]}", ' {"a":[1]}', '{"a":[1]} ']),
    ({"any_whitespace": False}, ['{"a":[1,2]}', '{"a":[]}'], ['{"a": [1]}', '{"a":[1, 2]}', '{"a":[ ]}']),
    ({"whitespace_pattern": " ?"}, ['{"a": [1, 2]}', '{ "a":[1] }'], ['{"a":  [1]}', '{"a":\n[1]}']),
    # Blanks that JSON does not have.
    ({"whitespace_pattern": r"\s{0,2}"}, ['{"a": \n[1,\t2]\r}', '{"a":[1]}'], ['{"a":\u3000[1]}', '{"a":\xa0[1]}', '{"a":\x0b[1]}', '{"a":   [1]}']),
    ({"whitespace_pattern": ".?|(?=[ \\v]).*"}, ['{"a": [1]}', '{"a":  \t[1]}', '{"a":[1]}'], ['{"a":x[1]}', '{"a": x[1]}', '{"a":\v[1]}', '{"a":\n[1]}']),
]  # fmt: skip


@pytest.mark.parametrize("pattern", ["x", "x+", " x", "[^ \\n\\t\\r](?:x| )", "(?= )x", r" \b"])
def test_white_space_that_json_does_not_have(pattern):
    with pytest.raises(InvalidConstraint, match="whitespace_pattern: it takes no text of blanks"):
        json_schema_grammar(objects(a={}), whitespace_pattern=pattern)


@pytest.mark.parametrize(
    "empty",
    [
        {"pattern": "^[a-z]$", "minLength": 2}, {"pattern": "^[a-z]{5}$", "maxLength": 3},
        {"pattern": "^\\w$", "minLength": 3, "maxLength": 5}, {"pattern": "^$", "minLength": 1},
        {"pattern": "^\\p{L}\\d+$", "maxLength": 1}, {"pattern": "^(?:ab)*$", "minLength": 3, "maxLength": 3},
    ],
)  # fmt: skip
def test_no_string_of_the_pattern_has_the_length(empty):
    empty = {"type": "string"} | empty
    required = {"type": "object", "properties": {"a": empty}, "required": ["a"]}
    for schema in (empty, required, {"type": "array", "items": empty, "minItems": 1}):
        for options in ({}, {"property_order": "schema"}, {"property_order": "schema", "json_rules": True}):
            with pytest.raises(InvalidConstraint, match="unsatisfiable"):
                json_schema_grammar(schema, **options)
    assert prefixes.accepts(json_schema_grammar({"anyOf": [empty, {"type": "integer"}]}), b"1")
    assert prefixes.accepts(json_schema_grammar(objects(a=empty)), b"{}")


def test_the_length_that_is_too_much_is_named():
    pattern = r"(?:-|[^\s_][^a][ab]|[^\p{L}])(?:_[^\p{L}]){3}"
    with pytest.raises(ConstraintTooComplex, match="maxLength 12 together with the pattern"):
        json_schema_grammar({"type": "string", "pattern": pattern, "maxLength": 12})


@pytest.mark.parametrize(("options", "accepted", "refused"), LAYOUTS)
def test_white_space(options, accepted, refused):
    test = json_schema_grammar(objects(a={"type": "array", "items": {"type": "integer"}}), **options)
    for text in accepted:
        assert prefixes.accepts(test, text.encode()), text
    for text in refused:
        assert not prefixes.accepts(test, text.encode()), text


def test_closed_objects_by_option():
    schema = {"type": "object", "properties": {"a": {"type": "object"}, "b": {"properties": {"c": {}}}}}
    closed = json_schema_grammar(schema, additional_properties=False)
    assert prefixes.accepts(closed, b'{"a": {"x": 1}, "b": {"c": 1}}')
    assert not prefixes.accepts(closed, b'{"z": 1}')
    assert not prefixes.accepts(closed, b'{"b": {"d": 1}}')
    assert prefixes.accepts(json_schema_grammar(schema), b'{"z": 1}')


def test_json_object():
    for grammar in (json_object_grammar(), json_object_grammar(any_whitespace=False)):
        assert prefixes.accepts(grammar, b'{"a":[1,{"b":null}],"a":"x"}')
        assert not prefixes.accepts(grammar, b"[1]")
    assert not prefixes.accepts(json_object_grammar(any_whitespace=False), b'{"a": 1}')


def test_text_and_value_give_the_same_grammar():
    schema = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"pattern": "^x"}}}
    assert json_schema_grammar(json.dumps(schema)) == json_schema_grammar(schema)
    assert json_schema_grammar(schema) == json_schema_grammar(json.loads(json.dumps(schema)))
