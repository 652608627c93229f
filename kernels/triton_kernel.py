"""Apply bitmasks to logits on a GPU, a whole batch in one launch.

In: checked arguments (see ``arguments``). Out: nothing; the logits are changed in place, by a kernel on
the current stream. The host never waits, nothing is allocated where every argument is on the device, and all
sizes but the launch grid are ordinary arguments, so that the launch can be captured in a CUDA graph.

How it stores. The obvious kernel stores minus infinity under a mask of single bits; as neighbouring bits
may differ, the compiler must then emit one predicated 4- or 2-byte store per logit. Here the unit is a chunk
of 16 bytes (8, 4 or 2 logits, by their size), which one thread owns, with neighbouring threads on
neighbouring chunks, and every load and store is predicated by chunk. So the mask of a memory
access is constant along a vector, and each is one 16-byte instruction:

- all bits of the chunk set: neither loaded nor stored; a word of ones costs its own four bytes;
- no bit set: stored, not loaded;
- some bits set: loaded, selected, stored. The allowed logits are written back as they were. That is still
  less than single stores: a 32-byte sector written in part must be read by the memory system anyway.

A chunk begins at a multiple of 16 bytes in memory. Rows need not: a vocabulary of an odd size puts them
anywhere, so chunks are counted from the first such address of the row, and what is left at its two
ends is stored one by one.

Which row of the logits a mask belongs to may be known on the device only: where it trims draft tokens, the
rows of a batch move together. Then a mask names a request and a position in it, and the kernel looks
up where the request's rows begin.

The kernel sees logits as integers of their width and is told the bits of minus infinity, so that an allowed
NaN keeps its payload and float16 and bfloat16 share one compilation.
"""

# ruff: noqa: N803, N806 (constants of a kernel are written large in Triton)
from __future__ import annotations

import contextlib

import torch
import triton
import triton.language as tl

from .arguments import MINUS_INFINITY

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# Bytes of logits that a program covers: 8 chunks for each of 128 threads. A row of 128,256 float32 is
# then 32 programs, so that even a single request fills a quarter of a large GPU.
BLOCK_BYTES = 16384
CHUNK_BYTES = 16
WARPS = 4


