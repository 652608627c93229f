"""Labels of edges, as int32: ``EPSILON``, bytes ``low | high << 8``, ``CALL | rule``, ``TOKEN | symbol``."""

from __future__ import annotations

EPSILON = -1
CALL = 1 << 24
TOKEN = 1 << 28
#: In a call's label: only non-empty strings of the rule are meant (see left_recursion.py).
STRICT = 1 << 23
RULE_MASK = STRICT - 1
#: In place of a call's target: the calling frame has nothing left to do.
TAIL = -1
