"""Whether distinct items stand between commas, as in JSON: what the index of tokens builds on.

A bag whose separator is anything but one comma with blanks, or may be empty, is *odd*: while an arena has
such a bag, corrections are found by trying every token.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import DEAD, ESCAPE, UNKNOWN, arena_type
from vllm_guided.runtime.collecting import add, begin
from vllm_guided.runtime.configurations import close, plain, step
from vllm_guided.runtime.critical import LEAST_LIMIT, critical_length
from vllm_guided.runtime.memory import with_room
from vllm_guided.runtime.texts import EMPTY, is_blank_byte

_int = types.int64
_bool = types.boolean

_COMMA = 44
#: Configurations that the separator is followed through; one with more counts as odd.
_MOST = 1 << 10


@jit(_bool(arena_type, _int), apart=True)
def _is_odd(arena, bag):
    if arena.bag_skips[bag]:
        return True
    begin(arena)
    add(arena, np.int64(arena.bag_separator[bag]), np.int64(UNKNOWN))
    arena.tape = np.int64(EMPTY)
    configs = np.empty(16, np.int64)
    commas = np.empty(16, np.int64)
    configs[0] = plain(arena, close(arena, np.int64(0)))
    commas[0] = 0
    count = 1
    head = 0
    while head < count:
        config = configs[head]
        comma = commas[head]
        head += 1
        if arena.config_flags[config] & ESCAPE and not comma:
            return True
        for byte in range(256):
            target = step(arena, config, np.int64(byte))
            if target == DEAD:
                continue
            if byte == _COMMA:
                if comma:
                    return True
            elif not is_blank_byte(np.int64(byte)):
                return True
            after = 1 if byte == _COMMA else comma
            known = False
            for k in range(count):
                known |= configs[k] == target and commas[k] == after
            if not known:
                if count == _MOST:
                    return True
                configs = with_room(configs, count + 1)
                commas = with_room(commas, count + 1)
                configs[count] = target
                commas[count] = after
                count += 1
    return False


@jit(types.void(arena_type), apart=True)
def look_at_bags(arena):
    """Count the odd ones among the bags that were appended since the last call (``odd_bags``).

    Pairs that matter to one of them are to be tried from now on (``pair_tried``).
    """
    while arena.bags_looked_at < arena.bag_count:
        bag = np.int64(arena.bags_looked_at)
        arena.bags_looked_at = bag + 1
        if not arena.bag_distinct[bag]:
            continue
        if _is_odd(arena, bag):
            arena.odd_bags += 1
        for pair in range(arena.pair_count):
            text = np.int64(arena.pair_text[pair])
            length = np.int64(arena.text_length[text])
            if not arena.pair_tried[pair] and critical_length(
                arena, bag, text, length + 1, np.int64(LEAST_LIMIT)
            ) <= length:  # fmt: skip
                arena.pair_tried[pair] = 1
