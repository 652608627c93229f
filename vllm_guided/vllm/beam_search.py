"""Offline beam search with a constraint: vLLM looks its backend up by name in a list of its own."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from vllm_guided.vllm.selection import NAME, expect, is_selected


def use_backend(module: ModuleType) -> None:
    """Give offline beam search our backend where it is configured."""
    owners = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and "_init_beam_search_structured_output" in vars(value)
    ]
    for owner in owners:
        _replace(owner)


def _replace(owner: Any) -> None:
    name = "_init_beam_search_structured_output"
    original = expect(owner, name, parameters=("self", "structured_outputs", "tokenizer"))

    @functools.wraps(original)
    def _init_beam_search_structured_output(self: Any, structured_outputs: Any, tokenizer: Any) -> Any:
        vllm_config = self.llm_engine.vllm_config
        if not is_selected(vllm_config.structured_outputs_config):
            return original(self, structured_outputs, tokenizer)
        from vllm.v1.structured_output.request import get_structured_output_key

        from vllm_guided.vllm.backend import GuidedBackend
        from vllm_guided.vllm.engine import check, constraint_from

        check(constraint_from(structured_outputs, vllm_config.structured_outputs_config))
        structured_outputs._backend = NAME
        backend = GuidedBackend(
            vllm_config, tokenizer=tokenizer, vocab_size=self.model_config.get_vocab_size()
        )
        key = get_structured_output_key(structured_outputs)
        return backend, key, backend.allocate_token_bitmask(1)

    setattr(owner, name, _init_beam_search_structured_output)
