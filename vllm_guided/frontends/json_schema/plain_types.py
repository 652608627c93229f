"""What can be told of a schema at a glance: where its reference leads, and the types of its values."""

from __future__ import annotations

from typing import Any

from vllm_guided.frontends.json_schema.documents import follow
from vllm_guided.frontends.json_schema.keywords import TYPES
from vllm_guided.frontends.json_schema.resources import Path, Resource, value_at

MAX_REFERENCES = 64
"""More references in a row are followed by those who notice circles."""


def local_path(resource: Resource, reference: Any) -> Path | None:
    """The path that a JSON pointer into the same document leads to; ``None`` for every other reference."""
    if type(reference) is not str or not (reference == "#" or reference.startswith("#/")):
        return None
    return follow(resource, reference[1:])


def types_of(resource: Resource, schema: Any) -> frozenset[str] | None:
    """The types that the values of a schema may have, where ``type`` says so; integers are numbers."""
    for _ in range(MAX_REFERENCES):
        if type(schema) is not dict:
            return None
        if "$ref" not in schema:
            named = schema.get("type")
            kinds = named if type(named) is list else [named]
            if not all(type(kind) is str and kind in TYPES for kind in kinds):
                return None
            return frozenset("number" if kind == "integer" else str(kind) for kind in kinds)
        path = local_path(resource, schema["$ref"])
        if path is None:
            return None
        schema = value_at(resource.schema, path)
    return None
