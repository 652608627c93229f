"""Tokens of SentencePiece models.

A piece's mark ``▁`` is a space, at its head too: the text of a sequence is the joined pieces, and only
the decoder's very first space (the "dummy prefix") is dropped, where a whole text is decoded at once.
Byte pieces (``<0x0A>``) are bytes; control, unknown and unused pieces are never text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_guided.vocab.pieces import METASPACE, TokenTable, byte_fallback, new_table, utf8


def is_processor(tokenizer: Any) -> bool:
    """Whether this looks like a ``sentencepiece.SentencePieceProcessor``."""
    return all(hasattr(tokenizer, name) for name in ("IdToPiece", "IsControl", "IsByte", "GetPieceSize"))


def from_processor(processor: Any, vocabulary: Mapping[str, int] | None = None) -> TokenTable:
    """The tokens of a ``SentencePieceProcessor``; its end-of-sentence piece stops.

    Args:
        processor: the processor.
        vocabulary: ids by piece, where a wrapper numbers the pieces anew (fairseq's tokenizers do);
            pieces it does not know are left out.
    """
    numbers = range(processor.GetPieceSize())
    pieces = [processor.IdToPiece(number) for number in numbers]
    ids = list(numbers) if vocabulary is None else [vocabulary.get(piece, -1) for piece in pieces]
    table = new_table(1 + max(ids, default=-1))
    special: dict[str, int] = {}
    for number, piece, token_id in zip(numbers, pieces, ids, strict=True):
        if token_id < 0 or processor.IsUnused(number):
            continue
        if processor.IsControl(number) or processor.IsUnknown(number):
            special[piece] = token_id
        else:
            data = byte_fallback(piece) if processor.IsByte(number) else None
            table[token_id] = utf8(piece.replace(METASPACE, " ")) if data is None else data
    eos = processor.eos_id()
    stops = (ids[eos],) if 0 <= eos < len(ids) and ids[eos] >= 0 else ()
    return TokenTable(table, special, stop_token_ids=stops)
