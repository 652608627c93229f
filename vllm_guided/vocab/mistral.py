"""Tokens of mistral-common: Tekken (bytes by rank, behind the special tokens) and SentencePiece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_guided.vocab.pieces import TokenTable, new_table
from vllm_guided.vocab.sentencepiece import from_processor, is_processor


def is_tekken(tokenizer: Any) -> bool:
    """Whether this looks like a ``mistral_common`` ``Tekkenizer``."""
    return all(hasattr(tokenizer, name) for name in ("id_to_byte_piece", "special_ids", "n_words"))


def is_sentencepiece(tokenizer: Any) -> bool:
    """Whether this looks like a ``mistral_common`` ``SentencePieceTokenizer``."""
    return hasattr(tokenizer, "n_words") and is_processor(getattr(tokenizer, "_model", None))


def from_tekken(tokenizer: Any) -> TokenTable:
    """The tokens of a ``Tekkenizer``: ids below ``num_special_tokens`` are special, the others bytes."""
    first = int(tokenizer.num_special_tokens)
    table = new_table(int(tokenizer.n_words))
    ranks = getattr(tokenizer, "_tekken_token2id_nospecial", None)
    if isinstance(ranks, Mapping):
        for data, rank in ranks.items():
            if first + rank < len(table):
                table[first + rank] = data
    else:
        for token_id in range(first, len(table)):
            table[token_id] = tokenizer.id_to_byte_piece(token_id)
    special = {tokenizer.id_to_piece(token_id): int(token_id) for token_id in sorted(tokenizer.special_ids)}
    return TokenTable(table, special, stop_token_ids=(int(tokenizer.eos_id),))


def from_sentencepiece(tokenizer: Any) -> TokenTable:
    """The tokens of a ``SentencePieceTokenizer``."""
    return from_processor(tokenizer._model)
