"""Which sub-schemas say the same, annotations aside.

In: sub-schemas of one document. Out: keys, equal where the schemas are equal but for annotations. Each
object is looked at once. Equal schemas at different places then share their normal form and rules, and
"this but not that" is seen to be nothing where both are the same.
"""

from __future__ import annotations

from typing import Any

_ANNOTATIONS = frozenset(
    (
        "title",
        "description",
        "default",
        "examples",
        "example",
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
    )
)
_MAPS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
)
_VALUES = frozenset(("enum", "const"))
_MAX_DEPTH = 60


class Contents:
    """Numbers sub-schemas by what they say."""

    def __init__(self) -> None:
        self._known: dict[int, object] = {}
        self._numbers: dict[object, int] = {}
        self._kept: list[object] = []

    def key(self, schema: dict[str, Any]) -> object:
        """The same key for schemas that say the same."""
        return self._schema(schema, 0)

    def _schema(self, schema: Any, depth: int) -> object:
        """The key of a value: a text itself, an object its number, other scalars by how they are written."""
        if isinstance(schema, str):
            return schema
        if not isinstance(schema, dict):
            if isinstance(schema, list):
                return tuple([self._schema(item, depth + 1) for item in schema])
            return None, repr(schema)
        found = self._known.get(id(schema))
        if found is not None:
            return found
        if depth > _MAX_DEPTH:
            found = ("same object", id(schema))
        else:
            parts: list[object] = []
            for keyword, value in schema.items():
                if keyword in _ANNOTATIONS:
                    continue
                inner: object = value
                if type(value) is not str:
                    if keyword in _MAPS and isinstance(value, dict):
                        members: list[object] = []
                        for name, item in value.items():
                            members.append(name)
                            members.append(self._schema(item, depth + 1))
                        inner = tuple(members)
                    elif keyword in _VALUES:
                        inner = None, repr(value)
                    else:
                        inner = self._schema(value, depth + 1)
                parts.append(keyword)
                parts.append(inner)
            content = tuple(parts)
            found = self._numbers.setdefault(content, len(self._numbers))
        self._known[id(schema)] = found
        self._kept.append(schema)
        return found
