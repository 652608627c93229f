"""What a body says of its constraint and vLLM would leave out without a word: a 400 that names it.

vLLM's classes of requests drop unknown keys of ``structured_outputs``, let ``response_format`` take the place
of an equal field of it, and look at ``json_schema`` for one type of ``response_format`` alone. What a client
sent is only seen before they are made, so the check stands in a function that vLLM calls with the raw body.
``/v1/messages`` has no fields for constraints but its ``output_config``, and drops all others.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields
from types import ModuleType
from typing import Any

from vllm_guided.vllm import selection
from vllm_guided.vllm.guided_fields import PREFIX
from vllm_guided.vllm.selection import UnexpectedVllm, expect, logger

#: Functions that vLLM's protocol modules call with a raw body, and with its ``structured_outputs``. Bodies of
#: batches meet the second alone, as do all in versions that have no other.
_SEES_BODY = "resolve_return_mm_kwargs_alias"
_SEES_CONSTRAINT = "validate_structured_outputs_structural_tag"

#: Fields of older clients that ask for what is always so.
_ALWAYS_SO = {"disable_fallback"}

#: Fields of other requests, and of an older Messages API.
_UNKNOWN_TO_MESSAGES = ("structured_outputs", "response_format", "output_format")


class BodyError(ValueError):
    """A part of a body that vLLM would leave out.

    Args:
        field: the parameter it belongs to.
        message: what is wrong and what to do.
    """

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(message)


def check_bodies(module: ModuleType) -> None:
    """Check bodies of the requests that this protocol module of vLLM has; where that cannot be, they pass."""
    place = "text.format" if hasattr(module, "ResponsesRequest") else "response_format"
    names = [name for name in (_SEES_BODY, _SEES_CONSTRAINT) if hasattr(module, name)]
    if not names:
        logger.debug("What vLLM leaves out of a constraint is not found in requests of %s.", module.__name__)
    for name in names:
        _check_first(module, name, place)


def _check_first(module: ModuleType, name: str, place: str) -> None:
    original = getattr(module, name)

    @functools.wraps(original)
    def checked(data: Any, *args: Any, **kwargs: Any) -> Any:
        if selection.is_active() and isinstance(data, dict):
            _as_400(check_body, data if name == _SEES_BODY else {"structured_outputs": data}, place)
        return original(data, *args, **kwargs)

    setattr(module, name, checked)


def _as_400(check: Any, *args: Any) -> None:
    try:
        check(*args)
    except BodyError as fault:
        from vllm.exceptions import VLLMValidationError

        raise VLLMValidationError(str(fault), parameter=fault.field) from fault


def check_body(body: Mapping[str, Any], place: str = "response_format") -> None:
    """Look for what vLLM would leave out of a request's constraint.

    Args:
        body: as the client sent it.
        place: where this kind of request has its format: "response_format" or "text.format".

    Raises:
        BodyError: there is something.
    """
    constraint, shape = body.get("structured_outputs"), body.get("response_format")
    if isinstance(constraint, dict):
        _check_keys(constraint)
    text = body.get("text")
    if place == "text.format" and shape is not None:
        raise BodyError("response_format", "this request has no response_format; its place is text.format.")
    if place == "response_format" and isinstance(text, dict) and text.get("format") is not None:
        raise BodyError("text", "this request has no text.format; its place is response_format.")
    if isinstance(text, dict) and isinstance(text.get("format"), dict):
        _check_format_without_schema(text["format"], "text.format", '"name": ..., "schema": ...')
    kind = _check_response_format(shape) if isinstance(shape, dict) else None
    if kind in (None, "text") or constraint is None:
        return
    only_object = isinstance(constraint, dict) and constraint.get("json_object")
    if not (kind == "json_object" and only_object):
        raise BodyError(
            "response_format",
            "a request takes one constraint, and structured_outputs is one as well; leave one out.",
        )


def _check_keys(constraint: Mapping[str, Any]) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    known = [field.name for field in fields(StructuredOutputsParams) if field.init]
    for key, value in constraint.items():
        if key not in known and key not in _ALWAYS_SO and value is not None and value is not False:
            raise BodyError(
                "structured_outputs", f"structured_outputs has no {key!r}; it has {', '.join(known)}."
            )


def _check_response_format(shape: Mapping[str, Any]) -> Any:
    """The type of a ``response_format``; raises where a schema stands in a place that is not looked at."""
    kind = shape.get("type")
    _check_format_without_schema(shape, "response_format", '"json_schema": {"name": ..., "schema": ...}')
    inner = shape.get("json_schema")
    # A request that vLLM makes of another's fields has the schema under its field's name.
    has_none = isinstance(inner, dict) and inner.get("schema") is None and inner.get("json_schema") is None
    if kind == "json_schema" and has_none:
        raise BodyError(
            "response_format",
            "response_format.json_schema has no schema; "
            'write {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}.',
        )
    return kind


def _check_format_without_schema(shape: Mapping[str, Any], place: str, right: str) -> None:
    """Raises where a format of a type without schema has one; ``right``: how the type with one is written."""
    kind = shape.get("type")
    schema = next((key for key in ("schema", "json_schema") if shape.get(key) is not None), None)
    if kind in ("text", "json_object") and schema is not None:
        raise BodyError(
            place.partition(".")[0],
            f'{place} of type {kind!r} has no {schema!r}; write {{"type": "json_schema", {right}}}.',
        )


def check_messages(module: ModuleType) -> None:
    """Refuse constraints in bodies of ``/v1/messages`` that vLLM drops; where that cannot be, they pass."""
    try:
        serving = expect(module, "AnthropicServingMessages")
        original = expect(serving, "create_messages", parameters=("self", "request", "raw_request"))
        expect(serving, "create_error_response")
    except UnexpectedVllm as fault:
        logger.debug("%s Constraints that /v1/messages does not know are not found.", fault)
        return

    @functools.wraps(original)
    async def create_messages(self: Any, request: Any, raw_request: Any = None) -> Any:
        if selection.is_active() and raw_request is not None:
            try:
                _as_400(check_message_body, await raw_request.json())
            except Exception as fault:
                return self.create_error_response(fault)
        return await original(self, request, raw_request)

    serving.create_messages = create_messages


def check_message_body(body: Any) -> None:
    """Look for a constraint that ``/v1/messages`` would leave out.

    Raises:
        BodyError: there is one.
    """
    if not isinstance(body, dict):
        return
    for name, value in body.items():
        if value is not None and (name in _UNKNOWN_TO_MESSAGES or name.startswith(PREFIX)):
            raise BodyError(
                name,
                f"/v1/messages has no {name}; its constraint is output_config.format, of type json_schema.",
            )
    config = body.get("output_config")
    shape = config.get("format") if isinstance(config, dict) else None
    if isinstance(shape, dict) and not shape.get("schema"):
        raise BodyError(
            "output_config",
            "output_config.format has no schema, or an empty one, which vLLM leaves out; "
            'write {"type": "json_schema", "schema": {"type": "object", ...}}.',
        )
