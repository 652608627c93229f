"""Any tokenizer object to the bytes, special tokens and stop tokens it has.

In: a tokenizer of Hugging Face, tiktoken, SentencePiece, mistral-common, or one of vLLM's wrappers.
Out: a :class:`~vllm_guided.vocab.pieces.TokenTable`. No library is imported: kinds are told by what the
objects can do, so that wrappers, subclasses and remote code pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vllm_guided.errors import UnsupportedConstraint
from vllm_guided.vocab import huggingface, mistral, sentencepiece, tiktoken
from vllm_guided.vocab.pieces import TokenTable, utf8

_INNER = ("instruct_tokenizer", "tokenizer", "_tokenizer", "model", "_model", "sp_model", "encoding", "enc")


def extract(tokenizer: Any) -> TokenTable:
    """The tokens of ``tokenizer``.

    Raises:
        UnsupportedConstraint: the kind is unknown or its tokens have no bytes of their own.
    """
    table = _extract(tokenizer)
    stops = _stop_token_ids(tokenizer)
    if stops:
        table.stop_token_ids = stops
    return table


def _extract(tokenizer: Any) -> TokenTable:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and huggingface.is_backend(backend):
        return huggingface.from_backend(backend, _special_ids(tokenizer), tokenizer.get_vocab())
    if huggingface.is_backend(tokenizer):
        return huggingface.from_backend(tokenizer)
    for candidate in _candidates(tokenizer):
        table: TokenTable | None = None
        if mistral.is_tekken(candidate):
            return mistral.from_tekken(candidate)
        if mistral.is_sentencepiece(candidate):
            return mistral.from_sentencepiece(candidate)
        if tiktoken.is_encoding(candidate):
            table = tiktoken.from_encoding(candidate)
        elif sentencepiece.is_processor(candidate):
            table = sentencepiece.from_processor(candidate)
        elif huggingface.is_backend(candidate):
            table = huggingface.from_backend(candidate)
        if table is not None:
            return table if candidate is tokenizer else _with_added_tokens(table, tokenizer)
    raise UnsupportedConstraint(
        f"tokenizers of type {type(tokenizer).__module__}.{type(tokenizer).__qualname__} are unknown here: "
        "use a Hugging Face fast tokenizer, SentencePiece, tiktoken or mistral-common, "
        "or build the Vocabulary from a list of bytes"
    )


def _candidates(tokenizer: Any) -> Iterable[Any]:
    """The object and what it wraps, outermost first, at most four deep."""
    level, seen = [tokenizer], {id(tokenizer)}
    for _ in range(4):
        yield from level
        inner = []
        for outer in level:
            for name in _INNER:
                value = getattr(outer, name, None)
                if value is not None and not isinstance(value, str | bytes) and id(value) not in seen:
                    seen.add(id(value))
                    inner.append(value)
        level = inner


def _with_added_tokens(table: TokenTable, tokenizer: Any) -> TokenTable:
    """``table`` with the tokens that a Hugging Face tokenizer adds around its own model.

    The wrapper may number the model's pieces anew (fairseq's do), add tokens, and call some special.
    """
    added = getattr(tokenizer, "added_tokens_decoder", None)
    if not isinstance(added, Mapping):
        return table
    special = set(_special_ids(tokenizer))
    for token_id, token in added.items():
        content = str(getattr(token, "content", token))
        if token_id >= len(table.token_bytes):
            table.token_bytes.extend([None] * (token_id + 1 - len(table.token_bytes)))
        table.special_tokens = {name: i for name, i in table.special_tokens.items() if i != token_id}
        if token_id in special or getattr(token, "special", True):
            table.token_bytes[token_id] = None
            table.special_tokens[content] = token_id
        else:
            table.token_bytes[token_id] = utf8(content)
    return table


def _special_ids(tokenizer: Any) -> list[int]:
    return [int(i) for i in getattr(tokenizer, "all_special_ids", None) or [] if i is not None]


def _stop_token_ids(tokenizer: Any) -> tuple[int, ...]:
    """The ids the tokenizer says end an output, as far as it says so."""
    result: set[int] = set()
    generation = getattr(tokenizer, "generation_config", None)
    for owner, name in (
        (tokenizer, "eos_token_id"),
        (tokenizer, "stop_token_ids"),
        (tokenizer, "stop_tokens"),
        (generation, "eos_token_id"),
    ):
        value = getattr(owner, name, None)
        values = value if isinstance(value, list | tuple | set) else [value]
        result.update(i for i in values if isinstance(i, int) and i >= 0)
    return tuple(sorted(result))
