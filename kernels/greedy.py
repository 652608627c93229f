"""The largest allowed logit of each row, on the CPU, without writing a mask onto the logits.

Greedy sampling asks for no more than that, and a mask that allows a dozen tokens then costs a dozen reads,
where to write minus infinity into the other hundred thousand, and to read all of them again, takes a tenth of
a step of a small model.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from . import openmp

Tokens = npt.NDArray[np.int64]

#: Rows from which a team of threads is worth its start.
TEAM_ROWS = 16


@functools.cache
def _function() -> tuple[int, Callable[[int], None], type[ctypes.Array[ctypes.c_int64]]]:
    """The compiled function: its address, and a callable that frees the interpreter's lock; a job's type."""
    from . import greedy_code

    address = greedy_code.choose_rows.address
    return address, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address), ctypes.c_int64 * greedy_code.FIELDS


@functools.cache
def _ones(words: int) -> npt.NDArray[np.int32]:
    return np.full(words, -1, np.int32)


def compile_kernel() -> None:
    """Compile the function, or load it from numba's cache."""
    _function()


def allowed_argmax(logits: torch.Tensor, table: torch.Tensor, row_ids: Tokens) -> Tokens | None:
    """For each row the token with the largest logit among those its mask allows; the first of equals.

    Args:
        logits: float32 [rows, tokens] in the host's memory, tokens side by side.
        table: int32 [masks, words], words side by side; bit set = allowed. Tokens beyond its width are not
            allowed.
        row_ids: int64 [rows], the mask of each row; below 0: all tokens are allowed.

    Returns:
        int64 [rows]; None where a row has nothing to choose by (an allowed logit is NaN, all are minus
        infinity, or the table has no such mask): then mask and sample as ever.

    Raises:
        TypeError, ValueError: an argument is none of the above.
    """
    if logits.dtype != torch.float32 or table.dtype != torch.int32 or row_ids.dtype != np.int64:
        raise TypeError(f"logits {logits.dtype}, table {table.dtype}, row_ids {row_ids.dtype}")
    if not (logits.is_cpu and table.is_cpu and logits.dim() == table.dim() == 2):
        raise ValueError("logits and table must be two-dimensional tensors on the CPU")
    rows, tokens = logits.shape
    if row_ids.shape != (rows,) or not row_ids.flags.c_contiguous:
        raise ValueError(f"row_ids has shape {row_ids.shape}, but there are {rows} rows of logits")
    if (tokens > 1 and logits.stride(1) != 1) or (table.shape[1] > 1 and table.stride(1) != 1):
        raise ValueError("the tokens of a row and the words of a mask must lie side by side")
    chosen = np.empty(rows, np.int64)
    address, function, kind = _function()
    job = kind(
        0, rows, logits.data_ptr(), 4 * logits.stride(0), tokens,
        table.data_ptr(), 4 * table.stride(0), table.shape[1], table.shape[0],
        row_ids.ctypes.data, _ones((tokens + 31) // 32).ctypes.data, chosen.ctypes.data,
    )  # fmt: skip
    if rows >= TEAM_ROWS and openmp.team_size() > 1:
        openmp.run(address, ctypes.addressof(job))
    else:
        function(ctypes.addressof(job))
    return chosen if rows == 0 or int(chosen.min()) >= 0 else None
