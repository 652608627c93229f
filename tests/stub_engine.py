"""A matcher and a check for tests of the vLLM join: finite sets of texts, matched byte by byte, plain Python.

What is tested with them is the join and not the engine. The text ``boom-METHOD`` makes that method raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vllm_guided.errors import InvalidConstraint
from vllm_guided.vllm import engine
from vllm_guided.vllm.engine import Constraint

BAD = "refuse me"


class StubMatcher:
    """Accepts the tokens that spell one of ``texts``, and a stop token after it."""

    def __init__(self, texts: list[bytes], tokens: list[bytes | None], stop_ids: frozenset[int]) -> None:
        self.texts = texts
        self.tokens = tokens
        self.stop_ids = stop_ids
        self.path: list[int] = []
        self.broken = {t.decode().removeprefix("boom-") for t in texts if t.startswith(b"boom-")}

    def _break(self, method: str) -> None:
        if method in self.broken:
            raise RuntimeError(f"broken {method}")

    @property
    def done(self) -> bytes:
        return b"".join(self.tokens[i] or b"" for i in self.path if i not in self.stop_ids)

    def _allowed(self, token: int) -> bool:
        if self.is_terminated():
            return token in self.stop_ids
        if token in self.stop_ids:
            return self.is_accepting()
        data = self.tokens[token] if 0 <= token < len(self.tokens) else None
        return bool(data) and any(text.startswith(self.done + (data or b"")) for text in self.texts)

    def accept_tokens(self, tokens: Sequence[int]) -> bool:
        self._break("accept_tokens")
        for count, token in enumerate(tokens):
            if self.is_terminated() or not self._allowed(token):
                self.rollback(count)
                return False
            self.path.append(token)
        return True

    def validate_tokens(self, tokens: Sequence[int]) -> list[int]:
        self._break("validate_tokens")
        accepted: list[int] = []
        for token in tokens:
            if self.is_terminated() or not self._allowed(token):
                break
            self.path.append(token)
            accepted.append(token)
        self.rollback(len(accepted))
        return accepted

    def rollback(self, count: int) -> None:
        self._break("rollback")
        if count:
            del self.path[-count:]

    def fill_bitmask(self, bitmask: np.ndarray, row: int) -> None:
        self._break("fill_bitmask")
        words = bitmask[row].view(np.uint32)
        words.fill(0)
        if self.texts == [b"stuck"]:
            raise OverflowError("no way on")
        for token in range(len(self.tokens)):
            if self._allowed(token):
                words[token >> 5] |= np.uint32(1 << (token & 31))

    def is_terminated(self) -> bool:
        self._break("is_terminated")
        return bool(self.path) and self.path[-1] in self.stop_ids

    def is_accepting(self) -> bool:
        return self.is_terminated() or self.done in self.texts

    def reset(self) -> None:
        self.path.clear()

    def copy(self) -> StubMatcher:
        other = StubMatcher(self.texts, self.tokens, self.stop_ids)
        other.path = list(self.path)
        return other


def check(constraint: Constraint, tokenizer: Any = None, vocabulary_size: int | None = None) -> None:
    """The check without a vocabulary: everything is fine but :data:`BAD`."""
    if BAD in constraint.text:
        raise InvalidConstraint("the stub refuses this", where="here")


def install(patch: Any) -> None:
    """Put the check in the engine's place; ``patch``: as ``monkeypatch.setattr``."""
    patch(engine, "check", check)
