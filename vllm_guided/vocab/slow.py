"""Tokens of Python tokenizers of the GPT-2 kind, which carry their byte alphabet as ``byte_decoder``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_guided.errors import UnsupportedConstraint
from vllm_guided.vocab.pieces import TokenTable, byte_level, byte_level_alphabet, new_table

_SAMPLES = 500


def is_byte_level(tokenizer: Any) -> bool:
    """Whether this is a Hugging Face tokenizer in Python that maps characters to bytes as GPT-2 does."""
    decoder = getattr(tokenizer, "byte_decoder", None)
    if not isinstance(decoder, Mapping) or not hasattr(tokenizer, "get_vocab"):
        return False
    alphabet = byte_level_alphabet().tolist()
    return {ord(c): byte for c, byte in decoder.items()} == {c: b for c, b in enumerate(alphabet) if b >= 0}


def from_byte_level(tokenizer: Any) -> TokenTable:
    """The tokens of such a tokenizer.

    Raises:
        UnsupportedConstraint: the tokenizer's own text for some token is another one (word ends).
    """
    pieces = {token_id: piece for piece, token_id in tokenizer.get_vocab().items()}
    ids = sorted(pieces)
    table = new_table(1 + max(ids, default=-1))
    for token_id, data in zip(ids, byte_level([pieces[i] for i in ids]), strict=True):
        table[token_id] = data
    added = getattr(tokenizer, "added_tokens_decoder", {})
    for token_id in ids[:: max(1, len(ids) // _SAMPLES)]:
        if token_id in added:
            continue
        text = (table[token_id] or b"").decode("utf-8", "replace")
        if "\ufffd" not in text and tokenizer.convert_tokens_to_string([pieces[token_id]]) != text:
            raise UnsupportedConstraint(
                f"the tokenizer writes its token {pieces[token_id]!r} otherwise than byte by byte: "
                "use its fast version, or build the Vocabulary from a list of bytes"
            )
    return TokenTable(table)
