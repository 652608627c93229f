"""A refusal in a streamed ``/v1/responses``: an error event.

By the time vLLM looks at a constraint, its stream has begun. Its other streams then tell what is wrong in an
event of their own; this one lets the exception end the connection.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

from vllm_guided.vllm import selection
from vllm_guided.vllm.selection import UnexpectedVllm, expect, logger


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
