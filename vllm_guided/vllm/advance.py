"""Sampled and draft tokens of a step: the grammars of all requests go over them in one call.

vLLM accepts tokens request by request, deep in the loop over a step's outputs, where each call into compiled
code gives up the interpreter's lock and has to win it back. So before that loop the states that all sampled
tokens lead to are found in one call, and each request's accept only takes what is there. Nothing is
decided ahead: a request that vLLM stops earlier takes fewer states, and what does not fit is asked anew.

Draft tokens, which vLLM shows to the grammars before it schedules them, are looked at in the same way.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from vllm_guided.vllm.selection import UnexpectedVllm, expect, logger

#: Fewer requests go one by one, as vLLM asks: the arrays for one call would take longer.
FEW = 12


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


def validate_whole_batch(module: ModuleType) -> None:
    """Adapt the two places where ``Scheduler`` shows drafts to the grammars; else one by one."""
    for name in ("update_draft_token_ids", "update_draft_token_ids_in_output"):
        try:
            scheduler = expect(module, "Scheduler")
            original = expect(scheduler, name, parameters=("self", "draft_token_ids"))
        except UnexpectedVllm as fault:
            logger.warning("%s Drafts are looked at request by request instead, which is slower.", fault)
            continue
        setattr(scheduler, name, _looking_at_drafts(original))


def _looking_at_drafts(original: Any) -> Any:
    @functools.wraps(original)
    def update(self: Any, draft_token_ids: Any, *args: Any) -> Any:
        look = getattr(self.structured_output_manager, "vllm_guided_look_at_drafts", None)
        if look is not None:
            try:
                look(self.requests, draft_token_ids.req_ids, draft_token_ids.draft_token_ids)
            except Exception:
                logger.exception("vllm_guided could not look at a step's drafts at once.")
        return original(self, draft_token_ids, *args)

    return update


def look_ahead(requests: dict[str, Any], names: Any, output: Any, may_reason: bool) -> None:
    """Find the states after the sampled tokens of every request, and note them with its grammar.

    Args:
        requests: the scheduler's, by id.
        names: of the requests in this step.
        output: vLLM's ``ModelRunnerOutput``.
        may_reason: is there a reasoning parser whose tokens are not constrained?
    """
    sampled, rows = output.sampled_token_ids, output.req_id_to_index
    if sampled:
        tokens = ((name, sampled[rows[name]]) for name in names if name in requests)
        for grammar, some, states in _followed(requests, tokens, may_reason):
            grammar.look_ahead(some, states)


def look_at_drafts(requests: dict[str, Any], names: Any, drafts: Any, may_reason: bool) -> None:
    """Find how many of each request's draft tokens its grammar allows, and note it with the grammar.

    Args:
        requests: the scheduler's, by id.
        names: of the requests that have drafts.
        drafts: lists of tokens, by position in ``names``.
        may_reason: is there a reasoning parser whose tokens are not constrained?
    """
    for grammar, some, states in _followed(requests, zip(names, drafts, strict=True), may_reason):
        grammar.look_at_drafts(some, states)


def _followed(
    requests: dict[str, Any], tokens: Iterable[tuple[str, list[int]]], may_reason: bool
) -> Iterator[tuple[Any, list[int], list[int]]]:
    """The grammars that go over their tokens here, those tokens, and the state after each; none if few."""
    import numpy as np

    from vllm_guided.runtime import steps
    from vllm_guided.vllm.grammar import GuidedGrammar

    grammars = []
    followed = []
    for name, some in tokens:
        request = requests.get(name)
        if not some or request is None or (structured := request.structured_output_request) is None:
            continue
        grammar = structured._grammar
        if type(grammar) is not GuidedGrammar or not grammar.is_plain:
            continue
        if not may_reason or structured.reasoning_ended:
            grammars.append(grammar)
            followed.append(some)
    if len(grammars) < FEW:
        return
    offsets = np.zeros(len(followed) + 1, np.int32)
    np.cumsum([len(some) for some in followed], out=offsets[1:])
    flat = np.array([token for some in followed for token in some], np.int32)
    states = steps.next_states([grammar.matcher for grammar in grammars], flat, offsets).tolist()
    first = 0
    for grammar, some in zip(grammars, followed, strict=True):
        yield grammar, some, states[first : first + len(some)]
        first += len(some)
