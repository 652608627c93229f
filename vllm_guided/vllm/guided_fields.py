"""The older names of a request's constraint, and what they are called now.

In: ``guided_json``, ``guided_regex``, ``guided_choice``, ``guided_grammar`` with their options
``guided_whitespace_pattern`` and ``guided_decoding_backend``, from an HTTP body, from
``SamplingParams.extra_args`` or from keyword arguments. Out: the arguments of vLLM's
``StructuredOutputsParams``. Every wrong value is a :class:`GuidedFieldError` that names the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from typing import Any

from vllm_guided.vllm.selection import NAME

KINDS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
OPTIONS = ("guided_whitespace_pattern", "guided_decoding_backend")
FIELDS = (*KINDS, *OPTIONS)
PREFIX = "guided_"

_BACKEND_OPTIONS: dict[str, dict[str, Any]] = {
    "no-fallback": {},
    "disable-any-whitespace": {"disable_any_whitespace": True},
    "no-additional-properties": {"disable_additional_properties": True},
}


class GuidedFieldError(ValueError):
    """A ``guided_*`` field that cannot be honoured.

    Args:
        field: its name.
        message: what is wrong with it and what to do.
    """

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(f"{field}: {message}")


def take_fields(source: MutableMapping[str, Any] | None) -> dict[str, Any]:
    """Remove the ``guided_*`` fields from ``source`` and return those that have a value.

    Raises:
        GuidedFieldError: a field looks like one of them and is none; it would be left out without a word.
    """
    if not source:
        return {}
    for name, value in source.items():
        if name.startswith(PREFIX) and name not in FIELDS and value is not None:
            raise GuidedFieldError(name, f"there is no such field; there are {', '.join(FIELDS)}.")
    taken = {name: source.pop(name) for name in FIELDS if name in source}
    return {name: value for name, value in taken.items() if value is not None}


def to_structured_outputs(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of ``StructuredOutputsParams`` that mean what these fields meant.

    Returns:
        ``None`` where no field is a constraint (an option alone constrains nothing).

    Raises:
        GuidedFieldError: more than one constraint, a value of the wrong type, another backend, or an
            option that has nothing to apply to.
    """
    options = _backend_options(fields.get("guided_decoding_backend"))
    kinds = [name for name in KINDS if name in fields]
    pattern = fields.get("guided_whitespace_pattern")
    if not kinds:
        if pattern is not None:
            raise GuidedFieldError("guided_whitespace_pattern", "it needs guided_json beside it.")
        return None
    if len(kinds) > 1:
        raise GuidedFieldError(kinds[1], f"a request takes one constraint, and {kinds[0]} is one already.")
    kind = kinds[0]
    if pattern is not None:
        if kind != "guided_json":
            raise GuidedFieldError("guided_whitespace_pattern", f"it goes with guided_json, not {kind}.")
        if not isinstance(pattern, str):
            raise GuidedFieldError("guided_whitespace_pattern", _wrong_type("a regular expression", pattern))
        options["whitespace_pattern"] = pattern
    return {KINDS[kind]: _value(kind, fields[kind]), **options}


def _value(kind: str, value: Any) -> Any:
    if kind == "guided_json":
        return _schema(value)
    if kind == "guided_choice":
        if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
            return list(value)
        if isinstance(value, (list, tuple)):
            place, item = next((n, item) for n, item in enumerate(value) if not isinstance(item, str))
            raise GuidedFieldError(kind, f"item {place} must be a string, not {type(item).__name__}.")
        raise GuidedFieldError(kind, _wrong_type("a list of strings", value))
    if isinstance(value, str):
        return value
    raise GuidedFieldError(kind, _wrong_type("a string", value))


def _schema(value: Any) -> str | dict[str, Any]:
    """A JSON Schema as an object, a boolean, JSON text or (offline) a pydantic model class."""
    if isinstance(value, (str, dict)):
        return value
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, type) and hasattr(value, "model_json_schema"):
        schema: dict[str, Any] = value.model_json_schema()
        return schema
    raise GuidedFieldError(
        "guided_json", _wrong_type("a JSON Schema (an object, a boolean or its text)", value)
    )


def _backend_options(value: Any) -> dict[str, Any]:
    """``guided_decoding_backend`` cannot choose a backend per request; it may name the server's."""
    if value is None:
        return {}
    name, _, rest = value.partition(":") if isinstance(value, str) else ("", "", "")
    if name not in (NAME, "auto"):
        raise GuidedFieldError(
            "guided_decoding_backend",
            f"this server's backend is {NAME!r} for every request, not {value!r}; leave the field out.",
        )
    options: dict[str, Any] = {}
    for option in filter(None, rest.split(",")):
        if option not in _BACKEND_OPTIONS:
            raise GuidedFieldError(
                "guided_decoding_backend", f"unknown option {option!r}; use {', '.join(_BACKEND_OPTIONS)}."
            )
        options.update(_BACKEND_OPTIONS[option])
    return options


def _wrong_type(wanted: str, value: Any) -> str:
    return f"it must be {wanted}, not {type(value).__name__}."
