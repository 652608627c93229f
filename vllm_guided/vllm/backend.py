"""The backend object that vLLM's manager holds: one engine for the model's vocabulary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm.v1.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputOptions,
)

from vllm_guided.vllm import engine
from vllm_guided.vllm.engine import Constraint, Engine, constraint_from
from vllm_guided.vllm.grammar import GuidedGrammar

_KINDS = {
    StructuredOutputOptions.JSON: "json_schema",
    StructuredOutputOptions.JSON_OBJECT: "json_object",
    StructuredOutputOptions.REGEX: "regex",
    StructuredOutputOptions.GRAMMAR: "grammar",
    StructuredOutputOptions.CHOICE: "choice",
    StructuredOutputOptions.STRUCTURAL_TAG: "structural_tag",
}


@dataclass
class GuidedBackend(StructuredOutputBackend):  # type: ignore[misc]
    """Compiles the constraints of one model's requests.

    Args:
        vllm_config: vLLM's configuration.
        tokenizer: the model's tokenizer, in whatever wrapper vLLM uses.
        vocab_size: the number of logits per position, padding included.

    Raises:
        ValueError: (while it is made) no vocabulary can be had from this tokenizer.
    """

    engine: Engine | None = None

    def __post_init__(self) -> None:
        if self.engine is None:
            stops = server_stop_ids(self.vllm_config.model_config, self.tokenizer)
            self.engine = engine.make_engine(self.tokenizer, self.vocab_size, stops)

    def compile_request(self, request: Any) -> GuidedGrammar:
        """The grammar of a request, with the options of that request (vLLM's key drops them).

        Raises:
            GrammarError: the constraint cannot be used.
        """
        assert self.engine is not None
        return self._of_request(self.engine.compile(self._constraint(request)), request)

    def grammar_at_hand(self, request: Any) -> GuidedGrammar | None:
        """The grammar of a request whose constraint was compiled before; None where that takes time.

        Raises:
            GrammarError: the constraint cannot be used.
        """
        assert self.engine is not None
        compiled = self.engine.at_hand(self._constraint(request))
        return None if compiled is None else self._of_request(compiled, request)

    def _constraint(self, request: Any) -> Constraint:
        config = self.vllm_config.structured_outputs_config
        return constraint_from(request.structured_output_request.params, config)

    def _of_request(self, compiled: Any, request: Any) -> GuidedGrammar:
        sampling = request.sampling_params
        stops = sampling.all_stop_token_ids if sampling is not None else ()
        allowed = getattr(sampling, "allowed_token_ids", None)
        return self._grammar(compiled, stops, request.request_id, frozenset(allowed) if allowed else None)

    def compile_grammar(
        self,
        request_type: StructuredOutputOptions,
        grammar_spec: str,
        stop_token_ids: set[int] | None = None,
    ) -> StructuredOutputGrammar:
        """The grammar of a type and a text, with the server's options (vLLM's own interface)."""
        config = self.vllm_config.structured_outputs_config
        constraint = Constraint(_KINDS[request_type], grammar_spec)
        if config.disable_any_whitespace:
            constraint = replace(constraint, any_whitespace=False)
        if config.disable_additional_properties:
            constraint = replace(constraint, additional_properties=False)
        assert self.engine is not None
        return self._grammar(self.engine.compile(constraint), stop_token_ids or (), "")

    def _grammar(
        self, compiled: Any, stop_ids: Iterable[int], request_id: str, allowed: frozenset[int] | None = None
    ) -> GuidedGrammar:
        assert self.engine is not None
        matcher = compiled.matcher()
        known = self.engine.stop_token_ids
        extra = frozenset(stop for stop in stop_ids if stop not in known and 0 <= stop < self.vocab_size)
        return GuidedGrammar(matcher, request_id, extra, known | extra if extra else known, allowed)

    def allocate_token_bitmask(self, max_num_seqs: int) -> torch.Tensor:
        """int32 [max_num_seqs, ceil(vocab_size / 32)]: another width would end vLLM's newer runner."""
        return torch.full((max_num_seqs, (self.vocab_size + 31) // 32), -1, dtype=torch.int32)

    def destroy(self) -> None:
        """Let go of the engine and its caches."""
        self.engine = None


def server_stop_ids(model_config: Any, tokenizer: Any) -> list[int]:
    """Every token that ends any output of this model: the tokenizer's and the generation config's."""
    stops: set[int] = set()
    for source in (getattr(tokenizer, "eos_token_id", None), _generation_config(model_config)):
        if isinstance(source, int):
            stops.add(source)
        elif source is not None:
            stops.update(int(stop) for stop in source)
    return sorted(stops)


def _generation_config(model_config: Any) -> Any:
    config = model_config.try_get_generation_config() or {}
    return config.get("eos_token_id")
