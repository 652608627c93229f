"""Vocabularies for the command line: from a tokenizer's files, or of single bytes.

In: a path, or the name of an installed package that carries a ``tokenizer.json``. Out: a Vocabulary.
Opened with the small tokenizer libraries, not with transformers, which takes seconds to import.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_guided.cli_input import BadInputError

if TYPE_CHECKING:
    import vllm_guided as vg

#: what the end of an output is called, for files that name no end-of-sequence token themselves
END_NAMES = (
    "<|eot_id|>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>",
    "<end_of_turn>", "<|return|>", "<|end|>",
)  # fmt: skip


def byte_vocabulary() -> vg.Vocabulary:
    """256 single bytes, token id = byte, and one stop token, 256."""
    import vllm_guided as vg

    tokens: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    return vg.Vocabulary([*tokens, None], stop_token_ids=[256])


def load_vocabulary(tokenizer: str | None, stop: Sequence[str] = ()) -> vg.Vocabulary:
    """The vocabulary of a tokenizer: a folder, a file, or an installed package.

    Args:
        tokenizer: a Hugging Face folder or ``tokenizer.json``, a ``tekken.json`` (Mistral), a ``*.model``
            (SentencePiece, or tiktoken's ranks), a ``*.tiktoken``, or the name of an installed package with
            a ``tokenizer.json``; None for :func:`byte_vocabulary`.
        stop: the stop tokens, by id or by name; what the tokenizer says where there are none.

    Raises:
        BadInputError: nothing there, no tokenizer, or no stop token known.
    """
    if tokenizer is None:
        return byte_vocabulary()
    import vllm_guided as vg

    path = _find(tokenizer)
    try:
        opened = _open(path)
        ids = _stop_token_ids(path, opened, stop)
        return vg.Vocabulary.from_tokenizer(opened, stop_token_ids=ids)
    except ImportError as error:
        raise BadInputError(f"{path} needs the package {error.name}, which is not installed") from error
    except (OSError, ValueError, TypeError) as error:
        raise BadInputError(f"{path} cannot be used: {error}") from error


def _find(tokenizer: str) -> Path:
    path = Path(tokenizer)
    if not path.exists():
        name = tokenizer.replace("-", "_")
        spec = find_spec(name) if name.isidentifier() else None
        folders = list(spec.submodule_search_locations or []) if spec else []
        path = next((Path(f) for f in folders if (Path(f) / "tokenizer.json").exists()), path)
    if not path.exists():
        raise BadInputError(
            f"{tokenizer} is neither a file or folder, nor an installed package with a tokenizer.json"
        )
    if not path.is_dir():
        return path
    for name in ("tokenizer.json", "tekken.json", "tokenizer.model"):
        if (path / name).exists():
            return path / name
    raise BadInputError(f"{path} has no tokenizer.json, tekken.json or tokenizer.model")


def _open(path: Path) -> Any:
    if path.name.startswith("tekken"):
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer

        return Tekkenizer.from_file(str(path))
    if path.suffix == ".json":
        from tokenizers import Tokenizer

        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no narrower type
            raise ValueError(f"no tokenizer.json: {error}") from error
    if path.suffix == ".tiktoken" or _holds_ranks(path):
        from tiktoken import Encoding
        from tiktoken.load import load_tiktoken_bpe

        ranks = load_tiktoken_bpe(str(path))
        end = {"<|endoftext|>": max(ranks.values()) + 1}
        return Encoding(name=path.name, pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens=end)
    from sentencepiece import SentencePieceProcessor

    return SentencePieceProcessor(model_file=str(path))


def _holds_ranks(path: Path) -> bool:
    """Whether a file holds tiktoken's lines of base64 and rank, rather than a SentencePiece model."""
    with path.open("rb") as file:
        return re.fullmatch(rb"[A-Za-z0-9+/=]+ \d+\s*", file.readline(200)) is not None


def _stop_token_ids(path: Path, tokenizer: Any, stop: Sequence[str]) -> list[int] | None:
    """The ids that ``stop`` names; else those of the folder's configuration; else of a usual name."""

    def id_of(name: str) -> int | None:
        found = tokenizer.token_to_id(name) if hasattr(tokenizer, "token_to_id") else None
        return None if found is None else int(found)

    ids = []
    for name in stop:
        token_id = int(name) if name.isascii() and name.isdigit() else id_of(name)
        if token_id is None:
            raise ValueError(f"there is no token {name!r}; name stop tokens of this kind of file by id")
        ids.append(token_id)
    if ids or path.name != "tokenizer.json":
        return ids or None
    generation = _settings(path.with_name("generation_config.json")).get("eos_token_id")
    if generation is not None:
        return [generation] if isinstance(generation, int) else list(generation)
    named = _settings(path.with_name("tokenizer_config.json")).get("eos_token")
    content = named.get("content") if isinstance(named, dict) else named
    for candidate in (content, *END_NAMES):
        if isinstance(candidate, str) and (token_id := id_of(candidate)) is not None:
            return [token_id]
    raise ValueError("it names no end-of-sequence token; name it with --stop")


def _settings(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return value if isinstance(value, dict) else {}
