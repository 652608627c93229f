"""Machine code that finds the largest allowed logit of each row, as numba compiles it.

In: the address of a :class:`Job`, an array of 64-bit integers. Out: for each row the token of the largest
logit that its mask allows, the first of equals, or -1 where that is not one to choose by: an allowed logit is
NaN, or all are minus infinity.

The work goes by blocks of 1,024 tokens. Of a block whose mask is empty nothing but the mask is read; where
few words of it are not, those; else the block, in vectors of 16 into which minus infinity is put where the
mask forbids. Only within the block that has the largest is looked for its place. Rows are taken from a
shared counter, so that a team of threads can share a job.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .cpu_code import _c_function, _load32, _load64, _take

# The fields of a job. Addresses and strides are in bytes.
NEXT: Final = 0  # the next row to take
ROWS: Final = 1
LOGITS: Final = 2  # address, stride of a row, number of tokens; float32, tokens side by side
LOGITS_ROW_STRIDE: Final = 3
TOKENS: Final = 4
TABLE: Final = 5  # address, stride of a row, words in a row, number of rows
TABLE_ROW_STRIDE: Final = 6
WORDS: Final = 7
TABLE_ROWS: Final = 8
ROW_IDS: Final = 9  # address of the table's row of each row of logits as int64; below 0: all is allowed
ONES: Final = 10  # address of a mask that allows all tokens
OUT: Final = 11  # address of an int64 for each row
FIELDS: Final = 12

_BLOCK_WORDS: Final = 32
_FEW_WORDS: Final = 12
_LANES: Final = 16
# How many bytes ahead the memory is asked for logits and for bits. They were written or used long ago, or by
# another core: they come from beyond the cache, and the processor by itself looks no further than a page.
_AHEAD: Final = 4096
_MASK_AHEAD: Final = 2048
_CHAINS: Final = 4  # maxima that do not wait for each other


def _emit_prefetch(builder: Any, address: Any) -> None:
    """Ask the cache for the line at an address, which need not exist."""
    i32, byte = ir.IntType(32), ir.IntType(8).as_pointer()
    function = ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
    prefetch = cgutils.get_or_insert_function(builder.module, function, "llvm.prefetch.p0")
    # to read, into every cache, data
    builder.call(prefetch, [builder.inttoptr(address, byte), i32(0), i32(3), i32(1)])


def _emit_largest(builder: Any, row: Any, mask: Any, lines: int) -> Any:
    """The largest allowed of ``lines`` vectors of logits; NaN where an allowed one is NaN."""
    scalar, i32, i64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
    vector = ir.VectorType(scalar, _LANES)
    flags = ir.VectorType(ir.IntType(1), _LANES)
    nothing = ir.Constant(vector, [ir.Constant(scalar, float("-inf"))] * _LANES)
    chains = [nothing] * min(_CHAINS, lines)
    is_nan = ir.Constant(flags, [ir.Constant(ir.IntType(1), 0)] * _LANES)

    def larger(left: Any, right: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", left, right), left, right)

    for line in range(lines):
        _emit_prefetch(builder, builder.add(row, ir.Constant(i64, 4 * _LANES * line + _AHEAD)))
        place = builder.add(row, ir.Constant(i64, 4 * _LANES * line))
        logits = builder.load(builder.inttoptr(place, vector.as_pointer()), align=4)
        place = builder.add(mask, ir.Constant(i64, _LANES // 8 * line))
        bits = builder.load(builder.inttoptr(place, ir.IntType(_LANES).as_pointer()), align=1)
        allowed = builder.select(builder.bitcast(bits, flags), logits, nothing)
        is_nan = builder.or_(is_nan, builder.fcmp_unordered("uno", allowed, allowed))
        chains[line % len(chains)] = larger(allowed, chains[line % len(chains)])
    while len(chains) > 1:
        chains[0] = larger(chains.pop(), chains[0])
    largest, width = chains[0], _LANES
    while width > 1:
        width //= 2
        halves = [
            ir.Constant(ir.VectorType(i32, width), [ir.Constant(i32, start + i) for i in range(width)])
            for start in (0, width)
        ]
        low, high = (builder.shuffle_vector(largest, largest, half) for half in halves)
        largest = larger(high, low)
    found = builder.extract_element(largest, ir.Constant(i32, 0))
    some = builder.icmp_unsigned("!=", builder.bitcast(is_nan, ir.IntType(_LANES)), ir.IntType(_LANES)(0))
    return builder.select(some, ir.Constant(scalar, float("nan")), found)


@intrinsic
def _largest_of_block(typing_context: Any, row: Any, mask: Any) -> Any:
    """The largest allowed logit of a block, by the addresses of its logits and its bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _emit_largest(builder, arguments[0], arguments[1], 32 * _BLOCK_WORDS // _LANES)

    return types.float32(types.int64, types.int64), generate


@intrinsic
def _largest_of_word(typing_context: Any, row: Any, mask: Any) -> Any:
    """The same of 32 tokens."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _emit_largest(builder, arguments[0], arguments[1], 32 // _LANES)

    return types.float32(types.int64, types.int64), generate


@intrinsic
def _prefetch(typing_context: Any, address: Any) -> Any:
    """Ask the cache for a line."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _emit_prefetch(builder, arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def _load_float(typing_context: Any, address: Any) -> Any:
    """The float32 at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.FloatType().as_pointer())
        return builder.load(pointer, align=4)

    return types.float32(types.int64), generate


@intrinsic
def _store_int(typing_context: Any, address: Any, value: Any) -> Any:
    """Store an int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@njit
def _is_allowed(mask: int, token: int) -> bool:
    return bool((_load32(mask + 4 * (token >> 5)) >> np.uint32(token & 31)) & np.uint32(1))


@njit
def _choose(row: int, mask: int, tokens: int) -> int:
    """The token of the largest allowed logit of a row, or -1."""
    best = np.float32(-np.inf)
    place = -1
    whole = tokens >> 5
    word = 0
    while word < whole:
        end = min(word + _BLOCK_WORDS, whole)
        _prefetch(mask + 4 * word + _MASK_AHEAD)
        _prefetch(mask + 4 * word + _MASK_AHEAD + 64)
        used = 0
        for i in range(word, end):
            used += 1 if _load32(mask + 4 * i) != 0 else 0
        if used > _FEW_WORDS and end - word == _BLOCK_WORDS:
            largest = _largest_of_block(row + 128 * word, mask + 4 * word)
            if largest != largest:
                return -1
            if largest > best:
                best, place = largest, 32 * word
        elif used > 0:
            for i in range(word, end):
                if _load32(mask + 4 * i) != 0:
                    largest = _largest_of_word(row + 128 * i, mask + 4 * i)
                    if largest != largest:
                        return -1
                    if largest > best:
                        best, place = largest, 32 * i
        word = end
    for token in range(32 * whole, tokens):
        if _is_allowed(mask, token):
            logit = _load_float(row + 4 * token)
            if logit != logit:
                return -1
            if logit > best:
                best, place = logit, token
    if place >= 0:
        while not (_is_allowed(mask, place) and _load_float(row + 4 * place) == best):
            place += 1
    return place


@_c_function
def choose_rows(job: int) -> None:
    """Take rows of a job until none is left."""
    rows = _load64(job + 8 * ROWS)
    tokens = _load64(job + 8 * TOKENS)
    masked_tokens = min(tokens, 32 * _load64(job + 8 * WORDS))
    while True:
        row = _take(job + 8 * NEXT)
        if row >= rows:
            break
        number = _load64(_load64(job + 8 * ROW_IDS) + 8 * row)
        logits = _load64(job + 8 * LOGITS) + row * _load64(job + 8 * LOGITS_ROW_STRIDE)
        chosen = -1
        if number < 0:
            chosen = _choose(logits, _load64(job + 8 * ONES), tokens)
        elif number < _load64(job + 8 * TABLE_ROWS):
            mask = _load64(job + 8 * TABLE) + number * _load64(job + 8 * TABLE_ROW_STRIDE)
            chosen = _choose(logits, mask, masked_tokens)
        _store_int(_load64(job + 8 * OUT) + 8 * row, chosen)
