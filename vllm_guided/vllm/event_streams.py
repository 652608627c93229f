"""A refusal in a streamed ``/v1/responses`` or ``/v1/messages``: an error event that says why.

By the time vLLM looks at a constraint, its stream has begun. Its other streams then tell what is wrong in an
event of their own; the first of these lets the exception end the connection, and the second, made of a chat's
stream, tries to read the error as an answer.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

from vllm_guided.vllm import selection
from vllm_guided.vllm.selection import UnexpectedVllm, expect, logger

_ERROR = 'data: {"error"'
"""How vLLM's error in a chat's stream begins."""


def tell_refusals(module: ModuleType) -> None:
    """Adapt ``OpenAIServingResponses.responses_stream_generator``; else streams break off."""
    try:
        serving = expect(module, "OpenAIServingResponses")
        original = expect(
            serving, "responses_stream_generator", parameters=("self", "request", "sampling_params")
        )
    except UnexpectedVllm as fault:
        logger.debug("%s A streamed response whose constraint is refused breaks off.", fault)
        return

    @functools.wraps(original)
    def responses_stream_generator(
        self: Any, request: Any, sampling_params: Any, *args: Any, **kw: Any
    ) -> Any:
        events = original(self, request, sampling_params, *args, **kw)
        if not selection.is_active() or getattr(sampling_params, "structured_outputs", None) is None:
            return events
        return _with_refusal(events)

    serving.responses_stream_generator = responses_stream_generator


async def _with_refusal(events: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The events, and the error event of what the client is to blame for, or is to try again later."""
    from vllm import exceptions

    told = tuple(
        kind
        for name in ("VLLMValidationError", "VLLMClientError", "GracefulHTTPError")
        if (kind := getattr(exceptions, name, None)) is not None
    )
    count = 0
    try:
        async for event in events:
            yield event
            count += 1
    except told as fault:
        from openai.types.responses import ResponseErrorEvent

        is_busy = getattr(fault, "http_status", None) == 503
        yield ResponseErrorEvent(
            type="error",
            code="ServiceUnavailableError" if is_busy else "BadRequestError",
            message=str(fault),
            param=getattr(fault, "parameter", None),
            sequence_number=count,
        )


def tell_refusals_of_messages(module: ModuleType) -> None:
    """Adapt ``AnthropicServingMessages.message_stream_converter``, which takes an error for a bad answer."""
    try:
        serving = expect(module, "AnthropicServingMessages")
        original = expect(serving, "message_stream_converter", parameters=("self", "generator"))
    except UnexpectedVllm as fault:
        logger.debug("%s A streamed message whose constraint is refused does not say why.", fault)
        return

    @functools.wraps(original)
    def message_stream_converter(self: Any, generator: Any) -> Any:
        if not selection.is_active():
            return original(self, generator)
        return _with_error(lambda chunks: original(self, chunks), generator)

    serving.message_stream_converter = message_stream_converter


async def _with_error(convert: Any, chunks: AsyncIterator[str]) -> AsyncIterator[str]:
    """The events that ``convert`` makes of ``chunks`` of a chat, and of an error among those one more."""
    error: dict[str, Any] = {}

    async def before_error() -> AsyncIterator[str]:
        async for chunk in chunks:
            if chunk.startswith(_ERROR):
                error.update(json.loads(chunk.removeprefix("data:"))["error"])
                return
            yield chunk

    async for event in convert(before_error()):
        yield event
    if error:
        is_theirs = error.get("code") == 400
        told = {"type": "invalid_request_error" if is_theirs else "api_error", "message": error["message"]}
        yield f"event: error\ndata: {json.dumps({'type': 'error', 'error': told})}\n\n"
