"""Machine code that applies bitmasks to logits in the host's memory, as numba compiles it.

In: the address of a job (see ``job``). Out: nothing; disallowed logits become minus infinity in place. One C
function per width of a logit (2, 4 and 8 bytes) works on bit patterns, so that float16, bfloat16, float32 and
float64 need neither conversion nor a copy, and an allowed NaN keeps its payload.

A job is cut into tiles, and a function called on it takes tiles from a shared counter until none is left:
called once it does the whole job, called by a team of threads at the same time it shares it out, and
a thread that met rows with little to do takes more of them.

Memory moves in lines of 64 bytes, so the unit of work is the bits of one line of logits: 32, 16 or 8 bits.
A mask is read in blocks of 512 bytes, which are passed over where they are all ones. In the others, one
vector comparison finds which of 64 lines a mask restricts at all, and each of those costs one load, select
and store. They are written as vector instructions because a compiler makes branches of the obvious
loop. A select writes allowed logits back as they were: the line is being written anyway, and masked stores
of 16-bit elements do not exist before AVX-512.

This module imports numba, so it must only be imported when a mask is applied (see ``cpu``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.core import cgutils
from numba.core import config as numba_config
from numba.extending import intrinsic

from vllm_guided.numba_setup import numba_cache_directory

from .job import (
    BUDGET,
    INDICES,
    LOGITS,
    LOGITS_ROW_STRIDE,
    LOGITS_TOKEN_STRIDE,
    MASK,
    MASK_ROW_STRIDE,
    NEXT,
    ROW_IDS,
    TILE,
    TILES,
    TILES_PER_ROW,
    TOKENS,
    VALUE,
    WORDS,
)

_ALL: Final = np.uint32(0xFFFFFFFF)
_NONE: Final = np.uint32(0)
_BLOCK: Final = 4096  # tokens whose bits are first tried as a whole: 512 bytes
# How many bytes ahead of a block the memory is asked for its like. A mask is read once per step, from beyond
# the cache, and the processor by itself looks no further than the end of a page of 4 KiB.
_AHEAD: Final = 4096


@intrinsic
def _load64(typing_context: Any, address: Any) -> Any:
    """The int64 at an address that is a multiple of 4."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load(pointer, align=4)

    return types.int64(types.int64), generate


