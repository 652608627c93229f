"""The keywords that put schemas together at one place of the instance.

In: a place and what its own keywords leave. Out: that set, less what ``$ref``, ``allOf``, ``anyOf``,
``oneOf``, ``if``, ``dependentRequired``, ``dependentSchemas``, ``dependencies`` and ``not`` take away.
``oneOf`` is exact: of each branch only what is in no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.json_schema.documents import Place
from vllm_guided.frontends.json_schema.object_sets import other_term
from vllm_guided.frontends.json_schema.shapes import ANY, EMPTY, EVERYTHING, NOTHING, Norm, Objects, Term
from vllm_guided.frontends.json_schema.terms import InProgress

if TYPE_CHECKING:
    from vllm_guided.frontends.json_schema.algebra import Algebra

_MAX_JOINT = 8
"""Branches of an anyOf whose every combination is looked at for unevaluated members."""


def _branches(algebra: Algebra, place: Place, keyword: str, annotate: bool) -> list[Norm]:
    value = place.schema[keyword]
    if not isinstance(value, list) or not value:
        raise place.invalid(keyword, "must be a list of schemas that is not empty")
    child = algebra.terms.child
    return [algebra.norm(child(place, keyword, index), annotate) for index in range(len(value))]


def combine(algebra: Algebra, place: Place, norm: Norm, annotate: bool) -> Norm:
    """``norm`` within what the combining keywords allow."""
    schema = place.schema
    child = algebra.terms.child
    for keyword in ("$ref", "$recursiveRef", "$dynamicRef"):
        if keyword in schema and (keyword == "$ref" or place.draft >= 2019):
            target = place.refer(keyword) if keyword == "$ref" else place.refer_dynamically(keyword)
            norm = algebra.intersection(norm, algebra.norm(algebra.terms.place(target), annotate))
    if "allOf" in schema:
        for branch in _branches(algebra, place, "allOf", annotate):
            norm = algebra.intersection(norm, branch)
    if "anyOf" in schema:
        norm = algebra.intersection(
            norm, _any_of(algebra, _branches(algebra, place, "anyOf", annotate), annotate)
        )
    if "oneOf" in schema:
        norm = _one_of(algebra, norm, _branches(algebra, place, "oneOf", annotate))
    if "if" in schema and place.draft >= 7 and ("then" in schema or "else" in schema or annotate):
        condition = algebra.norm(child(place, "if"), annotate)
        then = algebra.norm(child(place, "then"), annotate) if "then" in schema else ANY
        other = algebra.norm(child(place, "else"), annotate) if "else" in schema else ANY
        yes = algebra.intersection(algebra.intersection(norm, condition), then)
        no = algebra.intersection(algebra.difference(norm, condition), other)
        norm = algebra.union(yes, no)
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        if keyword in schema and (keyword == "dependencies" or place.draft >= 2019):
            norm = _dependencies(algebra, place, norm, keyword, annotate)
    if "not" in schema:
        norm = algebra.difference(norm, algebra.norm(child(place, "not")))
    return norm


def _any_of(algebra: Algebra, branches: list[Norm], annotate: bool) -> Norm:
    result = EMPTY
    if annotate:
        # Every branch that holds says what is evaluated, so the joint cases come first.
        if len(branches) > _MAX_JOINT:
            raise ConstraintTooComplex(
                f"anyOf with more than {_MAX_JOINT} branches below unevaluatedProperties or unevaluatedItems"
            )
        joint = [branches[0]]
        for branch in branches[1:]:
            joint.extend([algebra.intersection(known, branch) for known in joint])
            joint.append(branch)
        branches = joint
        for branch in branches:
            result = _plain_union(result, branch)
        return result
    for branch in branches:
        result = algebra.union(result, branch)
    return result


def _plain_union(left: Norm, right: Norm) -> Norm:
    """A union that keeps shapes with different annotations apart."""
    return Norm(
        left.words | right.words,
        tuple(dict.fromkeys(left.numbers + right.numbers)),
        tuple(dict.fromkeys(left.strings + right.strings)),
        tuple(dict.fromkeys(left.arrays + right.arrays)),
        tuple(dict.fromkeys(left.objects + right.objects)),
    )


def _one_of(algebra: Algebra, norm: Norm, branches: list[Norm]) -> Norm:
    result = EMPTY
    apart = _told_apart(algebra, branches)
    for index, branch in enumerate(branches):
        mine = algebra.intersection(norm, branch)
        for other_index, other in enumerate(branches):
            if other_index != index and mine != EMPTY and not apart:
                mine = algebra.difference(mine, other)
        result = algebra.union(result, mine)
    return result


def _told_apart(algebra: Algebra, branches: list[Norm]) -> bool:
    """Whether all branches are different strings, or objects that a required property of such tells apart."""
    texts = [text for branch in branches for shape in branch.strings for text in shape.finite or ()]
    if len(set(texts)) == len(texts) and all(
        branch._replace(strings=()) == EMPTY and all(shape.finite is not None for shape in branch.strings)
        for branch in branches
    ):
        return True
    if any(branch._replace(objects=()) != EMPTY or not branch.objects for branch in branches):
        return False
    shapes = [[dict(shape.properties) for shape in branch.objects] for branch in branches]
    names = frozenset.intersection(*(shape.required for branch in branches for shape in branch.objects))
    for name in sorted(names):
        seen: set[str] = set()
        for branch in shapes:
            values: set[str] = set()
            for properties in branch:
                found = _finite_strings(algebra, properties[name])
                if found is None:
                    break
                values.update(found)
            else:
                if seen.isdisjoint(values):
                    seen |= values
                    continue
            break
        else:
            return True
    return False


def _finite_strings(algebra: Algebra, term: Term) -> tuple[str, ...] | None:
    """The strings of a term that holds nothing else, and finitely many."""
    try:
        norm = algebra.norm(term)
    except InProgress:
        return None
    if norm._replace(strings=()) != EMPTY or len(norm.strings) != 1:
        return None
    return norm.strings[0].finite


def _dependencies(algebra: Algebra, place: Place, norm: Norm, keyword: str, annotate: bool) -> Norm:
    value: Any = place.schema[keyword]
    if not isinstance(value, dict):
        raise place.invalid(keyword, "must be an object")
    for name, needs in value.items():
        if isinstance(needs, list) and keyword != "dependentSchemas":
            if not all(isinstance(other, str) for other in needs):
                raise place.invalid(keyword, f"{name!r} must list names")
            present = [name, *(other for other in needs if other != name)]
            with_name = Norm(
                objects=(Objects(tuple((each, EVERYTHING) for each in present), frozenset(present)),)
            )
        else:
            with_name = Norm(objects=(Objects(((name, EVERYTHING),), frozenset((name,))),))
            inner = algebra.norm(algebra.terms.child(place, keyword, name), annotate)
            with_name = algebra.intersection(with_name, inner)
        absent = ANY._replace(objects=(Objects(((name, NOTHING),)),))
        untouched = [shape for shape in norm.objects if _never_has(shape, name)]
        touched = tuple(shape for shape in norm.objects if shape not in untouched)
        part = Norm(objects=touched)
        yes = algebra.intersection(part, with_name)
        no = algebra.intersection(part, absent)
        rest = norm._replace(objects=tuple(untouched))
        norm = algebra.union(rest, algebra.union(no, yes))
    return norm


def _never_has(shape: Objects, name: str) -> bool:
    return dict(shape.properties).get(name, other_term(shape.others, name)) == NOTHING