# One compilation for all sizes: nothing is specialised but whether tokens lie side by side (token_stride 1).
@triton.jit(
    do_not_specialize=[
        "row_stride",
        "rows",
        "tokens",
        "mask_stride",
        "mask_rows",
        "words",
        "requests",
        "positions",
        "masked",
    ],
    do_not_specialize_on_alignment=["logits_ptr", "mask_ptr", "indices_ptr", "row_ids_ptr", "starts_ptr"],
)
def mask_rows_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,
    row_stride,
    token_stride,
    rows,
    tokens,
    mask_ptr,
    mask_stride,
    mask_rows,
    words,
    indices_ptr,
    row_ids_ptr,
    starts_ptr,
    requests,
    positions,
    masked,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (i, j): mask i on block j of its row. Strides in elements, logits as integers."""
    row = tl.program_id(0).to(tl.int64)
    mask_row = row
    if indices_ptr is not None:
        row = tl.load(indices_ptr + mask_row).to(tl.int64)
    if starts_ptr is not None:
        place = row.to(tl.int32)
        request = place // positions
        position = place % positions
        known = (place >= 0) & (request < requests)
        start = tl.load(starts_ptr + request, mask=known, other=0)
        end = tl.load(starts_ptr + request + 1, mask=known, other=0)
        row = tl.where(known & (position < end - start), start + position, -1).to(tl.int64)
    if row_ids_ptr is not None:
        mask_row = tl.load(row_ids_ptr + mask_row).to(tl.int64)
    # A negative row id allows everything; the other cases are rows that do not exist.
    if (row < 0) | (row >= rows) | (mask_row < 0) | (mask_row >= mask_rows):
        return
    masked = masked.to(logits_ptr.dtype.element_ty)
    logits_ptr += row * row_stride
    mask_ptr += mask_row * mask_stride

    # Chunks begin at the row's first address that is a multiple of 16 bytes, ``head`` tokens in.
    SIZE: tl.constexpr = 16 // CHUNK
    ALL: tl.constexpr = (1 << CHUNK) - 1
    chunks_ptr = logits_ptr
    head = 0
    if token_stride == 1:
        head = ((-logits_ptr.to(tl.int64) & 15) // SIZE).to(tl.int32)
        chunks_ptr = tl.multiple_of(logits_ptr + head, 16)
    chunk = tl.program_id(1) * (BLOCK // CHUNK) + tl.arange(0, BLOCK // CHUNK)
    lane = tl.arange(0, CHUNK)
    start = head + chunk * CHUNK
    whole = start + CHUNK <= tokens
    word = start // 32
    shift = start % 32
    # Where a row does not begin at such an address, a chunk's bits may lie in two words.
    split = whole & (shift > 32 - CHUNK)
    low = tl.load(mask_ptr + word, mask=whole & (word < words), other=0)
    high = tl.load(mask_ptr + word + 1, mask=split & (word + 1 < words), other=0)
    low = low.to(tl.uint32, bitcast=True) >> shift
    high = high.to(tl.uint32, bitcast=True) << 1 << (31 - shift)  # a shift by 32 is not defined
    bits = (low | high) & ALL
    touched = whole & (bits != ALL)
    mixed = touched & (bits != 0)
    offset = (chunk * CHUNK)[:, None] + lane[None, :]
    pointers = chunks_ptr + offset.to(tl.int64) * token_stride
    old = tl.load(pointers, mask=mixed[:, None], other=masked)
    keep = ((bits[:, None] >> lane[None, :]) & 1) != 0
    tl.store(pointers, tl.where(keep, old, masked), mask=touched[:, None])

    # The tokens before the first whole chunk and after the last, one by one.
    if tl.program_id(1) == tl.num_programs(1) - 1:
        edge = tl.arange(0, 2 * CHUNK)
        tail = head + tl.maximum(tokens - head, 0) // CHUNK * CHUNK
        edge_token = tl.where(edge < CHUNK, edge, tail + edge - CHUNK)
        inside = (edge_token < tokens) & ((edge >= CHUNK) | (edge < head))
        edge_word = edge_token // 32
        edge_packed = tl.load(mask_ptr + edge_word, mask=inside & (edge_word < words), other=0)
        restricted = inside & (((edge_packed >> (edge_token % 32)) & 1) == 0)
        tl.store(logits_ptr + edge_token.to(tl.int64) * token_stride, masked, mask=restricted)


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
    """
    rows, tokens = logits.shape
    masks = bitmask.shape[0] if row_ids is None else row_ids.shape[0]
    if masks == 0 or tokens == 0:
        return
    device = logits.device
    bitmask = _send(bitmask, device)
    indices = None if indices is None else _send_numbers(indices, device)
    row_ids = None if row_ids is None else _send_numbers(row_ids, device)
    row_starts = None if row_starts is None else _send_numbers(row_starts, device)
    size = logits.element_size()
    block = BLOCK_BYTES // size
    with _current(device):
        mask_rows_kernel[(masks, triton.cdiv(tokens, block))](
            logits.view(_INTEGERS[size]),
            logits.stride(0),
            logits.stride(1),
            rows,
            tokens,
            bitmask,
            bitmask.stride(0),
            bitmask.shape[0],
            bitmask.shape[1],
            indices,
            row_ids,
            row_starts,
            0 if row_starts is None else row_starts.shape[0] - 1,
            positions,
            MINUS_INFINITY[logits.dtype],
            CHUNK=CHUNK_BYTES // size,
            BLOCK=block,
            num_warps=WARPS,
        )


def warmup(device: torch.device) -> None:
    """Compile what a vLLM worker launches: every way to say which mask and which row, for 2 and 4 bytes."""
    table = torch.full((1, 2), -1, dtype=torch.int32, device=device)
    numbers = torch.zeros(1, dtype=torch.int32, device=device)
    starts = torch.zeros(2, dtype=torch.int32, device=device)
    for dtype in (torch.float32, torch.bfloat16):  # float16 shares the code of bfloat16
        logits = torch.zeros((1, 64), dtype=dtype, device=device)
        for row_ids in (None, numbers):
            for indices, row_starts in ((None, None), (numbers, None), (numbers, starts)):
                apply(logits, table, row_ids, indices, row_starts)


def _send_numbers(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Row numbers on the device, side by side; from the host as int32, which the kernel is compiled for."""
    if numbers.device != device and numbers.is_cpu and numbers.dtype != torch.int32:
        numbers = numbers.clamp(-1, 2**31 - 1).to(torch.int32)
    return _send(numbers.contiguous(), device)


def _send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``tensor`` on the device; from the host through pinned memory, without waiting."""
    if tensor.device == device:
        return tensor
    if not tensor.is_cpu:
        raise ValueError(f"logits are on {device}, but another argument on {tensor.device}")
    return tensor.pin_memory().to(device, non_blocking=True)


def _current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the logits'."""
    if device.type == "cpu":  # the interpreter
        return contextlib.nullcontext()
    return torch.get_device_module(device).device(device)  # type: ignore[no-any-return]
