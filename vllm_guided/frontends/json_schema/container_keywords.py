"""The keywords of arrays and objects that speak of their own items and members.

In: one place of the schema. Out: one shape each; ``None`` where nothing fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.json_schema import array_sets
from vllm_guided.frontends.json_schema import strings as string_sets
from vllm_guided.frontends.json_schema.documents import Place
from vllm_guided.frontends.json_schema.object_sets import meet_names, other_term
from vllm_guided.frontends.json_schema.scalar_keywords import count, pattern_atom
from vllm_guided.frontends.json_schema.shapes import EVERYTHING, NOTHING, Arrays, Contains, Objects, Term
from vllm_guided.frontends.json_schema.strings import Strings

if TYPE_CHECKING:
    from vllm_guided.frontends.json_schema.algebra import Algebra

MAX_NAME_CLASSES = 256


def read_arrays(algebra: Algebra, place: Place, annotate: bool) -> Arrays | None:
    """``items`` in its three forms, lengths, ``contains`` and ``uniqueItems``."""
    schema = place.schema
    child = algebra.terms.child
    prefix: tuple[Term, ...] = ()
    rest: Term = EVERYTHING
    evaluated: int | None = 0
    items = schema.get("items")
    if isinstance(items, list):
        prefix = tuple(child(place, "items", index) for index in range(len(items)))
        evaluated = len(prefix)
        if "additionalItems" in schema:
            rest = child(place, "additionalItems")
            evaluated = None
    else:
        if "prefixItems" in schema and place.draft >= 2020:
            if not isinstance(schema["prefixItems"], list):
                raise place.invalid("prefixItems", "must be a list of schemas")
            prefix = tuple(child(place, "prefixItems", i) for i in range(len(schema["prefixItems"])))
            evaluated = len(prefix)
        if "items" in schema:
            rest = child(place, "items")
            evaluated = None
    contains: tuple[Contains, ...] = ()
    if "contains" in schema and place.draft >= 6:
        least, most = 1, None
        if place.draft >= 2019:
            least, most = count(place, "minContains", 1) or 0, count(place, "maxContains")
        contains = (Contains(child(place, "contains"), least, most),)
    unique = schema.get("uniqueItems", False)
    if not isinstance(unique, bool):
        raise place.invalid("uniqueItems", "must be true or false")
    minimum, maximum = count(place, "minItems", 0), count(place, "maxItems")
    matched = tuple(item.term for item in contains) if annotate and place.draft >= 2020 else ()
    return array_sets.tidy(
        algebra,
        Arrays(prefix, rest, minimum or 0, maximum, contains, unique, evaluated if annotate else 0, matched),
    )


def _narrowed(names: Strings, condition: Strings) -> Strings | None:
    """The names of the class that fulfil one more condition; ``None`` if there are none."""
    both = string_sets.intersect(names, condition)
    if both is None or names == string_sets.ANY:
        return both
    known, other = string_sets.unbounded_automaton(names), string_sets.unbounded_automaton(condition)
    automaton = known.intersection(other)
    string_sets.remember(both, automaton)
    return None if automaton.is_empty() else both


def _classes(
    algebra: Algebra, place: Place, patterns: list[tuple[str, Term]], additional: Term
) -> list[tuple[Strings, list[Term]]]:
    """The names by which patterns they fulfil, with the terms of those."""
    classes: list[tuple[Strings, list[Term]]] = [(string_sets.ANY, [])]
    for position, (pattern, term) in enumerate(patterns):
        atom = pattern_atom(place, "patternProperties", pattern)
        inside, outside = Strings(positive=(atom,)), Strings(negative=(atom,))
        last = position == len(patterns) - 1 and additional == NOTHING
        split: list[tuple[Strings, list[Term]]] = []
        for names, terms in classes:
            algebra.step()
            within = _narrowed(names, inside)
            if within is not None:
                split.append((within, [*terms, term]))
            if last and not terms:
                continue  # names that no pattern takes are not allowed
            without = _narrowed(names, outside)
            if without is not None:
                split.append((without, terms))
        classes = split
        if len(classes) > MAX_NAME_CLASSES:
            raise ConstraintTooComplex(
                "patternProperties: the patterns overlap in too many ways", where=place.pointer
            )
    return classes


def read_objects(algebra: Algebra, place: Place, annotate: bool) -> Objects | None:
    """``properties`` and what may stand beside them, names, counts and ``required``."""
    schema = place.schema
    child = algebra.terms.child
    declared: dict[str, Term] = {}
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise place.invalid("properties", "must be an object of schemas")
    for name in properties:
        declared[name] = child(place, "properties", name)
    evaluated_names = frozenset(declared) if annotate else frozenset()
    evaluated_others: tuple[Strings, ...] = ()
    additional: Term = EVERYTHING
    if "additionalProperties" in schema:
        additional = child(place, "additionalProperties")
        evaluated_others = (string_sets.ANY,) if annotate else ()
    elif algebra.closed_objects and ("properties" in schema or "patternProperties" in schema):
        additional = NOTHING if "unevaluatedProperties" not in schema else EVERYTHING
    others: tuple[tuple[Strings, Term], ...] = (
        ((string_sets.ANY, additional),) if additional != NOTHING else ()
    )
    patterns = schema.get("patternProperties")
    if patterns is not None:
        if not isinstance(patterns, dict):
            raise place.invalid("patternProperties", "must be an object of schemas")
        by_pattern = [(text, child(place, "patternProperties", text)) for text in patterns]
        for name in declared:
            fitting = [
                other
                for text, other in by_pattern
                if string_sets.atom_automaton(pattern_atom(place, "patternProperties", text)).accepts(name)
            ]
            if fitting:
                declared[name] = algebra.terms.both([declared[name], *fitting])
        found: list[tuple[Strings, Term]] = []
        for names, terms in _classes(algebra, place, by_pattern, additional):
            value = algebra.terms.both(terms) if terms else additional
            if value != NOTHING:
                found.append((names, value))
            if annotate and terms:
                evaluated_others += (names,)
        others = tuple(found)
    if "propertyNames" in schema and place.draft >= 6:
        allowed = algebra.norm(child(place, "propertyNames")).strings
        for name in declared:
            if not any(string_sets.accepts(names, name) for names in allowed):
                declared[name] = NOTHING
        met = [(meet_names(names, limit), value) for names, value in others for limit in allowed]
        others = tuple((names, value) for names, value in met if names is not None)
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise place.invalid("required", "must be a list of names")
    unordered = frozenset(name for name in required if name not in declared)
    for name in required:
        if name not in declared:
            declared[name] = other_term(others, name)
        if declared[name] == NOTHING:
            return None
    minimum, maximum = count(place, "minProperties", 0) or 0, count(place, "maxProperties")
    if maximum is not None and (maximum < minimum or maximum < len(set(required))):
        return None
    if not others and minimum > sum(1 for value in declared.values() if value != NOTHING):
        return None
    return Objects(
        tuple(declared.items()),
        frozenset(required),
        others,
        minimum,
        maximum,
        (),
        unordered,
        (),
        evaluated_names,
        evaluated_others,
    )
