"""Sampled tokens of a step: the grammars of all requests advance in one call.

vLLM accepts tokens request by request, deep in the loop over a step's outputs, where each call into compiled
code gives up the interpreter's lock and has to win it back. So before that loop the states that all sampled
tokens lead to are found in one call, and each request's accept only takes what is there. Nothing is
decided ahead: a request that vLLM stops earlier takes fewer states, and what does not fit is asked anew.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from vllm_guided.vllm.selection import UnexpectedVllm, expect, logger


def advance_whole_batch(module: ModuleType) -> None:
    """Adapt ``Scheduler.update_from_output``; where it does not fit, requests advance one by one."""
    try:
        scheduler = expect(module, "Scheduler")
        parameters = ("self", "scheduler_output", "model_runner_output")
        original = expect(scheduler, "update_from_output", parameters=parameters)
    except UnexpectedVllm as fault:
        logger.warning("%s Tokens are accepted request by request instead, which is slower.", fault)
        return

    @functools.wraps(original)
    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        advance = getattr(self.structured_output_manager, "vllm_guided_advance", None)
        if advance is not None and scheduler_output.has_structured_output_requests:
            try:
                advance(self.requests, scheduler_output.num_scheduled_tokens, model_runner_output)
            except Exception:
                logger.exception("vllm_guided could not advance a step at once; it goes request by request.")
        return original(self, scheduler_output, model_runner_output)

    scheduler.update_from_output = update_from_output


def look_ahead(requests: dict[str, Any], names: Any, output: Any, may_reason: bool) -> None:
    """Find the states after the sampled tokens of every request, and note them with its grammar.

    Args:
        requests: the scheduler's, by id.
        names: of the requests in this step.
        output: vLLM's ``ModelRunnerOutput``.
        may_reason: is there a reasoning parser whose tokens are not constrained?
    """
    import numpy as np

    from vllm_guided.runtime import steps
    from vllm_guided.vllm.grammar import GuidedGrammar

    sampled = output.sampled_token_ids
    if not sampled:
        return
    rows = output.req_id_to_index
    grammars = []
    tokens = []
    for name in names:
        request = requests.get(name)
        if request is None or (structured := request.structured_output_request) is None:
            continue
        grammar = structured._grammar
        if type(grammar) is not GuidedGrammar or not grammar.is_plain:
            continue
        if may_reason and not structured.reasoning_ended:
            continue
        some = sampled[rows[name]]
        if some:
            grammars.append(grammar)
            tokens.append(some)
    if not grammars:
        return
    offsets = np.zeros(len(tokens) + 1, np.int32)
    np.cumsum([len(some) for some in tokens], out=offsets[1:])
    flat = np.array([token for some in tokens for token in some], np.int32)
    states = steps.next_states([grammar.matcher for grammar in grammars], flat, offsets).tolist()
    first = 0
    for grammar, some in zip(grammars, tokens, strict=True):
        grammar.look_ahead(some, states[first : first + len(some)])
        first += len(some)
