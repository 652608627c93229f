"""An engine for tests of the vLLM join: finite sets of texts, matched byte by byte, plain Python.

It stands behind the same functions as the real one (``vllm_guided.vllm.engine``), so that what is tested
is the join and not the engine. A choice is its options; every other constraint is the one text
:data:`CANNED` has for its kind. The text ``boom-METHOD`` makes that method raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vllm_guided.errors import InvalidConstraint
from vllm_guided.vllm import engine
from vllm_guided.vllm.engine import Constraint

CANNED = {
    "json_schema": ['{"a":1}', '{"a":12}'],
    "json_object": ["{}", '{"k":"v"}'],
    "regex": ["abab", "ab"],
    "grammar": ["1+1"],
    "structural_tag": ["<f>{}</f>"],
}
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


class StubGrammar:
    def __init__(self, *args: Any) -> None:
        self.args = args

    def matcher(self) -> StubMatcher:
        return StubMatcher(*self.args)


class StubEngine:
    """Compiles constraints over ``tokens``; keeps what it was asked for."""

    def __init__(self, tokens: list[bytes | None], stop_ids: Sequence[int]) -> None:
        self.tokens = tokens
        self.stop_token_ids = frozenset(stop_ids)
        self.asked: list[Constraint] = []

    def compile(self, constraint: Constraint) -> StubGrammar:
        check(constraint)
        self.asked.append(constraint)
        texts = constraint.spec if constraint.kind == "choice" else CANNED[constraint.kind]
        return StubGrammar([text.encode() for text in texts], self.tokens, self.stop_token_ids)


def fill_rows(matchers: Sequence[StubMatcher], bitmask: np.ndarray, rows: Sequence[int]) -> list[int]:
    """The batch call of the stub."""
    empty = []
    for position, (matcher, row) in enumerate(zip(matchers, rows, strict=True)):
        try:
            matcher.fill_bitmask(bitmask, row)
        except OverflowError:
            empty.append(position)
    return empty


def check(constraint: Constraint, tokenizer: Any = None, vocabulary_size: int | None = None) -> None:
    """The check without a vocabulary: everything is fine but :data:`BAD`."""
    if BAD in constraint.text:
        raise InvalidConstraint("the stub refuses this", where="here")


def install(patch: Any = None) -> None:
    """Put the stub in the engine's place in this process (a server test does so in every process)."""

    def make_engine(tokenizer: Any, vocabulary_size: int, stop_token_ids: Sequence[int]) -> StubEngine:
        tokens: list[bytes | None] = [
            tokenizer.decode([i]).encode()
            if i < len(tokenizer) and i not in tokenizer.all_special_ids
            else None
            for i in range(vocabulary_size)
        ]
        return StubEngine(tokens, stop_token_ids)

    replace = patch or (lambda owner, name, value: setattr(owner, name, value))
    replace(engine, "make_engine", make_engine)
    replace(engine, "fill_rows", fill_rows)
    replace(engine, "check", check)
