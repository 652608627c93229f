"""One request's grammar, as vLLM's scheduler drives it: it never raises.

In vLLM an exception in any of these methods ends the engine and every request with it. So each method
catches everything: the first fault is logged, the request is marked as failed, its rows allow every token
from then on, and the next ``accept_tokens`` answers False, upon which vLLM ends that request alone.

A request may bring stop tokens of its own (``stop_token_ids``); the engine knows only the server's. They
are handled here: such a token is masked until the output may end, and ends it from then on.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from vllm_guided.runtime.arena import DEAD
from vllm_guided.vllm.selection import logger

_T = TypeVar("_T")


def _guarded(failed: Any) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """Turn a method's exception into its request's failure; ``failed(self, *args)`` is the answer then."""

    def decorate(method: Callable[..., _T]) -> Callable[..., _T]:
        @functools.wraps(method)
        def guarded(self: GuidedGrammar, *args: Any) -> _T:
            if not self.failed:
                try:
                    return method(self, *args)
                except Exception as fault:
                    self.fail(method.__name__, fault)
            answer: _T = failed(self, *args)
            return answer

        return guarded

    return decorate


class GuidedGrammar(StructuredOutputGrammar):  # type: ignore[misc]
    """A matcher behind vLLM's interface.

    Args:
        matcher: a ``vllm_guided.GrammarMatcher``.
        request_id: for the log.
        extra_stop_ids: stop tokens of this request that the matcher does not know.
        stop_ids: all stop tokens of this request.
        allowed_ids: the request's own ``allowed_token_ids``, if it has any. vLLM takes the others away after
            the masks; where none is left then, its sampler picks one all the same.
    """

    def __init__(
        self,
        matcher: Any,
        request_id: str = "",
        extra_stop_ids: frozenset[int] = frozenset(),
        stop_ids: frozenset[int] = frozenset(),
        allowed_ids: frozenset[int] | None = None,
    ) -> None:
        self.matcher = matcher
        self.request_id = request_id
        self.extra_stop_ids = extra_stop_ids
        self.stop_ids = stop_ids
        self.allowed_ids = allowed_ids
        self.failed = False
        self._ended = False
        #: Whether its rows are its matcher's masks, and its tokens its matcher's, and nothing else.
        self.is_plain = not extra_stop_ids and allowed_ids is None
        self._ahead: tuple[int, list[int], list[int]] | None = None
        self._drafts: tuple[int, list[int], int] | None = None

    def fail(self, where: str, fault: Exception) -> None:
        """Give this request up: rows allow everything, the next accept answers False."""
        self.failed = True
        self.is_plain = False
        logger.error(
            "vllm_guided failed in %s of request %s, which ends with an error; others go on.",
            where,
            self.request_id,
            exc_info=fault,
        )

    def look_ahead(self, tokens: list[int], states: list[int]) -> None:
        """Note the states that the next ``tokens`` lead to, found with those of the whole batch."""
        self._ahead = (self.matcher.state, tokens, states)

    def look_at_drafts(self, tokens: list[int], states: list[int]) -> None:
        """Note how many of the draft ``tokens`` are allowed, by the states they lead to."""
        allowed = states.index(DEAD) if DEAD in states else len(states)
        self._drafts = (self.matcher.state, tokens.copy(), allowed)

    def accept_ahead(self, tokens: list[int]) -> bool:
        """Accept ``tokens`` if the states they lead to were noted; whether they were, and are allowed.

        False says nothing: :meth:`accept_tokens` finds out.
        """
        ahead = self._ahead
        if ahead is None:
            return False
        self._ahead = None
        state, known, states = ahead
        if known is not tokens and known[: len(tokens)] != tokens:
            return False
        return bool(self.matcher.move(state, states[: len(tokens)]))

    @_guarded(lambda self, request_id, tokens: False)
    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Advance by ``tokens``; what follows the end is ignored, as vLLM expects."""
        if self._ended or self.matcher.is_terminated():
            return True
        for token in tokens:
            if self.allowed_ids is not None and token not in self.allowed_ids:
                return False
            if token in self.extra_stop_ids and self.matcher.is_accepting():
                self._ended = True
                return True
            if not self.matcher.accept_tokens([token]):
                return False
            if self.matcher.is_terminated():
                return True
        return True

    @_guarded(lambda self, tokens: [])
    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """The longest prefix of ``tokens`` that could come next; the state stays."""
        looked_at, self._drafts = self._drafts, None
        if looked_at is not None and self.is_plain:
            state, known, allowed = looked_at
            if state == self.matcher.state and known[: len(tokens)] == tokens:
                return tokens[:allowed]
        if self._ended or self.matcher.is_terminated():
            return []
        if self.allowed_ids is not None:
            tokens = list(itertools.takewhile(self.allowed_ids.__contains__, tokens))
        if self.extra_stop_ids.isdisjoint(tokens):
            return list(self.matcher.validate_tokens(tokens))
        matcher = self.matcher.copy()
        for count, token in enumerate(tokens):
            if token in self.extra_stop_ids and matcher.is_accepting():
                return tokens[: count + 1]
            if not matcher.accept_tokens([token]):
                return tokens[:count]
            if matcher.is_terminated():
                return tokens[: count + 1]
        return tokens

    @_guarded(lambda self, count: None)
    def rollback(self, num_tokens: int) -> None:
        """Undo the last ``num_tokens`` accepted tokens."""
        if self._ended and num_tokens:
            self._ended = False
            num_tokens -= 1
        if num_tokens:
            self.matcher.rollback(num_tokens)

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        """Write this request's row; ``bitmask`` is a numpy array or a CPU torch tensor, int32."""
        self.fill_row(bitmask if isinstance(bitmask, np.ndarray) else bitmask.numpy(), batch_index)

    @_guarded(lambda self, bitmask, row: bitmask[row].fill(-1))
    def fill_row(self, bitmask: np.ndarray[Any, Any], row: int) -> None:
        """Write this request's row of a numpy bitmask; only stop tokens once the output has ended."""
        if not self._ended:
            self.matcher.fill_bitmask(bitmask, row)
        self.finish_row(bitmask, row)

    @_guarded(lambda self, bitmask, row: bitmask[row].fill(-1))
    def finish_row(self, bitmask: np.ndarray[Any, Any], row: int) -> None:
        """Put this request's own stop tokens into a row that the matcher has filled."""
        if not self.extra_stop_ids:
            return
        words = bitmask[row].view(np.uint32)
        if self._ended:
            words.fill(0)
            _set_bits(words, self.stop_ids)
        elif self.matcher.is_accepting():
            _set_bits(words, self.extra_stop_ids)
        else:
            before = words.copy()
            _clear_bits(words, self.extra_stop_ids)
            if not words.any():
                words[:] = before

    @_guarded(lambda self: False)
    def is_terminated(self) -> bool:
        """Has a stop token been accepted?"""
        return self._ended or bool(self.matcher.is_terminated())

    @_guarded(lambda self: None)
    def reset(self) -> None:
        """Back to the start."""
        self._ended = False
        self.matcher.reset()


def _set_bits(words: np.ndarray[Any, Any], token_ids: frozenset[int]) -> None:
    for token in token_ids:
        words[token >> 5] |= np.uint32(1 << (token & 31))


def _clear_bits(words: np.ndarray[Any, Any], token_ids: frozenset[int]) -> None:
    for token in token_ids:
        words[token >> 5] &= ~np.uint32(1 << (token & 31))