@intrinsic
def _load32(typing_context: Any, address: Any) -> Any:
    """The uint32 at an address that is a multiple of 4."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(32).as_pointer())
        return builder.load(pointer, align=4)

    return types.uint32(types.int64), generate


@intrinsic
def _all_ones(typing_context: Any, address: Any) -> Any:
    """Are the bits of a block from an address all ones? Asks the cache for what lies ``_AHEAD`` of it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        i32 = ir.IntType(32)
        byte = ir.IntType(8).as_pointer()
        prefetch = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32]), "llvm.prefetch.p0"
        )
        vector = ir.VectorType(i32, 16)
        ones = ir.Constant(vector, [ir.Constant(i32, -1)] * 16)
        together = ones
        for offset in range(0, _BLOCK // 8, 64):
            ahead = builder.add(arguments[0], ir.Constant(ir.IntType(64), _AHEAD + offset))
            # to read, into every cache, data
            builder.call(prefetch, [builder.inttoptr(ahead, byte), i32(0), i32(3), i32(1)])
        for offset in range(0, _BLOCK // 8, 64):
            here = builder.add(arguments[0], ir.Constant(ir.IntType(64), offset))
            together = builder.and_(
                together, builder.load(builder.inttoptr(here, vector.as_pointer()), align=4)
            )
        different = builder.bitcast(builder.icmp_unsigned("!=", together, ones), ir.IntType(16))
        return builder.icmp_unsigned("==", different, ir.Constant(ir.IntType(16), 0))

    return types.boolean(types.int64), generate


@intrinsic
def _restricting(typing_context: Any, address: Any, value: Any) -> Any:
    """Which of the 64 lines' bits from an address are not all ones, as the bits of an int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line = ir.IntType(512 // value.bitwidth)
        vector = ir.VectorType(line, 64)
        pointer = builder.inttoptr(arguments[0], vector.as_pointer())
        ones = ir.Constant(vector, [ir.Constant(line, -1)] * 64)
        different = builder.icmp_unsigned("!=", builder.load(pointer, align=4), ones)
        return builder.bitcast(different, ir.IntType(64))

    return types.int64(types.int64, value), generate


@intrinsic
def _lowest(typing_context: Any, bits: Any) -> Any:
    """The number of the lowest set bit of an int64 that has one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


@intrinsic
def _take(typing_context: Any, address: Any) -> Any:
    """Add one to the int64 at an address, atomically; its value before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer = ir.IntType(64)
        pointer = builder.inttoptr(arguments[0], integer.as_pointer())
        return builder.atomic_rmw("add", pointer, ir.Constant(integer, 1), "monotonic")

    return types.int64(types.int64), generate


@intrinsic
def _store(typing_context: Any, address: Any, value: Any) -> Any:
    """Store an unsigned integer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], arguments[1].type.as_pointer())
        builder.store(arguments[1], pointer, align=arguments[1].type.width // 8)
        return context.get_dummy_value()

    return types.void(types.int64, value), generate


@intrinsic
def _blend(typing_context: Any, address: Any, mask: Any, value: Any) -> Any:
    """Apply a line's bits, which begin at ``mask``, to the 64 bytes of logits at ``address``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start, bits, scalar = arguments
        lanes = 512 // value.bitwidth
        vector = ir.VectorType(scalar.type, lanes)
        undefined = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [ir.Constant(ir.IntType(32), 0)] * lanes)
        masked = builder.shuffle_vector(first, undefined, zeros)
        packed = builder.load(builder.inttoptr(bits, ir.IntType(lanes).as_pointer()), align=1)
        keep = builder.bitcast(packed, ir.VectorType(ir.IntType(1), lanes))
        pointer = builder.inttoptr(start, vector.as_pointer())
        old = builder.load(pointer, align=value.bitwidth // 8)
        builder.store(builder.select(keep, old, masked), pointer, align=value.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, value), generate


@njit
def _mask_words(row: int, stride: int, mask: int, words: int, first: int, last: int, value: int) -> None:
    """Apply a mask row to the tokens ``first`` (a multiple of 32) to ``last``, one by one."""
    for token in range(first, last, 32):
        bits = _load32(mask + (token >> 3)) if token >> 5 < words else _NONE
        if bits != _ALL:
            for i in range(min(32, last - token)):
                if not (bits >> np.uint32(i)) & np.uint32(1):
                    _store(row + (token + i) * stride, value)


@njit
def _mask_lines(row: int, size: int, mask: int, first: int, last: int, value: int) -> int:
    """Apply a mask row to the tokens ``first`` to ``last``, multiples of 32, by lines; how many it wrote."""
    lines = 0
    lanes = 64 // size
    while first + 64 * lanes <= last:
        todo = _restricting(mask + (first >> 3), value)
        while todo != 0:
            token = first + lanes * _lowest(todo)
            todo &= todo - 1
            lines += 1
            _blend(row + token * size, mask + (token >> 3), value)
        first += 64 * lanes
    while first < last:
        if _load32(mask + (first >> 3)) != _ALL:
            for token in range(first, first + 32, lanes):
                lines += 1
                _blend(row + token * size, mask + (token >> 3), value)
        first += 32
    return lines


@njit
def _mask_tile(
    row: int, stride: int, size: int, mask: int, words: int, first: int, last: int, value: int
) -> int:
    """Apply a mask row to the tokens ``first`` (a multiple of 32) to ``last``; the lines it cost."""
    lines = 0
    if stride == size:
        end = min(last, 32 * words) & -32
        start = first
        while first + _BLOCK <= end:
            if not _all_ones(mask + (first >> 3)):
                lines += _mask_lines(row, size, mask, first, first + _BLOCK, value)
            first += _BLOCK
        if first < end:
            # A block that begins before the rest, which is shorter than one, tells whether that is all ones.
            if end - _BLOCK < start or not _all_ones(mask + ((end - _BLOCK) >> 3)):
                lines += _mask_lines(row, size, mask, first, end, value)
            first = end
    _mask_words(row, stride, mask, words, first, last, value)
    return lines + ((last - first) >> 3)


@njit
def _mask_tiles(job: int, size: int, value: int) -> None:
    """Take tiles of a job until none is left or the budget is spent. ``size`` is a logit's, in bytes."""
    tiles = _load64(job + 8 * TILES)
    budget = _load64(job + 8 * BUDGET)
    per_row = _load64(job + 8 * TILES_PER_ROW)
    tile_tokens = _load64(job + 8 * TILE)
    tokens = _load64(job + 8 * TOKENS)
    indices = _load64(job + 8 * INDICES)
    row_ids = _load64(job + 8 * ROW_IDS)
    while budget > 0:
        tile = _take(job + 8 * NEXT)
        if tile >= tiles:
            break
        mask_row = tile // per_row
        first = (tile - mask_row * per_row) * tile_tokens
        last = min(first + tile_tokens, tokens)
        logits_row = mask_row
        if indices != 0:
            logits_row = _load64(indices + 8 * mask_row)
        if row_ids != 0:
            mask_row = _load64(row_ids + 8 * mask_row)
            if mask_row < 0:
                continue
        budget -= _mask_tile(
            _load64(job + 8 * LOGITS) + logits_row * _load64(job + 8 * LOGITS_ROW_STRIDE),
            _load64(job + 8 * LOGITS_TOKEN_STRIDE),
            size,
            _load64(job + 8 * MASK) + mask_row * _load64(job + 8 * MASK_ROW_STRIDE),
            _load64(job + 8 * WORDS),
            first,
            last,
            value,
        )


def _c_function(function: Callable[[int], None]) -> Any:
    """``function`` compiled as a C function of an address, cached where the package keeps compiled code."""
    before = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = numba_cache_directory(Path(__file__).parent) or before
    try:
        return cfunc(types.void(types.int64), cache=True)(function)
    except RuntimeError:  # numba finds no place to write to: compiled again in each process
        return cfunc(types.void(types.int64))(function)
    finally:
        numba_config.CACHE_DIR = before


@_c_function
def mask_tiles_2(job: int) -> None:
    """Do a job on logits of 2 bytes."""
    _mask_tiles(job, 2, np.uint16(_load64(job + 8 * VALUE)))


@_c_function
def mask_tiles_4(job: int) -> None:
    """Do a job on logits of 4 bytes."""
    _mask_tiles(job, 4, np.uint32(_load64(job + 8 * VALUE)))


@_c_function
def mask_tiles_8(job: int) -> None:
    """Do a job on logits of 8 bytes."""
    _mask_tiles(job, 8, np.uint64(_load64(job + 8 * VALUE)))
