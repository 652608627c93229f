"""Greedy steps choose by masks alone what the sampler chooses once they are written; others write them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
metadata = pytest.importorskip("vllm.v1.sample.metadata")

from vllm_guided.vllm import greedy, table, worker  # noqa: E402
from vllm_guided.vllm.row_numbers import RowNumbers  # noqa: E402

TOKENS, WORDS, ROWS = 1000, 32, 6
NUMBER = 77


class LogitBiasLogitsProcessor:
    """Named as vLLM's own."""

    def __init__(self, biases: dict[int, Any]) -> None:
        self.biases = biases


class Foreign:
    """A processor that nobody knows."""


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A model runner whose sampler is the plain one, adapted."""
    from vllm.v1.outputs import SamplerOutput

    for name, value in (("_put_off", None), ("_hooked", False), ("_failed", False)):
        monkeypatch.setattr(greedy, name, value)

    class GPUModelRunner:
        def __init__(self) -> None:
            self.sampled = 0
            self.input_batch = SimpleNamespace()

        def _sample(self, logits: Any, spec_decode_metadata: Any) -> Any:
            self.sampled += 1
            return SamplerOutput(logits.argmax(-1).to(torch.int32).unsqueeze(-1), None)

    module = ModuleType("runner")
    vars(module).update(GPUModelRunner=GPUModelRunner, SamplerOutput=SamplerOutput)
    greedy.choose_in_sampler(module)
    assert greedy._hooked
    yield module.GPUModelRunner()


def told(**changed: Any) -> Any:
    """What the sampler is told where all is greedy and plain."""
    plain: dict[str, Any] = {
        "all_greedy": True, "no_penalties": True, "max_num_logprobs": None, "bad_words_token_ids": {},
        "allowed_token_ids_mask": None, "logprob_token_ids": None, "thinking_budget_state_holder": None,
        "logitsprocs": SimpleNamespace(non_argmax_invariant=[LogitBiasLogitsProcessor({})]),
    }  # fmt: skip
    return SimpleNamespace(**(plain | changed))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = table.HeldTable(40, WORDS, torch.device("cpu"))
    generator = np.random.default_rng(1)
    bits = generator.random((40, 32 * WORDS)) < generator.choice([0.001, 0.5, 0.99], (40, 1))
    bits[:, :TOKENS][np.arange(40), generator.integers(0, TOKENS, 40)] = True
    made.rows.copy_(torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32)))
    monkeypatch.setitem(table._tables, NUMBER, made)
    return made


def step(seed: int, sampling: Any, drafts: dict[str, list[int]] | None = None) -> tuple[Any, Any, Any, Any]:
    """A step in which some requests have masks, in an order of their own."""
    generator = np.random.default_rng(seed)
    names = [f"r{number}" for number in range(ROWS)]
    masked = [str(name) for name in generator.permutation(names)[: generator.integers(1, ROWS + 1)]]
    numbers = generator.integers(-1, 40, len(masked)).astype(np.int32)
    none = np.zeros(0, np.int32)
    output = SimpleNamespace(
        grammar_bitmask=RowNumbers.of(numbers, NUMBER, none, np.zeros((0, WORDS), np.int32)),
        structured_output_request_ids=masked,
    )
    batch = SimpleNamespace(
        req_ids=names,
        req_id_to_index={name: row for row, name in enumerate(names)},
        sampling_metadata=sampling,
    )
    logits = torch.from_numpy(generator.standard_normal((ROWS, TOKENS), dtype=np.float32))
    return SimpleNamespace(scheduled_spec_decode_tokens=drafts or {}), output, batch, logits


def write(given: tuple[Any, Any, Any, Any], held: Any) -> None:
    """The masks onto the logits, by the definition."""
    _, output, batch, logits = given
    for name, number in zip(
        output.structured_output_request_ids, np.asarray(output.grammar_bitmask).ravel(), strict=True
    ):
        if number >= 0:
            row = held.rows[number].numpy()
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")[:TOKENS].astype(bool)
            logits[batch.req_id_to_index[name], torch.from_numpy(~bits)] = -torch.inf


@pytest.mark.parametrize("seed", range(20))
def test_the_same_tokens(runner: Any, held: Any, seed: int) -> None:
    given = step(seed, told())
    logits, before = given[3], given[3].clone()
    assert greedy.put_off(*given, functools.partial(write, given, held))
    chosen = runner._sample(logits, None).sampled_token_ids
    assert not runner.sampled and torch.equal(logits, before)
    write(given, held)
    assert chosen.dtype == torch.int32 and chosen.tolist() == logits.argmax(-1).unsqueeze(-1).tolist()


@pytest.mark.parametrize(
    "sampling",
    [
        told(all_greedy=False),
        told(no_penalties=False),
        told(max_num_logprobs=0),
        told(logprob_token_ids={0: [1]}),
        told(bad_words_token_ids={0: [[1]]}),
        told(allowed_token_ids_mask=torch.zeros(1)),
        told(thinking_budget_state_holder=SimpleNamespace(has_tracked_requests=lambda: True)),
        told(logitsprocs=SimpleNamespace(non_argmax_invariant=[LogitBiasLogitsProcessor({0: 1})])),
        told(logitsprocs=SimpleNamespace(non_argmax_invariant=[Foreign()])),
        SimpleNamespace(all_greedy=True),
    ],
)
def test_anything_else_writes_masks(runner: Any, held: Any, sampling: Any) -> None:
    assert not greedy.put_off(*step(0, sampling), lambda: None)


def test_other_steps_write_masks(runner: Any, held: Any) -> None:
    assert not greedy.put_off(*step(0, told(), {"r0": [1]}), lambda: None)
    scheduled, output, batch, logits = step(0, told())
    assert not greedy.put_off(scheduled, output, batch, logits.double(), lambda: None)
    assert not greedy.put_off(scheduled, output, batch, logits[:-1], lambda: None)
    batch.req_id_to_index.pop(output.structured_output_request_ids[0])
    assert not greedy.put_off(scheduled, output, batch, logits, lambda: None)
    output.grammar_bitmask = np.asarray(output.grammar_bitmask)
    assert not greedy.put_off(scheduled, output, batch, logits, lambda: None)


def test_masks_are_written_where_nothing_can_be_chosen(runner: Any, held: Any) -> None:
    given = step(3, told())
    given[3][:] = -torch.inf
    written: list[str] = []
    assert greedy.put_off(*given, lambda: written.append("masks"))
    runner._sample(given[3], None)
    assert written == ["masks"] and runner.sampled == 1
    assert greedy.put_off(*step(4, told()), lambda: written.append("again"))
    runner._sample(given[3], None)  # other logits than those that wait
    assert written == ["masks", "again"] and runner.sampled == 2


def test_a_fault_is_no_fault_of_the_step(runner: Any, held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = step(5, told())
    assert greedy.put_off(*given, functools.partial(write, given, held))
    monkeypatch.setattr("vllm_guided.kernels.greedy.allowed_argmax", lambda *_: 1 / 0)
    chosen = runner._sample(given[3], None).sampled_token_ids
    assert runner.sampled == 1 and chosen.tolist() == given[3].argmax(-1).unsqueeze(-1).tolist()
    assert not greedy.put_off(*given, lambda: None)


def test_unknown_sampling_parameters_switch_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy, "_hooked", False)
    monkeypatch.setattr(greedy, "KNOWN_METADATA", set(greedy.KNOWN_METADATA) - {"bad_words_token_ids"})
    module = ModuleType("runner")
    runner = type("GPUModelRunner", (), {"_sample": lambda self, logits, spec_decode_metadata: None})
    from vllm.v1.outputs import SamplerOutput

    vars(module).update(GPUModelRunner=runner, SamplerOutput=SamplerOutput)
    greedy.choose_in_sampler(module)
    assert not greedy._hooked


def test_the_worker_asks(runner: Any, held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``apply_grammar_bitmask`` leaves plain greedy steps to the sampler and writes the masks of others."""
    monkeypatch.setattr(worker.selection, "_active", True)
    monkeypatch.setattr(worker, "_broken", False)
    module = ModuleType("module")

    def vllms(scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: Any) -> None:
        raise AssertionError

    vars(module).update(apply_grammar_bitmask=vllms)
    worker.apply_in_place(module)
    given = step(6, told())
    before = given[3].clone()
    module.apply_grammar_bitmask(*given)
    assert torch.equal(given[3], before) and greedy._put_off is not None
    greedy._put_off.apply()
    written = given[3].clone()
    given[3].copy_(before)
    module.apply_grammar_bitmask(
        *given[:2],
        SimpleNamespace(**vars(given[2]) | {"sampling_metadata": told(all_greedy=False)}),
        given[3],
    )
    assert torch.equal(given[3], written) and not torch.equal(written, before)
