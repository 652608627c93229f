"""Sets of given JSON values: ``enum`` and ``const``.

In: JSON values. Out: normal forms. Arrays and objects hold constants as terms, so white space inside them
stays as free as anywhere. Numbers are compared as numbers (``1`` and ``1.0`` are equal), words and numbers
never are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from vllm_guided.errors import InvalidConstraint
from vllm_guided.frontends.json_schema.documents import Place
from vllm_guided.frontends.json_schema.numbers import Numbers, exact, tidy
from vllm_guided.frontends.json_schema.shapes import (
    FALSE,
    NOTHING,
    NULL,
    TRUE,
    Arrays,
    Norm,
    Objects,
    Term,
)
from vllm_guided.frontends.json_schema.strings import Strings

if TYPE_CHECKING:
    from vllm_guided.frontends.json_schema.algebra import Algebra


def constant_norm(algebra: Algebra, value: Any, place: Place) -> Norm:
    """Exactly ``value``."""
    return enumeration_norm(algebra, [value], place)


def enumeration_norm(algebra: Algebra, values: list[Any], place: Place) -> Norm:
    """Exactly the ``values``."""
    words = 0
    numbers: dict[Numbers, None] = {}
    strings: dict[str, None] = {}
    arrays: dict[Arrays, None] = {}
    objects: dict[Objects, None] = {}
    for value in values:
        if isinstance(value, str):
            strings[value] = None
        elif value is None:
            words |= NULL
        elif isinstance(value, bool):
            words |= TRUE if value else FALSE
        elif isinstance(value, int | float):
            if not math.isfinite(value):
                raise InvalidConstraint(f"{value!r} is not a JSON number", where=place.pointer)
            point = exact(value)
            numbers[tidy(Numbers(low=point, high=point)) or Numbers()] = None
        elif isinstance(value, list):
            items = tuple(_constant(algebra, item, place) for item in value)
            arrays[Arrays(items, NOTHING, len(items), len(items))] = None
        elif isinstance(value, dict):
            members = tuple((name, _constant(algebra, item, place)) for name, item in value.items())
            objects[Objects(members, frozenset(value), ())] = None
        else:
            raise InvalidConstraint(f"{value!r} is not a JSON value", where=place.pointer)
    finite = (Strings(finite=tuple(strings)),) if strings else ()
    return Norm(words, tuple(numbers), finite, tuple(arrays), tuple(objects))


def _constant(algebra: Algebra, value: Any, place: Place) -> Term:
    return algebra.terms.constant(repr(value), value, place)
