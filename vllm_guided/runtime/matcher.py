"""The matcher: where one request stands in its grammar, and the operations on many of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any
from weakref import ref

import numpy as np
import numpy.typing as npt

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.numba_setup import without_dispatch
from vllm_guided.runtime import entry
from vllm_guided.runtime.arena import DEAD, ITEM_LIMIT, TERMINATED
from vllm_guided.runtime.binding import Runtime

Bitmask = npt.NDArray[np.int32]

#: No vocabulary has ids from here on.
TOKEN_LIMIT = 1 << 31
#: ``forced_tokens`` looks at most this many tokens ahead.
FORCED_LIMIT = 4096

_advance_one = without_dispatch(entry.advance)
#: For an array that numba has looked at before.
_fill_same = without_dispatch(entry.fill)


def allocate_token_bitmask(rows: int, vocabulary_size: int) -> Bitmask:
    """An int32 array ``[rows, ceil(vocabulary_size / 32)]`` with every bit set (bit set = allowed)."""
    return np.full((rows, (vocabulary_size + 31) // 32), -1, dtype=np.int32)


def as_bitmask(bitmask: Any, words: int) -> Bitmask:
    """``bitmask`` as a C-contiguous int32 array ``[rows, >= words]`` that shares its memory.

    Raises:
        TypeError: neither a numpy array nor a CPU torch tensor of int32.
        ValueError: another shape, not contiguous, or read-only.
    """
    array = bitmask if type(bitmask) is np.ndarray else _from_tensor(bitmask)
    if array.dtype != np.int32:
        raise TypeError(f"a bitmask must be int32, not {array.dtype}")
    if array.ndim != 2 or array.shape[1] < words:
        raise ValueError(f"a bitmask must have shape [rows, {words}] or wider, not {list(array.shape)}")
    if not array.flags.carray:
        raise ValueError("a bitmask must be C-contiguous and writable")
    return array


def _from_tensor(bitmask: Any) -> Bitmask:
    if hasattr(bitmask, "numpy") and getattr(getattr(bitmask, "device", None), "type", "") == "cpu":
        array: Bitmask = bitmask.numpy()
        return array
    raise TypeError(f"a bitmask must be a numpy array or a CPU torch tensor, not {type(bitmask).__name__}")


class GrammarMatcher:
    """Follows one request through a grammar. Made by ``CompiledGrammar.matcher()``.

    Its state is one integer for each token accepted, so that ``rollback`` is an index and ``copy`` is
    free. Not for use by two threads at once; different matchers may be used by different threads.

    Example:
        >>> matcher = grammar.matcher()
        >>> bitmask = allocate_token_bitmask(1, vocabulary.size)
        >>> matcher.fill_bitmask(bitmask, 0)
        >>> matcher.accept_tokens([token])
        True
    """

    __slots__ = ("_history", "_runtime")

    def __init__(self, runtime: Runtime, start: int) -> None:
        self._runtime = runtime
        self._history = [start]

    @property
    def state(self) -> int:
        """The interned configuration: equal numbers mean equal futures (within one compiler)."""
        return self._history[-1]

    @property
    def words(self) -> int:
        """The int32 words of a mask."""
        return self._runtime.words

    @property
    def token_count(self) -> int:
        """Number of tokens accepted (and not rolled back)."""
        return len(self._history) - 1

    def accept_tokens(self, tokens: Sequence[int]) -> bool:
        """Advance over ``tokens``. False, and nothing changes, if any of them is not allowed.

        A stop token is accepted where the output may end; after it nothing is.

        Raises:
            ConstraintTooComplex: the grammar is too ambiguous to follow this output.
            TypeError: the tokens are not integers.
        """
        runtime = self._runtime
        history = self._history
        if len(tokens) == 1:
            token = tokens[0]
            if type(token) is not int:
                token = index(token)
            if not 0 <= token < TOKEN_LIMIT:
                return False
            # (``with`` takes twice as long.)
            runtime.lock.acquire()
            try:
                config = _advance_one(runtime.address, history[-1], token)
            finally:
                runtime.lock.release()
            if config != DEAD:
                history.append(config)
                return True
            with runtime.lock:
                if runtime.has_overflowed():
                    raise _too_ambiguous()
            return False
        reached = self._advance(tokens)
        if len(reached) < len(tokens):
            return False
        history.extend(reached)
        return True

    def validate_tokens(self, tokens: Sequence[int]) -> list[int]:
        """The longest prefix of ``tokens`` that would be accepted; the state does not change."""
        return list(tokens[: len(self._advance(tokens))])

    def peek_states(self, tokens: Sequence[int]) -> list[int]:
        """The states after each of ``tokens``, as far as they are allowed; nothing changes."""
        return self._advance(tokens)

    def _advance(self, tokens: Sequence[int]) -> list[int]:
        if not len(tokens):
            return []
        ids = _token_array(tokens)
        out = np.empty(len(ids), np.int32)
        with self._runtime.lock:
            count = entry.advance_all(self._runtime.address, self._history[-1], ids, out)
        result: list[int] = out[:count].tolist()
        return result

    def move(self, state: int, states: Sequence[int]) -> bool:
        """Go from ``state`` over ``states``, which a call for a whole batch has found; whether it did.

        Only if it stands there, and no token was refused, nor is one behind the end.
        """
        history = self._history
        if history[-1] != state or not states or DEAD in states:
            return False
        history.extend(states)
        return True

    def rollback(self, count: int) -> None:
        """Take back the last ``count`` accepted tokens, stop tokens too.

        Raises:
            ValueError: fewer were accepted.
        """
        if not 0 <= count < len(self._history):
            raise ValueError(f"cannot roll back {count} of {len(self._history) - 1} tokens")
        if count:
            del self._history[-count:]

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        """Write the allowed tokens to ``bitmask[row]`` (int32 ``[rows, ceil(size / 32)]``).

        After a stop token, the stop tokens alone, so that a sampler still finds one; none is accepted.

        Raises:
            TypeError, ValueError: not such an array.
            IndexError: no such row.
            ConstraintTooComplex: no token can continue the output, though the grammar goes on: it is too
                ambiguous, or the vocabulary cannot spell what it asks for. The row is all zeros.
        """
        runtime = self._runtime
        try:
            # (It may have been given another shape in between.)
            if runtime.last_bitmask() is bitmask and bitmask is not None and bitmask.ndim == 2:
                runtime.lock.acquire()
                try:
                    filled = _fill_same(runtime.address, self._history[-1], bitmask, row)
                finally:
                    runtime.lock.release()
            else:
                array = bitmask if type(bitmask) is np.ndarray else _from_tensor(bitmask)
                with runtime.lock:
                    filled = entry.fill(runtime.address, self._history[-1], array, row)
                runtime.last_bitmask = ref(array)
        except TypeError:
            # The compiled function takes no other arrays; say what is wrong with this one.
            as_bitmask(bitmask, runtime.words)
            raise
        if filled > 0:
            return
        if filled < 0:
            array = as_bitmask(bitmask, runtime.words)
            raise IndexError(f"row {row} of a bitmask with {len(array)} rows")
        with runtime.lock:
            raise _too_ambiguous() if runtime.has_overflowed() else _not_spelt()

    def is_accepting(self) -> bool:
        """Whether the output may end here (true after a stop token, too)."""
        with self._runtime.lock:
            return bool(entry.is_final(self._runtime.address, self._history[-1]))

    def is_terminated(self) -> bool:
        """Whether a stop token was accepted."""
        return self._history[-1] == TERMINATED

    def reset(self) -> None:
        """Go back to the beginning."""
        del self._history[1:]

    def copy(self) -> GrammarMatcher:
        """A matcher that stands where this one does and goes its own way from here."""
        twin = GrammarMatcher(self._runtime, 0)
        twin._history = self._history.copy()
        return twin

    def forced_tokens(self) -> list[int]:
        """The only continuation, as far as it is the only one; the state does not change.

        A stop token is listed (last) where it is the only token allowed.
        """
        runtime = self._runtime
        config = self._history[-1]
        forced: list[int] = []
        with runtime.lock:
            while len(forced) < FORCED_LIMIT:
                token = entry.only_token(runtime.address, config)
                if token < 0:
                    break
                forced.append(token)
                config = entry.advance(runtime.address, config, token)
        return forced

    def accept_bytes(self, data: bytes) -> bool:
        """Advance over text however it is cut into tokens; one step for ``rollback``."""
        with self._runtime.lock:
            config = entry.advance_bytes(
                self._runtime.address, self._history[-1], np.frombuffer(bytearray(data), np.uint8)
            )
        if config == DEAD:
            return False
        self._history.append(config)
        return True


def _too_ambiguous() -> ConstraintTooComplex:
    return ConstraintTooComplex(
        f"the grammar is so ambiguous that more than {ITEM_LIMIT:,} readings of the output would have to be "
        "followed; rewrite the rules that can derive the same text in many ways"
    )


def _not_spelt() -> ConstraintTooComplex:
    return ConstraintTooComplex(
        "no token of the vocabulary can continue the output: the constraint asks for text that the "
        "vocabulary cannot spell"
    )


def _token_array(tokens: Sequence[int]) -> npt.NDArray[np.int32]:
    given = np.asarray(tokens)
    if given.ndim != 1:
        raise TypeError(f"tokens are a sequence of ids, not of shape {list(given.shape)}")
    if given.dtype.kind not in "iu":
        # Floats, bools and texts are no ids; integers wider than 64 bits are, but no vocabulary's.
        given = np.array([i if 0 <= (i := index(token)) < TOKEN_LIMIT else -1 for token in tokens], np.int64)
    wide = given.astype(np.int64, copy=False)
    # Ids outside int32 are outside every vocabulary: -1 is refused like them.
    return np.where((wide >= 0) & (wide < TOKEN_LIMIT), wide, -1).astype(np.int32)


def fill_bitmask_batch(
    matchers: Sequence[GrammarMatcher | None], bitmask: Any, rows: Sequence[int] | None = None
) -> list[int]:
    """``matchers[i].fill_bitmask(bitmask, rows[i])`` for all, in one call without the GIL.

    Args:
        matchers: one for each row to write; None writes a row that allows everything.
        bitmask: int32 ``[rows, ceil(size / 32)]``, numpy or CPU torch.
        rows: which row each writes; default 0, 1, 2, ...

    Returns:
        Positions of matchers whose row has no bit, where ``fill_bitmask`` raises ConstraintTooComplex:
        nearly always none.

    Raises:
        ValueError, TypeError, IndexError: as ``fill_bitmask``.
    """
    if rows is None:
        rows = range(len(matchers))
    if len(rows) != len(matchers):
        raise ValueError(f"{len(matchers)} matchers, but {len(rows)} rows")
    empty: list[int] = []
    for runtime, chosen in _by_runtime(matchers):
        places = np.array([rows[i] for i in chosen], np.int64)
        states = [m._history[-1] if (m := matchers[i]) is not None else -1 for i in chosen]
        if fill_states(runtime, np.array(states, np.int32), bitmask, places):
            array = as_bitmask(bitmask, 0)
            empty.extend(i for i, place in zip(chosen, places, strict=True) if not array[place].any())
    return empty


def fill_states(
    runtime: Runtime | None, states: npt.NDArray[np.int32], bitmask: Any, places: npt.NDArray[np.int64]
) -> int:
    """Write the mask of each state (-1: all ones) to the row at the same position of ``places``.

    Returns how many rows have no bit.
    """
    array = as_bitmask(bitmask, runtime.words if runtime else 0)
    if len(places) and (places.min() < 0 or places.max() >= len(array)):
        raise IndexError(f"rows {places.min()} to {places.max()} of a bitmask with {len(array)} rows")
    if runtime is None:
        array[places] = -1
        return 0
    with runtime.lock:
        return int(entry.fill_batch(runtime.address, states, array, places))


def accept_tokens_batch(matchers: Sequence[GrammarMatcher], tokens: Sequence[int]) -> list[bool]:
    """Each matcher accepts its own one token, in one call without the GIL; which were allowed.

    A matcher whose token is not allowed stays as it is.

    Raises:
        ValueError: the numbers differ, or a matcher stands twice in the list.
    """
    if len(tokens) != len(matchers):
        raise ValueError(f"{len(matchers)} matchers, but {len(tokens)} tokens")
    if len({id(matcher) for matcher in matchers}) != len(matchers):
        raise ValueError("a matcher stands twice in the batch")
    accepted = [False] * len(matchers)
    ids = _token_array(tokens)
    for runtime, chosen in _by_runtime(matchers):
        assert runtime is not None
        states = np.array([matchers[i]._history[-1] for i in chosen], np.int32)
        out = np.empty(len(chosen), np.int32)
        with runtime.lock:
            entry.advance_batch(runtime.address, states, ids[chosen], out)
        for i, config in zip(chosen, out.tolist(), strict=True):
            if config != DEAD:
                matchers[i]._history.append(config)
                accepted[i] = True
    return accepted


def _by_runtime(
    matchers: Sequence[GrammarMatcher | None],
) -> list[tuple[Runtime | None, list[int]]]:
    """Positions by runtime: nearly always one, two while an arena is being replaced."""
    groups: dict[int, tuple[Runtime | None, list[int]]] = {}
    first: Runtime | None = next((m._runtime for m in matchers if m is not None), None)
    for position, matcher in enumerate(matchers):
        runtime = first if matcher is None else matcher._runtime
        key = id(runtime)
        if key not in groups:
            groups[key] = (runtime, [])
        groups[key][1].append(position)
    return list(groups.values())
