"""Tokens of tiktoken encodings (and of anything that carries their ranks): bytes already, by rank."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from vllm_guided.vocab.pieces import TokenTable, new_table


def is_encoding(tokenizer: Any) -> bool:
    """Whether this looks like a ``tiktoken.Encoding``."""
    return hasattr(tokenizer, "decode_single_token_bytes") and hasattr(tokenizer, "n_vocab")


def from_encoding(encoding: Any) -> TokenTable:
    """The tokens of a ``tiktoken.Encoding``; its special tokens are special, ``eot_token`` stops."""
    special = _special_tokens(encoding)
    ranks = getattr(encoding, "_mergeable_ranks", None)
    if not isinstance(ranks, Mapping):
        ranks = _ranks_by_id(encoding, set(special.values()))
    stop: tuple[int, ...] = ()
    with suppress(KeyError, AttributeError):  # raised where there is no <|endoftext|>
        stop = (int(encoding.eot_token),)
    return from_ranks(ranks, special, stop)


def from_ranks(
    ranks: Mapping[bytes, int], special_tokens: Mapping[str, int], stop_token_ids: tuple[int, ...] = ()
) -> TokenTable:
    """A table from bytes to ids, as tiktoken's files hold it."""
    size = 1 + max(max(ranks.values(), default=-1), max(special_tokens.values(), default=-1))
    table = new_table(size)
    for data, token_id in ranks.items():
        table[token_id] = data
    for token_id in special_tokens.values():
        table[token_id] = None
    return TokenTable(table, dict(special_tokens), stop_token_ids=stop_token_ids)


def _special_tokens(encoding: Any) -> dict[str, int]:
    special = getattr(encoding, "_special_tokens", None)
    if isinstance(special, Mapping):
        return dict(special)
    return {name: encoding.encode_single_token(name) for name in encoding.special_tokens_set}


def _ranks_by_id(encoding: Any, special_ids: set[int]) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for token_id in range(encoding.n_vocab):
        if token_id not in special_ids:
            try:
                ranks[encoding.decode_single_token_bytes(token_id)] = token_id
            except KeyError:
                continue  # a gap in the ids
    return ranks
