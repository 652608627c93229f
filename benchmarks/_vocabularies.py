"""Vocabularies for the benchmarks: Llama 3's, smaller ones cut from it, and Llama 4's.

In: the tokenizer files that the package ``llama-models`` carries. Out: :class:`Tokens`. The first N ranks of
a byte-pair encoding are a byte-pair encoding, so smaller vocabularies are Llama 3's first tokens.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from _engines import Tokens

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def tokenizer_file(folder: str) -> Path:
    """The tokenizer file of ``llama3`` or ``llama4``, found without importing its package."""
    spec = find_spec("llama_models")
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        if (path := Path(place) / folder / "tokenizer.model").exists():
            return path
    sys.exit("the benchmarks need the packages tiktoken and llama-models: pip install '.[test,bench]'")


def _ranks(folder: str) -> dict[bytes, int]:
    try:
        from tiktoken.load import load_tiktoken_bpe
    except ImportError:
        sys.exit("the benchmarks need the packages tiktoken and llama-models: pip install '.[test,bench]'")
    return load_tiktoken_bpe(str(tokenizer_file(folder)))


def _encoding(name: str, ranks: dict[bytes, int], special: list[str]) -> Any:
    import tiktoken

    numbered = {text: len(ranks) + i for i, text in enumerate(special)}
    return tiktoken.Encoding(name=name, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=numbered)


def llama3(count: int | None = None) -> Tokens:
    """Llama 3's vocabulary (128,256 ids), or one of its first ``count`` text tokens and a stop token."""
    ranks = _ranks("llama3")
    if count is None:
        named = {1: "<|end_of_text|>", 8: "<|eom_id|>", 9: "<|eot_id|>"}
        special = [named.get(i, f"<|special_{i}|>") for i in range(256)]
        encoding = _encoding("llama3", ranks, special)
        return Tokens("Llama 3", encoding, [len(ranks) + i for i in named])
    first = {piece: rank for piece, rank in ranks.items() if rank < count}
    return Tokens(f"Llama 3, first {count:,}", _encoding(f"llama3-{count}", first, ["<|eot|>"]), [count])


def llama4() -> Tokens:
    """Llama 4's vocabulary (about 202,000 ids)."""
    ranks = _ranks("llama4")
    special = [f"<|special_{i}|>" for i in range(2048)]
    return Tokens("Llama 4", _encoding("llama4", ranks, special), [len(ranks) + 1])
