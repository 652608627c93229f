"""Apply bitmasks to logits in the host's memory.

In: checked arguments (see ``arguments``). Out: nothing; the logits are changed in place. Small batches
are done by the calling thread, big ones by torch's OpenMP team (see ``openmp``); the interpreter's lock is
free in both cases. numba is imported at the first call, not before: a vLLM worker that imports
it too early does not start.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from . import openmp
from .arguments import MINUS_INFINITY

# From how many logits on a team is worth its start, some ten to fifty microseconds: eight rows of
# 128,000 tokens, which take one thread 100 to 300 microseconds if most tokens are masked.
PARALLEL_LOGITS = 1 << 20
# Tokens in a tile of a shared job; a multiple of 2048. Small enough to share one row, long enough to stream.
TILE = 1 << 15


@functools.cache
def _function(size: int) -> tuple[int, Callable[[int], None]]:
    """The compiled function for logits of ``size`` bytes: its address, and a callable that frees the lock."""
    from . import cpu_code

    code = {2: cpu_code.mask_tiles_2, 4: cpu_code.mask_tiles_4, 8: cpu_code.mask_tiles_8}[size]
    return code.address, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address)


def compile_kernels() -> None:
    """Compile the functions, or load them from numba's cache."""
    for size in (2, 4, 8):
        _function(size)


def apply(
    logits: torch.Tensor, bitmask: torch.Tensor, row_ids: torch.Tensor | None, indices: torch.Tensor | None
) -> None:
    """Mask i, row ``row_ids[i]`` (i, if None) of ``bitmask``, onto row ``indices[i]`` (i, if None).

    Raises:
        ValueError: a row number is out of range, a row of the logits is named twice, or an argument is not
            in the host's memory.
    """
    for name, tensor in (("bitmask", bitmask), ("row_ids", row_ids), ("indices", indices)):
        if tensor is not None and not tensor.is_cpu:
            raise ValueError(f"logits are on the CPU, but {name} on {tensor.device}")
    rows, tokens = logits.shape
    masks = bitmask.shape[0] if row_ids is None else row_ids.shape[0]
    targets = None if indices is None else _check_indices(indices, rows)
    sources = None if row_ids is None else _check_row_ids(row_ids, bitmask.shape[0])
    if masks == 0 or tokens == 0:
        return
    size = logits.element_size()
    shared = masks * tokens >= PARALLEL_LOGITS and openmp.team_size() > 1
    tile = TILE if shared else -(-tokens // 2048) * 2048
    tiles_per_row = -(-tokens // tile)
    job = np.array(  # in the order of the fields in cpu_code
        (
            0,
            masks * tiles_per_row,
            tiles_per_row,
            tile,
            logits.data_ptr(),
            logits.stride(0) * size,
            logits.stride(1) * size if tokens > 1 else size,
            tokens,
            bitmask.data_ptr(),
            bitmask.stride(0) * 4,
            bitmask.shape[1],
            0 if targets is None else targets.ctypes.data,
            0 if sources is None else sources.ctypes.data,
            MINUS_INFINITY[logits.dtype],
        ),
        dtype=np.int64,
    )
    address, function = _function(size)
    if shared:
        openmp.run(address, job.ctypes.data)
    else:
        function(job.ctypes.data)


def _check_indices(indices: torch.Tensor, rows: int) -> npt.NDArray[np.int64]:
    array = np.ascontiguousarray(indices.numpy(), dtype=np.int64)
    if array.size == 0:
        return array
    if int(array.min()) < 0 or int(array.max()) >= rows:
        wrong = array[(array < 0) | (array >= rows)][0]
        raise ValueError(f"indices has row {wrong}, but logits have the rows 0 to {rows - 1}")
    # Two threads must not work on one row: each would write back what the other has masked.
    seen = np.zeros(rows, dtype=np.bool_)
    seen[array] = True
    if int(np.count_nonzero(seen)) != array.size:
        values, counts = np.unique(array, return_counts=True)
        raise ValueError(f"indices has row {values[counts > 1][0]} more than once")
    return array


def _check_row_ids(row_ids: torch.Tensor, rows: int) -> npt.NDArray[np.int64]:
    array = np.ascontiguousarray(row_ids.numpy(), dtype=np.int64)
    if array.size and (int(array.min()) < -1 or int(array.max()) >= rows):
        wrong = array[(array < -1) | (array >= rows)][0]
        raise ValueError(
            f"row_ids has row {wrong}, but the table has the rows 0 to {rows - 1}, and -1 for no mask"
        )
    return array
