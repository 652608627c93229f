"""Any tokenizer object to the bytes, special tokens and stop tokens it has.

In: a tokenizer of Hugging Face, tiktoken, SentencePiece, mistral-common, or one of vLLM's wrappers.
Out: a :class:`~vllm_guided.vocab.pieces.TokenTable`. No library is imported: kinds are told by what the
objects can do, so that wrappers, subclasses and remote code pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral
from typing import Any

from vllm_guided.errors import UnsupportedConstraint
from vllm_guided.vocab import huggingface, mistral, sentencepiece, slow, tiktoken
from vllm_guided.vocab.pieces import TokenTable, new_table, utf8

_INNER = ("instruct_tokenizer", "tokenizer", "_tokenizer", "sp_model", "model", "_model", "encoding", "enc")
"""Where wrappers keep what they wrap: mistral-common and vLLM's wrapper of it, Qwen, ChatGLM, Kimi, ..."""

_DEPTH = 4


def extract(tokenizer: Any) -> TokenTable:
    """The tokens of ``tokenizer``.

    Raises:
        UnsupportedConstraint: the kind is unknown or its tokens have no bytes of their own.
    """
    table = _tokens(tokenizer)
    table.stop_token_ids = _stop_token_ids(tokenizer) or table.stop_token_ids
    return table


def _tokens(tokenizer: Any) -> TokenTable:
    if (backend := _get(tokenizer, "backend_tokenizer")) is not None and huggingface.is_backend(backend):
        return huggingface.from_backend(backend, _special_ids(tokenizer), tokenizer.get_vocab())
    for candidate in _unwrapped(tokenizer):
        if huggingface.is_backend(candidate):
            return _with_added_tokens(huggingface.from_backend(candidate), tokenizer)
        if mistral.is_tekken(candidate):
            return mistral.from_tekken(candidate)
        if mistral.is_sentencepiece(candidate):
            return mistral.from_sentencepiece(candidate)
        if tiktoken.is_encoding(candidate):
            return _with_added_tokens(tiktoken.from_encoding(candidate), tokenizer)
        if sentencepiece.is_processor(candidate):
            own = candidate is _get(tokenizer, "sp_model") and hasattr(tokenizer, "get_vocab")
            table = sentencepiece.from_processor(candidate, tokenizer.get_vocab() if own else None)
            return _with_added_tokens(table, tokenizer)
    if slow.is_byte_level(tokenizer):
        return _with_added_tokens(slow.from_byte_level(tokenizer), tokenizer)
    raise UnsupportedConstraint(
        f"tokenizers of type {type(tokenizer).__module__}.{type(tokenizer).__qualname__} are unknown here: "
        "use a Hugging Face fast tokenizer, SentencePiece, tiktoken or mistral-common, "
        "or build the Vocabulary from a list of bytes"
    )


def _unwrapped(tokenizer: Any) -> Iterator[Any]:
    """The object and what it wraps, outermost first."""
    level, seen = [tokenizer], {id(tokenizer)}
    for _ in range(_DEPTH):
        yield from level
        inner = []
        for outer in level:
            for name in _INNER:
                value = _get(outer, name)
                if value is not None and not isinstance(value, str | bytes) and id(value) not in seen:
                    seen.add(id(value))
                    inner.append(value)
        level = inner


def _with_added_tokens(table: TokenTable, tokenizer: Any) -> TokenTable:
    """``table`` with the tokens that a Hugging Face tokenizer adds around a model it wraps."""
    added = _get(tokenizer, "added_tokens_decoder")
    if not isinstance(added, Mapping):
        return table
    special = set(_special_ids(tokenizer))
    table.token_bytes += new_table(1 + max(added, default=-1))[len(table.token_bytes) :]
    for token_id, token in added.items():
        name = str(getattr(token, "content", token))
        table.special_tokens = {old: i for old, i in table.special_tokens.items() if i != token_id}
        if token_id in special or getattr(token, "special", True):
            table.token_bytes[token_id] = None
            table.special_tokens[name] = token_id
        else:
            table.token_bytes[token_id] = utf8(name)
            table.added_tokens[name] = token_id
    return table


def _special_ids(tokenizer: Any) -> list[int]:
    return [int(i) for i in _get(tokenizer, "all_special_ids") or () if i is not None]


def _stop_token_ids(tokenizer: Any) -> tuple[int, ...]:
    """The ids the tokenizer says end an output, as far as it says so."""
    values: list[Any] = []
    for owner in (tokenizer, _get(tokenizer, "generation_config")):
        for name in ("eos_token_id", "stop_token_ids", "stop_tokens"):
            value = _get(owner, name)
            values.extend(value if isinstance(value, Iterable) and not isinstance(value, str) else [value])
    return tuple(sorted({int(i) for i in values if isinstance(i, Integral) and int(i) >= 0}))


def _get(owner: Any, name: str) -> Any:
    """An attribute, None where there is none: properties of wrappers raise what they like."""
    try:
        return getattr(owner, name, None)
    except Exception:
        return None
