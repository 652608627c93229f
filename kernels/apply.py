"""Masked logits: the two public functions, for every device.

In: logits, packed masks, and optionally which rows. Out: nothing; disallowed logits are minus infinity
afterwards, allowed ones keep their bits, NaN and infinities included. ``dispatch`` checks the arguments,
``cpu`` does it on the host, ``triton_kernel`` on a GPU; ``reference`` says what they compute.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .arguments import Bitmask, Rows

_loaded: ModuleType | None = None


def apply_token_bitmask_inplace(
    logits: torch.Tensor,
    bitmask: Bitmask,
    indices: Rows | None = None,
    *,
    row_starts: torch.Tensor | None = None,
    positions: int = 1,
) -> None:
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
        row_starts: int32 or int64 [requests + 1], where each request's rows of logits begin, and where the
            last one's end. Then ``indices`` must be given, and names no rows but places: mask i is for
            position ``indices[i] % positions`` of request ``indices[i] // positions``, hence for the row
            ``row_starts[request] + position``, and is not applied if the request has no such position.
            On a GPU all of this is read there, so that rows which the device itself counts are found
            without waiting for it.
        positions: how many places a request has among the indices; only with ``row_starts``.

    Raises:
        TypeError: an argument's type or dtype is none of the above.
        ValueError: the shapes do not belong together, or, on the CPU, an index is out of range or repeats.
            On a GPU nothing waits for the device to find out, and a mask whose index is out of range is
            not applied.

    >>> apply_token_bitmask_inplace(logits, bitmask)                      # every row
    >>> apply_token_bitmask_inplace(logits, bitmask, indices=[0, 3, 7])   # three masks, three rows
    """
    _device_code().apply(logits, bitmask, None, indices, row_starts, positions)


def apply_token_bitmask_table_inplace(
    logits: torch.Tensor,
    table: Bitmask,
    row_ids: Rows,
    indices: Rows | None = None,
    *,
    row_starts: torch.Tensor | None = None,
    positions: int = 1,
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
        indices, row_starts, positions: as above.

    Raises:
        TypeError: as above.
        ValueError: as above; on the CPU, also where a row id is below -1 or beyond the table. On a GPU such
            a row id must not be passed: the mask is not applied.

    >>> apply_token_bitmask_table_inplace(logits, table, row_ids=[5, 5, -1])
    """
    _device_code().apply(logits, table, row_ids, indices, row_starts, positions)


def warmup(device: str | torch.device = "cpu") -> None:
    """Compile what the first calls would otherwise compile: a few seconds once, then from the caches.

    Args:
        device: where the logits will be. On a GPU this covers float16, bfloat16 and float32, with row
            numbers as int32 on the device, of any kind on the host, or none; no size or stride of rows is
            compiled for on its own.
    """
    _device_code().warmup(device)


def _device_code() -> ModuleType:
    """The module that knows torch, imported at the first call and then found by one look."""
    global _loaded
    if _loaded is None:
        from . import dispatch

        _loaded = dispatch
    return _loaded
