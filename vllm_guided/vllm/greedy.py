"""Greedy sampling of constrained rows on the CPU, in one pass over what their masks allow.

Where every request of a step is greedy and nothing else changes logits or asks for probabilities, masks need
not be written: the token is the largest of the allowed (:mod:`vllm_guided.kernels.greedy`). So the masks of
such a step are put off until the sampler is called, which is next, and then the tokens are chosen at once.
Whatever is unusual, at either moment, has the masks written and vLLM's sampler called as always.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_guided.vllm import table
from vllm_guided.vllm.row_numbers import RowNumbers
from vllm_guided.vllm.selection import UnexpectedVllm, expect, logger

#: What a sampler may be told, in the vLLMs that are known: a field of another name may change tokens.
KNOWN_METADATA = {
    "temperature", "all_greedy", "all_random", "top_p", "top_k", "generators", "max_num_logprobs",
    "no_penalties", "prompt_token_ids", "frequency_penalties", "presence_penalties", "repetition_penalties",
    "output_token_ids", "allowed_token_ids_mask", "bad_words_token_ids", "logitsprocs", "logprob_token_ids",
    "spec_token_ids", "thinking_budget_state_holder",
}  # fmt: skip
#: vLLM's own processors, and where each keeps the requests that it changes.
PROCESSORS = {"LogitBiasLogitsProcessor": "biases", "MinTokensLogitsProcessor": "min_toks"}


@dataclass
class PutOff:
    """Masks that are not yet on the logits.

    Args:
        logits: float32 [rows, tokens].
        table: int32 [masks, words].
        row_ids: int64 [rows], negative where there is no mask.
        apply: writes them.
    """

    logits: Any
    table: Any
    row_ids: NDArray[np.int64]
    apply: Callable[[], None]


_put_off: PutOff | None = None
_hooked = False
_failed = False


def put_off(
    scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: Any, apply: Callable[[], None]
) -> bool:
    """Leave the masks of a step to the sampler, if it will do no more than choose the largest logits.

    Args:
        scheduler_output, grammar_output, input_batch, logits: of vLLM's ``apply_grammar_bitmask``.
        apply: writes the masks onto the logits.
    """
    global _put_off
    if not _hooked or _failed:
        return False
    numbers = grammar_output.grammar_bitmask
    names = grammar_output.structured_output_request_ids
    index = getattr(input_batch, "req_id_to_index", None)
    try:
        if (
            type(numbers) is not RowNumbers
            or scheduler_output.scheduled_spec_decode_tokens
            or len(names) != len(numbers)
            or index is None
            or not index.keys() >= set(names)
            or not _is_plain_greedy(logits, input_batch)
        ):
            return False
        row_ids = np.full(logits.shape[0], -1, np.int64)
        row_ids[[index[name] for name in names]] = np.asarray(numbers).reshape(-1)
        _put_off = PutOff(logits, table.held(numbers), row_ids, apply)
    except Exception:
        _give_up()
        return False
    return True


def _give_up() -> None:
    """Write masks from now on; greedy sampling is vLLM's own."""
    global _failed
    _failed = True
    logger.exception("vllm_guided could not choose a step's tokens; vLLM's sampler does from now on.")


def _is_plain_greedy(logits: Any, input_batch: Any) -> bool:
    import torch

    told = input_batch.sampling_metadata
    if logits.dtype != torch.float32 or not logits.is_cpu or logits.dim() != 2:
        return False
    if logits.shape[0] != len(input_batch.req_ids) or logits.stride(1) != 1:
        return False
    if not told.all_greedy or not told.no_penalties or told.max_num_logprobs is not None:
        return False
    if told.bad_words_token_ids or told.allowed_token_ids_mask is not None:
        return False
    if getattr(told, "logprob_token_ids", None):
        return False
    holder = getattr(told, "thinking_budget_state_holder", None)
    if holder is not None and holder.has_tracked_requests():
        return False
    for processor in told.logitsprocs.non_argmax_invariant:
        kept = PROCESSORS.get(type(processor).__name__)
        if kept is None or getattr(processor, kept):
            return False
    return True


def choose_in_sampler(module: ModuleType) -> None:
    """Adapt the model runner's ``_sample``; where it does not fit, masks are always written."""
    global _hooked
    try:
        runner = expect(module, "GPUModelRunner")
        original = expect(runner, "_sample", parameters=("self", "logits", "spec_decode_metadata"))
        sampler_output = expect(module, "SamplerOutput")
        if {field.name for field in fields(sampler_output)} != {"sampled_token_ids", "logprobs_tensors"}:
            raise UnexpectedVllm("SamplerOutput has other fields.")
        from vllm.v1.sample.metadata import SamplingMetadata

        if unknown := {field.name for field in fields(SamplingMetadata)} - KNOWN_METADATA:
            raise UnexpectedVllm(f"SamplingMetadata has fields that are not known: {sorted(unknown)}.")
    except (UnexpectedVllm, ImportError, TypeError) as fault:
        logger.debug("%s Masks are written onto the logits of greedy requests, too.", fault)
        return

    @functools.wraps(original)
    def _sample(self: Any, logits: Any, spec_decode_metadata: Any) -> Any:
        global _put_off
        waiting, _put_off = _put_off, None
        if waiting is not None:
            if logits is waiting.logits and spec_decode_metadata is None:
                tokens = _choose(waiting)
                if tokens is not None:
                    if hasattr(self.input_batch, "update_async_output_token_ids"):
                        self.input_batch.update_async_output_token_ids()
                    return sampler_output(sampled_token_ids=tokens, logprobs_tensors=None)
            waiting.apply()
        return original(self, logits, spec_decode_metadata)

    runner._sample = _sample
    _hooked = True


def _choose(waiting: PutOff) -> Any:
    """int32 [rows, 1], a tensor; None where that needs the sampler."""
    import torch

    from vllm_guided.kernels.greedy import allowed_argmax

    try:
        chosen = allowed_argmax(waiting.logits, waiting.table, waiting.row_ids)
    except Exception:
        _give_up()
        return None
    return None if chosen is None else torch.from_numpy(chosen.astype(np.int32)).unsqueeze(-1)
