"""The checks that every kernel shares, before any address is handed on.

In: what the caller gave. Out: the same as two-dimensional tensors, or a TypeError or ValueError that says
what is wrong. Nothing here reads the data of a tensor on a device, so nothing waits for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Bitmask = torch.Tensor | npt.NDArray[np.int32]
Rows = torch.Tensor | npt.NDArray[np.integer[Any]] | Sequence[int]

# The bits of minus infinity, as a signed integer of the same width.
MINUS_INFINITY: dict[torch.dtype, int] = {
    torch.float16: 0xFC00 - (1 << 16),
    torch.bfloat16: 0xFF80 - (1 << 16),
    torch.float32: 0xFF800000 - (1 << 32),
    torch.float64: 0xFFF0000000000000 - (1 << 64),
}


def check_logits(logits: object) -> torch.Tensor:
    """``logits`` as [rows, tokens], not copied."""
    if not isinstance(logits, torch.Tensor):
        raise TypeError(f"logits must be a torch.Tensor, not {type(logits).__name__}")
    if logits.dtype not in MINUS_INFINITY:
        raise TypeError(f"logits must be float16, bfloat16, float32 or float64, not {logits.dtype}")
    if logits.dim() not in (1, 2):
        raise ValueError(f"logits must be [tokens] or [rows, tokens], not {logits.dim()}-dimensional")
    if logits.dim() == 1:
        logits = logits.unsqueeze(0)
    if 0 in logits.stride() and any(
        length > 1 and stride == 0 for length, stride in zip(logits.shape, logits.stride(), strict=True)
    ):
        raise ValueError("logits must not be an expanded tensor: its elements share memory; clone it first")
    return logits


def check_bitmask(bitmask: object, tokens: int) -> torch.Tensor:
    """``bitmask`` as an int32 tensor [rows, words] whose words lie side by side, not copied if they do."""
    if isinstance(bitmask, np.ndarray):
        if bitmask.dtype != np.int32:
            raise TypeError(f"bitmask must be int32, not {bitmask.dtype}")
        if not bitmask.flags.writeable or any(stride < 0 or stride % 4 for stride in bitmask.strides):
            bitmask = bitmask.copy()  # torch takes none of these
        bitmask = torch.from_numpy(bitmask)
    elif not isinstance(bitmask, torch.Tensor):
        raise TypeError(f"bitmask must be a torch.Tensor or a numpy array, not {type(bitmask).__name__}")
    elif bitmask.dtype != torch.int32:
        raise TypeError(f"bitmask must be int32, not {bitmask.dtype}")
    if bitmask.dim() not in (1, 2):
        raise ValueError(f"bitmask must be [words] or [rows, words], not {bitmask.dim()}-dimensional")
    if bitmask.dim() == 1:
        bitmask = bitmask.unsqueeze(0)
    if bitmask.shape[1] == 0 and tokens > 0 and bitmask.shape[0] > 0:
        raise ValueError(f"bitmask has no words; {tokens} tokens need {(tokens + 31) // 32}")
    if bitmask.shape[1] > 1 and bitmask.stride(1) != 1:
        bitmask = bitmask.contiguous()
    return bitmask


def check_rows(rows: object, name: str) -> torch.Tensor:
    """Row numbers as a one-dimensional int32 or int64 tensor, on whatever device they are."""
    if not isinstance(rows, torch.Tensor):
        array = np.asarray(rows)
        if array.size == 0 and array.ndim == 1:
            array = array.astype(np.int64)
        if array.dtype == np.bool_ or not np.issubdtype(array.dtype, np.integer):
            raise TypeError(f"{name} must be integers, not {array.dtype}")
        rows = torch.from_numpy(array.astype(np.int64))
    if rows.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} must be int32 or int64, not {rows.dtype}")
    if rows.dim() != 1:
        raise ValueError(f"{name} must be one-dimensional, not {rows.dim()}-dimensional")
    return rows


def check_count(masks: int, rows: int, indices: torch.Tensor | None) -> None:
    """There must be one mask for each row of the logits, or for each index."""
    if indices is None:
        if masks != rows:
            raise ValueError(f"{masks} masks for {rows} rows of logits; name the rows with indices")
    elif masks != indices.shape[0]:
        raise ValueError(f"{masks} masks for {indices.shape[0]} indices")


def check_starts(row_starts: object, indices: torch.Tensor | None, positions: object) -> None:
    """The first rows of requests need indices that name a request and one of its positions."""
    if indices is None:
        raise ValueError("row_starts need indices, which say which request each mask is for")
    if not isinstance(row_starts, torch.Tensor):
        raise TypeError(f"row_starts must be a torch.Tensor, not {type(row_starts).__name__}")
    check_rows(row_starts, "row_starts")
    if row_starts.shape[0] == 0:
        raise ValueError("row_starts must have one number more than there are requests")
    if not isinstance(positions, int) or positions < 1:
        raise ValueError(f"positions must be an integer of at least 1, not {positions!r}")
