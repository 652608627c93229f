"""The worker's side for vLLM's second model runner: masks onto logits, from a table or as whole rows.

That runner does not wait for its device: where rows of logits depend on what the device decides (it may
trim draft tokens), the kernel itself finds the row of each mask. So a mask is sent as a place, ``request *
mask_stride + position``, and the kernel reads from ``cu_num_logits`` where the request's rows begin. Of masks
that lie in this worker's table (:mod:`vllm_guided.vllm.table`) only the row numbers are sent, in one copy
with the places; masks that allow everything are not sent at all. Copies run on the runner's copy stream, as
vLLM's do: the kernel waits for them, and the next copy for the kernel, the host for neither.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vllm_guided.vllm import selection, table
from vllm_guided.vllm.selection import UnexpectedVllm, expect, logger

_broken = False

# What is used of vLLM's worker class; ``num_bonus_tokens`` may be missing, see `find_places`.
_USED = ("grammar_bitmask", "logits_indices", "copy_stream", "mask_stride")


def apply_in_place(module: ModuleType) -> None:
    """Replace ``StructuredOutputsWorker.apply_grammar_bitmask`` of vLLM's second model runner."""
    worker = expect(module, "StructuredOutputsWorker")
    original = expect(
        worker,
        "apply_grammar_bitmask",
        parameters=("self", "logits", "input_batch", "grammar_req_ids", "grammar_bitmask"),
    )
    make = expect(
        worker, "__init__", parameters=("self", "max_num_logits", "vocab_size", "device", "mask_stride")
    )
    expect(module, "async_tensor_h2d")
    if hasattr(original, "of_vllm_guided"):
        return

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        make(self, *args, **kwargs)
        if selection.is_active():
            _prepare(self)

    @functools.wraps(original)
    def apply_grammar_bitmask(
        self: Any, logits: Any, input_batch: Any, grammar_req_ids: list[str], grammar_bitmask: Any
    ) -> None:
        if (
            selection.is_active()
            and not _broken
            and _apply(module, self, logits, input_batch, grammar_req_ids, grammar_bitmask)
        ):
            return
        if table.held(grammar_bitmask) is not None:
            grammar_bitmask = table.whole_rows(grammar_bitmask)
        original(self, logits, input_batch, grammar_req_ids, grammar_bitmask)

    apply_grammar_bitmask.of_vllm_guided = True  # type: ignore[attr-defined]
    worker.__init__ = __init__
    worker.apply_grammar_bitmask = apply_grammar_bitmask
    table.can_apply(module, lambda: not _broken)


def _prepare(worker: Any) -> None:
    """Allocate and compile what serving needs, before the first request; if that fails, vLLM's own serves."""
    global _broken
    try:
        for name in _USED:
            if not hasattr(worker, name):
                raise UnexpectedVllm(
                    f"{type(worker).__name__} of vLLM {selection.vllm_version()} has no {name}"
                )
        from vllm_guided.kernels import warmup

        device = worker.grammar_bitmask.device
        worker.vllm_guided_numbers = torch.zeros(
            2 * len(worker.logits_indices), dtype=torch.int32, device=device
        )
        warmup(device)
    except Exception:
        _broken = True
        logger.exception("vllm_guided's mask kernel does not work here; vLLM's own is used.")


def _apply(
    module: ModuleType, worker: Any, logits: Any, input_batch: Any, masked_ids: list[str], bitmask: Any
) -> bool:
    """Apply the masks with our kernel; False, for good, if it cannot."""
    global _broken
    try:
        places = find_places(worker, input_batch, masked_ids)
        if len(places) != bitmask.shape[0]:
            raise UnexpectedVllm(f"{bitmask.shape[0]} masks for {len(places)} places of logits")
        rows = table.held(bitmask)
        if rows is not None:
            numbers = np.asarray(bitmask).reshape(-1)
            restricting = numbers >= 0
            places, bitmask = places[restricting], numbers[restricting]
        if len(places) and logits.is_cpu:
            _mask(worker, logits, input_batch, places, bitmask, rows)
        elif len(places):
            _send_and_mask(module.async_tensor_h2d, worker, logits, input_batch, places, bitmask, rows)
    except Exception:
        # Masking again what was masked already changes nothing, so it does not matter how far this came.
        _broken = True
        logger.exception("vllm_guided's mask kernel failed; vLLM's own is used from now on.")
        return False
    return True


def find_places(worker: Any, input_batch: Any, masked_ids: list[str]) -> NDArray[np.int32]:
    """Where each mask belongs: request * mask_stride + position, one for each mask row.

    vLLM sends one row for every position that was scheduled for a request; from 0.33, ``mask_stride`` rows
    for every request, of which the last may belong to no position.

    Raises:
        KeyError: a masked request is not in the batch.
    """
    number = {request_id: i for i, request_id in enumerate(input_batch.req_ids)}
    requests = np.array([number[request_id] for request_id in masked_ids], dtype=np.int32)
    stride = int(worker.mask_stride)
    first = requests * np.int32(stride)
    if not hasattr(worker, "num_bonus_tokens"):
        counts = np.full(len(first), stride)
    elif input_batch.num_draft_tokens_per_req is None:
        counts = np.diff(input_batch.cu_num_logits_np)[requests]
    else:
        # What was scheduled, not what ``cu_num_logits_np`` says: it may count the device's trimmed drafts.
        counts = input_batch.num_draft_tokens_per_req[requests] + worker.num_bonus_tokens
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    positions = np.arange(total) - np.repeat(ends - counts, counts)
    places: NDArray[np.int32] = (np.repeat(first, counts) + positions).astype(np.int32)
    return places


def _send_and_mask(
    send: Any, worker: Any, logits: Any, batch: Any, places: NDArray[np.int32], masks: Any, rows: Any
) -> None:
    """Copy what the kernel needs to the device on the copy stream, and launch it on the current one."""
    count = len(places)
    with torch.cuda.stream(worker.copy_stream):
        if rows is None:
            numbers = send(places, out=worker.logits_indices[:count])
            masks = send(masks, out=worker.grammar_bitmask[:count])
        else:
            numbers = send(np.concatenate((places, masks)), out=worker.vllm_guided_numbers[: 2 * count])
            masks = numbers[count:]
    current = torch.cuda.current_stream()
    current.wait_stream(worker.copy_stream)
    _mask(worker, logits, batch, numbers[:count], masks, rows)
    # The next step's copies must not overtake this kernel.
    worker.copy_stream.wait_stream(current)


def _mask(worker: Any, logits: Any, batch: Any, places: Any, masks: Any, rows: Any) -> None:
    """Apply ``masks``, numbers of ``rows`` or, without those, rows themselves, where ``places`` says."""
    from vllm_guided import kernels

    starts, positions = batch.cu_num_logits, int(worker.mask_stride)
    if rows is None:
        kernels.apply_token_bitmask_inplace(logits, masks, places, row_starts=starts, positions=positions)
    else:
        kernels.apply_token_bitmask_table_inplace(
            logits, rows, masks, places, row_starts=starts, positions=positions
        )
