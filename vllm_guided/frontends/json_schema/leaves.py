"""Rules of strings and numbers with conditions, by what their schemas say: other schemas have them, too."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from vllm_guided.grammar import ir

LEAVES_KEPT = 4_096
LEAF_BYTES = 24 << 20
STRING_KEYWORDS = frozenset(("minLength", "maxLength", "pattern", "format", "contentEncoding"))
LEAF_KEYWORDS = frozenset(
    (
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *STRING_KEYWORDS,
    )
)
_READ = LEAF_KEYWORDS | {"type"}

LeafKey = tuple[object, ...]


class Leaves:
    """Shared rules, which refer to none, by ``leaf_key`` and whatever else decides what they are.

    Those that were asked for least recently go when there are too many, or more than ``max_bytes``.
    """

    def __init__(self, entries: int, max_bytes: int) -> None:
        self.entries = entries
        self.max_bytes = max_bytes
        self.held = 0
        self._rules: OrderedDict[LeafKey, tuple[ir.Rule, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rules)

    def find(self, key: LeafKey) -> ir.Rule | None:
        """The rule that is known by ``key``."""
        with self._lock:
            found = self._rules.get(key)
            if found is None:
                return None
            self._rules.move_to_end(key)
            return found[0]

    def keep(self, key: LeafKey, rule: ir.Rule, size: int) -> None:
        """Remember a rule of about ``size`` bytes."""
        with self._lock:
            if key in self._rules:
                return
            self._rules[key] = rule, size
            self.held += size
            while len(self._rules) > self.entries or (self.held > self.max_bytes and len(self._rules) > 1):
                self.held -= self._rules.popitem(last=False)[1][1]


LEAVES = Leaves(LEAVES_KEPT, LEAF_BYTES)


def leaf_key(schema: Mapping[str, Any]) -> LeafKey:
    """What a schema says of strings and numbers; the same number in two spellings is two things."""
    return tuple(sorted([(keyword, repr(value)) for keyword, value in schema.items() if keyword in _READ]))
