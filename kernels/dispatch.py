"""Check the arguments of a public function and hand them to the kernel of the logits' device.

Apart from ``apply`` because this module imports torch. A step comes here once, with all of this long out of
the processor's caches, where an import statement alone takes tens of microseconds: on the CPU none is on the
way.
"""

from __future__ import annotations

import torch

from . import cpu
from .arguments import Bitmask, Rows, check_bitmask, check_count, check_logits, check_rows, check_starts


def apply(
    logits: torch.Tensor,
    bitmask: Bitmask,
    row_ids: Rows | None,
    indices: Rows | None,
    row_starts: torch.Tensor | None,
    positions: int,
) -> None:
    """See ``apply_token_bitmask_inplace`` and, where ``row_ids`` are given, its sister for tables."""
    logits = check_logits(logits)
    words = check_bitmask(bitmask, logits.shape[1])
    ids = None if row_ids is None else check_rows(row_ids, "row_ids")
    rows = None if indices is None else check_rows(indices, "indices")
    check_count((words if ids is None else ids).shape[0], logits.shape[0], rows)
    if row_starts is not None:
        check_starts(row_starts, rows, positions)
    if logits.is_cpu:
        cpu.apply(logits, words, ids, rows, row_starts, positions)
        return
    _check_device(logits.device)
    from . import triton_kernel

    triton_kernel.apply(logits, words, ids, rows, row_starts, positions)


def warmup(device: str | torch.device) -> None:
    """Compile for a device."""
    device = torch.device(device)
    if device.type == "cpu":
        cpu.compile_kernels()
        return
    _check_device(device)
    from . import triton_kernel

    triton_kernel.warmup(device)


def _check_device(device: torch.device) -> None:
    if device.type not in ("cuda", "xpu"):
        raise ValueError(f"no kernel for logits on {device}: only for CPU, CUDA, ROCm and XPU")
