"""Rules of strings and numbers with conditions, by what their schemas say: other schemas have them, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_guided.bounded import Meter
from vllm_guided.grammar import ir

LEAVES_KEPT = 4_096
STRING_KEYWORDS = frozenset(("minLength", "maxLength", "pattern", "format", "contentEncoding"))
LEAF_KEYWORDS = frozenset(
    (
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *STRING_KEYWORDS,
    )
)
_READ = LEAF_KEYWORDS | {"type"}
_meter = Meter(16 << 20)

LEAVES: dict[tuple[object, ...], ir.Rule] = {}
"""Shared rules, which refer to none, by ``leaf_key`` and whatever else decides what they are."""


def leaf_key(schema: Mapping[str, Any]) -> tuple[object, ...]:
    """What a schema says of strings and numbers; the same number in two spellings is two things."""
    return tuple([(keyword, repr(value)) for keyword, value in schema.items() if keyword in _READ])


def keep_leaf(key: tuple[object, ...], rule: ir.Rule, size: int) -> None:
    """Remember a rule of about ``size`` bytes; all are forgotten when there are too many."""
    if not _meter.takes(size) or len(LEAVES) >= LEAVES_KEPT:
        LEAVES.clear()
    LEAVES[key] = rule
