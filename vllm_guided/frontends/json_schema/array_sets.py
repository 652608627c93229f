"""Intersection and complement of shapes of arrays.

In and out: :class:`~.shapes.Arrays`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_guided.frontends.json_schema.shapes import EVERYTHING, NOTHING, Arrays, Contains

if TYPE_CHECKING:
    from vllm_guided.frontends.json_schema.algebra import Algebra


def tidy(algebra: Algebra, shape: Arrays) -> Arrays | None:
    """The shape without items that cannot be; ``None`` if it is plainly empty."""
    prefix, maximum = shape.prefix, shape.maximum
    for index, term in enumerate(prefix):
        if term == NOTHING or (index < shape.minimum and algebra.is_empty(term)):
            maximum = index if maximum is None else min(maximum, index)
            break
    else:
        if shape.rest == NOTHING:
            maximum = len(prefix) if maximum is None else min(maximum, len(prefix))
    if maximum is not None:
        if maximum < shape.minimum or (shape.repeated and maximum < 2):
            return None
        prefix = prefix[:maximum]
    rest = NOTHING if maximum is not None and maximum <= len(prefix) else shape.rest
    if rest != NOTHING and shape.minimum > len(prefix) and algebra.is_empty(rest):
        return None
    for term, minimum, most, _ in shape.contains:
        if (most is not None and most < minimum) or (minimum > 0 and algebra.is_empty(term)):
            return None
    return shape._replace(prefix=prefix, rest=rest, maximum=maximum)


def intersect(algebra: Algebra, left: Arrays, right: Arrays) -> Arrays | None:
    """The arrays in both; ``None`` if that is plainly nothing."""
    if left == right:
        return left
    unique, repeated = left.unique or right.unique, left.repeated or right.repeated
    if unique and repeated:
        return None
    both = algebra.terms.both
    length = max(len(left.prefix), len(right.prefix))
    mine = left.prefix + (left.rest,) * (length - len(left.prefix))
    theirs = right.prefix + (right.rest,) * (length - len(right.prefix))
    maximum = left.maximum if right.maximum is None else right.maximum
    if left.maximum is not None and maximum is not None:
        maximum = min(left.maximum, maximum)
    evaluated = None
    if left.evaluated is not None and right.evaluated is not None:
        evaluated = max(left.evaluated, right.evaluated)
    return tidy(
        algebra,
        Arrays(
            tuple(both(pair) for pair in zip(mine, theirs, strict=True)),
            both((left.rest, right.rest)),
            max(left.minimum, right.minimum),
            maximum,
            tuple(dict.fromkeys(left.contains + right.contains)),
            unique,
            evaluated,
            tuple(dict.fromkeys(left.matched + right.matched)),
            repeated,
        ),
    )


def complement(algebra: Algebra, shape: Arrays) -> list[Arrays]:
    """Shapes that together hold every array outside."""
    negation = algebra.terms.negation
    found: list[Arrays] = []
    if shape.unique and (shape.maximum is None or shape.maximum > 1):
        found.append(Arrays(repeated=True, minimum=2))
    if shape.repeated:
        found.append(Arrays(unique=True))
    for index, term in enumerate(shape.prefix):
        if term != EVERYTHING:
            found.append(Arrays(prefix=(EVERYTHING,) * index + (negation(term),), minimum=index + 1))
    length = len(shape.prefix)
    if shape.rest == NOTHING:
        if shape.maximum is None or shape.maximum > length:
            found.append(Arrays(minimum=length + 1))
    elif shape.rest != EVERYTHING:
        found.append(Arrays(contains=(Contains(negation(shape.rest), 1, None, length),)))
    if shape.minimum > 0:
        found.append(Arrays(maximum=shape.minimum - 1))
    if shape.maximum is not None:
        found.append(Arrays(minimum=shape.maximum + 1))
    for term, minimum, maximum, offset in shape.contains:
        if minimum > 0:
            found.append(Arrays(contains=(Contains(term, 0, minimum - 1, offset),)))
        if maximum is not None:
            found.append(Arrays(contains=(Contains(term, maximum + 1, None, offset),)))
    return [kept for kept in (tidy(algebra, item) for item in found) if kept is not None]
