"""One place of a schema to its normal form.

In: a :class:`~.documents.Place`. Out: a :class:`~.shapes.Norm`. The keywords of the place itself come first;
then ``$ref``, ``allOf``, ``anyOf``, ``oneOf``, ``if``, ``dependent...`` and ``not`` are intersected with, or
taken away from, what there is so far; ``unevaluated...`` comes last, as the standard has it. Keywords that
no draft knows are annotations.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from vllm_guided.errors import GrammarError, InvalidConstraint
from vllm_guided.frontends.json_schema import unevaluated
from vllm_guided.frontends.json_schema.combinators import combine
from vllm_guided.frontends.json_schema.constants import enumeration_norm
from vllm_guided.frontends.json_schema.container_keywords import read_arrays, read_objects
from vllm_guided.frontends.json_schema.documents import Place
from vllm_guided.frontends.json_schema.numbers import ANY_FORM, DIGITS, Numbers, intersect
from vllm_guided.frontends.json_schema.scalar_keywords import read_numbers, read_strings
from vllm_guided.frontends.json_schema.shapes import (
    ANY,
    ANY_ARRAYS,
    ANY_NUMBERS,
    ANY_OBJECTS,
    ANY_STRINGS,
    EMPTY,
    FALSE,
    NULL,
    TRUE,
    Norm,
)

if TYPE_CHECKING:
    from vllm_guided.frontends.json_schema.algebra import Algebra

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_NUMBER, _STRING, _ARRAY, _OBJECT, _VALUE, _COMBINE, _UNEVALUATED = 1, 2, 4, 8, 16, 32, 64
_KINDS: dict[str, int] = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _NUMBER),
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format", "contentEncoding"), _STRING),
    **dict.fromkeys(("items", "prefixItems", "additionalItems", "minItems", "maxItems"), _ARRAY),
    **dict.fromkeys(("uniqueItems", "contains", "minContains", "maxContains"), _ARRAY),
    **dict.fromkeys(("properties", "required", "additionalProperties", "patternProperties"), _OBJECT),
    **dict.fromkeys(("propertyNames", "minProperties", "maxProperties"), _OBJECT),
    **dict.fromkeys(("enum", "const"), _VALUE),
    **dict.fromkeys(
        ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if"), _COMBINE
    ),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), _COMBINE),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), _UNEVALUATED),
}

KEYWORDS = frozenset((*_KINDS, "type"))
"""Everything else is an annotation."""


def _types(place: Place) -> Norm:
    """The values of the types that ``type`` names."""
    named: Any = place.schema.get("type")
    names = tuple(named) if isinstance(named, list) else (named,)
    for name in names:
        if name not in TYPES:
            raise place.invalid("type", f"{name!r} is not one of {', '.join(TYPES)}")
    return types_norm(names, place.draft == 4)


@lru_cache(maxsize=256)
def types_norm(names: tuple[str, ...], digits: bool) -> Norm:
    """All values of the types; integers as digits alone, never as ``1.0``, with ``digits``."""
    words = 0
    numbers: tuple[Numbers, ...] = ()
    strings, arrays, objects = EMPTY.strings, EMPTY.arrays, EMPTY.objects
    for name in names:
        if name == "string":
            strings = ANY_STRINGS
        elif name == "object":
            objects = ANY_OBJECTS
        elif name == "array":
            arrays = ANY_ARRAYS
        elif name == "integer":
            numbers = numbers or (Numbers(multiple=1, form=DIGITS if digits else ANY_FORM),)
        elif name == "number":
            numbers = ANY_NUMBERS
        elif name == "boolean":
            words |= FALSE | TRUE
        else:
            words |= NULL
    return Norm(words, numbers, strings, arrays, objects)


def own_keywords(algebra: Algebra, place: Place, annotate: bool, kinds: int) -> Norm:
    """What the place itself says of words, numbers, strings, arrays and objects."""
    schema = place.schema
    norm = _types(place) if "type" in schema else ANY
    if kinds & _NUMBER:
        read = read_numbers(place)
        met = [intersect(numbers, read) for numbers in norm.numbers] if read is not None else []
        norm = norm._replace(numbers=tuple(numbers for numbers in met if numbers is not None))
    if kinds & _STRING:
        strings = read_strings(place)
        if norm.strings:
            norm = norm._replace(strings=(strings,) if strings is not None else ())
    if kinds & _ARRAY or (annotate and norm.arrays):
        arrays = read_arrays(algebra, place, annotate)
        if norm.arrays:
            norm = norm._replace(arrays=(arrays,) if arrays is not None else ())
    if kinds & _OBJECT or (annotate and norm.objects):
        objects = read_objects(algebra, place, annotate)
        if norm.objects:
            norm = norm._replace(objects=(objects,) if objects is not None else ())
    if kinds & _VALUE:
        if "enum" in schema:
            values = schema["enum"]
            if not isinstance(values, list):
                raise place.invalid("enum", "must be a list of values")
            norm = algebra.intersection(enumeration_norm(algebra, values, place), norm)
        if "const" in schema and place.draft >= 6:
            norm = algebra.intersection(enumeration_norm(algebra, [schema["const"]], place), norm)
    return norm


def scalar_norm(algebra: Algebra, place: Place) -> Norm:
    """The normal form of a place whose keywords are ``type`` and those of strings and numbers."""
    kinds = 0
    for keyword in place.schema:
        kinds |= _KINDS.get(keyword, 0)
    return own_keywords(algebra, place, False, kinds)


def read(algebra: Algebra, place: Place, annotate: bool) -> Norm:
    """The normal form of one place; with ``annotate``, evaluated members and items are kept in it."""
    schema = place.schema
    if type(schema) is bool:
        return ANY if schema else EMPTY
    if not isinstance(schema, dict):
        raise InvalidConstraint("a schema must be an object, true or false", where=place.pointer)
    try:
        if place.draft <= 7 and "$ref" in schema:
            return algebra.norm(algebra.terms.place(place.refer("$ref")), annotate)
        kinds = 0
        for keyword in schema:
            kinds |= _KINDS.get(keyword, 0)
        inner = annotate or (kinds & _UNEVALUATED != 0 and place.draft >= 2019)
        norm = own_keywords(algebra, place, inner, kinds)
        if kinds & _COMBINE:
            norm = combine(algebra, place, norm, inner)
        if kinds & _UNEVALUATED and place.draft >= 2019:
            norm = unevaluated.close(algebra, place, norm)
        if inner and not annotate:
            norm = unevaluated.forget(norm)
        return norm
    except GrammarError as error:
        raise algebra.located(error, place.pointer) from None
