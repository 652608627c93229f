"""The vocabulary: what every token id stands for, in bytes, and the trie over them.

In: the bytes of each token by id, the stop tokens and the special tokens (from a tokenizer by
:mod:`vllm_guided.vocab.tokenizers`, or given by hand). Out: numpy arrays for the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from vllm_guided.vocab.pieces import MAX_SIZE
from vllm_guided.vocab.store import load_or_build
from vllm_guided.vocab.trie import TokenTrie

logger = logging.getLogger(__name__)


class Vocabulary:
    """The tokens of a model, by id.

    Every id is one of: *text* (it has at least one byte and may stand wherever those bytes may),
    *special* (known by name, allowed only where a grammar names it), *stop* (allowed exactly where the
    output may end), or *never allowed* (padding, unused, empty). Stop tokens are never text, even if
    they have bytes; ids with equal bytes are all text.

    Args:
        token_bytes: the bytes of each token by id; None or empty: never allowed as text.
        stop_token_ids: the ids that end the output; at least one.
        special_tokens: names of tokens that text cannot spell, with their ids.
        added_tokens: names of text tokens that a grammar may also name (``<think>`` in some models).
        vocab_size: the number of logits the model has for each position, if not ``len(token_bytes)``.
            Larger pads with ids that are never allowed. Smaller drops the ids at and above it, which
            the model cannot produce.

    Raises:
        ValueError: an id is out of range, or there is no stop token.

    Example:
        >>> Vocabulary([b"a", b"b", None], stop_token_ids=[2]).token_bytes(1)
        b'b'
    """

    size: int
    """Number of ids, padding included: the width of a bitmask row, in bits."""
    token_count: int
    """Number of ids the tokenizer knows (at most ``size``)."""
    stop_token_ids: tuple[int, ...]
    """Ascending."""
    special_tokens: dict[str, int]
    """Ids by name; never text."""
    named_tokens: dict[str, int]
    """``special_tokens`` and the added tokens that are text: every token that a grammar may name."""
    token_offsets: NDArray[np.int64]
    """int64[size + 1]: token ``i`` is ``token_data[token_offsets[i] : token_offsets[i + 1]]``, or empty."""
    token_data: NDArray[np.uint8]
    is_text: NDArray[np.bool_]
    """bool[size]."""
    max_token_length: int
    """Bytes of the longest text token."""
    content_hash: str
    """xxh3-128 of everything above, 32 hexadecimal digits."""
    trie: TokenTrie

    def __init__(
        self,
        token_bytes: Sequence[bytes | None],
        *,
        stop_token_ids: Sequence[int],
        special_tokens: Mapping[str, int] | None = None,
        vocab_size: int | None = None,
        added_tokens: Mapping[str, int] | None = None,
    ) -> None:
        self.size = len(token_bytes) if vocab_size is None else int(vocab_size)
        if not 0 < self.size <= MAX_SIZE:
            raise ValueError(f"a vocabulary of {self.size} tokens: between 1 and {MAX_SIZE} are possible")
        self.token_count = min(len(token_bytes), self.size)
        _report_dropped(token_bytes, self.size)
        self.stop_token_ids = self._check_stop_tokens(stop_token_ids)
        self.special_tokens = self._check_names(special_tokens or {})
        self.named_tokens = {**self._check_names(added_tokens or {}), **self.special_tokens}

        texts = [piece or b"" for piece in token_bytes[: self.size]]
        texts.extend([b""] * (self.size - len(texts)))
        for token_id in (*self.stop_token_ids, *self.special_tokens.values()):
            texts[token_id] = b""
        length = np.fromiter(map(len, texts), dtype=np.int64, count=self.size)
        self.token_offsets = np.concatenate(([0], np.cumsum(length)))
        self.token_data = np.frombuffer(bytearray().join(texts), dtype=np.uint8)
        self.is_text = length > 0
        self.max_token_length = int(length.max())
        self.content_hash = self._hash()
        text_ids = np.flatnonzero(self.is_text).tolist()
        pieces = [texts[i] for i in text_ids]
        self.trie = load_or_build(text_ids, pieces, self.token_offsets, self.token_data)

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Any, vocab_size: int | None = None, stop_token_ids: Sequence[int] | None = None
    ) -> Vocabulary:
        """The vocabulary of a tokenizer.

        Takes Hugging Face tokenizers (fast, slow SentencePiece, and remote code around tiktoken),
        ``tokenizers.Tokenizer``, ``tiktoken.Encoding``, SentencePiece processors, mistral-common's
        tokenizers, and vLLM's wrappers of them.

        Args:
            tokenizer: the tokenizer object.
            vocab_size: the model's number of logits, which may differ from the tokenizer's size.
            stop_token_ids: the ids that end the output. Default: what the tokenizer says. Models often
                have more (``generation_config.json``): give all of them.

        Raises:
            UnsupportedConstraint: a kind of tokenizer whose tokens have no bytes of their own.
            ValueError: no stop token is known, or one is out of range.
        """
        from vllm_guided.vocab.tokenizers import extract

        table = extract(tokenizer)
        size = len(table.token_bytes) if vocab_size is None else vocab_size
        if stop_token_ids is None:
            stop_token_ids = [i for i in table.stop_token_ids if i < size]
        return cls(
            table.token_bytes,
            stop_token_ids=stop_token_ids,
            special_tokens={name: i for name, i in table.special_tokens.items() if i < size},
            added_tokens={name: i for name, i in table.added_tokens.items() if i < size},
            vocab_size=vocab_size,
        )

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes of a text token; None for stop, special and padded ids, and ids out of range."""
        if not 0 <= token_id < self.size or not self.is_text[token_id]:
            return None
        return self.token_data[self.token_offsets[token_id] : self.token_offsets[token_id + 1]].tobytes()

    def encode_greedy(self, data: bytes) -> list[int]:
        """Text tokens whose joined bytes are ``data``: the longest that fits, from left to right.

        It is not the tokenizer's own choice of tokens, but any grammar that accepts the one accepts
        the other. Of ids with equal bytes the smallest is taken.

        Raises:
            ValueError: no token continues at some position.
        """
        ids, lengths = self._greedy_tables
        result: list[int] = []
        position = 0
        while position < len(data):
            for length in lengths.get(
                data[position : position + 2], lengths.get(data[position : position + 1], ())
            ):
                token_id = ids.get(data[position : position + length])
                if token_id is not None:
                    break
            else:
                raise ValueError(
                    f"no token of the vocabulary fits at byte {position}: {data[position : position + 8]!r}"
                )
            result.append(token_id)
            position += length
        return result

    @cached_property
    def _greedy_tables(self) -> tuple[dict[bytes, int], dict[bytes, list[int]]]:
        """The smallest id by bytes; by the first one or two bytes the lengths that occur, longest first."""
        ids: dict[bytes, int] = {}
        for token_id in np.flatnonzero(self.is_text)[::-1].tolist():
            text = self.token_bytes(token_id)
            assert text is not None
            ids[text] = token_id
        seen: dict[bytes, set[int]] = {}
        for text in ids:
            seen.setdefault(text[:2], set()).add(len(text))
        for head in seen:
            if len(head) == 2 and head[:1] in seen:
                seen[head].add(1)
        return ids, {head: sorted(lengths, reverse=True) for head, lengths in seen.items()}

    def _check_stop_tokens(self, stop_token_ids: Iterable[int]) -> tuple[int, ...]:
        stops = tuple(sorted({int(i) for i in stop_token_ids}))
        if not stops:
            raise ValueError(
                "a vocabulary needs at least one stop token, or no output could end: pass stop_token_ids"
            )
        for token_id in stops:
            if not 0 <= token_id < self.size:
                raise ValueError(f"stop token {token_id} is outside the vocabulary of {self.size} tokens")
        return stops

    def _check_names(self, tokens: Mapping[str, int]) -> dict[str, int]:
        for name, token_id in tokens.items():
            if not 0 <= token_id < self.size:
                raise ValueError(
                    f"token {name!r} is {token_id}, outside the vocabulary of {self.size} tokens"
                )
        return {name: int(token_id) for name, token_id in tokens.items()}

    def _hash(self) -> str:
        digest = xxhash.xxh3_128()
        digest.update(repr((1, self.size, self.token_count, self.stop_token_ids)).encode())
        for names in (self.special_tokens, self.named_tokens):
            digest.update(repr(sorted(names.items())).encode("utf-8", "surrogatepass"))
        digest.update(self.token_offsets.tobytes())
        digest.update(self.token_data.tobytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        text, special, stop = int(self.is_text.sum()), len(self.special_tokens), list(self.stop_token_ids)
        return f"Vocabulary(size={self.size}, {text=}, {special=}, {stop=}, hash={self.content_hash[:8]})"


def _report_dropped(token_bytes: Sequence[bytes | None], size: int) -> None:
    lost = sum(1 for piece in token_bytes[size:] if piece)
    if lost:
        logger.warning(
            "the model has logits for %d tokens, the tokenizer knows %d: %d text tokens at and above id %d "
            "cannot be produced and are left out",
            size, len(token_bytes), lost, size,
        )  # fmt: skip
