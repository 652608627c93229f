"""vLLM's ``StructuredOutputManager`` with our backend: made at start, asked once per step.

The manager builds its backend at the first request, by name, from a fixed list. With our name it has the
backend from the start (a vocabulary takes a second that no request should wait for), compiles a request's
grammar from that request's own options, and fills the rows of a step in one call. Managers that serve
another backend run vLLM's code unchanged.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import ModuleType
from typing import Any

from vllm_guided.errors import GrammarError
from vllm_guided.vllm import counters
from vllm_guided.vllm.contradictions import reason
from vllm_guided.vllm.selection import (
    NAME,
    UnexpectedVllm,
    activate,
    expect,
    is_selected,
    logger,
    vllm_version,
)

WAITING_THREADS = 64
"""Requests of an engine core that may wait for their compile at a time; threads are made when needed."""


def use_backend(module: ModuleType) -> None:
    """Adapt ``StructuredOutputManager``; where it does not fit, refuse to start with our backend."""
    manager = expect(module, "StructuredOutputManager")
    try:
        create_backend_at_start(manager)
        begin_grammars(manager)
        compile_own_grammars(manager)
    except UnexpectedVllm as fault:
        refuse_selection(manager, fault)
        raise
    for adapt in (fill_whole_batch, accept_looked_ahead):
        try:
            adapt(manager)
        except UnexpectedVllm as fault:
            logger.warning("%s This is done request by request instead, which is slower.", fault)


def is_ours(manager: Any) -> bool:
    """Does this manager serve our backend?"""
    return is_selected(manager.vllm_config.structured_outputs_config)


def refuse_selection(manager: Any, fault: UnexpectedVllm) -> None:
    """Let a manager that should use our backend fail at start, with the reason."""
    original = manager.__init__

    @functools.wraps(original)
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if is_selected(vllm_config.structured_outputs_config):
            raise fault
        original(self, vllm_config, *args, **kwargs)

    manager.__init__ = __init__


def create_backend_at_start(manager: Any) -> None:
    """Give ``manager.__init__`` the backend as its last act."""
    original = expect(manager, "__init__", parameters=("self", "vllm_config"))

    @functools.wraps(original)
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, vllm_config, *args, **kwargs)
        if is_ours(self) and hasattr(self, "tokenizer"):
            from vllm_guided.vllm.backend import GuidedBackend

            activate()
            size = vllm_config.model_config.get_vocab_size()
            self.backend = GuidedBackend(vllm_config, tokenizer=self.tokenizer, vocab_size=size)
            self.backend_name = NAME
            # A table of rows is given to it where the workers hold one (vllm_guided.vllm.shipping).
            self.row_table = None
            self.idle_work = start_idle_work(self.backend)
            wait_in_many_threads(self)
            logger.debug("vllm_guided's backend is made, for %d tokens.", size)

    manager.__init__ = __init__


def wait_in_many_threads(manager: Any) -> None:
    """Let constraints that take long to compile keep no thread from those that do not.

    Compiles run in processes of their own, which bound them; vLLM's threads, one for two cores, only wait.
    """
    before = getattr(manager, "executor", None)
    if isinstance(before, ThreadPoolExecutor):
        manager.executor = ThreadPoolExecutor(WAITING_THREADS, "vllm_guided grammar")
        before.shutdown(wait=False)


def start_idle_work(backend: Any) -> Any:
    """A thread that makes masks ahead, where there are cores enough for it; else None."""
    from vllm_guided.vllm.idle import IdleWork, is_wanted

    if not is_wanted():
        return None
    work = IdleWork(backend.engine.compiler)
    work.start()
    return work


def begin_grammars(manager: Any) -> None:
    """Give a request its grammar at once where it is there, which it is if the API server compiled it.

    vLLM lets a thread pool make it. The request then waits for the step after the next: one without tokens
    finds that the grammar is not ready, and the engine sleeps for a millisecond before it looks again. That
    is several times what it takes to fetch a compiled constraint.

    Also, the configuration alone chooses the backend; a frontend may not have noted it in the request.
    """
    original = expect(manager, "grammar_init", parameters=("self", "request"))

    @functools.wraps(original)
    def grammar_init(self: Any, request: Any) -> None:
        structured = request.structured_output_request
        if is_ours(self) and structured is not None:
            structured.params._backend = NAME
            if request.sampling_params is not None and request.sampling_params.structured_outputs is not None:
                request.sampling_params.structured_outputs._backend = NAME
            with suppress(Exception):  # what is wrong is found again, and said, where vLLM expects it
                grammar = self.backend.grammar_at_hand(request)
                if grammar is not None:
                    structured.grammar = grammar
                    return
        original(self, request)

    manager.grammar_init = grammar_init


def compile_own_grammars(manager: Any) -> None:
    """Compile from the request's parameters instead of vLLM's key, which drops some of them."""
    original = expect(manager, "_create_grammar", parameters=("self", "request"))

    @functools.wraps(original)
    def _create_grammar(self: Any, request: Any) -> Any:
        if not is_ours(self):
            return original(self, request)
        try:
            return self.backend.compile_request(request)
        except GrammarError as fault:
            logger.error("vllm_guided refuses the constraint of request %s: %s", request.request_id, fault)
            raise
        except Exception:
            logger.exception("vllm_guided could not compile the constraint of request %s", request.request_id)
            raise

    manager._create_grammar = _create_grammar


def fill_whole_batch(manager: Any) -> None:
    """Fill a step's rows in one call; anything unusual goes vLLM's own way, request by request."""
    original = expect(
        manager,
        "grammar_bitmask",
        parameters=("self", "requests", "structured_output_request_ids", "scheduled_spec_decode_tokens"),
    )
    make_layout = find_layout(manager)

    @functools.wraps(original)
    def grammar_bitmask(
        self: Any,
        requests: dict[str, Any],
        structured_output_request_ids: list[str],
        scheduled_spec_decode_tokens: dict[str, list[int]],
    ) -> Any:
        if not structured_output_request_ids or not is_ours(self):
            return original(self, requests, structured_output_request_ids, scheduled_spec_decode_tokens)
        from vllm_guided.vllm.rows import fill_rows, number_rows, plan

        begin = time.perf_counter()
        try:
            if self.idle_work is not None:
                self.idle_work.pause()
            stride = 1 + (self.vllm_config.num_speculative_tokens or 0)
            if self._grammar_bitmask is None:
                rows = self.vllm_config.scheduler_config.max_num_seqs * stride
                self._grammar_bitmask = self.backend.allocate_token_bitmask(rows)
            made = plan(
                requests,
                structured_output_request_ids,
                scheduled_spec_decode_tokens,
                stride,
                make_layout(self),
                may_reason(self),
            )
            bitmask = self._grammar_bitmask.numpy()
            if self.row_table is None:
                filled = fill_rows(made, bitmask)
            else:
                filled = number_rows(made, bitmask, self.row_table)
            if self.idle_work is not None:
                self.idle_work.begin([grammar.matcher for grammar in made.grammars], made.states)
            count_step(filled, time.perf_counter() - begin)
            return filled
        except Exception:
            logger.exception("vllm_guided could not fill a step's masks at once; vLLM's own loop does it.")
        return original(self, requests, structured_output_request_ids, scheduled_spec_decode_tokens)

    manager.grammar_bitmask = grammar_bitmask


def may_reason(manager: Any) -> bool:
    """May requests have tokens that are not constrained, before their reasoning ends?"""
    return manager.reasoner_cls is not None and not manager.enable_in_reasoning


def accept_looked_ahead(manager: Any) -> None:
    """Take the states that were found for the whole batch (:mod:`vllm_guided.vllm.advance`), if they fit."""
    original = expect(manager, "accept_tokens", parameters=("self", "request", "new_token_ids"))

    @functools.wraps(original)
    def accept_tokens(self: Any, request: Any, new_token_ids: list[int]) -> bool:
        structured = request.structured_output_request
        if structured is not None and new_token_ids:
            grammar = structured._grammar
            if getattr(grammar, "is_plain", False) and grammar.accept_ahead(new_token_ids):
                if not structured.reasoning_ended:
                    structured.reasoning_ended = True
                return True
        accepted = bool(original(self, request, new_token_ids))
        if not accepted and is_ours(self) and not getattr(structured.grammar, "failed", True):
            told = reason(request.sampling_params)
            if told is not None:
                request.stop_reason = told
        return accepted

    def advance(self: Any, requests: dict[str, Any], names: Any, output: Any) -> None:
        if is_ours(self):
            from vllm_guided.vllm.advance import look_ahead

            begin = time.perf_counter()
            if self.idle_work is not None:
                self.idle_work.pause()
            look_ahead(requests, names, output, may_reason(self))
            counters.add("accept_steps")
            counters.add("accept_seconds", time.perf_counter() - begin)

    def look_at_drafts_ahead(self: Any, requests: dict[str, Any], names: Any, drafts: Any) -> None:
        if is_ours(self):
            from vllm_guided.vllm.advance import look_at_drafts

            look_at_drafts(requests, names, drafts, may_reason(self))

    manager.accept_tokens = accept_tokens
    manager.vllm_guided_advance = advance
    manager.vllm_guided_look_at_drafts = look_at_drafts_ahead


def count_step(filled: Any, seconds: float) -> None:
    """Count a step's masks for the metrics."""
    news = getattr(filled, "slots", None)
    counters.add("fill_steps")
    counters.add("fill_seconds", seconds)
    counters.add("rows", len(filled), sent_as="whole" if news is None else "number")
    if news is not None and len(news):
        counters.add("rows_sent", len(news))


