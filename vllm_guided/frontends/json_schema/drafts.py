"""What the drafts say of identifiers: which keywords give a schema its name, and where sub-schemas are.

In: one schema object and its draft. Out: what it is called. Sources: the core documents, section 7.2 of
draft 4 and section 8.2 of the later ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vllm_guided.errors import InvalidConstraint, UnsupportedConstraint

DRAFTS = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}
LATEST = 2020
_OLD = ("draft-00", "draft-01", "draft-02", "draft-03")

RECURSIVE = ""
"""The name under which ``$recursiveAnchor`` stands among the dynamic anchors (an anchor is never empty)."""

_ONE = frozenset(
    (
        *(
            "additionalItems",
            "additionalProperties",
            "contains",
            "contentSchema",
            "else",
            "if",
            "items",
            "not",
        ),
        *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    )
)
_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_MAPS = frozenset(
    ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
)


def draft_of(schema: Any, default: int, where: str = "#") -> int:
    """The draft that ``$schema`` names; ``default`` where there is none.

    Raises:
        InvalidConstraint, UnsupportedConstraint: not a name, or that of a draft before 4.
    """
    name = schema.get("$schema") if isinstance(schema, dict) else None
    if name is None:
        return default
    if not isinstance(name, str):
        raise InvalidConstraint("$schema: must be a string", where=f"{where}/$schema")
    plain = name.rstrip("#")
    for spelling in (plain, plain.replace("https://", "http://"), plain.replace("http://", "https://")):
        if spelling in DRAFTS:
            return DRAFTS[spelling]
    if any(old in name for old in _OLD):
        raise UnsupportedConstraint(
            f"$schema: {name!r} is not one of the drafts 4, 6, 7, 2019-09 and 2020-12",
            where=f"{where}/$schema",
        )
    return default


def identifier(schema: dict[str, Any], draft: int, *, lenient: bool, overridden: bool) -> str | None:
    """What the schema calls itself, as it is written; ``None`` if nothing.

    Args:
        schema: the object.
        draft: of the schema.
        lenient: take ``id`` and ``$id`` whatever the draft.
        overridden: ``$ref`` makes everything beside it void, as up to draft 7.
    """
    keywords = ("$id", "id") if lenient else ("id" if draft == 4 else "$id",)
    for keyword in keywords:
        name = schema.get(keyword)
        if isinstance(name, str) and name not in ("", "#"):
            if "$ref" in schema and (overridden or keyword == "id"):
                return None
            return name
    return None


def anchors(schema: dict[str, Any], draft: int) -> Iterator[tuple[str, bool]]:
    """The anchors of a schema of 2019-09 or later, each with whether it is dynamic."""
    if draft >= 2019:
        for keyword, dynamic in (("$anchor", False), ("$dynamicAnchor", True)):
            name = schema.get(keyword)
            if isinstance(name, str) and name and (draft >= 2020 or not dynamic):
                yield name, dynamic


def sub_schemas(schema: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any]]]:
    """The objects below ``schema`` that some draft reads as schemas, with the keys that lead there."""
    for keyword, value in schema.items():
        if isinstance(value, dict):
            if keyword in _ONE:
                yield (keyword,), value
            elif keyword in _MAPS:
                for name, item in value.items():
                    if isinstance(item, dict):
                        yield (keyword, name), item
        elif isinstance(value, list) and keyword in _LISTS:
            for index, item in enumerate(value):
                if isinstance(item, dict):
                    yield (keyword, index), item
