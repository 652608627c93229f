"""The worker's table of mask rows: opened once, extended by what each step brings, read by the kernels.

The engine core leads it (:mod:`vllm_guided.vllm.shipping`): a step brings the rows that are new and the
numbers of those it uses. Steps reach a worker in the order in which they were made, so a row may be
overwritten as soon as a later step says so; on a GPU the copy waits for the kernels before it, as it runs on
their stream.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vllm_guided.vllm import selection
from vllm_guided.vllm.row_numbers import RowNumbers
from vllm_guided.vllm.selection import expect


class HeldTable:
    """int32 [rows, words] on a worker's device."""

    def __init__(self, rows: int, words: int, device: torch.device) -> None:
        self.rows = torch.zeros((rows, words), dtype=torch.int32, device=device)

    def write(self, slots: NDArray[np.int32], rows: NDArray[np.int32]) -> None:
        """Put int32 [new, words] at int32 [new] slots; on a GPU nothing waits for it."""
        if self.rows.is_cpu:
            self.rows.numpy()[slots] = rows
            return
        where = torch.from_numpy(slots.astype(np.int64)).pin_memory().to(self.rows.device, non_blocking=True)
        what = torch.from_numpy(np.ascontiguousarray(rows)).pin_memory()
        self.rows.index_copy_(0, where, what.to(self.rows.device, non_blocking=True))


#: The tables of this process; each lives as long as its worker.
_tables: weakref.WeakValueDictionary[int, HeldTable] = weakref.WeakValueDictionary()
#: Modules whose model runners receive rows here, and modules whose masks are applied by number, as long as
#: the function says so.
_receiving: set[str] = set()
_applying: dict[str, Callable[[], bool]] = {}
#: Where the model runner of a module has its masks applied.
_APPLIED_IN = {
    "vllm.v1.worker.gpu_model_runner": "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu.model_runner": "vllm.v1.worker.gpu.structured_outputs",
}


def open_on_worker(worker: Any, number: int, rows: int, words: int) -> str | None:
    """Make table ``number`` on a worker; the reason where that cannot be.

    Called in the worker's process by the engine core. Never raises.
    """
    try:
        if not selection.is_active():
            return "the plugin is not active in the worker's process"
        inner = getattr(worker, "worker", None) or worker
        runner = inner.model_runner
        kind = next((c.__module__ for c in type(runner).__mro__ if c.__module__ in _receiving), None)
        works = None if kind is None else _applying.get(_APPLIED_IN[kind])
        if works is None:
            return f"{type(runner).__module__} takes no rows by number"
        if not works():
            return "our mask kernel does not work in the worker"
        table = HeldTable(rows, words, torch.device(inner.device))
        inner.vllm_guided_table = table
        _tables[number] = table
    except Exception as fault:
        return f"{type(fault).__name__}: {fault}"
    return None


def can_apply(module: ModuleType, works: Callable[[], bool]) -> None:
    """Note that masks are applied by number in ``module``, as long as ``works()``."""
    _applying[module.__name__] = works


def held(numbers: Any) -> torch.Tensor | None:
    """The table that these row numbers speak of, int32 [rows, words]; None: they are whole rows."""
    if type(numbers) is not RowNumbers:
        return None
    return _tables[numbers.table].rows


def receive(grammar_output: Any) -> None:
    """Write the rows that a step brings into the table."""
    if grammar_output is None:
        return
    numbers = grammar_output.grammar_bitmask
    if type(numbers) is RowNumbers and len(numbers.slots):
        _tables[numbers.table].write(numbers.slots, numbers.rows)
        numbers.slots = numbers.rows = numbers.slots[:0]


def whole_rows(numbers: RowNumbers) -> NDArray[np.int32]:
    """The mask rows themselves, int32 [rows, words], for code that knows nothing of tables."""
    table = _tables[numbers.table].rows
    ids = np.asarray(numbers).reshape(-1)
    rows: NDArray[np.int32] = table[torch.from_numpy(np.maximum(ids, 0).astype(np.int64))].cpu().numpy()
    rows[ids < 0] = -1
    return rows


def receive_rows(module: ModuleType) -> None:
    """Let a model runner put the rows of a step into the table before anything else looks at them."""
    runner = expect(module, "GPUModelRunner")
    original = expect(runner, "sample_tokens", parameters=("self", "grammar_output"))

    @functools.wraps(original)
    def sample_tokens(self: Any, grammar_output: Any, *args: Any, **kwargs: Any) -> Any:
        receive(grammar_output)
        return original(self, grammar_output, *args, **kwargs)

    runner.sample_tokens = sample_tokens
    _receiving.add(module.__name__)
