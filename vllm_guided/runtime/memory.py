"""Arrays in compiled code: copying, clearing, comparing, growing; hash tables of numbers by their codes."""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from vllm_guided.numba_setup import jit


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, place: Any) -> tuple[Any, int]:
    """A pointer to entry ``place`` of a contiguous array, and the size of an entry in bytes."""
    struct = context.make_array(array_type)(context, builder, value=array)
    size = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
    return builder.gep(struct.data, [place]), size


@intrinsic  # type: ignore[untyped-decorator]
def copy_into(typing_context, target, place, source, start, count):
    """``target[place : place + count] = source[start : start + count]`` for arrays that do not overlap.

    By memcpy: numba's loops and slices with a variable begin take up to six times as long, since they look
    for negative indices.
    """
    signature = types.void(target, types.int64, source, types.int64, types.int64)

    def code(context, builder, signature, arguments):
        to, size = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        origin, _ = _pointer(context, builder, signature.args[2], arguments[2], arguments[3])
        cgutils.raw_memcpy(builder, to, origin, arguments[4], size)
        return context.get_dummy_value()

    return signature, code


def _filling(value: int) -> Any:
    """An intrinsic ``fill(target, place, count)`` that sets every byte of the entries to ``value``."""

    def fill(typing_context, target, place, count):
        signature = types.void(target, types.int64, types.int64)

        def code(context, builder, signature, arguments):
            to, size = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
            length = builder.mul(arguments[2], arguments[2].type(size))
            cgutils.memset(builder, to, length, value)
            return context.get_dummy_value()

        return signature, code

    return intrinsic(fill)


#: ``clear(target, place, count)``: entries become 0.
clear = _filling(0)
#: ``set_all(target, place, count)``: every bit of the entries becomes 1 (entries of signed types -1).
set_all = _filling(0xFF)


@intrinsic  # type: ignore[untyped-decorator]
def same_bytes(typing_context, one, place, other, start, count):
    """Whether ``one[place : place + count] == other[start : start + count]``, by memcmp."""
    signature = types.boolean(one, types.int64, other, types.int64, types.int64)

    def code(context, builder, signature, arguments):
        left, size = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        right, _ = _pointer(context, builder, signature.args[2], arguments[2], arguments[3])
        length = builder.mul(arguments[4], arguments[4].type(size))
        pointer, word = cgutils.voidptr_t, length.type
        kind = ir.FunctionType(ir.IntType(32), [pointer, pointer, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "memcmp")
        left, right = builder.bitcast(left, pointer), builder.bitcast(right, pointer)
        return builder.icmp_signed("==", builder.call(function, [left, right, length]), ir.IntType(32)(0))

    return signature, code


@intrinsic  # type: ignore[untyped-decorator]
def lowest_bit(typing_context, word):
    """The place of the lowest bit of a uint64 that is not 0."""

    def code(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.uint64(types.uint64), code


@jit()
def with_room(values, need):
    """``values``, or a copy of at least twice its length if it holds fewer than ``need`` entries."""
    if values.size >= need:
        return values
    grown = np.empty(max(need, 2 * values.size), values.dtype)
    copy_into(grown, 0, values, 0, values.size)
    return grown


@jit(types.int64(types.int32[::1], types.int64, types.int64))
def sort_unique(values, count, past):
    """Sort ``values[:count]``, which are below ``past``, in place, each once; how many are left.

    Many are marked as bits and read off, which takes a fifth of the time of numba's quicksort.
    """
    if 64 * count < past:
        found = np.int64(0)
        values[:count].sort()
        for k in range(count):
            if found == 0 or values[found - 1] != values[k]:
                values[found] = values[k]
                found += 1
        return found
    bits = np.zeros((past + 63) >> 6, np.uint64)
    for k in range(count):
        bits[values[k] >> 6] |= np.uint64(1) << np.uint64(values[k] & 63)
    found = np.int64(0)
    for word in range(bits.size):
        left = bits[word]
        number = np.int32(word << 6)
        while left != 0:
            values[found] = number + np.int32(lowest_bit(left))
            found += 1
            left &= left - np.uint64(1)
    return found


@jit(types.uint64(types.int64, types.int64))
def mixed(a, b):
    """A hash of two integers (the finaliser of SplitMix64)."""
    x = (np.uint64(a) * np.uint64(0x9E3779B97F4A7C15)) ^ (np.uint64(b) * np.uint64(0xC2B2AE3D27D4EB4F))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@jit()
def rehashed(table, codes, stride, first, past):
    """A hash table of twice the size for entries ``first`` to ``past``, by their codes.

    The low bits of ``codes[stride * number]`` are an entry's code.
    """
    grown = np.empty(2 * table.size, np.int32)
    set_all(grown, 0, grown.size)
    size = np.int64(grown.size - 1)
    for number in range(first, past):
        slot = np.int64(codes[stride * number]) & size
        while grown[slot] >= 0:
            slot = (slot + 1) & size
        grown[slot] = number
    return grown
