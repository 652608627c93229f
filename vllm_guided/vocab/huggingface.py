"""Tokens of the Hugging Face ``tokenizers`` library, read off the tokenizer's decoder.

The decoder says what text an id becomes, so its steps are followed for each token by itself:

============================ ==========================================================================
ByteLevel                    byte-level BPE: every character stands for a byte (GPT-2, Llama 3, Qwen 2, ...)
Replace ``▁`` / Metaspace    the mark is a space, at the head of a token too (Llama 2, Gemma, T5, ...)
ByteFallback                 ``<0x0A>`` is the byte 0x0A
Fuse, Strip at the left      change nothing inside a text (Strip drops the first space of all)
============================ ==========================================================================

A decoder whose text for a token depends on its neighbours (WordPiece, word ends in BPE) gives tokens
no bytes of their own and is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from vllm_guided.errors import UnsupportedConstraint
from vllm_guided.vocab.pieces import TokenTable, byte_fallback, byte_level, utf8


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
    pieces: dict[int, str] = {token_id: piece for piece, token_id in vocabulary.items()}
    special = set(special_ids)
    for token_id, added in _added_tokens(backend).items():
        pieces[token_id] = added.content
        if added.special:
            special.add(token_id)
    ids = sorted(pieces)
    data = _apply(steps, [pieces[i] for i in ids])
    table: list[bytes | None] = [None] * (ids[-1] + 1 if ids else 0)
    for token_id, value in zip(ids, data, strict=True):
        table[token_id] = value
    names: dict[str, int] = {}
    for token_id in sorted(special & pieces.keys()):
        table[token_id] = None
        names[pieces[token_id]] = token_id
    return TokenTable(table, names)


def _added_tokens(backend: Any) -> dict[int, Any]:
    result: dict[int, Any] = backend.get_added_tokens_decoder()
    return result


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
    if [step["type"] for step in steps if step["type"] != "Fuse"] == ["ByteLevel"]:
        return byte_level(pieces)
    result: list[bytes | None] = [None] * len(pieces)  # final, once bytes
    for step in steps:
        kind = step["type"]
        if kind == "Replace" and "String" in step["pattern"]:
            old, new = step["pattern"]["String"], step["content"]
            pieces = [piece.replace(old, new) for piece in pieces]
        elif kind == "Metaspace":
            mark = step.get("replacement", "\u2581")
            pieces = [piece.replace(mark, " ") for piece in pieces]
        elif kind == "ByteFallback":
            result = [
                byte_fallback(piece) if done is None else done
                for piece, done in zip(pieces, result, strict=True)
            ]
        elif kind == "ByteLevel":
            result = [
                value if done is None else done
                for value, done in zip(byte_level(pieces), result, strict=True)
            ]
        elif kind == "Fuse" or (kind == "Strip" and not step.get("stop")):
            continue
        else:
            raise UnsupportedConstraint(
                f"the tokenizer's decoder has a {kind} step, which gives tokens no bytes of their own: "
                "structured output needs a byte-level, byte-fallback or SentencePiece tokenizer"
            )
    return [utf8(piece) if done is None else done for piece, done in zip(pieces, result, strict=True)]
