"""Requests whose other parameters leave no token of their constraint: an error that says so.

``allowed_token_ids`` and ``bad_words`` take tokens away after the masks. Where they take away all that a mask
allows, vLLM's sampler picks one of none; the grammar refuses it, and the request ends. vLLM tells its client
nothing but "Internal server error". So the engine core writes the reason where a finished output says what
stopped it (``stop_reason``), and the API server raises it: a 400, or the error event of a stream. Offline
the output has it as its ``stop_reason``.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from vllm_guided.vllm import selection
from vllm_guided.vllm.selection import UnexpectedVllm, expect, logger

MARK = "no token is left: "
"""What reasons begin with."""

PARAMETERS = ("allowed_token_ids", "bad_words")


def reason(sampling_params: Any) -> str | None:
    """Why a token that the grammar refuses was sampled; None if the request does not explain it."""
    given = [name for name in PARAMETERS if getattr(sampling_params, name, None)]
    if not given:
        return None
    text = (
        f"{MARK}{' and '.join(given)} of this request take away every token that its constraint allows here."
    )
    if "allowed_token_ids" in given:
        text += " (allowed_token_ids must have the tokens that end the output, too.)"
    return text


def tell_clients(module: ModuleType) -> None:
    """Adapt ``OutputProcessor.process_outputs``; where it does not fit, clients are told what vLLM says."""
    try:
        owner = expect(module, "OutputProcessor")
        original = expect(owner, "process_outputs", parameters=("self", "engine_core_outputs"))
    except UnexpectedVllm as fault:
        logger.debug("%s Clients are not told why nothing could be sampled.", fault)
        return

    @functools.wraps(original)
    def process_outputs(self: Any, engine_core_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not selection.is_active():
            return original(self, engine_core_outputs, *args, **kwargs)
        told = [
            (state, output.stop_reason)
            for output in engine_core_outputs
            if output.finish_reason is not None
            and type(output.stop_reason) is str
            and output.stop_reason.startswith(MARK)
            and (state := self.request_states.get(output.request_id)) is not None
        ]
        done = original(self, engine_core_outputs, *args, **kwargs)
        for state, text in told:
            if state.queue is not None:
                state.queue.put(_error(text))
        return done

    owner.process_outputs = process_outputs


def _error(text: str) -> Exception:
    from vllm.exceptions import VLLMValidationError

    return VLLMValidationError(text, parameter=text.removeprefix(MARK).split(maxsplit=1)[0])
