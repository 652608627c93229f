# ruff: noqa: E501 - the rows of the tables are read best whole
"""What the references of JSON Schema mean: identifiers of each draft, other documents, dynamic scopes."""

from __future__ import annotations

import json
from random import Random

import jsonschema
import prefixes
import pytest

import vllm_guided as vg
from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends.json_schema import json_schema_grammar
from vllm_guided.frontends.json_schema.uris import resolve

DRAFT4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
DRAFT7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
DRAFT2019 = {"$schema": "https://json-schema.org/draft/2019-09/schema"}
DRAFT2020 = {"$schema": "https://json-schema.org/draft/2020-12/schema"}

INTEGER, STRING, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}
LIST = {"type": "array", "items": {"$dynamicRef": "#item"}, "$defs": {"any": {"$dynamicAnchor": "item"}}}
"""A list whose items the schema that refers to it may choose."""


def named(key, base):
    """Two resources of one name, relative to the base and to an identifier that stands beside a reference."""
    return {
        key: f"{base}/base/",
        "definitions": {"far": {key: f"{base}/x.json", **STRING}, "near": {key: "x.json", **INTEGER}},
        "allOf": [{key: f"{base}/", "$ref": "x.json"}],
    }


TABLE = [
    # $id changes the base; references go by URI, pointer and anchor
    ({"$id": "http://a.org/x/s.json", "$ref": "../y#/$defs/n", "$defs": {"y": {"$id": "/y", "$defs": {"n": NULL}}}}, ["null"], ["1"]),
    ({"$id": "s.json", "$ref": "t.json", "$defs": {"t": {"$id": "t.json", **INTEGER}}}, ["1"], ['"a"']),
    ({"$id": "urn:example:a", "$ref": "urn:example:b#i", "$defs": {"b": {"$id": "urn:example:b", "$defs": {"i": {"$anchor": "i", **NULL}}}}}, ["null"], ["1"]),
    ({"$id": "urn:example:a", "items": {"$ref": "#i"}, "type": "array", "$defs": {"i": {"$anchor": "i", **NULL}}}, ["[null]"], ["[1]"]),
    ({"$id": "tag:a.org,2026:x/y", "$ref": "z", "$defs": {"b": {"$id": "z", **NULL}}}, ["null"], ["1"]),
    # the same anchor in two resources
    ({"$ref": "#i", "$defs": {"a": {"$anchor": "i", **NULL}, "b": {"$id": "http://b.org", "$defs": {"i": {"$anchor": "i", **STRING}}}}}, ["null"], ['"a"']),
    # a pointer that goes into another resource is resolved there
    ({"$ref": "#/$defs/b/$defs/c", "$defs": {"i": STRING, "b": {"$id": "http://b.org/", "$defs": {"c": {"$ref": "#/$defs/i"}, "i": NULL}}}}, ["null"], ['"a"']),
    # pointers: escapes, list indices, schemas below keywords that no draft knows
    ({"$ref": "#/$defs/a~1b~0%25%22%20", "$defs": {'a/b~%" ': NULL}}, ["null"], ["1"]),
    ({"$ref": "#/allOf/1", "allOf": [{"type": ["null", "integer"]}, NULL]}, ["null"], ["1"]),
    ({"$ref": "#/unknown/0", "unknown": [NULL]}, ["null"], ["1"]),
    ({"$ref": "#/unknown/a", "unknown": {"a": {"$id": "http://u.org/", "$ref": "#/$defs/b", "$defs": {"b": NULL}}}}, ["null"], ["1"]),
    # what looks like an identifier in a value is none
    ({"$ref": "http://a.org/i", "enum": [1, {"$id": "http://a.org/i", **NULL}], "$defs": {"i": {"$id": "http://a.org/i", **INTEGER}}}, ["1"], ["null"]),
    ({"type": "object", "properties": {"$id": STRING, "$ref": INTEGER}, "required": ["$id", "$ref"]}, ['{"$id": "a", "$ref": 1}'], ['{"$id": 1, "$ref": 1}']),
    # draft 4 says id, and anchors are fragments there and up to draft 7
    (DRAFT4 | {"id": "http://a.org/", "allOf": [{"$ref": "i"}], "definitions": {"i": {"id": "i", **INTEGER}}}, ["1"], ['"a"']),
    (DRAFT4 | {"allOf": [{"$ref": "#i"}], "definitions": {"i": {"id": "#i", **INTEGER}}}, ["1"], ['"a"']),
    (DRAFT7 | {"allOf": [{"$ref": "#i"}], "definitions": {"i": {"$id": "#i", **INTEGER}}}, ["1"], ['"a"']),
    (DRAFT7 | {"$id": "urn:a:b", "allOf": [{"$ref": "urn:a:b#i"}], "definitions": {"i": {"$id": "#i", **INTEGER}}}, ["1"], ['"a"']),
    (DRAFT7 | {"$id": "http://a.org/s", "allOf": [{"$ref": "t#i"}], "definitions": {"t": {"$id": "t", "definitions": {"i": {"$id": "#i", **INTEGER}}}}}, ["1"], ['"a"']),
    # up to draft 7 nothing beside $ref counts, its identifier neither
    (DRAFT7 | named("$id", "http://a.org"), ["1"], ['"a"']),
    (DRAFT4 | named("id", "http://a.org"), ["1"], ['"a"']),
    (DRAFT2020 | named("$id", "http://a.org"), ['"a"'], ["1"]),
    (DRAFT7 | {"properties": {"a": {"$ref": "#/definitions/i", "maximum": 1, "$id": "http://x.org"}}, "definitions": {"i": INTEGER}}, ['{"a": 7}'], ['{"a": "x"}']),
    # without $schema: identifiers of older drafts count where a reference would point to nothing
    (named("$id", "http://a.org"), ["1"], ['"a"']),
    (named("id", "http://a.org"), ["1"], ['"a"']),
    ({"$ref": "#i", "definitions": {"i": {"$id": "#i", **INTEGER}}}, ["1"], ['"a"']),
    ({"id": "http://a.org/t", "type": "array", "items": {"$ref": "n"}, "definitions": {"n": {"id": "n", "anyOf": [NULL, {"$ref": "t"}]}}}, ["[null, [null]]"], ["[1]", "[[1]]"]),
    (
        {"properties": {"a": {"id": "http://a.org/", "items": {"$ref": "i"}}, "b": {"id": "http://b.org/", "items": {"$ref": "i"}}},
         "definitions": {"a": {"id": "http://a.org/i", **INTEGER}, "b": {"id": "http://b.org/i", **NULL}}},
        ['{"a": [1], "b": [null]}'],
        ['{"a": [null]}', '{"b": [1]}'],
    ),
    (DRAFT7 | {"$ref": "#/definitions/a", "definitions": {"a": {"$ref": "b.json"}, "b": {"$id": "b.json", **NULL}}}, ["null"], ["1"]),
    # a resource of another draft
    (DRAFT7 | {"allOf": [{"$ref": "#/definitions/t"}], "definitions": {"t": DRAFT2020 | {"$id": "http://t.org", "type": "array", "prefixItems": [NULL], "items": False}}}, ["[null]"], ["[1]", "[null, 1]"]),
    (DRAFT2020 | {"$ref": "#/$defs/t", "$defs": {"t": DRAFT7 | {"$id": "http://t.org", "type": "array", "prefixItems": [NULL]}}}, ["[1]"], ["1"]),
    # the drafts' own schemas
    (DRAFT4 | {"$ref": "http://json-schema.org/draft-04/schema#/definitions/positiveInteger"}, ["1"], ["-1", '"a"']),
    (DRAFT7 | {"$ref": "http://json-schema.org/draft-07/schema#/definitions/nonNegativeInteger"}, ["1"], ["-1", '"a"']),
    ({"$ref": "https://json-schema.org/draft-07/schema#/definitions/simpleTypes"}, ['"null"'], ['"nil"']),
    ({"$ref": "https://json-schema.org/draft/2020-12/meta/validation#/$defs/nonNegativeInteger"}, ["1"], ["-1"]),
    ({"$ref": "https://json-schema.org/draft/2020-12/meta/unevaluated"}, ['{"unevaluatedItems": {"unevaluatedItems": true}}'], ['{"unevaluatedItems": 1}', '{"unevaluatedItems": {"unevaluatedItems": 1}}']),
    # dynamic references: bookends, the outermost anchor, what is left again
    (LIST, ["[1, null]"], ["1"]),
    ({"$id": "http://a.org/s", "$ref": "l", "$defs": {"i": {"$dynamicAnchor": "item", **STRING}, "l": {"$id": "l", **LIST}}}, ['["a"]'], ["[1]"]),
    ({"$id": "http://a.org/s", "$ref": "l", "$defs": {"i": {"$anchor": "item", **STRING}, "l": {"$id": "l", **LIST}}}, ["[1]"], ["1"]),
    ({"$id": "http://a.org/s", "$ref": "l", "$defs": {"i": {"$dynamicAnchor": "item", **STRING}, "l": {"$id": "l", "type": "array", "items": {"$dynamicRef": "#item"}, "$defs": {"any": {"$anchor": "item"}}}}}, ["[1]"], ["1"]),
    ({"$id": "http://a.org/s", "$ref": "l", "$defs": {"i": {"$dynamicAnchor": "item", **STRING}, "l": {"$id": "l", "type": "array", "items": {"$dynamicRef": "#/$defs/any"}, "$defs": {"any": {"$dynamicAnchor": "item"}}}}}, ["[1]"], ["1"]),
    (
        {"$id": "http://a.org/s", "type": "object", "properties": {"n": {"$ref": "n"}, "s": {"$ref": "s2"}, "l": {"$ref": "l"}},
         "$defs": {"n": {"$id": "n", "$ref": "l", "$defs": {"i": {"$dynamicAnchor": "item", **INTEGER}}},
                   "s2": {"$id": "s2", "$ref": "l", "$defs": {"i": {"$dynamicAnchor": "item", **STRING}}}, "l": {"$id": "l", **LIST}}},
        ['{"n": [1], "s": ["a"], "l": [null]}'],
        ['{"n": ["a"]}', '{"s": [1]}', '{"n": [1], "s": ["a"], "l": 1}'],
    ),
    (
        {"$id": "http://a.org/s", "allOf": [{"$id": "left", "$defs": {"i": {"$dynamicAnchor": "item", **STRING}}}, {"$ref": "l"}], "$defs": {"l": {"$id": "l", **LIST}}},
        ["[1]"],
        ["1"],
    ),
    (
        {"$id": "http://a.org/strict", "$dynamicAnchor": "node", "$ref": "tree", "unevaluatedProperties": False,
         "$defs": {"tree": {"$id": "tree", "$dynamicAnchor": "node", "type": "object", "properties": {"v": {}, "c": {"type": "array", "items": {"$dynamicRef": "#node"}}}}}},
        ['{"c": [{"v": 1}]}'],
        ['{"d": 1}', '{"c": [{"d": 1}]}'],
    ),
    # 2019-09 has one dynamic anchor without a name
    (
        DRAFT2019 | {"$id": "http://a.org/strict", "$recursiveAnchor": True, "$ref": "tree", "unevaluatedProperties": False,
         "$defs": {"tree": {"$id": "tree", "$recursiveAnchor": True, "type": "object", "properties": {"v": {}, "c": {"type": "array", "items": {"$recursiveRef": "#"}}}}}},
        ['{"c": [{"v": 1}]}'],
        ['{"d": 1}', '{"c": [{"d": 1}]}'],
    ),
    (
        DRAFT2019 | {"$id": "http://a.org/strict", "$recursiveAnchor": True, "$ref": "tree", "unevaluatedProperties": False,
         "$defs": {"tree": {"$id": "tree", "type": "object", "properties": {"v": {}, "c": {"type": "array", "items": {"$recursiveRef": "#"}}}}}},
        ['{"c": [{"v": 1}, {"d": 1}]}'],
        ['{"d": 1}'],
    ),
    # contentEncoding is an assertion in draft 7 and an annotation later
    (DRAFT7 | {"type": "string", "contentEncoding": "base64"}, ['"YQ=="'], ['"?"']),
    (DRAFT2020 | {"type": "string", "contentEncoding": "base64"}, ['"YQ=="', '"?"'], ["1"]),
    ({"type": "string", "contentEncoding": "base64"}, ['"YQ=="'], ['"?"']),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "accepted", "refused"), TABLE, ids=lambda value: json.dumps(value)[:80])