def find_layout(manager: Any) -> Any:
    """A function from a manager to its row layout, by the methods that this vLLM's manager has.

    Raises:
        UnexpectedVllm: it is of no version that is known.
    """
    expect(manager, "_fill_bitmasks", parameters=("self", "batch"))
    strided = hasattr(manager, "_masked_reasoning_ends")
    if hasattr(manager, "_get_constraint_bounds"):
        expect(manager, "_get_constraint_bounds", parameters=("self", "request", "spec_tokens"))

        def bounds(self: Any, request: Any, tokens: Sequence[int]) -> tuple[int, int]:
            grammar_start, constraint_start = self._get_constraint_bounds(request, tokens)
            return grammar_start, constraint_start

    elif hasattr(manager, "_get_constraint_start"):
        expect(manager, "_get_constraint_start", parameters=("self", "request", "spec_tokens"))

        def bounds(self: Any, request: Any, tokens: Sequence[int]) -> tuple[int, int]:
            start = self._get_constraint_start(request, tokens)
            return start, start

    else:
        raise UnexpectedVllm(
            f"vllm_guided does not know how vLLM {vllm_version()} lays out the masks of a step: "
            f"{inspect.getmodule(manager)} has neither _get_constraint_bounds nor _get_constraint_start."
        )

    def make_layout(self: Any) -> Any:
        from vllm_guided.vllm.rows import Layout

        return Layout(
            strided=strided,
            bounds=functools.partial(bounds, self),
            masked_ids=self._masked_reasoning_ends if strided else _no_masked_ids,
        )

    return make_layout


def _no_masked_ids(request: Any) -> tuple[int, ...]:
    return ()
