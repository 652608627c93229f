"""Judge a request's constraint before vLLM's own check of it, off the event loop.

vLLM checks a request in a function that does not wait, on the event loop that all streams of the API server
share. So ``AsyncLLM.add_request``, which may wait, first has the constraint judged by the compile service;
the check then finds the verdict. If the client goes while it waits, the compile is given up.

The service starts with the engine's front and ends with it.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from vllm_guided.compile_service.client import CompileService, Overloaded
from vllm_guided.errors import GrammarError
from vllm_guided.vllm import compiled, counters, metrics
from vllm_guided.vllm.engine import constraint_from
from vllm_guided.vllm.guided_fields import GuidedFieldError
from vllm_guided.vllm.selection import expect, is_selected
from vllm_guided.vllm.validation import take_extra_args

_SERVICE = "_vllm_guided_compile_service"


def judge_before_check(module: ModuleType) -> None:
    """Give ``AsyncLLM`` a compile service, and let it await that before it checks a request."""
    owner = expect(module, "AsyncLLM")
    add_request = expect(owner, "add_request", parameters=("self", "request_id", "prompt", "params"))
    init = expect(owner, "__init__", parameters=("self", "vllm_config"))
    shutdown = expect(owner, "shutdown", parameters=("self",))

    @functools.wraps(init)
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        service = None
        if is_selected(vllm_config.structured_outputs_config):
            service = compiled.new_service()
            if service is not None:
                service.start()  # it gets ready while the engine starts
        setattr(self, _SERVICE, service)
        try:
            init(self, vllm_config, *args, **kwargs)
        except BaseException:
            _close(self)
            raise
        if is_selected(vllm_config.structured_outputs_config):
            metrics.publish()

    @functools.wraps(add_request)
    async def add_request_judged(
        self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        config = self.vllm_config.structured_outputs_config
        if is_selected(config):
            await _judge(params, config, getattr(self, _SERVICE, None))
        return await add_request(self, request_id, prompt, params, *args, **kwargs)

    @functools.wraps(shutdown)
    def shutdown_with_service(self: Any, *args: Any, **kwargs: Any) -> Any:
        _close(self)
        return shutdown(self, *args, **kwargs)

    owner.__init__ = __init__
    owner.add_request = add_request_judged
    owner.shutdown = shutdown_with_service


def _close(front: Any) -> None:
    service: CompileService | None = getattr(front, _SERVICE, None)
    if service is not None:
        service.close()


async def _judge(params: Any, config: Any, service: CompileService | None) -> None:
    """Have the constraint of a request judged, if it has one that can be read; vLLM's check says the rest."""
    if getattr(params, "structured_outputs", None) is None and not getattr(params, "extra_args", None):
        return
    from vllm.sampling_params import StructuredOutputsParams

    try:
        take_extra_args(params, StructuredOutputsParams)
        if params.structured_outputs is None:
            return
        job = constraint_from(params.structured_outputs, config).job
    except (GrammarError, GuidedFieldError):
        return
    try:
        await compiled.judge(job, service)
    except Overloaded as fault:
        counters.add("refusals", reason="too_many")
        raise _busy(str(fault)) from fault


def _busy(message: str) -> Exception:
    """What vLLM answers with "503 Service Unavailable"; "400 Bad Request" where it knows no such error."""
    import http

    from vllm import exceptions

    kind = getattr(exceptions, "GracefulHTTPError", None)
    if kind is None:
        return exceptions.VLLMValidationError(message, parameter="structured_outputs")  # type: ignore[no-any-return]
    return kind(message, http.HTTPStatus.SERVICE_UNAVAILABLE)  # type: ignore[no-any-return]
