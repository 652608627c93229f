"""Managers shaped as those of other vLLM versions: the methods, signatures and row layouts, nothing more.

Written from the behaviour of those versions, so that one installed vLLM is enough to test the join's
adapters. Their own ``grammar_bitmask`` is the plain loop, the reference for ours.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np


class ManagerOfAnyVersion:
    """What 0.30 to 0.33 have in common."""

    strided = False

    def __init__(self, vllm_config: Any) -> None:
        self.backend: Any = None
        self.vllm_config = vllm_config
        self.reasoner_cls: Any = vllm_config.reasoner
        self.enable_in_reasoning = False
        self._grammar_bitmask: Any = None
        self.executor = ThreadPoolExecutor(1)
        self.tokenizer = vllm_config.tokenizer

    def grammar_init(self, request: Any) -> None:
        if request.structured_output_request is None:
            return
        if self.backend is None:
            raise ValueError(f"Unsupported backend {request.structured_output_request.params._backend}")
        future = self.executor.submit(self._create_grammar, request)
        request.structured_output_request.grammar = future.result()

    def _create_grammar(self, request: Any) -> Any:
        raise AssertionError("compiled by key")

    def _ends(self, token: int) -> bool:
        return token == self.vllm_config.reasoning_end

    def _start(self, request: Any, tokens: Any) -> int:
        if self.enable_in_reasoning or self.reasoner_cls is None or request.reasoning_ended:
            return 0
        for index, token in enumerate(tokens):
            if self._ends(token):
                return index + 1
        return len(tokens) + 1

    def accept_tokens(self, request: Any, new_token_ids: list[int]) -> bool:
        output = request.structured_output_request
        if output is None or not new_token_ids:
            return True
        start = self._start(request, new_token_ids)
        if start > len(new_token_ids):
            return True
        output.reasoning_ended = request.reasoning_ended = True
        return bool(output.grammar.accept_tokens(request.request_id, new_token_ids[start:]))

    def grammar_bitmask(
        self,
        requests: dict[str, Any],
        structured_output_request_ids: list[str],
        scheduled_spec_decode_tokens: dict[str, list[int]],
    ) -> Any:
        ids, drafts = structured_output_request_ids, scheduled_spec_decode_tokens
        if not ids:
            return None
        stride = 1 + self.vllm_config.num_speculative_tokens
        if self._grammar_bitmask is None:
            rows = self.vllm_config.scheduler_config.max_num_seqs * stride
            self._grammar_bitmask = self.backend.allocate_token_bitmask(rows)
        bitmask = self._grammar_bitmask.numpy()
        row = 0
        for number, request_id in enumerate(ids):
            if self.strided:
                row = number * stride
            row = self._rows_of(requests[request_id], drafts.get(request_id, []), bitmask, row)
        return bitmask[: len(ids) * stride if self.strided else row]

    def _rows_of(self, request: Any, tokens: list[int], bitmask: Any, row: int) -> int:
        grammar = request.structured_output_request.grammar
        real = tokens[: tokens.index(-1)] if -1 in tokens else tokens
        start = self._start(request, real)
        accepted = 0
        padded = refused = False
        for index, token in enumerate([*tokens, None]):
            if refused:
                bitmask[row] = bitmask[row - 1]
            elif not padded and index >= start:
                grammar.fill_bitmask(bitmask, row)
            else:
                bitmask[row] = -1
                if not padded and self.strided and self.reasoner_cls is not None:
                    for masked in self._masked_reasoning_ends(request):  # type: ignore[attr-defined]
                        bitmask[row].view(np.uint32)[masked >> 5] &= ~np.uint32(1 << (masked & 31))
            if token == -1:
                padded = True
            elif token is not None and not padded and not refused and index >= start:
                if not grammar.is_terminated() and grammar.accept_tokens("", [token]):
                    accepted += 1
                else:
                    refused = True
            row += 1
        if accepted:
            grammar.rollback(accepted)
        return row


class Manager030(ManagerOfAnyVersion):
    """0.30 and 0.31: one number says where the constraint starts."""

    def _get_constraint_start(self, request: Any, spec_tokens: Any, committed: bool = False) -> int:
        return self._start(request, spec_tokens)

    def _fill_bitmasks(self, batch: Any) -> None:
        raise AssertionError("request by request")


class Manager032(ManagerOfAnyVersion):
    """0.32: two numbers."""

    def _get_constraint_bounds(self, request: Any, spec_tokens: Any, committed: bool = False) -> Any:
        start = self._start(request, spec_tokens)
        return start, start

    def _fill_bitmasks(self, batch: Any) -> None:
        raise AssertionError("request by request")


class Manager033(Manager032):
    """0.33: rows at a fixed stride, a backend name that must not change, masked ends of reasoning."""

    strided = True

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self.backend_name: str | None = None

    def grammar_init(self, request: Any) -> None:
        if request.structured_output_request is None:
            return
        asked = request.sampling_params.structured_outputs._backend
        assert asked is not None
        if self.backend_name is not None and asked != self.backend_name:
            raise ValueError(f"one backend per engine: {self.backend_name}, not {asked}")
        super().grammar_init(request)

    def _masked_reasoning_ends(self, request: Any) -> tuple[int, ...]:
        grammar = request.structured_output_request.grammar
        return tuple(
            token for token in self.vllm_config.implicit_ends if not grammar.validate_tokens([token])
        )


class ManagerOfTheFuture(ManagerOfAnyVersion):
    """Has none of the methods that tell the layout."""

    def _fill_bitmasks(self, batch: Any) -> None:
        raise AssertionError("request by request")


class ManagerOfTheFarFuture(ManagerOfAnyVersion):
    """Compiles its grammars in another way."""

    _create_grammar = None  # type: ignore[assignment]
