"""Masks made ahead: while the model computes, the masks of the states that requests are likely to reach next.

A mask costs most when it is met first. Between two steps nobody waits, so the successors of the states in the
batch are met then: by every token, where a state allows few, and by the vocabulary's common punctuation where
it allows many, since what follows a quote, a comma or a bracket is new and what follows a letter mostly is
not. The work comes in small pieces, so that a step that begins never waits for more than one.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import arena_at
from vllm_guided.runtime.binding import Runtime
from vllm_guided.runtime.borrowing import settle
from vllm_guided.runtime.configurations import plain
from vllm_guided.runtime.distinct import step_token
from vllm_guided.runtime.masks import mask_of
from vllm_guided.runtime.rows import fill_row
from vllm_guided.vocab.vocabulary import Vocabulary

#: A state that allows no more tokens than this is followed by all of them.
FEW: Final = 64
#: Tokens of punctuation by which the others are followed.
COMMON: Final = 96
#: Masks that are made in one piece of work.
PIECE: Final = 2
#: Successors that are looked at in one piece of work.
LOOKS: Final = 16
#: Seconds between two pieces: whoever waits for the lock gets it then, as a lock alone would not see to it.
PAUSE: Final = 5e-5

# Entries of the place where work goes on.
CONFIG: Final = 0
TOKEN: Final = 1
MADE: Final = 2

_int = types.int64
_ints = types.int32[::1]
_rows = types.int32[:, ::1]


@jit(_int(_rows, _int))
def _count(rows, limit):
    """How many bits are set, as far as ``limit``."""
    count = 0
    for word in range(rows.shape[1]):
        bits = np.int64(rows[0, word]) & 0xFFFFFFFF
        while bits != 0:
            bits &= bits - 1
            count += 1
        if count > limit:
            break
    return count


@jit(types.boolean(_int, _ints, types.uint8[::1], _ints, _rows, types.int64[::1]))
def _work(address, configs, known, common, scratch, place):
    """Do a piece of work from ``place`` on; whether anything is left. ``known`` [configuration]: done."""
    arena = arena_at(address)
    settle(arena)
    looks = 0
    made = 0
    while place[CONFIG] < configs.size:
        config = np.int64(configs[place[CONFIG]])
        if config <= 1 or known[config] or not fill_row(arena, config, scratch, np.int64(0)):
            place[CONFIG] += 1
            place[TOKEN] = 0
            continue
        many = _count(scratch, np.int64(FEW)) > FEW
        limit = common.size if many else 32 * scratch.shape[1]
        while place[TOKEN] < limit:
            token = place[TOKEN]
            if many:
                token = np.int64(common[token])
            elif scratch[0, token >> 5] == 0:
                place[TOKEN] = (token | 31) + 1
                continue
            place[TOKEN] += 1
            if (scratch[0, token >> 5] >> np.int32(token & 31)) & 1 == 0:
                continue
            looks += 1
            after = step_token(arena, config, token)
            if after > 1:
                twin = plain(arena, after)
                if arena.config_mask[twin] < 0:
                    mask_of(arena, twin)
                    made += 1
            if made >= PIECE or looks >= LOOKS:
                place[MADE] += made
                return True
        known[config] = 1
        place[CONFIG] += 1
        place[TOKEN] = 0
    place[MADE] += made
    return False


def common_tokens(vocabulary: Vocabulary) -> npt.NDArray[np.int32]:
    """The first tokens, by id, that are ASCII punctuation and blanks: byte-pair encodings begin with what
    is frequent."""
    data, offsets = vocabulary.token_data, vocabulary.token_offsets
    is_plain = np.zeros(256, np.bool_)
    is_plain[[byte for byte in range(9, 127) if not chr(byte).isalnum() and chr(byte).isprintable()]] = True
    found: list[int] = []
    for token in range(vocabulary.token_count):
        text = data[offsets[token] : offsets[token + 1]]
        if vocabulary.is_text[token] and 0 < len(text) <= 4 and is_plain[text].all():
            found.append(token)
            if len(found) == COMMON:
                break
    return np.array(found, np.int32)


class Lookahead:
    """Makes masks ahead for one runtime, in the thread that calls.

    Example:
        >>> ahead = Lookahead(runtime, common_tokens(vocabulary))
        >>> ahead.work(states, lambda: step_has_begun)
    """

    def __init__(self, runtime: Runtime, common: npt.NDArray[np.int32]) -> None:
        self._runtime = weakref.ref(runtime)
        self.made = 0
        self._common = common
        self._known = np.zeros(1024, np.uint8)
        self._scratch = np.zeros((1, runtime.words), np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes of what it remembers."""
        return self._known.nbytes + self._scratch.nbytes

    def work(self, states: npt.NDArray[np.int32] | Sequence[int], is_over: Callable[[], bool]) -> bool:
        """Make the masks that may follow ``states``, until ``is_over()``; whether all were made.

        The runtime's lock is taken for each piece of work, and the interpreter's is free meanwhile.
        """
        runtime = self._runtime()
        if runtime is None:
            return True
        configs = np.unique(np.asarray(states, np.int32))
        most = int(configs.max(initial=0))
        if most >= len(self._known):
            self._known = np.concatenate([self._known, np.zeros(2 * most - len(self._known) + 2, np.uint8)])
        configs = configs[(configs > 1) & (self._known[np.maximum(configs, 0)] == 0)]
        place = np.zeros(3, np.int64)
        left = len(configs) > 0
        while left and not is_over():
            with runtime.lock:
                left = _work(runtime.address, configs, self._known, self._common, self._scratch, place)
            time.sleep(PAUSE)
        self.made += int(place[MADE])
        return not left
