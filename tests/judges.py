"""Outside judges of finished outputs: jsonschema, re, regress, lark's Earley parser, the json module.

A judge is a function of a finished output that returns None where the output is valid, else why it is not.
None of them shares code with the engine or its frontends.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import jsonschema
import lark as lark_parser
import regress
from jsonschema import validators

Judge = Callable[[str], str | None]

DEFAULT_DRAFT = jsonschema.Draft202012Validator


class Members(dict[str, Any]):
    """An object as read: its last members, and which names stood more than once."""

    repeated: frozenset[str] = frozenset()


def parse_json(text: str, *, repeats: bool = False) -> Any:
    """The value of a JSON text by RFC 8259; ValueError if it is not one.

    A name stands at most once in an object; with ``repeats`` that is left to ``properties`` to judge.
    """

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = Members(pairs)
        if len(value) != len(pairs):
            counts = Counter(name for name, _ in pairs)
            value.repeated = frozenset(name for name, count in counts.items() if count > 1)
            if not repeats:
                raise ValueError(f"a name is there twice: {sorted(value.repeated)}")
        return value

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, object_pairs_hook=members, parse_constant=constant)


@cache
def ecma(pattern: str) -> Any:
    """An ECMAScript regular expression, with the flag u where it can be read so."""
    try:
        return regress.Regex(pattern, "u")
    except regress.RegressError:
        return regress.Regex(pattern)


def _pattern(
    validator: Any, pattern: str, instance: Any, schema: Any
) -> Iterator[jsonschema.ValidationError]:
    if validator.is_type(instance, "string") and ecma(pattern).find(instance) is None:
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: dict[str, Any], instance: Any, schema: Any
) -> Iterator[jsonschema.ValidationError]:
    if validator.is_type(instance, "object"):
        for pattern, subschema in patterns.items():
            for name, value in instance.items():
                if ecma(pattern).find(name) is not None:
                    yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _multiple_of(
    validator: Any, divisor: Any, instance: Any, schema: Any
) -> Iterator[jsonschema.ValidationError]:
    """Decimals as they are written: jsonschema itself divides doubles, and finds 0.07 no multiple of 0.01."""
    if validator.is_type(instance, "number") and Fraction(str(instance)) % Fraction(str(divisor)):
        yield jsonschema.ValidationError(f"{instance!r} is not a multiple of {divisor!r}")


def _properties(
    validator: Any, properties: dict[str, Any], instance: Any, schema: Any
) -> Iterator[jsonschema.ValidationError]:
    """As jsonschema has it, and a declared name stands once."""
    if validator.is_type(instance, "object"):
        for name, subschema in properties.items():
            if name in getattr(instance, "repeated", ()):
                yield jsonschema.ValidationError(f"the declared name {name!r} is there twice")
            if name in instance:
                yield from validator.descend(instance[name], subschema, path=name, schema_path=name)


@cache
def validator_class(draft: Any) -> Any:
    """A jsonschema draft whose patterns are ECMAScript's, as the standard asks, and that divides exactly."""
    changed = {
        "pattern": _pattern, "patternProperties": _pattern_properties, "properties": _properties,
        "multipleOf": _multiple_of,
    }  # fmt: skip
    return validators.extend(draft, changed)


def declared_names(schema: Any) -> frozenset[str]:
    """The names that any ``properties`` or ``required`` in a schema has."""
    found: set[str] = set()
    todo = [schema]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            properties = node.get("properties")
            found.update(properties if isinstance(properties, dict) else ())
            required = node.get("required")
            if isinstance(required, list):
                found.update(name for name in required if isinstance(name, str))
            todo.extend(node.values())
        elif isinstance(node, list):
            todo.extend(node)
    return frozenset(found)


def json_schema(schema: Any, formats: bool = True, *, repeats: bool = False) -> Judge:
    """JSON that is valid by jsonschema, in the draft ``$schema`` names.

    With ``repeats``, only names that the schema declares there may not stand twice in an object.
    """
    draft = validators.validator_for(schema, default=DEFAULT_DRAFT)
    checker = jsonschema.FormatChecker() if formats else None
    validator = validator_class(draft)(schema, format_checker=checker)

    def judge(text: str) -> str | None:
        try:
            value = parse_json(text, repeats=repeats)
        except ValueError as error:
            return f"not JSON: {error}"
        wrong = next(validator.iter_errors(value), None)
        return None if wrong is None else f"{wrong.json_path}: {wrong.message}"

    return judge


def json_object(text: str) -> str | None:
    """A JSON object, whatever it holds."""
    return json_schema({"type": "object"})(text)


def regex(pattern: str) -> Judge:
    """The whole text matches by Python's ``re``."""
    return lambda text: None if re.fullmatch(pattern, text) else "no match"


def choice(options: list[str]) -> Judge:
    """The text is one of the options."""
    return lambda text: None if text in options else "not an option"


def lark(grammar: str) -> Judge:
    """Lark's Earley parser takes the text, terminals cut in every way."""
    parser = lark_parser.Lark(grammar, parser="earley", lexer="dynamic_complete", ambiguity="forest")

    def judge(text: str) -> str | None:
        try:
            parser.parse(text)
        except lark_parser.exceptions.LarkError as error:
            return str(error).splitlines()[0]
        return None

    return judge


def naive(grammar: Any) -> Judge:
    """The reference takes the text (for inputs no outside parser reads)."""
    import naive as reference

    recogniser = reference.Recogniser(grammar)

    def judge(text: str) -> str | None:
        fits = recogniser.push_all(text.encode()) and recogniser.accepting()
        recogniser.pop(len(recogniser))
        return None if fits else "not in the language"

    return judge