def test_references(schema, accepted, refused):
    grammar = json_schema_grammar(schema)
    for text in accepted:
        assert prefixes.accepts(grammar, text.encode()), f"refused: {text}"
    for text in refused:
        assert not prefixes.accepts(grammar, text.encode()), f"accepted: {text}"


ERRORS = [
    ({"items": {"$ref": "#/$defs/a%20b"}, "$defs": {"a b": {"pattern": "("}}}, InvalidConstraint, "#/$defs/a%20b/pattern", "pattern"),
    ({"properties": {"a/b~c é": {"type": "nil"}}}, InvalidConstraint, "#/properties/a~1b~0c%20%C3%A9/type", "not one of"),
    ({"patternProperties": {"^x": {"type": "nil"}}}, InvalidConstraint, "#/patternProperties/%5Ex/type", "not one of"),
    ({"$ref": "#a", "$defs": {"x": {"$anchor": "a", "anyOf": [True, {"type": "nil"}]}}}, InvalidConstraint, "#/$defs/x/anyOf/1/type", "not one of"),
    ({"$id": "http://a.org/", "$ref": "b", "$defs": {"b": {"$id": "b", "type": "nil"}}}, InvalidConstraint, "#/$defs/b/type", "not one of"),
    ({"$id": "http://a.org/", "$ref": "b", "$defs": {"b": {"$id": "b", "$dynamicRef": "#c"}}}, InvalidConstraint, "#/$defs/b/$dynamicRef", "points to nothing"),
    ({"$id": "http://a.org/", "$ref": "b/c#d"}, UnsupportedConstraint, "#/$ref", "'http://a.org/b/c' is another document"),
    ({"id": "http://a.org/", "not": {"$ref": "b"}}, UnsupportedConstraint, "#/not/$ref", "'http://a.org/b' is another document"),
    ({"$id": "http://a.org/", "$ref": "#d"}, InvalidConstraint, "#/$ref", "points to nothing"),
    ({"$ref": "b.json"}, InvalidConstraint, "#/$ref", "points to nothing"),
    ({"$ref": 5}, InvalidConstraint, "#/$ref", "string"),
    ({"$ref": "#/required/0", "required": ["a"]}, InvalidConstraint, "#/$ref", "not point to a schema"),
    ({"$ref": "http://json-schema.org/draft-07/schema#/nowhere"}, InvalidConstraint, "#/$ref", "points to nothing"),
    ({"$ref": "http://json-schema.org/draft-09/schema"}, UnsupportedConstraint, "#/$ref", "another document"),
    ({"$ref": "#/allOf/01", "allOf": [True, True]}, InvalidConstraint, "#/$ref", "points to nothing"),
    ({"$ref": "#a", "$defs": {"x": {"$anchor": "a", "const": 1}, "y": {"$anchor": "a", "const": True}}}, InvalidConstraint, "#/$ref", "several"),
    ({"$ref": "http://a.org/", "$defs": {"x": {"$id": "http://a.org/"}, "y": {"$id": "http://a.org/", **NULL}}}, InvalidConstraint, "#/$ref", "several"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$id": "a", "$schema": "http://json-schema.org/draft-03/schema#"}}}, UnsupportedConstraint, "#/$defs/a/$schema", "drafts"),
    ({"$id": "http://a.org/", "$dynamicRef": "#n", "$dynamicAnchor": "n"}, InvalidConstraint, "#", "itself"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "kind", "where", "words"), ERRORS, ids=lambda value: str(value)[:60])
def test_errors(schema, kind, where, words):
    with pytest.raises(GrammarError) as caught:
        json_schema_grammar(schema)
    assert (type(caught.value), caught.value.where) == (kind, where)
    assert words in caught.value.message


def test_remote_references_matter_only_where_they_are_asked():
    schema = {"$ref": "#/$defs/a", "$defs": {"a": NULL, "b": {"$ref": "http://a.org/"}}}
    assert prefixes.accepts(json_schema_grammar(schema), b"null")


DOCUMENTS = {
    "http://a.org/i.json": INTEGER,
    "http://a.org/t.json": {"$id": "http://b.org/", "$ref": "i", "$defs": {"i": {"$id": "i", **NULL}, "s": {"$anchor": "s", **STRING}}},
    "urn:x:y": '{"$ref": "http://a.org/t.json#s"}',
    "http://a.org/list": {"$id": "list"} | LIST,
}  # fmt: skip
GIVEN = [
    ({"$ref": "http://a.org/i.json"}, ["1"], ["null"]),
    ({"$id": "http://a.org/", "$ref": "t.json"}, ["null"], ["1"]),
    ({"$ref": "http://b.org/i"}, ["null"], ["1"]),
    ({"$ref": "urn:x:y"}, ['"a"'], ["1"]),
    ({"$ref": "http://a.org/list"}, ["[1]"], ["1"]),
    ({"$ref": "http://a.org/list", "$defs": {"i": {"$dynamicAnchor": "item", **STRING}}}, ['["a"]'], ["[1]"]),
]


@pytest.mark.parametrize(("schema", "accepted", "refused"), GIVEN, ids=str)
def test_documents_that_are_given(schema, accepted, refused):
    grammar = json_schema_grammar(schema, documents=DOCUMENTS)
    assert all(prefixes.accepts(grammar, text.encode()) for text in accepted)
    assert not any(prefixes.accepts(grammar, text.encode()) for text in refused)
    with pytest.raises(UnsupportedConstraint, match="another document"):
        json_schema_grammar(schema)


@pytest.mark.parametrize("documents", [{"a.json": {}}, {5: {}}, ["http://a.org"], {"http://a.org": "{"}])
def test_documents_that_are_none(documents):
    with pytest.raises(InvalidConstraint):
        json_schema_grammar({}, documents=documents)


def test_documents_are_part_of_the_constraint():
    vocabulary = vg.Vocabulary([*(bytes([byte]) for byte in range(256)), None], stop_token_ids=[256])
    compiler = vg.GrammarCompiler(vocabulary)
    for value, text in ((NULL, b"null"), (INTEGER, b"5")):
        matcher = compiler.compile_json_schema(
            {"$ref": "http://a.org"}, documents={"http://a.org": value}
        ).matcher()
        assert matcher.accept_tokens([*text, 256])


def test_scopes_are_bounded():
    """Each of many anchors may be chosen by either of two schemas: too many ways to come to one place."""
    choices = {}
    for index in range(12):
        for side in "ab":
            choices[f"{index}{side}"] = {
                "$id": f"{index}{side}",
                "$ref": "next",
                "$defs": {"own": {"$dynamicAnchor": f"n{index}", "const": side}},
            }
    schema = {
        "$id": "http://a.org/",
        "$ref": "next",
        "$defs": choices
        | {
            "next": {
                "$id": "next",
                "properties": {name: {"$ref": name} for name in choices},
                "type": "object",
            }
        },
    }
    with pytest.raises(ConstraintTooComplex, match="dynamic"):
        json_schema_grammar(schema)


# RFC 3986, section 5.4, and what the standard library does not do.
URIS = {
    "http://a/b/c/d;p?q": {
        "g:h": "g:h", "g": "http://a/b/c/g", "./g": "http://a/b/c/g", "g/": "http://a/b/c/g/", "/g": "http://a/g",
        "//g": "http://g", "?y": "http://a/b/c/d;p?y", "g?y": "http://a/b/c/g?y", "#s": "http://a/b/c/d;p?q#s",
        "g#s": "http://a/b/c/g#s", "g?y#s": "http://a/b/c/g?y#s", ";x": "http://a/b/c/;x", "": "http://a/b/c/d;p?q",
        ".": "http://a/b/c/", "./": "http://a/b/c/", "..": "http://a/b/", "../g": "http://a/b/g",
        "../..": "http://a/", "../../g": "http://a/g", "../../../g": "http://a/g", "/./g": "http://a/g",
        "/../g": "http://a/g", "g.": "http://a/b/c/g.", "..g": "http://a/b/c/..g", "./../g": "http://a/b/g",
        "./g/.": "http://a/b/c/g/", "g/../h": "http://a/b/c/h", "g;x=1/../y": "http://a/b/c/y",
        "g?y/./x": "http://a/b/c/g?y/./x", "g#s/../x": "http://a/b/c/g#s/../x",
    },
    "": {"a/b": "a/b", "#x": "#x", "": ""},
    "http://a": {"b": "http://a/b", "?q": "http://a?q"},
    "urn:a:b": {"#c": "urn:a:b#c", "urn:d:e#f": "urn:d:e#f"},
    "x/y": {"z": "x/z", "../z": "z", "/z": "/z"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("base", "reference", "meant"),
    [(base, reference, meant) for base, table in URIS.items() for reference, meant in table.items()],
)
def test_uris(base, reference, meant):
    assert resolve(base, reference) == meant


@pytest.mark.parametrize(
    "uri",
    [
        "http://json-schema.org/draft-04/schema",
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    ],
)
def test_the_drafts_own_schemas(uri):
    grammar = json_schema_grammar({"$ref": uri})
    assert prefixes.accepts(grammar, b'{"properties": {"a": {"type": "null", "minLength": 1}}}')
    assert not prefixes.accepts(grammar, b'{"properties": {"a": {"type": "nil"}}}')
    assert not prefixes.accepts(grammar, b'{"allOf": [{"minLength": -1}]}')


def random_scopes(random):
    """Resources that refer to each other, dynamically too, some with the dynamic anchor ``t``."""
    types = ("integer", "string", "null", "boolean")
    count = random.randint(2, 4)
    resources = {}
    for index in range(count):
        resource = {"$id": f"r{index}", "$defs": {}}
        if random.random() < 0.8:
            anchor = random.choice(("$dynamicAnchor", "$dynamicAnchor", "$anchor"))
            resource["$defs"]["d"] = {anchor: "t", "type": random.choice(types)}
        if index + 1 < count and random.random() < 0.5:
            resource["$ref"] = f"r{random.randrange(index + 1, count)}"
        resource["properties"] = {
            "p": {"$dynamicRef": random.choice(("#t", f"r{random.randrange(count)}#t"))},
            "q": {"$ref": f"r{random.randrange(count)}"},
        }
        resources[f"k{index}"] = resource
    if random.random() < 0.5:
        resources["own"] = {"$dynamicAnchor": "t", "type": random.choice(types)}
    return DRAFT2020 | {"$id": "http://a.org/root", "$ref": "r0", "$defs": resources}


def random_instance(random, depth=0):
    if depth > 2 or random.random() < 0.3:
        return random.choice((1, "a", None, True))
    return {name: random_instance(random, depth + 1) for name in "pq" if random.random() < 0.7}


def test_dynamic_scopes_as_jsonschema_sees_them():
    judged = 0
    for seed in range(60):
        random = Random(seed)
        schema = random_scopes(random)
        try:
            grammar = json_schema_grammar(schema)
        except InvalidConstraint as error:
            assert "points to nothing" in error.message or "itself" in error.message
            continue
        validator = jsonschema.Draft202012Validator(schema)
        for _ in range(8):
            instance = random_instance(random)
            try:
                valid = validator.is_valid(instance)
            except jsonschema.exceptions._WrappedReferencingError:
                continue  # it looks only when it comes there
            judged += 1
            assert prefixes.accepts(grammar, json.dumps(instance).encode()) == valid, (schema, instance)
    assert judged > 200
