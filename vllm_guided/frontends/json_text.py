"""JSON texts as constraints: nothing of them is dropped.

In: what ``json.loads`` hands to its hook. Out: the object, or an error where a member would be lost.
"""

from __future__ import annotations

from typing import Any

from vllm_guided.errors import InvalidConstraint


def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these members; an ``object_pairs_hook`` of ``json.loads``.

    Raises:
        InvalidConstraint: a name is there twice, of which JSON readers would keep one or the other.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidConstraint(f"one object of the JSON text names {twice!r} twice; leave one out")
    return found
