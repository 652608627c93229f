"""JSON whose objects have their members in any order: ``any_order`` of a ``json_schema`` format.

In: a schema. Out: the node of its JSON texts. Objects of a few declared properties, open ones too, are
written member by member, every declared one at most once and the required ones once; so are the objects in
arrays, in alternatives and behind references. Where a schema says more (counts, patterns of names, several
schemas at one place), the declared order stays, which is one of the orders: the language is never larger
than the schema's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from vllm_guided.errors import InvalidConstraint
from vllm_guided.frontends.json_schema import strings
from vllm_guided.frontends.json_schema.names import name_node
from vllm_guided.frontends.tags.kinds import ANNOTATIONS
from vllm_guided.frontends.tags.unordered import MAX_MEMBERS, in_any_order
from vllm_guided.frontends.tags.values import Values
from vllm_guided.grammar import ir

_OBJECT = ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
_ARRAY = ANNOTATIONS | {"type", "items", "minItems", "maxItems"}


class AnyOrder:
    """Nodes of the schemas of one format; a schema met again, through a reference, is the rule it has."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.known: dict[int, ir.Ref] = {}
        self.kept: list[Any] = []

    def node(self, schema: Any) -> ir.Node:
        """A JSON value of the schema."""
        if isinstance(schema, dict) and "$ref" in schema and not set(schema) - ANNOTATIONS - {"$ref"}:
            target = self.values.schemas.resolve(schema)
            return self.node(target) if target is not schema else self.values.whole_json(schema)
        build = self.builder(schema)
        if build is None:
            return self.values.whole_json(schema)
        found = self.known.get(id(schema))
        if found is None:
            self.kept.append(schema)  # ids stay unique while this lives
            found = self.known[id(schema)] = self.values.formats.reserved("unordered")
            self.values.formats.rules[found.name] = ir.Rule(build(schema))
        return found

    def builder(self, schema: Any) -> Callable[[dict[str, Any]], ir.Node] | None:
        """What writes this schema in any order; None where the declared order has to stay."""
        if not isinstance(schema, dict) or "$dynamicRef" in schema or "$id" in schema:
            return None
        keys = set(schema)
        if schema.get("type") == "object" and keys <= _OBJECT and _is_object(schema):
            return self.object
        if schema.get("type") == "array" and keys <= _ARRAY and _is_array(schema):
            return self.array
        options = schema.get("anyOf")
        if keys <= ANNOTATIONS | {"anyOf"} and isinstance(options, list) and options:
            return self.any_of
        return None

    def any_of(self, schema: dict[str, Any]) -> ir.Node:
        return ir.choice(*(self.node(option) for option in schema["anyOf"]))

    def array(self, schema: dict[str, Any]) -> ir.Node:
        low, high = int(schema.get("minItems", 0)), schema.get("maxItems")
        high = None if high is None else int(high)
        blank = self.values.blank()
        empty = ir.sequence(ir.text("["), blank, ir.text("]"))
        if high == 0:
            return empty if low == 0 else ir.NOTHING
        item = self.node(schema["items"])
        more = ir.Repeat(
            ir.sequence(blank, ir.text(","), blank, item), max(low - 1, 0), None if high is None else high - 1
        )
        full = ir.sequence(ir.text("["), blank, item, more, blank, ir.text("]"))
        if high is not None and high < low:
            return ir.NOTHING
        return full if low else ir.choice(empty, full)

    def object(self, schema: dict[str, Any]) -> ir.Node:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        inner = schema.get("additionalProperties", not self.closes(schema))
        blank = self.values.blank()
        colon = ir.sequence(blank, ir.text(":"), blank)
        undeclared = [name for name in required if name not in properties]
        declared = {**properties, **dict.fromkeys(undeclared, inner)}
        spelled = {name: json.dumps(name, ensure_ascii=False) for name in declared}
        for name in required:
            if name in undeclared and inner is False:
                raise InvalidConstraint(
                    f"the required property {name!r} is not declared, and the object is closed; declare it"
                )
            if self.is_excluded(spelled[name]):
                raise InvalidConstraint(
                    f"the required property {name!r} contains an excluded string; leave that out of excludes"
                )
        members = {
            name: ir.sequence(ir.text(spelled[name]), colon, self.node(value))
            for name, value in declared.items()
            if not self.is_excluded(spelled[name])
        }
        other = None
        if inner is not False:
            name = self.values.filtered(name_node(strings.ANY, tuple(declared)))
            other = ir.sequence(name, colon, self.node(inner))
        separator = ir.sequence(blank, ir.text(","), blank)
        body = in_any_order(members, required, other, separator)
        return ir.sequence(ir.text("{"), blank, body, blank, ir.text("}"))

    def is_excluded(self, text: str) -> bool:
        """Whether an excluded string occurs in the text."""
        return any(word in text for word in self.values.excludes)

    def closes(self, schema: dict[str, Any]) -> bool:
        """Whether an object that does not say so is closed."""
        return self.values.formats.additional_properties is False and "properties" in schema


def _is_object(schema: dict[str, Any]) -> bool:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False  # the JSON frontend says what is wrong
    names = {*properties, *(name for name in required if isinstance(name, str))}
    return len(names) <= MAX_MEMBERS and all(isinstance(name, str) for name in required)


def _is_array(schema: dict[str, Any]) -> bool:
    if not isinstance(schema.get("items"), dict | bool) or schema["items"] is False:
        return False
    return all(_is_count(schema.get(key, 0)) for key in ("minItems", "maxItems"))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
