# ruff: noqa: E501 - the rows of the tables are read best whole
"""``uniqueItems``: arrays whose items all differ, however they are spelt."""

from __future__ import annotations

import json
from random import Random

import jsonschema
import prefixes
import pytest
import random_schemas

from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends.json_schema import json_schema_grammar


def unique(items=True, **more):
    return {"type": "array", "uniqueItems": True, "items": items, **more}


POINT = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}}
TREE = {"$ref": "#/$defs/t", "$defs": {"t": unique({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/t"}]})}}

TABLE = [
    # short lists: every spelling, any order
    (unique({"enum": ["a", "b", "c"]}), ["[]", '["c","a","b"]', '[ "b" ,"a"]'], ['["a","a"]', '["a","b","a"]']),
    (unique({"enum": [1, 2, 3]}), ["[1.0, 2, 3]"], ["[1, 1.0]", "[2, 1, 2.0]"]),
    (unique({"type": "boolean"}), ["[true, false]", "[false]"], ["[true, true]", "[true,false,true]"]),
    (unique({"type": ["boolean", "null"]}, minItems=3), ["[null, true, false]"], ["[true, false]", "[null,null,true]"]),
    (unique({"type": "integer", "minimum": 1, "maximum": 20}), ["[20, 1, 13]", "[" + ",".join(map(str, range(20, 0, -1))) + "]"], ["[1, 2, 1]", "[0]"]),
    (unique({"enum": [{"a": 1, "b": 2}, [1, 2], {"b": 2, "a": 1}, "x"]}), ['[{"a":1,"b":2}, "x", [1, 2]]'], ['[[1,2], [ 1,2 ]]', '[{"a":1,"b":2},{"b":2,"a":1}]', '[{"a":1,"b":2},{"b":2.0,"a":1}]']),
    (unique({"enum": ["a", "b", "c"]}, contains={"const": "b"}), ['["a", "b"]', '["b"]', '["b", "c", "a"]'], ["[]", '["a", "c"]', '["b", "b"]']),
    (unique({"enum": ["a", "b", "c"]}, maxItems=2), ['["c", "a"]'], ['["c", "a", "b"]']),
    # scalars of any number: one spelling
    (unique({"type": "string"}), ["[]", '["a", "b", ""]', r'["\n", "n"]', r'["é", "e"]'], ['["a", "a"]', r'["a", "\u0061"]', '["a","b","a"]', '["a", "b" , "a"]']),
    (unique({"type": "string", "pattern": "^a+$"}), ['["a", "aa"]'], ['["aa", "aa"]', '["b"]']),
    (unique({"type": "string", "maxLength": 1}), ['["a", ""]'], ['["", ""]', '["ab"]']),
    (unique({"type": "number"}), ["[1, 1.5, -1, 0, 10]"], ["[1, 1.0]", "[1.5, 1.5]", "[0, -0]", "[1, 1e0]", "[10, 1e1]"]),
    (unique({"type": "integer"}), ["[1, -1, 10]"], ["[1, 1]", "[1, 1.0]", "[0, -0]"]),
    (unique({"type": ["string", "integer", "null"]}), ['[1, "1", null]'], ["[1, 2, 1]", "[null, null]"]),
    (unique({"type": "string"}, contains={"pattern": "^x"}), ['["a", "x"]', '["xa", "b"]', '["x"]'], ["[]", '["a"]', '["x", "x"]']),
    (unique({"type": "string"}, minItems=2, maxItems=3), ['["a", "b"]', '["a", "b", "c"]'], ['["a"]', '["a", "b", "c", "d"]', '["a", "a"]']),
    (unique(), ['[1, "1", [1], {"a": 1}, null, [null], {}, []]'], ["[[1], [1]]", '[{"a": 1}, {"a": 1}]', "[[], [ ]]", "[{}, {}]", "[null, null]"]),
    # nested ones: members in one order, at most one undeclared
    (unique({"type": "array", "items": {"type": "integer"}}), ["[[1], [1, 1], [2]]"], ["[[1], [1]]", "[[1, 2], [1,2]]", "[[1], [ 1 ]]", "[[1], [1.0]]"]),
    (unique(POINT), ['[{"x":1,"y":2}, {"x":2,"y":1}, {"x":1}]', '[{"x":1,"q":1}, {"x":1,"q":2}, {"x":1,"r":1}]'], ['[{"x":1,"y":2}, {"x":1,"y":2}]', '[{"x":1,"y":2}, {"y":2,"x":1}]', '[{"x":1,"q":1}, {"x":1,"q":1}]', '[{"x":1,"q":1}, {"q":1,"x":1}]']),
    (unique(POINT), ['[{"y":2,"x":1}]', '[{"q":1,"y":2,"r":1,"x":1.0}]'], ['[{"y":"a"}]']),
    (unique({"anyOf": [POINT, {"type": "object", "properties": {"y": {}, "x": {"type": "string"}}, "required": ["x"]}]}), ['[{"x":1,"y":2}, {"x":"a","y":2}]'], ['[{"x":"a","y":2}, {"y":2,"x":"a"}]']),
    (unique({"anyOf": [{"properties": {"x": {}}, "type": "object", "maxProperties": 2}, {"properties": {"q": {}}, "type": "object", "maxProperties": 2}]}), ['[{"x":1}, {"q":1}, {"x":1,"q":1}]'], ['[{"x":1,"q":1}, {"q":1,"x":1}]', '[{"z":1}, {"z":1}]']),
    (unique(unique({"type": "integer"})), ["[[1, 2], [2, 1]]"], ["[[1, 2], [1, 2]]", "[[1, 1]]"]),
    (unique(unique({"type": "boolean"}), minItems=5), ["[[], [true], [false], [true, false], [false, true]]"], ["[[], [true], [false], [true, false], [true,false]]"]),
    (TREE, ["[null, [], [null], [[null]]]"], ["[[], []]", "[[null], [null]]", "[[[], null], [[],null]]"]),
    # the one order of members agrees with that of each branch where it can
    (unique({"anyOf": [{"type": "object", "properties": {name: {} for name in names}, "required": names} for names in (["t", "a", "id"], ["t", "b", "id", "c"], ["t", "d", "c"])]}),
     ['[{"t":1,"a":1,"id":1}, {"t":1,"b":1,"id":1,"c":1}, {"t":1,"d":1,"c":1}]'], ['[{"t":1,"a":1,"id":1}, {"t":1,"id":1,"a":1}]']),
    # tuples
    ({"type": "array", "uniqueItems": True, "prefixItems": [{"type": "string"}, {"type": "integer"}]}, ['["a", 1, "b", 2]', '["a"]', "[]"], ['["a", 1, "a"]', '["a", 1, 1]', '[1, "a"]']),
    ({"type": "array", "uniqueItems": True, "prefixItems": [{"enum": ["a", "b"]}, {"enum": ["a"]}], "items": False, "minItems": 2}, ['["b", "a"]'], ['["a", "a"]', '["a"]', '["b"]']),
    ({"type": "array", "uniqueItems": True, "prefixItems": [{"enum": ["a", "b"]}, {"enum": ["a", "b"]}], "items": {"enum": ["b", "c"]}}, ['["b", "a"]', '["b", "a", "c"]', '["a"]'], ['["a", "a"]', '["a", "b", "b"]']),
    ({"type": "array", "uniqueItems": True, "prefixItems": [{"type": "number"}], "items": {"type": "boolean"}}, ["[1, true, false]"], ["[1, true, true]"]),
    # negated: a value stands twice, where there are few; beyond, such arrays are left out
    ({"type": "array", "items": {"enum": [1, "a", None]}, "not": {"uniqueItems": True}}, ["[1, 1]", '["a", 1, null, 1.0]'], ["[]", "[1]", '[1, "a", null]', "[2, 2]"]),
    ({"type": "array", "items": {"enum": [1, "a"]}, "not": {"not": {"uniqueItems": True}}}, ["[1]", '["a", 1]'], ["[1, 1]"]),
    ({"not": unique({"type": "string"})}, ["[1]", "[1, 1]", '"x"', '["a", 1]'], ['["a"]', "[]", '["a", "b"]']),
    ({"oneOf": [{"type": "string"}, unique({"type": "string"}), {"type": "array", "items": {"type": "integer"}, "minItems": 1}]}, ['"a"', '["a"]', "[]", "[1, 1]"], ['["a", "a"]', '["a", 1]']),
    # trivial ones
    (unique({"type": "string"}, maxItems=1), ["[]", r'["\u0061"]'], ['["a", "b"]']),
]  # fmt: skip


@pytest.mark.parametrize("order", ["any", "schema"])
@pytest.mark.parametrize(("schema", "accepted", "refused"), TABLE, ids=lambda value: json.dumps(value)[:60])
def test_texts(schema, accepted, refused, order):
    grammar = json_schema_grammar(schema, property_order=order)
    for text in accepted:
        assert order == "schema" or prefixes.accepts(grammar, text.encode()), f"refused: {text}"
    for text in refused:
        assert not prefixes.accepts(grammar, text.encode()), f"accepted: {text}"


ERRORS = [
    (unique(contains={"type": "null"}, minContains=2), UnsupportedConstraint, "minContains"),
    (unique(contains={"type": "null"}, maxContains=1), UnsupportedConstraint, "maxContains"),
    (unique({"type": "boolean"}, minItems=3), InvalidConstraint, "unsatisfiable"),
    (unique({"enum": [1, 2, 1.0]}, minItems=3), InvalidConstraint, "unsatisfiable"),
    (unique({"type": "array", "maxItems": 2, "items": {"type": "null"}}, minItems=4), InvalidConstraint, "unsatisfiable"),
    (unique({"type": "object", "minProperties": 2}, minItems=2), UnsupportedConstraint, "uniqueItems"),
    ({"type": "array", "uniqueItems": True, "prefixItems": [{"type": "string"}, {"const": "a"}], "minItems": 2}, UnsupportedConstraint, "disjoint"),
    ({"type": "array", "not": {"uniqueItems": True}}, UnsupportedConstraint, "negated"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "kind", "words"), ERRORS, ids=lambda value: str(value)[:60])
def test_errors(schema, kind, words):
    with pytest.raises(GrammarError, match=words) as caught:
        json_schema_grammar(schema)
    assert type(caught.value) is kind


def test_random_items_differ():
    """Whatever is taken is valid, and what is valid is taken where the items are scalars."""
    random = Random(5)
    for _ in range(150):
        items = random_schemas.schema(random, 2020, 2)
        definitions = {"x": random_schemas.schema(random, 2020, 1), "y": {"type": "integer"}}
        schema = unique(items) | {"$defs": definitions}
        validator = jsonschema.Draft202012Validator(schema)
        try:
            grammar = json_schema_grammar(schema)
        except (InvalidConstraint, UnsupportedConstraint, ConstraintTooComplex):
            continue
        for _ in range(12):
            value = [random_schemas.value(random, 2) for _ in range(random.randrange(4))]
            if value and random.random() < 0.3:
                value.append(random.choice(value))
            taken = prefixes.accepts(grammar, json.dumps(value, ensure_ascii=False).encode())
            assert not taken or validator.is_valid(value), (schema, value)
            scalars = all(isinstance(each, str | int | None) for each in value)
            assert taken or not scalars or not validator.is_valid(value), (schema, value)
