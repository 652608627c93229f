"""The worker's side: put the mask rows onto the logits, in place and in one pass.

vLLM's first model runner copies every row into a mask for the whole batch and gives it to xgrammar, whose
CPU kernel walks the masked tokens one by one. Here the rows go straight to our kernel with the numbers of
the logits they belong to. For vLLM's second runner see :mod:`vllm_guided.vllm.second_runner`.
"""

from __future__ import annotations

import dataclasses
import functools
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_guided.vllm import greedy, selection, table
from vllm_guided.vllm.row_numbers import RowNumbers
from vllm_guided.vllm.selection import expect, is_selected, logger

_broken = False


def note_selection(module: ModuleType) -> None:
    """Tell this process that our backend is selected, when its worker is made, and warm the kernel up."""
    worker = expect(module, "WorkerBase")
    original = expect(worker, "__init__", parameters=("self", "vllm_config"))

    @functools.wraps(original)
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, vllm_config, *args, **kwargs)
        if is_selected(vllm_config.structured_outputs_config):
            selection.activate()
            if vllm_config.device_config.device_type == "cpu":
                _warm_up("cpu")

    worker.__init__ = __init__


def warm_up_on_device(module: ModuleType) -> None:
    """Warm the kernel up when the first model runner is made on a GPU, which is chosen by then."""
    runner = expect(module, "GPUModelRunner")
    original = expect(runner, "__init__", parameters=("self", "vllm_config", "device"))

    @functools.wraps(original)
    def __init__(self: Any, vllm_config: Any, device: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, vllm_config, device, *args, **kwargs)
        if is_selected(vllm_config.structured_outputs_config) and device.type != "cpu":
            _warm_up(device)

    runner.__init__ = __init__


def _warm_up(device: Any) -> None:
    """Compile the kernel for a device before the first request; if that fails, vLLM's own serves."""
    global _broken
    try:
        from vllm_guided.kernels import warmup

        warmup(device)
    except Exception:
        _broken = True
        logger.exception("vllm_guided's mask kernel does not work here; vLLM's own is used.")


def apply_in_place(module: ModuleType) -> None:
    """Replace ``apply_grammar_bitmask`` of vLLM's first model runner."""
    original = expect(
        module,
        "apply_grammar_bitmask",
        parameters=("scheduler_output", "grammar_output", "input_batch", "logits"),
    )
    table.can_apply(module, lambda: not _broken)
    if hasattr(original, "of_vllm_guided"):
        return

    @functools.wraps(original)
    def apply_grammar_bitmask(
        scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: Any
    ) -> None:
        def write() -> None:
            output = grammar_output
            usable = selection.is_active() and not _broken
            if usable and _apply(scheduler_output, output, input_batch, logits):
                return
            if type(output.grammar_bitmask) is RowNumbers:
                whole = table.whole_rows(output.grammar_bitmask)
                output = dataclasses.replace(output, grammar_bitmask=whole)
            original(scheduler_output, output, input_batch, logits)

        if not greedy.put_off(scheduler_output, grammar_output, input_batch, logits, write):
            write()

    apply_grammar_bitmask.of_vllm_guided = True  # type: ignore[attr-defined]
    module.apply_grammar_bitmask = apply_grammar_bitmask  # type: ignore[attr-defined]


def _apply(scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: Any) -> bool:
    """Apply the rows with our kernel; False, for good, if it cannot."""
    global _broken
    try:
        from vllm_guided.kernels import apply_token_bitmask_inplace, apply_token_bitmask_table_inplace

        bitmask = grammar_output.grammar_bitmask
        mask_rows, logit_rows = match_rows(
            input_batch.req_ids,
            grammar_output.structured_output_request_ids,
            scheduler_output.scheduled_spec_decode_tokens,
            bitmask.shape[0],
        )
        if not len(mask_rows):
            return True
        rows = table.held(bitmask)
        if rows is not None:
            numbers = np.asarray(bitmask).reshape(-1)[mask_rows]
            apply_token_bitmask_table_inplace(logits, rows, numbers, logit_rows)
            return True
        if len(mask_rows) != bitmask.shape[0] or not np.array_equal(mask_rows, np.arange(len(mask_rows))):
            bitmask = bitmask[mask_rows]
        apply_token_bitmask_inplace(logits, bitmask, logit_rows)
    except Exception:
        _broken = True
        logger.exception("vllm_guided's mask kernel failed; vLLM's own is used from now on.")
        return False
    return True


def match_rows(
    batch_ids: list[str], masked_ids: list[str], drafts: dict[str, list[int]], row_count: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Which mask row belongs to which row of the logits.

    Args:
        batch_ids: the requests of the batch, in the order of their logits; each has one row of logits, and
            one more for every draft token.
        masked_ids: the requests with mask rows, in the order of those.
        drafts: draft tokens by request.
        row_count: the number of mask rows. More than are needed means that each request owns
            the same number of them (vLLM 0.33).

    Returns:
        Mask rows and logits rows, one pair per row that is masked.
    """
    first_logit: dict[str, int] = {}
    logit = 0
    for request_id in batch_ids:
        first_logit[request_id] = logit
        logit += 1 + len(drafts.get(request_id, ()))
    needed = [1 + len(drafts.get(request_id, ())) for request_id in masked_ids]
    strided = sum(needed) != row_count
    stride = row_count // len(masked_ids) if masked_ids else 0
    mask_rows: list[int] = []
    logit_rows: list[int] = []
    row = 0
    for index, (request_id, count) in enumerate(zip(masked_ids, needed, strict=True)):
        if strided:
            row = index * stride
        start = first_logit.get(request_id)
        if start is not None:
            mask_rows.extend(range(row, row + count))
            logit_rows.extend(range(start, start + count))
        row += count
    return np.array(mask_rows, dtype=np.int32), np.array(logit_rows, dtype=np.int32)
