"""JSON objects whose members come in any order: ``any_order`` of a ``json_schema`` format.

Closed objects of a few declared properties are written member by member, every one at most once and the
required ones once. What is open, or has too many, keeps the declared order, which is one of the orders.
"""

from __future__ import annotations

import json
from typing import Any

from vllm_guided.errors import UnsupportedConstraint
from vllm_guided.frontends.tags.members import MAX_ANY_ORDER, OBJECT_KEYWORDS
from vllm_guided.frontends.tags.values import Values
from vllm_guided.grammar import ir

_PLAIN = OBJECT_KEYWORDS - {"patternProperties", "minProperties", "maxProperties", "propertyNames"}


def json_node(values: Values, schema: Any, depth: int = 0) -> ir.Node:
    """A JSON value of the schema, the members of its closed objects in any order."""
    target = values.schemas.resolve(schema) if depth < 20 and not _has_siblings(schema) else schema
    if depth >= 20 or not _is_plain(target):
        return values.ordered_json(schema)
    properties, required = target.get("properties", {}), set(target.get("required", []))
    blank = values.blank()
    members = [
        ir.sequence(
            ir.text(json.dumps(name, ensure_ascii=False)),
            blank,
            ir.text(":"),
            blank,
            json_node(values, inner, depth + 1),
        )
        for name, inner in properties.items()
    ]
    names = list(properties)
    comma = ir.sequence(blank, ir.text(","), blank)
    edges: list[tuple[int, ir.Node, int]] = []
    whole = 1 << len(names)
    for done in range(whole):
        for place, member in enumerate(members):
            if not done >> place & 1:
                edges.append((done, ir.sequence(comma, member) if done else member, done | 1 << place))
    needed = sum(1 << place for place, name in enumerate(names) if name in required)
    body = ir.Graph(tuple(edges), frozenset(done for done in range(whole) if done & needed == needed))
    return ir.sequence(ir.text("{"), blank, body, blank, ir.text("}"))


def _has_siblings(schema: Any) -> bool:
    return isinstance(schema, dict) and "$ref" in schema and len(schema) > 1


def _is_plain(schema: Any) -> bool:
    if not isinstance(schema, dict) or schema.get("type") != "object" or set(schema) - _PLAIN:
        return False
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise UnsupportedConstraint("properties is an object, required an array")
    closed = schema.get("additionalProperties") is False and set(required) <= set(properties)
    return closed and 1 < len(properties) <= MAX_ANY_ORDER
