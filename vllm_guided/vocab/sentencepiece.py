"""Tokens of SentencePiece models.

A piece's mark ``▁`` is a space, at its head too: the text of a sequence is the joined pieces, and only
the decoder's very first space (the "dummy prefix") is dropped, where a whole text is decoded at once.
Byte pieces (``<0x0A>``) are bytes; control, unknown and unused pieces are never text.
"""

from __future__ import annotations

from typing import Any

from vllm_guided.vocab.pieces import METASPACE, TokenTable, byte_fallback, utf8


def is_processor(tokenizer: Any) -> bool:
    """Whether this looks like a ``sentencepiece.SentencePieceProcessor``."""
    return all(hasattr(tokenizer, name) for name in ("IdToPiece", "IsControl", "IsByte", "GetPieceSize"))


def from_processor(processor: Any) -> TokenTable:
    """The tokens of a ``SentencePieceProcessor``; its end-of-sentence piece stops."""
    count = processor.GetPieceSize()
    ids = list(range(count))
    table: list[bytes | None] = []
    special: dict[str, int] = {}
    for token_id, piece, control, unknown, unused in zip(
        ids,
        processor.IdToPiece(ids),
        processor.IsControl(ids),
        processor.IsUnknown(ids),
        processor.IsUnused(ids),
        strict=True,
    ):
        if control or unknown or unused:
            table.append(None)
            if not unused:
                special[piece] = token_id
        else:
            table.append(piece_bytes(processor, token_id, piece))
    eos = processor.eos_id()
    return TokenTable(table, special, (eos,) if eos >= 0 else ())


def piece_bytes(processor: Any, token_id: int, piece: str) -> bytes:
    """The bytes of one piece that is text."""
    if processor.IsByte(token_id):
        data = byte_fallback(piece)
        if data is not None:
            return data
    return utf8(piece.replace(METASPACE, " "))
