"""Objects written as tags, one member behind another, in the order of ``properties``.

In: an object schema. Out: the node of its members; how one is written is the subclass's business.
"""

from __future__ import annotations

from typing import Any

from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends import regular
from vllm_guided.frontends.tags.kinds import is_free
from vllm_guided.frontends.tags.unordered import MAX_MEMBERS, in_any_order
from vllm_guided.frontends.tags.values import Values
from vllm_guided.grammar import ir

MAX_COUNTED = 2_000

OBJECT_KEYWORDS = frozenset({
    "type", "properties", "required", "additionalProperties", "patternProperties", "title", "description",
    "default", "examples", "$schema", "$id", "$defs", "definitions", "$comment", "deprecated", "strict",
    "nullable", "minProperties", "maxProperties", "propertyNames",
})  # fmt: skip
_NAME = ir.sequence(
    ir.byte_set(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"),
    ir.star(ir.byte_set(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789")),
)
_KEY_CHAR = ir.char_set(
    [(0x20, 0x21), (0x23, 0x25), (0x27, 0x3B), (0x3D, 0x3D), (0x3F, 0xD7FF), (0xE000, 0x10FFFF)]
)


class Members:
    """The order of an object's members, for any way of writing one: subclasses say how."""

    def __init__(self, values: Values) -> None:
        self.values = values

    def member(self, name: ir.Node, schema: Any) -> ir.Node:
        """One member: its name is a node, as it may be any of many."""
        raise NotImplementedError

    def name(self, text: str) -> str:
        """A declared name as it is written."""
        return text

    def other_names(self) -> ir.Node:
        """Names nobody declared."""
        return _NAME

    def object(self, schema: Any) -> ir.Node:
        """The members of an object of ``schema``, one behind another."""
        cases = [inner for kind, inner in self.values.schemas.cases(schema) if kind == "object"]
        if not cases:
            raise InvalidConstraint("the schema allows no object, but arguments are one: write type object")
        return ir.choice(*(self.members(case) for case in cases))

    def members(self, schema: dict[str, Any]) -> ir.Node:
        """The members an object schema (not a reference, not alternatives) allows."""
        if "enum" in schema or "oneOf" in schema:
            raise UnsupportedConstraint(
                "enum, const and oneOf of objects are not supported as tags; write properties"
            )
        properties, required = self.checked(schema)
        allowed = self.allowed_names(schema)
        if allowed is not None:
            for name in list(properties):
                if not regular.accepts(allowed, self.name(name).encode()):
                    if name in required:
                        raise InvalidConstraint(
                            f"propertyNames forbids the required property {name!r}; allow it"
                        )
                    del properties[name]
        declared = {name: self.member(ir.text(self.name(name)), inner) for name, inner in properties.items()}
        other = self.other(schema, list(properties), allowed)
        low, high = (schema.get(key) for key in ("minProperties", "maxProperties"))
        if high is not None and high >= len(declared) and other is None:
            high = None
        if (low or 0) > len(required) or high is not None:
            node = _counted(declared, required, other, int(low or 0), None if high is None else int(high))
        else:
            if self.values.any_order and len(declared) <= MAX_MEMBERS:
                node = in_any_order(declared, required, other)
            else:
                parts = [part if name in required else ir.optional(part) for name, part in declared.items()]
                node = ir.sequence(*parts, *([ir.star(other)] if other is not None else []))
        return ir.sequence(node, self.values.blank())

    def checked(self, schema: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
        """The properties and the names of the required ones; refuses keywords that tags cannot honour."""
        unknown = set(schema) - OBJECT_KEYWORDS
        if unknown:
            raise UnsupportedConstraint(
                f"{min(unknown)} is not supported where arguments are written as tags; leave it out"
            )
        properties, required = schema.get("properties", {}), schema.get("required", [])
        missing = [name for name in required if name not in properties]
        if missing and schema.get("additionalProperties") is False and "patternProperties" not in schema:
            raise InvalidConstraint(
                f"the required property {missing[0]!r} is not declared; add it to properties"
            )
        inner = schema.get("additionalProperties", True)
        return {**properties, **{name: inner for name in missing}}, set(required)

    def allowed_names(self, schema: dict[str, Any]) -> regular.Dfa | None:
        """The names that ``propertyNames`` allows, or None if it says nothing."""
        names = schema.get("propertyNames", True)
        if is_free(names):
            return None
        node: ir.Node = ir.NOTHING
        for kind, inner in self.values.schemas.cases(names):
            if kind == "string":
                if "enum" in inner:
                    node = ir.choice(node, *(ir.text(self.name(text)) for text in inner["enum"]))
                else:
                    node = ir.choice(node, self.values.bounded(inner, "") or ir.plus(_KEY_CHAR))
        return regular.dfa(node)

    def other(
        self, schema: dict[str, Any], declared: list[str], allowed: regular.Dfa | None
    ) -> ir.Node | None:
        """A member nobody declared, if the schema allows one."""
        patterns = schema.get("patternProperties", {})
        open_ended = not declared and not patterns and "properties" not in schema
        additional = schema.get("additionalProperties", open_ended)
        if additional is False and not patterns:
            return None
        known = regular.dfa(ir.choice(*(ir.text(self.name(name)) for name in declared)))
        options: list[ir.Node] = []
        for pattern, inner in patterns.items():
            from vllm_guided.frontends.regex import regex_node

            matching = regular.dfa(regex_node(pattern, dialect="ecma", search=True))
            names = regular.intersection(regular.dfa(ir.plus(_KEY_CHAR)), matching)
            if not is_free(inner) and not regular.is_empty(regular.intersection(names, known)):
                raise UnsupportedConstraint(
                    f"names that {pattern!r} shares with another pattern or with properties are not supported"
                    " as tags; write patterns that share none"
                )
            options.append(self.named(regular.difference(names, known), allowed, inner))
            known = regular.dfa(ir.choice(regular.node(known), regular.node(names)))
        if additional is not False:
            if patterns:
                raise UnsupportedConstraint(
                    "patternProperties beside additionalProperties is not supported as tags; keep one"
                )
            names = regular.difference(regular.dfa(self.other_names()), known)
            options.append(self.named(names, allowed, additional))
        return ir.choice(*options)

    def named(self, names: regular.Dfa, allowed: regular.Dfa | None, schema: Any) -> ir.Node:
        """A member whose name is any of ``names`` that are ``allowed``."""
        return self.member(regular.node(regular.intersection(names, allowed) if allowed else names), schema)


def _counted(
    members: dict[str, ir.Node], required: set[str], other: ir.Node | None, low: int, high: int | None
) -> ir.Node:
    """Members in order, between ``low`` and ``high`` of them: a node a place in the order and a count."""
    top = low if high is None else high
    if len(members) * (top + 1) > MAX_COUNTED:
        raise ConstraintTooComplex(
            "minProperties and maxProperties are too large for arguments written as tags; lower them"
        )
    width = top + 1
    edges: list[tuple[int, ir.Node, int]] = []
    last = len(members) * width
    for place, (name, part) in enumerate(members.items()):
        for count in range(width):
            here = place * width + count
            more = count + 1 if count < top else top if high is None else -1
            if more >= 0:
                edges.append((here, part, (place + 1) * width + more))
            if name not in required:
                edges.append((here, ir.EMPTY, here + width))
    if other is not None:
        edges += [(last + count, other, last + count + 1) for count in range(top)]
        if high is None:
            edges.append((last + top, other, last + top))
    return ir.Graph(tuple(edges), frozenset(last + count for count in range(low, width)))
