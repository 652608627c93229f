"""Masked logits: the two public functions, for every device.

In: logits, packed masks, and optionally which rows. Out: nothing; disallowed logits are minus infinity
afterwards, allowed ones keep their bits, NaN and infinities included. ``cpu`` does it on the host,
``triton_kernel`` on a GPU; ``reference`` says what they compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .arguments import Bitmask, Rows


def apply_token_bitmask_inplace(logits: torch.Tensor, bitmask: Bitmask, indices: Rows | None = None) -> None:
    """Set the logits of disallowed tokens to minus infinity.

    Token t of a row is allowed if bit ``t % 32`` of word ``t // 32`` of its mask is set. Tokens beyond the
    mask's width are not allowed, whatever the mask: a vocabulary that was padded for the model has no
    tokens there. Bits beyond the width of the logits are ignored.

    Args:
        logits: [rows, tokens] or [tokens]; float16, bfloat16, float32 or float64. Rows and tokens may be
            strided; the fast paths are for tokens side by side.
        bitmask: int32 [masks, words] or [words], a tensor or a numpy array. For logits on a GPU it should
            be a tensor there; from the host it is sent through pinned memory.
        indices: int32 or int64 [masks], a tensor, array or list: mask i goes onto row ``indices[i]`` of the
            logits. Rows must not repeat; rows that are not named stay as they are. None: mask i onto row i.
            (Other packages take both the mask and the logits at ``indices[i]``.)

    Raises:
        TypeError: an argument's type or dtype is none of the above.
        ValueError: the shapes do not belong together, or, on the CPU, an index is out of range or repeats.
            On a GPU nothing waits for the device to find out, and a mask whose index is out of range is
            not applied.

    >>> apply_token_bitmask_inplace(logits, bitmask)                      # every row
    >>> apply_token_bitmask_inplace(logits, bitmask, indices=[0, 3, 7])   # three masks, three rows
    """
    from . import arguments

    logits = arguments.check_logits(logits)
    words = arguments.check_bitmask(bitmask, logits.shape[1])
    rows = None if indices is None else arguments.check_rows(indices, "indices")
    arguments.check_count(words.shape[0], logits.shape[0], rows)
    _apply(logits, words, None, rows)


def apply_token_bitmask_table_inplace(
    logits: torch.Tensor, table: Bitmask, row_ids: Rows, indices: Rows | None = None
) -> None:
    """Like :func:`apply_token_bitmask_inplace`, with mask i at row ``row_ids[i]`` of a table.

    A mask that lies on the device already need not be sent again: four bytes name it. Several
    rows of the logits may use the same row of the table.

    Args:
        logits: as above.
        table: int32 [rows, words], as ``bitmask`` above.
        row_ids: int32 or int64 [masks], rows of the table. -1 stands for "everything allowed": the row of
            the logits is not touched, not even beyond the mask's width. No other number has a
            meaning of its own; 0 is the table's first row.
        indices: as above; None: mask i onto row i.

    Raises:
        TypeError: as above.
        ValueError: as above; on the CPU, also where a row id is below -1 or beyond the table. On a GPU such
            a row id must not be passed: the mask is not applied.

    >>> apply_token_bitmask_table_inplace(logits, table, row_ids=[5, 5, -1])
    """
    from . import arguments

    logits = arguments.check_logits(logits)
    words = arguments.check_bitmask(table, logits.shape[1])
    ids = arguments.check_rows(row_ids, "row_ids")
    rows = None if indices is None else arguments.check_rows(indices, "indices")
    arguments.check_count(ids.shape[0], logits.shape[0], rows)
    _apply(logits, words, ids, rows)


def warmup(device: str | torch.device = "cpu") -> None:
    """Compile what the first calls would otherwise compile: a few seconds once, then from the caches.

    Args:
        device: where the logits will be. On a GPU this covers float16, bfloat16 and float32, with row
            numbers as int32 or none; no size or stride of rows is compiled for on its own.
    """
    import torch

    device = torch.device(device)
    if device.type == "cpu":
        from . import cpu

        cpu.compile_kernels()
        return
    table = torch.full((1, 2), -1, dtype=torch.int32, device=device)
    numbers = torch.zeros(1, dtype=torch.int32, device=device)
    for dtype in (torch.float32, torch.bfloat16):  # float16 shares the code of bfloat16
        logits = torch.zeros((1, 64), dtype=dtype, device=device)
        for indices in (None, numbers):
            apply_token_bitmask_inplace(logits, table, indices)
            apply_token_bitmask_table_inplace(logits, table, numbers, indices)


def _apply(
    logits: torch.Tensor, bitmask: torch.Tensor, row_ids: torch.Tensor | None, indices: torch.Tensor | None
) -> None:
    if logits.is_cpu:
        from . import cpu

        cpu.apply(logits, bitmask, row_ids, indices)
        return
    if logits.device.type not in ("cuda", "xpu"):
        raise ValueError(f"no kernel for logits on {logits.device}: only for CPU, CUDA, ROCm and XPU")
    from . import triton_kernel

    triton_kernel.apply(logits, bitmask, row_ids, indices)
