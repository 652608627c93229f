"""Independent judges of the demo's outputs: jsonschema, Python's re, and lark's Earley parser.

A judge takes the finished output and returns None where it is valid, else what is wrong with it. None of
them shares code with the engine that made the masks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

Judge = Callable[[str], str | None]


def json_value(text: str, *, repeats: bool = False) -> Any:
    """The JSON value of ``text``; ValueError for what RFC 8259 refuses.

    Without ``repeats``, for a name that is there twice, too.
    """

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs) and not repeats:
            raise ValueError("a property is there twice")
        return members

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, object_pairs_hook=no_duplicates, parse_constant=no_constant)


def json_schema(schema: Any, compact: bool = False) -> Judge:
    """Valid JSON that jsonschema (draft 2020-12) accepts; ``compact``: without blanks outside of strings."""

    def judge(text: str) -> str | None:
        from jsonschema import Draft202012Validator

        try:
            value = json_value(text)
        except ValueError as error:
            return f"not JSON: {error}"
        wrong = next(Draft202012Validator(schema).iter_errors(value), None)
        if wrong is not None:
            return f"{wrong.json_path}: {wrong.message}"
        if compact and re.search(r"\s", re.sub(r'"(?:[^"\\]|\\.)*"', "", text)):
            return "blanks between tokens"
        return None

    return judge


def json_object(text: str) -> str | None:
    """A JSON object, whatever it holds: a name that nobody has declared may be there twice."""
    try:
        value = json_value(text, repeats=True)
    except ValueError as error:
        return f"not JSON: {error}"
    return None if isinstance(value, dict) else "not an object"


def regex(pattern: str) -> Judge:
    """All of the text matches ``pattern``."""
    return lambda text: None if re.fullmatch(pattern, text) else "no match"


def choice(options: list[str]) -> Judge:
    """The text is one of ``options``."""
    return lambda text: None if text in options else "none of the options"


def lark(grammar: str) -> Judge:
    """lark's Earley parser accepts the text."""

    @cache
    def parser() -> Any:
        from lark import Lark

        return Lark(grammar, parser="earley", lexer="dynamic_complete")

    def judge(text: str) -> str | None:
        from lark.exceptions import LarkError

        try:
            parser().parse(text)
        except LarkError as error:
            return str(error).strip().splitlines()[0]
        return None

    return judge


def between(begin: str, inner: Judge, end: str) -> Judge:
    """The text is ``begin``, something that ``inner`` accepts, ``end``."""

    def judge(text: str) -> str | None:
        if not (text.startswith(begin) and text.endswith(end) and len(text) >= len(begin) + len(end)):
            return f"not between {begin!r} and {end!r}"
        return inner(text[len(begin) : len(text) - len(end)])

    return judge


def tool_calls(schemas: dict[str, Any]) -> Judge:
    """The text is a JSON array of one or more calls of these tools: ``{"name": ..., "arguments": TEXT}``."""

    def judge(text: str) -> str | None:
        calls = json_value(text)
        if not calls:
            return "no call"
        for call in calls:
            if call["name"] not in schemas:
                return f"no tool named {call['name']!r}"
            wrong = json_schema(schemas[call["name"]])(call["arguments"])
            if wrong:
                return f"{call['name']}: {wrong}"
        return None

    return judge
