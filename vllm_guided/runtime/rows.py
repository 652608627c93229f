"""A configuration's finished row of bits: the mask of its plain twin, corrected, with the stop tokens."""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import FINAL, TERMINATED, arena_type
from vllm_guided.runtime.configurations import plain
from vllm_guided.runtime.corrections import find_cut, may_be_cut
from vllm_guided.runtime.masks import any_bit, lay_out, mask_of
from vllm_guided.runtime.memory import clear

_int = types.int64


@jit(types.boolean(arena_type, _int, types.int32[:, ::1], _int), apart=True)
def fill_row(arena, config, bitmask, place):
    """Write the mask of ``config`` to ``bitmask[place]``, words beyond the vocabulary as 0.

    Returns whether any token is allowed.
    """
    row = bitmask[place]
    words = arena.words
    if config <= 1:
        clear(row, 0, row.size)
        if config == TERMINATED:
            for token in arena.stop_tokens:
                row[token >> 5] |= np.int32(1) << np.int32(token & 31)
        return config == TERMINATED
    number = np.int64(arena.config_mask[config])
    if number < 0:
        # A configuration that compares items has no mask of its own, but its plain twin's.
        number = mask_of(arena, plain(arena, config))
    lay_out(arena, number, row)
    cut = np.int64(0)
    if arena.distinct_count > 0:
        if arena.config_cut_count[config] < 0 and may_be_cut(arena, config, row):
            find_cut(arena, config, False)
        ids = arena.ids
        first = np.int64(arena.config_cut[config])
        cut = max(np.int64(arena.config_cut_count[config]), np.int64(0))
        for k in range(first, first + cut):
            row[ids[k] >> 5] &= ~(np.int32(1) << np.int32(ids[k] & 31))
    if arena.config_flags[config] & FINAL:
        for token in arena.stop_tokens:
            row[token >> 5] |= np.int32(1) << np.int32(token & 31)
        return True
    return any_bit(row, 0, words) if cut else arena.mask_any[number] != 0
