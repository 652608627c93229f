"""Apply bitmasks to logits in the host's memory.

In: checked arguments (see ``arguments``). Out: nothing; the logits are changed in place. The calling thread
begins alone; only when it has written as much as a team of threads is worth, torch's OpenMP team
(see ``openmp``) does the rest. So the team is not started for small batches, nor for big ones whose
masks allow nearly everything, and rarely where other processes hold the cores, which makes a team slower than
one thread. The interpreter's lock is free all along.

numba is imported at the first call, not before: a vLLM worker that imports it too early does not start.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from . import job as fields
from . import openmp
from .arguments import MINUS_INFINITY

# Lines of 64 bytes that the calling thread writes before it starts the team: 2 MiB, some 200 microseconds,
# where to start a team costs 10 to 50.
ALONE_LINES = 1 << 15
# Tokens in a tile; a multiple of 2048. Short enough to share out a few rows, long enough to stream.
TILE = 1 << 15
# Where each thread has as many rows as this, a tile is a whole row: fewer to take.
ROWS_PER_THREAD = 16

_UNLIMITED = 1 << 62
_worth = openmp.Worth()
_Job = ctypes.c_int64 * fields.FIELDS


@functools.cache
def _function(size: int) -> tuple[int, Callable[[int], None]]:
    """The compiled function for logits of ``size`` bytes: its address, and a callable that frees the lock."""
    from . import cpu_code

    code = {2: cpu_code.mask_tiles_2, 4: cpu_code.mask_tiles_4, 8: cpu_code.mask_tiles_8}[size]
    return code.address, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address)


def compile_kernels() -> None:
    """Compile the functions, or load them from numba's cache."""
    from . import greedy

    for size in (2, 4, 8):
        _function(size)
    greedy.compile_kernel()


def apply(
    logits: torch.Tensor,
    bitmask: torch.Tensor,
    row_ids: torch.Tensor | None,
    indices: torch.Tensor | None,
    row_starts: torch.Tensor | None = None,
    positions: int = 1,
) -> None:
    """Mask i, row ``row_ids[i]`` (i, if None) of ``bitmask``, onto row ``indices[i]`` (i, if None).

    With ``row_starts``, onto the row where position ``indices[i] % positions`` of request
    ``indices[i] // positions`` is, if there is one.

    Raises:
        ValueError: a row number is out of range, a row of the logits is named twice, or an argument is not
            in the host's memory.
    """
    for name, tensor in (
        ("bitmask", bitmask),
        ("row_ids", row_ids),
        ("indices", indices),
        ("row_starts", row_starts),
    ):
        if tensor is not None and not tensor.is_cpu:
            raise ValueError(f"logits are on the CPU, but {name} on {tensor.device}")
    rows, tokens = logits.shape
    masks = bitmask.shape[0] if row_ids is None else row_ids.shape[0]
    targets = None if indices is None else _numbers(indices)
    sources = None if row_ids is None else _check_row_ids(_numbers(row_ids), bitmask.shape[0])
    if targets is not None and row_starts is not None:
        targets, found = _find_rows(targets, _numbers(row_starts), positions)
        sources = (np.arange(masks) if sources is None else sources)[found]
        masks = len(targets)
    if targets is not None:
        _check_indices(targets, rows)
    if masks == 0 or tokens == 0:
        return
    size = logits.element_size()
    threads = openmp.team_size()
    tile = TILE if masks < ROWS_PER_THREAD * threads else -(-tokens // TILE) * TILE
    tiles_per_row = -(-tokens // tile)
    job = _Job()
    job[fields.TILES] = masks * tiles_per_row
    job[fields.TILES_PER_ROW] = tiles_per_row
    job[fields.TILE] = tile
    job[fields.LOGITS] = logits.data_ptr()
    job[fields.LOGITS_ROW_STRIDE] = logits.stride(0) * size
    job[fields.LOGITS_TOKEN_STRIDE] = logits.stride(1) * size if tokens > 1 else size
    job[fields.TOKENS] = tokens
    job[fields.MASK] = bitmask.data_ptr()
    job[fields.MASK_ROW_STRIDE] = bitmask.stride(0) * 4
    job[fields.WORDS] = bitmask.shape[1]
    job[fields.INDICES] = 0 if targets is None else targets.ctypes.data
    job[fields.ROW_IDS] = 0 if sources is None else sources.ctypes.data
    job[fields.VALUE] = MINUS_INFINITY[logits.dtype]
    job[fields.BUDGET] = _UNLIMITED if threads == 1 else ALONE_LINES
    address, function = _function(size)
    begin = time.perf_counter_ns()
    function(ctypes.addressof(job))
    done, tiles = job[fields.NEXT], job[fields.TILES]
    if done >= tiles:
        return
    job[fields.BUDGET] = _UNLIMITED
    if _worth.try_team():
        middle = time.perf_counter_ns()
        openmp.run(address, ctypes.addressof(job))
        _worth.learn((middle - begin) * (tiles - done) / done, time.perf_counter_ns() - middle)
    else:
        function(ctypes.addressof(job))


def _numbers(rows: torch.Tensor) -> npt.NDArray[np.int64]:
    return np.ascontiguousarray(rows.numpy(), dtype=np.int64)


def _find_rows(
    places: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], positions: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The rows of the logits where places are, and which places exist; the rows are those of the existing.

    Raises:
        ValueError: a place belongs to no request.
    """
    requests = len(starts) - 1
    request = places // positions
    outside = (request < 0) | (request >= requests)
    if outside.any():
        raise ValueError(
            f"indices has place {places[outside][0]}, but there are {requests} requests of {positions} each"
        )
    rows = starts[request] + places % positions
    found = rows < starts[request + 1]
    return rows[found], found


def _check_indices(array: npt.NDArray[np.int64], rows: int) -> None:
    if array.size == 0:
        return
    if int(array.min()) < 0 or int(array.max()) >= rows:
        wrong = array[(array < 0) | (array >= rows)][0]
        raise ValueError(f"indices has row {wrong}, but logits have the rows 0 to {rows - 1}")
    # Two threads must not work on one row: each would write back what the other has masked.
    seen = np.zeros(rows, dtype=np.bool_)
    seen[array] = True
    if int(np.count_nonzero(seen)) != array.size:
        values, counts = np.unique(array, return_counts=True)
        raise ValueError(f"indices has row {values[counts > 1][0]} more than once")


def _check_row_ids(array: npt.NDArray[np.int64], rows: int) -> npt.NDArray[np.int64]:
    if array.size and (int(array.min()) < -1 or int(array.max()) >= rows):
        wrong = array[(array < -1) | (array >= rows)][0]
        raise ValueError(
            f"row_ids has row {wrong}, but the table has the rows 0 to {rows - 1}, and -1 for no mask"
        )
    return array
