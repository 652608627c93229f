"""Schemas of arguments written as tags, checked before anything is made of them.

In: a schema and its place. Out: nothing, or an error at the keyword whose value is no value of it, wherever a
reference leads. The styles that write tags then read keywords without asking what they are. (Meta-schemas of
JSON Schema; only the keywords that the styles read themselves, the others are the JSON frontend's.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vllm_guided.errors import InvalidConstraint
from vllm_guided.frontends.tags.kinds import KINDS, Schemas

TYPES = ("integer", *KINDS)
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_TEXTS = ("pattern", "format", "$ref")
_ONE = ("items", "additionalProperties", "propertyNames")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties")


def check(schemas: Schemas, schema: Any, where: str) -> None:
    """Check ``schema``, which stands at ``where``, and every schema in it or referred to.

    Raises:
        InvalidConstraint: a keyword's value is of the wrong kind; with the JSON pointer.
    """
    seen: set[int] = set()
    stack = [(schema, where)]
    root = where
    while stack:
        one, place = stack.pop()
        if isinstance(one, bool):
            continue
        if not isinstance(one, dict):
            raise InvalidConstraint("a schema is an object, true or false", where=place)
        if id(one) in seen:
            continue
        seen.add(id(one))
        for key, message in _wrong(one):
            raise InvalidConstraint(f"{key} is {message}", where=f"{place}/{key}")
        stack += _inside(one, place)
        reference = one.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            stack.append((schemas.target(reference), root + reference[1:]))


def _wrong(schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Keywords with a value that they cannot have, and what they can have."""
    for key in _COUNTS:
        if not _is_count(schema.get(key, 0)):
            yield key, "a whole number, at least 0"
    for key in _TEXTS:
        if not isinstance(schema.get(key, ""), str):
            yield key, "a string"
    for key in _LISTS:
        if key in schema and not (isinstance(schema[key], list) and schema[key]):
            yield key, "an array of schemas, at least one"
    for key in _NAMED:
        if not isinstance(schema.get(key, {}), dict):
            yield key, "an object of schemas"
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        yield "required", "an array of strings"
    if not isinstance(schema.get("enum", []), list):
        yield "enum", "an array"
    types = schema.get("type", "object")
    names = types if isinstance(types, list) else [types]
    if not all(isinstance(name, str) and name in TYPES for name in names) or not names:
        yield "type", f"one of {', '.join(TYPES)}, or an array of them"


def _inside(schema: dict[str, Any], place: str) -> Iterator[tuple[Any, str]]:
    for key in _ONE:
        if key in schema:
            yield schema[key], f"{place}/{key}"
    for key in _LISTS:
        for index, inner in enumerate(schema.get(key, [])):
            yield inner, f"{place}/{key}/{index}"
    for key in _NAMED:
        for name, inner in schema.get(key, {}).items():
            yield inner, f"{place}/{key}/" + name.replace("~", "~0").replace("/", "~1")


def _is_count(value: Any) -> bool:
    """Whether JSON Schema takes the value for a count; 2.0 is one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value >= 0 and value == value // 1
