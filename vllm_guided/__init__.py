"""Structured output for vLLM: sound, complete masks for JSON Schema, regex, choice and grammars.

The public names are loaded when they are first used, so that ``import vllm_guided`` costs nothing and
is safe in every process (vLLM imports plugins in all of its own).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint, UnsupportedConstraint

if TYPE_CHECKING:
    from vllm_guided.compiler import CompiledGrammar, GrammarCompiler
    from vllm_guided.kernels import apply_token_bitmask_inplace
    from vllm_guided.runtime.matcher import (
        GrammarMatcher,
        accept_tokens_batch,
        allocate_token_bitmask,
        fill_bitmask_batch,
    )
    from vllm_guided.vllm.sampling_params import SamplingParams
    from vllm_guided.vocab.vocabulary import Vocabulary

__version__ = "0.1.0"

__all__ = [
    "CompiledGrammar",
    "ConstraintTooComplex",
    "GrammarCompiler",
    "GrammarError",
    "GrammarMatcher",
    "InvalidConstraint",
    "SamplingParams",
    "UnsupportedConstraint",
    "Vocabulary",
    "accept_tokens_batch",
    "allocate_token_bitmask",
    "apply_token_bitmask_inplace",
    "fill_bitmask_batch",
]

_HOMES = {
    "Vocabulary": "vllm_guided.vocab.vocabulary",
    "CompiledGrammar": "vllm_guided.compiler",
    "GrammarCompiler": "vllm_guided.compiler",
    "GrammarMatcher": "vllm_guided.runtime.matcher",
    "accept_tokens_batch": "vllm_guided.runtime.matcher",
    "allocate_token_bitmask": "vllm_guided.runtime.matcher",
    "fill_bitmask_batch": "vllm_guided.runtime.matcher",
    "apply_token_bitmask_inplace": "vllm_guided.kernels",
    "SamplingParams": "vllm_guided.vllm.sampling_params",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
