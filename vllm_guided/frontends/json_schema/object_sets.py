"""Intersection, complement and quick disjointness of shapes of objects.

In and out: :class:`~.shapes.Objects`. The order of properties is the left shape's, then what the right
one adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vllm_guided.frontends.json_schema import strings as string_sets
from vllm_guided.frontends.json_schema.shapes import EVERYTHING, NOTHING, Member, Objects, Term
from vllm_guided.frontends.json_schema.strings import Strings
from vllm_guided.frontends.json_schema.terms import InProgress

if TYPE_CHECKING:
    from vllm_guided.frontends.json_schema.algebra import Algebra

_FREE = ((string_sets.ANY, EVERYTHING),)


def other_term(others: tuple[tuple[Strings, Term], ...], name: str) -> Term:
    """What an undeclared ``name`` may hold."""
    for names, term in others:
        if names == string_sets.ANY or string_sets.accepts(names, name):
            return term
    return NOTHING


def meet_names(left: Strings, right: Strings) -> Strings | None:
    """The names in both classes; ``None`` if there are none."""
    both = string_sets.intersect(left, right)
    if both is None or both in (left, right):
        return both
    return None if string_sets.is_empty(both) else both


def intersect(algebra: Algebra, left: Objects, right: Objects) -> Objects | None:
    """The objects in both; ``None`` if that is plainly nothing."""
    if left == right:
        return left
    maximum = left.maximum if right.maximum is None else right.maximum
    if left.maximum is not None and maximum is not None:
        maximum = min(left.maximum, maximum)
    minimum = max(left.minimum, right.minimum)
    required = left.required | right.required
    if maximum is not None and (maximum < minimum or maximum < len(required)):
        return None
    both = algebra.terms.both
    mine, theirs = algebra.by_name(left.properties), algebra.by_name(right.properties)
    properties: list[tuple[str, Term]] = []
    narrowed: list[int] = []  # optional properties of which both sides say something
    free = right.others == _FREE
    for name, term in left.properties:
        other = theirs.get(name)
        if other is None:
            other = EVERYTHING if free else other_term(right.others, name)
            joint = term if other == EVERYTHING else both((term, other))
            changed = joint != term
        else:
            joint = term if other in (EVERYTHING, term) else both((term, other))
            changed = joint not in (term, other)
        if name in required:
            if joint == NOTHING or algebra.is_empty(joint):
                return None
        elif changed and joint != NOTHING:
            narrowed.append(len(properties))
        properties.append((name, joint))
    added = False
    free = left.others == _FREE
    for name, term in right.properties:
        if name in mine:
            continue
        added = True
        other = EVERYTHING if free else other_term(left.others, name)
        joint = term if other == EVERYTHING else both((other, term))
        if name in required:
            if joint == NOTHING or algebra.is_empty(joint):
                return None
        elif joint not in (term, NOTHING):
            narrowed.append(len(properties))
        properties.append((name, joint))
    for index in narrowed:
        name, term = properties[index]
        if _is_nothing(algebra, term):
            properties[index] = (name, NOTHING)
    if left.others == _FREE:
        others = right.others
    elif right.others == _FREE:
        others = left.others
    else:
        found: dict[tuple[Strings, Term], None] = {}
        for names, term in left.others:
            for other_names, other in right.others:
                joint = both((term, other))
                if joint == NOTHING:
                    continue
                met = meet_names(names, other_names)
                if met is not None:
                    found[(met, joint)] = None
        others = tuple(found)
    if not others and minimum > sum(1 for _, term in properties if term != NOTHING):
        return None
    some = tuple(dict.fromkeys(left.some + right.some))
    if some:
        settled = _settle(algebra, some, properties, required, others)
        if settled is None:
            return None
        some, properties, required = settled
    unordered = left.unordered | right.unordered
    if unordered:
        kept = [name for name in unordered if name in left.unordered or name not in mine]
        unordered = frozenset(name for name in kept if name in right.unordered or name not in theirs)
    return Objects(
        tuple(properties),
        required,
        others,
        minimum,
        maximum,
        some,
        unordered,
        _joined_runs(left, right, mine) if added else left.runs,
        left.evaluated_names | right.evaluated_names,
        tuple(dict.fromkeys(left.evaluated_others + right.evaluated_others)),
    )


def _is_nothing(algebra: Algebra, term: Term) -> bool:
    """Whether two schemas of an optional property contradict each other at first sight.

    Only their scalars are looked at: those decide which alternative it is, and cost little.
    """
    try:
        parts = [algebra.norm(part) for part in algebra.terms.entries[term].parts]
    except InProgress:
        return False
    if any(part.arrays or part.objects for part in parts):
        return False
    return algebra.is_empty(term)


def _joined_runs(left: Objects, right: Objects, mine: Mapping[str, Term]) -> tuple[int, ...]:
    """The runs of the intersection: the left's, then what is new of each of the right's."""
    runs = list(left.runs or (len(left.properties),))
    position = 0
    for length in right.runs or (len(right.properties),):
        run = right.properties[position : position + length]
        position += length
        runs.append(sum(1 for name, _ in run if name not in mine))
    runs = [length for length in runs if length]
    return tuple(runs) if len(runs) > 1 else ()


def _settle(
    algebra: Algebra,
    some: tuple[Member, ...],
    properties: list[tuple[str, Term]],
    required: frozenset[str],
    others: tuple[tuple[Strings, Term], ...],
) -> tuple[tuple[Member, ...], list[tuple[str, Term]], frozenset[str]] | None:
    """Leave out wanted members that are there anyway; where only one property can be it, require that."""
    left: list[Member] = []
    for member in some:
        both, names, term_of = algebra.terms.both, member.names, member.term
        if any(
            name in required
            and term != NOTHING
            and string_sets.accepts(names, name)
            and both((term, term_of)) == term
            for name, term in properties
        ):
            continue
        if others:
            left.append(member)
            continue
        fitting = [
            (index, both((term, term_of)))
            for index, (name, term) in enumerate(properties)
            if term != NOTHING and string_sets.accepts(names, name)
        ]
        fitting = [(index, joint) for index, joint in fitting if not algebra.is_empty(joint)]
        if not fitting:
            return None
        if len(fitting) > 1:
            left.append(member)
            continue
        index, joint = fitting[0]
        name = properties[index][0]
        properties = [*properties[:index], (name, joint), *properties[index + 1 :]]
        required = required | {name}
    return tuple(left), properties, required


def without_names(names: Strings, declared: list[str]) -> Strings | None:
    """The class of names less the declared ones."""
    if not declared:
        return names
    return meet_names(names, Strings(negative=(("in", tuple(declared)),)))


def uncovered(others: tuple[tuple[Strings, Term], ...]) -> list[Strings]:
    """Classes that together hold the names in none of ``others``."""
    rest = [string_sets.ANY]
    for names, _ in others:
        outside = string_sets.complement(names)
        met = [meet_names(part, piece) for part in rest for piece in outside]
        rest = [part for part in met if part is not None]
    return rest


def complement(algebra: Algebra, shape: Objects) -> list[Objects]:
    """Shapes that together hold every object outside.

    Properties with given values, which tell the branches of a oneOf apart, come first: what fails otherwise
    has them as they should be. So these shapes do not overlap, and taking away one branch after the other
    does not multiply.
    """
    marks = _marks(algebra, shape)
    found: list[Objects] = []
    held = Objects()
    for name, term in marks:
        fails = _failing(algebra, shape, name, term)
        found.append(
            fails._replace(
                properties=held.properties + fails.properties, required=held.required | fails.required
            )
        )
        held = held._replace(
            properties=(*held.properties, (name, term)), required=held.required | (shape.required & {name})
        )
    outside = _outside(algebra, shape, dict(marks))
    if not marks:
        return outside
    pieces = (intersect(algebra, held, piece) for piece in outside)
    return [*found, *(piece for piece in pieces if piece is not None)]


_MAX_MARKS = 3


def _marks(algebra: Algebra, shape: Objects) -> list[tuple[str, Term]]:
    """A few properties with given values, required ones first."""
    found = [(name, term) for name, term in shape.properties if algebra.terms.is_constant(term)]
    return sorted(found, key=lambda pair: pair[0] not in shape.required)[:_MAX_MARKS]


def _failing(algebra: Algebra, shape: Objects, name: str, term: Term) -> Objects:
    """The objects where this property is not as it should be."""
    other = ((name, algebra.terms.negation(term)),)
    # Absent, or there with another value: an optional property says both.
    return Objects(other) if name in shape.required else Objects(other, frozenset((name,)))


def _outside(algebra: Algebra, shape: Objects, marks: dict[str, Term]) -> list[Objects]:
    """The shapes of what fails beside the ``marks``."""
    negation = algebra.terms.negation
    found: list[Objects] = []
    for name, term in shape.properties:
        if name not in marks and (name in shape.required or term != EVERYTHING):
            found.append(_failing(algebra, shape, name, term))
    if shape.minimum > 0:
        found.append(Objects(maximum=shape.minimum - 1))
    if shape.maximum is not None:
        found.append(Objects(minimum=shape.maximum + 1))
    declared = [name for name, _ in shape.properties]
    classes = [(names, negation(term)) for names, term in shape.others if term != EVERYTHING]
    classes.extend((names, EVERYTHING) for names in uncovered(shape.others))
    for names, term in classes:
        free = without_names(names, declared)
        if free is not None:
            found.append(Objects(some=(Member(free, term),)))
    for names, term in shape.some:
        others = [(names, negation(term))] if term != EVERYTHING else []
        others.extend((outside, EVERYTHING) for outside in string_sets.complement(names))
        found.append(Objects(others=tuple(others)))
    return found


def plainly_disjoint(algebra: Algebra, left: Objects, right: Objects, depth: int = 0) -> bool:
    """Whether a required member tells the two apart at a glance."""
    mine, theirs = algebra.by_name(left.properties), algebra.by_name(right.properties)
    for name in left.required | right.required:
        a, b = mine.get(name), theirs.get(name)
        if a is None:
            a = other_term(left.others, name)
        if b is None:
            b = other_term(right.others, name)
        if a == NOTHING or b == NOTHING:
            return True
        if a == b or EVERYTHING in (a, b) or depth > 3:
            continue
        if algebra.is_empty(a) or algebra.is_empty(b):
            return True
        if _values_disjoint(algebra, a, b, depth):
            return True
    return False


def _values_disjoint(algebra: Algebra, left: Term, right: Term, depth: int) -> bool:
    try:
        a, b = algebra.norm(left), algebra.norm(right)
    except InProgress:
        return False
    if a.words & b.words or (a.numbers and b.numbers) or (a.arrays and b.arrays):
        return False
    for one in a.strings:
        for other in b.strings:
            if one.finite is None and other.finite is None:
                return False
            if string_sets.intersect(one, other) is not None:
                return False
    return all(plainly_disjoint(algebra, one, other, depth + 1) for one in a.objects for other in b.objects)
