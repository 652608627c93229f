"""Tokens of the Hugging Face ``tokenizers`` library, read off the tokenizer's decoder.

The decoder says what text an id becomes, so its steps are followed for each token by itself:

============================ ==========================================================================
ByteLevel                    byte-level BPE: every character stands for a byte (GPT-2, Llama 3, Qwen 2, ...)
Replace ``▁`` / Metaspace    the mark is a space, at the head of a token too (Llama 2, Gemma, T5, ...)
ByteFallback                 ``<0x0A>`` is the byte 0x0A
Fuse, then Strip at the left change nothing inside a text (Strip drops the first space of all)
============================ ==========================================================================

A decoder whose text for a token depends on its neighbours (WordPiece, word ends in BPE) gives tokens
no bytes of their own and is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from vllm_guided.errors import UnsupportedConstraint
from vllm_guided.vocab.pieces import METASPACE, TokenTable, byte_fallback, byte_level, new_table, utf8


def is_backend(tokenizer: Any) -> bool:
    """Whether this looks like a ``tokenizers.Tokenizer``."""
    return all(
        hasattr(tokenizer, name) for name in ("get_vocab", "decoder", "pre_tokenizer", "model", "to_str")
    )


def from_backend(
    backend: Any, special_ids: Iterable[int] = (), vocabulary: Mapping[str, int] | None = None
) -> TokenTable:
    """The tokens of a ``tokenizers.Tokenizer``.

    Args:
        backend: the tokenizer.
        special_ids: ids that are special besides those the backend itself flags.
        vocabulary: ``backend.get_vocab()``, where the caller has it already (it takes 0.2 s).

    Raises:
        UnsupportedConstraint: the decoder gives tokens no bytes of their own.
    """
    steps = _decoder_steps(backend)
    if vocabulary is None:
        vocabulary = backend.get_vocab(with_added_tokens=True)
    pieces = {token_id: piece for piece, token_id in vocabulary.items()}
    special = set(special_ids)
    added: dict[str, int] = {}
    for token_id, token in backend.get_added_tokens_decoder().items():
        pieces[token_id] = token.content
        if token.special:
            special.add(token_id)
        elif token_id not in special:
            added[token.content] = token_id
    table = new_table(1 + max(pieces, default=-1))
    for token_id, data in zip(pieces, _apply(steps, list(pieces.values())), strict=True):
        table[token_id] = data
    names: dict[str, int] = {}
    for token_id in sorted(special & pieces.keys()):
        table[token_id] = None
        names[pieces[token_id]] = token_id
    return TokenTable(table, names, added)


def _component(backend: Any, name: str) -> dict[str, Any] | None:
    """A part of the tokenizer as its JSON says it, without writing out the whole vocabulary."""
    part = getattr(backend, name)
    if part is None:
        return None
    try:
        state = json.loads(part.__getstate__())
    except (AttributeError, TypeError, ValueError):
        state = json.loads(backend.to_str())[name]
    return state if isinstance(state, dict) else None


def _flatten(component: dict[str, Any] | None, member: str) -> list[dict[str, Any]]:
    """The parts of a (nested) Sequence, in order."""
    if component is None:
        return []
    if component.get("type") == "Sequence":
        return [part for inner in component[member] for part in _flatten(inner, member)]
    return [component]


def _decoder_steps(backend: Any) -> list[dict[str, Any]]:
    steps = _flatten(_component(backend, "decoder"), "decoders")
    if steps:
        return steps
    # No decoder: remote code decodes by itself; how text is cut says how it is written.
    steps = [
        part
        for part in _flatten(_component(backend, "pre_tokenizer"), "pretokenizers")
        if part["type"] in ("ByteLevel", "Metaspace")
    ]
    if not steps:
        raise UnsupportedConstraint(
            "the tokenizer has no decoder, so the text of its tokens is unknown: "
            "set one (ByteLevel, Metaspace, ByteFallback), or build the Vocabulary from a list of bytes"
        )
    return steps


def _apply(steps: list[dict[str, Any]], pieces: list[str]) -> list[bytes]:
    """What the decoder makes of each piece by itself, somewhere inside a text."""
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return byte_level(pieces)
    data: list[bytes | None] = [None] * len(pieces)  # what a step has turned into bytes is final
    fused = False  # whether the steps that follow see the whole text as one piece
    for step in steps:
        match step:
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": new} if _local(old, fused):
                pieces = [piece.replace(old, new) for piece in pieces]
            case {"type": "Metaspace"}:
                mark = step.get("replacement", METASPACE)
                pieces = [piece.replace(mark, " ") for piece in pieces]
            case {"type": "ByteFallback"} if not fused:
                data = [_or(done, byte_fallback(piece)) for done, piece in zip(data, pieces, strict=True)]
            case {"type": "ByteLevel"} if not fused:
                data = [_or(done, value) for done, value in zip(data, byte_level(pieces), strict=True)]
            case {"type": "Strip", "content": char, "start": start, "stop": stop} if not (fused and stop):
                if not fused:
                    pieces = [_strip(piece, char, start, stop) for piece in pieces]
            case _:
                raise UnsupportedConstraint(
                    f"the tokenizer's decoder has a {step['type']} step that gives tokens no bytes of their "
                    "own: structured output needs a byte-level, byte-fallback or SentencePiece tokenizer"
                )
    return [utf8(piece) if done is None else done for done, piece in zip(data, pieces, strict=True)]


def _local(old: str, fused: bool) -> bool:
    """Whether replacing ``old`` never looks beyond one token."""
    return len(old) == 1 or (len(old) > 1 and not fused)


def _or(done: bytes | None, value: bytes | None) -> bytes | None:
    return value if done is None else done


def _strip(piece: str, char: str, start: int, stop: int) -> str:
    """``piece`` without up to ``start`` of ``char`` at its head and up to ``stop`` at its tail."""
    low = 0
    while low < start and low < len(piece) and piece[low] == char:
        low += 1
    high = len(piece)
    while high > low and len(piece) - high < stop and piece[high - 1] == char:
        high -= 1
    return piece[low:high]
