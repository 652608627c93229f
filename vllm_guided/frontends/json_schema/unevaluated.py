"""``unevaluatedProperties`` and ``unevaluatedItems``.

In: the normal form of a place, annotated with what its keywords looked at. Out: the normal form in which the
rest is held to the ``unevaluated...`` schema. Where branches hold together the shapes of their
intersection carry the annotations of both, so each shape can be closed by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_guided.frontends.json_schema import array_sets
from vllm_guided.frontends.json_schema import strings as string_sets
from vllm_guided.frontends.json_schema.documents import Place
from vllm_guided.frontends.json_schema.object_sets import meet_names
from vllm_guided.frontends.json_schema.shapes import NOTHING, Arrays, Norm, Objects, Term
from vllm_guided.frontends.json_schema.strings import Strings

if TYPE_CHECKING:
    from vllm_guided.frontends.json_schema.algebra import Algebra


def forget(norm: Norm) -> Norm:
    """Without annotations."""
    arrays = dict.fromkeys(shape._replace(evaluated=0, matched=()) for shape in norm.arrays)
    objects = dict.fromkeys(
        shape._replace(evaluated_names=frozenset(), evaluated_others=()) for shape in norm.objects
    )
    return norm._replace(arrays=tuple(arrays), objects=tuple(objects))


def close(algebra: Algebra, place: Place, norm: Norm) -> Norm:
    """``norm`` with its unevaluated members and items held to the place's schemas."""
    schema = place.schema
    if "unevaluatedProperties" in schema:
        term = algebra.terms.place(place.child("unevaluatedProperties"))
        closed = [_close_object(algebra, shape, term) for shape in norm.objects]
        norm = norm._replace(objects=tuple(dict.fromkeys(shape for shape in closed if shape is not None)))
    if "unevaluatedItems" in schema:
        term = algebra.terms.place(place.child("unevaluatedItems"))
        arrays = [_close_array(algebra, shape, term) for shape in norm.arrays]
        norm = norm._replace(arrays=tuple(dict.fromkeys(shape for shape in arrays if shape is not None)))
    return norm


def _close_object(algebra: Algebra, shape: Objects, term: Term) -> Objects | None:
    both = algebra.terms.both
    properties: list[tuple[str, Term]] = []
    for name, value in shape.properties:
        seen = name in shape.evaluated_names or any(
            string_sets.accepts(names, name) for names in shape.evaluated_others
        )
        held = value if seen else both((value, term))
        if name in shape.required and (held == NOTHING or algebra.is_empty(held)):
            return None
        properties.append((name, held))
    others: dict[tuple[Strings, Term], None] = {}
    for names, value in shape.others:
        rest: list[Strings] = [names]
        for seen_names in shape.evaluated_others:
            inside = meet_names(names, seen_names)
            if inside is not None:
                others[(inside, value)] = None
            outside = string_sets.complement(seen_names)
            met = [meet_names(part, piece) for part in rest for piece in outside]
            rest = [part for part in met if part is not None]
        held = both((value, term))
        if held != NOTHING:
            others.update(dict.fromkeys((part, held) for part in rest))
    return shape._replace(
        properties=tuple(properties), others=tuple(others), evaluated_others=(string_sets.ANY,)
    )


def _close_array(algebra: Algebra, shape: Arrays, term: Term) -> Arrays | None:
    if shape.evaluated is None:
        return shape
    terms = algebra.terms
    allowed = terms.either((term, *shape.matched))
    start = shape.evaluated
    length = max(start, len(shape.prefix))
    prefix = shape.prefix + (shape.rest,) * (length - len(shape.prefix))
    held = tuple(
        value if index < start else terms.both((value, allowed)) for index, value in enumerate(prefix)
    )
    closed = shape._replace(prefix=held, rest=terms.both((shape.rest, allowed)), evaluated=None)
    return array_sets.tidy(algebra, closed)
