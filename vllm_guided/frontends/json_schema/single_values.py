"""Sets that are a short list of values.

In: a term. Out: its values one by one, each as the normal forms that spell it; ``None`` where they are too
many or not listed. Numbers are equal however they are spelt, arrays item by item, objects in any order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

from vllm_guided.frontends.json_schema import canonical
from vllm_guided.frontends.json_schema.numbers import tidy
from vllm_guided.frontends.json_schema.shapes import FALSE, NOTHING, NULL, TRUE, Arrays, Norm, Objects, Term
from vllm_guided.frontends.json_schema.strings import Strings

if TYPE_CHECKING:
    from vllm_guided.frontends.json_schema.algebra import Algebra


class _NotListed(Exception):
    """There are too many values, or they cannot be told."""


def listed(algebra: Algebra, term: Term, limit: int) -> list[list[Norm]] | None:
    """The values of the term, equal ones together; ``None`` where they are no list, or above ``limit``."""
    found: dict[Hashable, list[Norm]] = {}
    try:
        for key, norm in _values(algebra, algebra.norm(term), limit):
            spelt = found.setdefault(key, [])
            if norm not in spelt:
                spelt.append(norm)
            if len(found) > limit:
                return None
    except _NotListed:
        return None
    return list(found.values())


def _values(algebra: Algebra, norm: Norm, limit: int) -> Iterator[tuple[Hashable, Norm]]:
    for bit in (NULL, FALSE, TRUE):
        if norm.words & bit:
            yield ("word", bit), Norm(words=bit)
    for numbers in norm.numbers:
        points = canonical.number_values(numbers, limit)
        if points is None:
            raise _NotListed
        for point in points:
            one = tidy(numbers._replace(low=point, low_open=False, high=point, high_open=False))
            if one is not None:
                yield ("number", point), Norm(numbers=(one,))
    for strings in norm.strings:
        texts = canonical.string_values(strings, limit)
        if texts is None:
            raise _NotListed
        for text in texts:
            yield ("string", text), Norm(strings=(Strings(finite=(text,)),))
    for array in norm.arrays:
        yield _array_key(algebra, array), Norm(arrays=(array,))
    for shape in norm.objects:
        yield _object_key(algebra, shape), Norm(objects=(shape,))


def _key(algebra: Algebra, term: Term) -> Hashable:
    values = list(_values(algebra, algebra.norm(term), 1))
    if len(values) != 1:
        raise _NotListed
    return values[0][0]


def _array_key(algebra: Algebra, shape: Arrays) -> Hashable:
    if not len(shape.prefix) == shape.minimum == shape.maximum or shape.contains or shape.unique:
        raise _NotListed
    return ("array", *(_key(algebra, term) for term in shape.prefix))


def _object_key(algebra: Algebra, shape: Objects) -> Hashable:
    names = {name for name, term in shape.properties if term != NOTHING}
    if shape.others or shape.some or shape.required != names or shape.minimum > len(names):
        raise _NotListed
    return "object", frozenset(
        (name, _key(algebra, term)) for name, term in shape.properties if name in names
    )
