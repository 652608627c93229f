"""A JSON schema by the kinds of value it allows: for styles that write each kind in its own way.

In: a schema and the root it stands in. Out: pairs of a kind (string, number, boolean, null, array, object)
and a schema for values of that kind alone, which say together what the schema says.
"""

from __future__ import annotations

from typing import Any

from vllm_guided.errors import InvalidConstraint, UnsupportedConstraint

KINDS = ("string", "number", "boolean", "null", "array", "object")
MAX_REFERENCES = 200

ANNOTATIONS = frozenset({
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment",
    "$schema", "$id", "$defs", "definitions", "nullable", "strict",
})  # fmt: skip

Case = tuple[str, Any]


def kind_of(value: Any) -> str:
    """The kind of a JSON value."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if value is None:
        return "null"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def same_value(first: Any, second: Any) -> bool:
    """Whether two JSON values are one: 1 and 1.0 are, 1 and true are not."""
    if kind_of(first) != kind_of(second):
        return False
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same_value, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same_value(first[key], second[key]) for key in first)
    return bool(first == second)


def is_free(schema: Any) -> bool:
    """Whether the schema says nothing about values."""
    return schema is True or (isinstance(schema, dict) and not set(schema) - ANNOTATIONS)


class Schemas:
    """Splits schemas that stand in one root."""

    def __init__(self, root: Any) -> None:
        self.root = root

    def resolve(self, schema: Any) -> Any:
        """The schema a ``$ref`` (or a chain of them) leads to."""
        for _ in range(MAX_REFERENCES):
            if not isinstance(schema, dict) or "$ref" not in schema:
                return schema
            others = set(schema) - ANNOTATIONS - {"$ref"}
            if others:
                raise UnsupportedConstraint(
                    f"$ref beside {min(others)} is not supported where arguments are written as tags;"
                    " move it to where the $ref leads"
                )
            schema = self.target(schema["$ref"])
        raise InvalidConstraint("a $ref leads back to itself; let it lead to a schema")

    def target(self, reference: Any) -> Any:
        """What a local reference points at."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise UnsupportedConstraint(f"the $ref {reference!r} is not a local pointer (#/...)")
        place = self.root
        for step in reference.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, list) and step.isdigit() and int(step) < len(place):
                place = place[int(step)]
            elif isinstance(place, dict) and step in place:
                place = place[step]
            else:
                raise InvalidConstraint(f"the $ref {reference!r} leads nowhere; define it under $defs")
        return place

    def alone(self, schema: Any) -> Any:
        """``schema`` as a document of its own: what references point at comes with it."""
        if not isinstance(schema, dict) or not isinstance(self.root, dict):
            return schema
        found = {key: self.root[key] for key in ("$defs", "definitions", "$schema") if key in self.root}
        if any(
            text.split("/")[1:2] not in (["$defs"], ["definitions"]) for text in _references(schema, found)
        ):
            raise UnsupportedConstraint(
                "a $ref to anything but #/$defs or #/definitions is not supported where arguments are tags;"
                " move what it means to $defs"
            )
        return {**found, **schema}

    def cases(self, schema: Any, depth: int = 0) -> list[Case]:
        """The kinds ``schema`` allows, each with a schema for it."""
        if depth > MAX_REFERENCES:
            raise UnsupportedConstraint("the schema's alternatives are nested too deeply; flatten them")
        schema = self.resolve(schema)
        if isinstance(schema, bool):
            return [(kind, {"type": kind}) for kind in KINDS] if schema else []
        declared = self.declared(schema)
        if "const" in schema or "enum" in schema:
            values = schema.get("enum", [schema.get("const")])
            if "const" in schema:
                values = [value for value in values if same_value(value, schema["const"])]
            rest = {key: value for key, value in schema.items() if key not in ("enum", "const")}
            return [
                (kind, {**rest, "enum": [value for value in values if kind_of(value) == kind]})
                for kind in declared
                if any(kind_of(value) == kind for value in values)
            ]
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self.alternatives(schema, key, declared, depth)
        if len(schema.get("allOf", ())) == 1:
            inner = self.resolve(schema["allOf"][0])
            rest = {key: value for key, value in schema.items() if key != "allOf"}
            if is_free(rest) or not isinstance(inner, dict):
                return self.cases(inner, depth + 1)
        return [(kind, self.typed(schema, kind)) for kind in declared]

    def declared(self, schema: dict[str, Any]) -> list[str]:
        """The kinds that ``type`` allows."""
        types = schema.get("type", [])
        names = types if isinstance(types, list) else [types]
        kinds = ["number" if name == "integer" else name for name in names]
        return list(dict.fromkeys(kinds)) if kinds else list(KINDS)

    def typed(self, schema: dict[str, Any], kind: str) -> dict[str, Any]:
        """``schema`` for one kind only."""
        types = schema.get("type", kind)
        names = types if isinstance(types, list) else [types]
        if kind == "number" and "number" not in names and "integer" in names:
            return {**schema, "type": "integer"}
        return {**schema, "type": kind}

    def alternatives(self, schema: dict[str, Any], key: str, declared: list[str], depth: int) -> list[Case]:
        options = schema[key]
        others = set(schema) - ANNOTATIONS - {key, "type"}
        if others:
            raise UnsupportedConstraint(
                f"{key} beside {min(others)} is not supported where arguments are written as tags;"
                " write that into each alternative"
            )
        found: list[Case] = []
        for option in options:
            found.extend(case for case in self.cases(option, depth + 1) if case[0] in declared)
        if key == "anyOf":
            return found
        merged: list[Case] = []
        for kind in dict.fromkeys(kind for kind, _ in found):
            same = [inner for other, inner in found if other == kind]
            if len(same) > 1 and kind == "string" and not all("enum" in inner for inner in same):
                raise UnsupportedConstraint("oneOf with several strings is not supported as a tag; use anyOf")
            merged.append((kind, same[0] if len(same) == 1 else {"oneOf": same}))
        return merged


def _references(*places: Any) -> list[str]:
    found: list[str] = []
    stack = list(places)
    while stack:
        place = stack.pop()
        if isinstance(place, dict):
            if isinstance(place.get("$ref"), str):
                found.append(place["$ref"])
            stack.extend(place.values())
        elif isinstance(place, list):
            stack.extend(place)
    return found
