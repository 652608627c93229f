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
    """Numbers sub-schemas by what they say. The documents outlive it, and do not change."""

    def __init__(self) -> None:
        self._known: dict[int, object] = {}
        self._numbers: dict[object, int] = {}

    def key(self, schema: dict[str, Any]) -> object:
        """The same key for schemas that say the same."""
        found = self._known.get(id(schema))
        return self._object(schema, 0) if found is None else found

    def _value(self, value: Any, depth: int) -> object:
        """The key of a value: a text itself, an object its number, other scalars by how they are written."""
        if isinstance(value, str):
            return value
        if isinstance(value, dict):
            found = self._known.get(id(value))
            return self._object(value, depth) if found is None else found
        if isinstance(value, list):
            return tuple([self._value(item, depth + 1) for item in value])
        return None, repr(value)

    def _object(self, schema: dict[str, Any], depth: int) -> object:
        if depth > _MAX_DEPTH:
            found: object = ("same object", id(schema))
        else:
            parts: list[object] = []
            for keyword, value in schema.items():
                if keyword in _ANNOTATIONS:
                    continue
                inner: object = value
                if type(value) is not str:
                    if keyword in _MAPS and type(value) is dict:
                        members: list[object] = []
                        for name, item in value.items():
                            members.append(name)
                            members.append(self._value(item, depth + 1))
                        inner = tuple(members)
                    elif keyword in _VALUES:
                        inner = None, repr(value)
                    else:
                        inner = self._value(value, depth + 1)
                parts.append(keyword)
                parts.append(inner)
            found = self._numbers.setdefault(tuple(parts), len(self._numbers))
        self._known[id(schema)] = found
        return found
