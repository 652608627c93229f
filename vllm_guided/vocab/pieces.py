"""From the strings a tokenizer's vocabulary is written in to the bytes its tokens stand for.

In: pieces (``str``) as byte-level BPE and SentencePiece-like models write them. Out: ``bytes``.
Each function follows what the family's decoder does with one token, since the text a client sees is
what the decoder makes of the ids.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MAX_SIZE = 1 << 24
"""More ids than any vocabulary has; a bitmask row of so many takes 2 MB."""

_BYTE_PIECE = re.compile(r"<0x(\+[0-9A-Fa-f]|[0-9A-Fa-f]{2})>")

METASPACE = "\u2581"
"""The mark SentencePiece writes for a space."""


@dataclass(slots=True)
class TokenTable:
    """What a tokenizer says about its tokens.

    Attributes:
        token_bytes: bytes by id; None for ids that are never text.
        special_tokens: names and ids of the tokens that text cannot spell.
        added_tokens: names and ids of tokens that were added to the model's own and are text.
        stop_token_ids: the ids the tokenizer itself knows to end an output; may be empty.
    """

    token_bytes: list[bytes | None]
    special_tokens: dict[str, int] = field(default_factory=dict)
    added_tokens: dict[str, int] = field(default_factory=dict)
    stop_token_ids: tuple[int, ...] = ()


def new_table(size: int) -> list[bytes | None]:
    """A table of ``size`` ids that are never text.

    Raises:
        ValueError: no vocabulary is that large; some id of the tokenizer is nonsense.
    """
    if size > MAX_SIZE:
        raise ValueError(f"the tokenizer has a token with id {size - 1}: at most {MAX_SIZE} ids are possible")
    return [None] * max(size, 0)


@lru_cache(maxsize=1)
def byte_level_alphabet() -> NDArray[np.int16]:
    """int16[n]: the byte that each code point below n stands for in byte-level BPE, or -1.

    GPT-2's mapping: printable Latin-1 characters stand for themselves, the other bytes, in order, for
    the code points from 256.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = np.full(256 + len(others), -1, np.int16)
    table[printable] = printable
    table[256:] = others
    return table


def byte_level(pieces: Sequence[str]) -> list[bytes]:
    """The bytes of byte-level BPE pieces.

    A piece with a character outside the alphabet is taken as it is, in UTF-8, as the decoder does.
    """
    table = byte_level_alphabet()
    points = np.frombuffer("".join(pieces).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    values = table[np.minimum(points, len(table) - 1)]
    values[points >= len(table)] = -1
    length = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    end = np.cumsum(length)
    data = values.astype(np.uint8).tobytes()
    result = [data[low:high] for low, high in zip((end - length).tolist(), end.tolist(), strict=True)]
    foreign = np.searchsorted(end, np.flatnonzero(values < 0), side="right")
    for index in np.unique(foreign).tolist():
        result[index] = utf8(pieces[index])
    return result


def byte_fallback(piece: str) -> bytes | None:
    """The byte that a piece like ``<0x0A>`` stands for; None for any other piece."""
    match = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else None


def utf8(piece: str) -> bytes:
    """UTF-8; lone surrogates, which some vocabularies hold, become the three bytes they would be."""
    return piece.encode("utf-8", "surrogatepass")
