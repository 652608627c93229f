"""The worker's side: mask rows meet the right logits, and anything else is left to vLLM."""

from __future__ import annotations

import random
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vllm_guided.vllm import rust_frontend, selection, worker

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("batch", "masked", "drafts", "rows", "expected"),
    [
        ("abc", "b", {}, 1, [(0, 1)]),
        ("abc", "ca", {}, 2, [(0, 2), (1, 0)]),
        ("abc", "b", {"a": 2}, 1, [(0, 3)]),
        ("abc", "bc", {"b": 2}, 4, [(0, 1), (1, 2), (2, 3), (3, 4)]),
        ("abc", "cxb", {"c": 1}, 4, [(0, 2), (1, 3), (3, 1)]),
        ("abc", "", {}, 0, []),
        # four rows each, whatever is used of them
        ("abc", "bc", {"b": 2}, 8, [(0, 1), (1, 2), (2, 3), (4, 4)]),
        ("abc", "xc", {}, 8, [(4, 2)]),
    ],
)
def test_rows_and_logits(
    batch: str, masked: str, drafts: dict[str, int], rows: int, expected: list[tuple[int, int]]
) -> None:
    tokens = {name: [0] * count for name, count in drafts.items()}
    mask_rows, logit_rows = worker.match_rows(list(batch), list(masked), tokens, rows)
    assert list(zip(mask_rows.tolist(), logit_rows.tolist(), strict=True)) == expected


def step(seed: int, strided: bool, dtype: Any) -> tuple[Any, Any, Any, Any]:
    """A random batch with masks for some of its requests, as the worker gets it."""
    chance = random.Random(seed)
    batch = [f"r{i}" for i in range(chance.randint(1, 8))]
    masked = [name for name in [*batch, "gone"] if chance.random() < 0.7] or batch[:1]
    chance.shuffle(masked)
    drafts = {name: [1] * chance.randint(1, 3) for name in [*batch, "gone"] if chance.random() < 0.4}
    rows = sum(1 + len(drafts.get(name, ())) for name in masked)
    if strided:
        rows = len(masked) * 4
    generator = np.random.default_rng(seed)
    bitmask = generator.integers(-(2**31), 2**31, (rows, 4), dtype=np.int64).astype(np.int32)
    count = sum(1 + len(drafts.get(name, ())) for name in batch)
    logits = torch.from_numpy(generator.standard_normal((count, 125), dtype=np.float32)).to(dtype)
    output = SimpleNamespace(grammar_bitmask=bitmask, structured_output_request_ids=masked)
    return (
        SimpleNamespace(scheduled_spec_decode_tokens=drafts),
        output,
        SimpleNamespace(req_ids=batch),
        logits,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_logits_are_those_of_vllm(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    utils = pytest.importorskip("vllm.v1.structured_output.utils")
    monkeypatch.setattr(selection, "_active", True)
    monkeypatch.setattr(worker, "_broken", False)
    for seed in range(40):
        scheduled, output, batch, logits = step(seed, False, getattr(torch, dtype))
        expected = logits.clone()
        utils.apply_grammar_bitmask.__wrapped__(scheduled, output, batch, expected)
        kept = output.grammar_bitmask.copy()
        utils.apply_grammar_bitmask(scheduled, output, batch, logits)
        assert torch.equal(logits, expected), seed
        np.testing.assert_array_equal(output.grammar_bitmask, kept)
    assert not worker._broken


def test_a_strided_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_broken", False)
    for seed in range(40):
        scheduled, output, batch, logits = step(seed, True, torch.float32)
        expected = logits.numpy().copy()
        first = 0
        for name in batch.req_ids:
            count = 1 + len(scheduled.scheduled_spec_decode_tokens.get(name, ()))
            if name in output.structured_output_request_ids:
                row = 4 * output.structured_output_request_ids.index(name)
                for i in range(count):
                    bits = np.unpackbits(output.grammar_bitmask[row + i].view(np.uint8), bitorder="little")
                    expected[first + i][bits[:125] == 0] = -np.inf
            first += count
        assert worker._apply(scheduled, output, batch, logits)
        np.testing.assert_array_equal(logits.numpy(), expected)


@pytest.fixture
def module() -> Any:
    calls: list[str] = []

    def apply_grammar_bitmask(
        scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: Any
    ) -> None:
        calls.append("vllm")

    made = ModuleType("a_vllm")
    made.apply_grammar_bitmask = apply_grammar_bitmask  # type: ignore[attr-defined]
    made.calls = calls  # type: ignore[attr-defined]
    worker.apply_in_place(made)
    worker.apply_in_place(made)
    return made


def test_without_selection_vllm_applies(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_active", False)
    module.apply_grammar_bitmask(*step(0, False, torch.float32))
    assert module.calls == ["vllm"]


def test_a_broken_kernel_is_not_asked_again(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def broken(*args: Any) -> None:
        asked.append(1)
        raise RuntimeError("no such device")

    monkeypatch.setattr(selection, "_active", True)
    monkeypatch.setattr(worker, "_broken", False)
    monkeypatch.setattr("vllm_guided.kernels.apply_token_bitmask_inplace", broken)
    module.apply_grammar_bitmask(*step(0, False, torch.float32))
    module.apply_grammar_bitmask(*step(1, False, torch.float32))
    assert (module.calls, asked) == (["vllm", "vllm"], [1])


def test_another_signature_is_refused() -> None:
    made = ModuleType("a_vllm")
    made.apply_grammar_bitmask = lambda logits: None  # type: ignore[attr-defined]
    with pytest.raises(selection.UnexpectedVllm, match=r"a_vllm\.apply_grammar_bitmask takes"):
        worker.apply_in_place(made)


@pytest.mark.parametrize(("backend", "active"), [("vllm_guided", True), ("xgrammar", False)])
def test_a_worker_knows_what_is_selected(monkeypatch: pytest.MonkeyPatch, backend: str, active: bool) -> None:
    warmed: list[int] = []
    monkeypatch.setattr(worker, "_warm_up", lambda device: warmed.append(1))
    monkeypatch.setattr(selection, "_active", False)
    monkeypatch.setattr(selection, "_faults", [])

    class WorkerBase:
        def __init__(self, vllm_config: Any, rank: int) -> None:
            self.rank = rank

    made = ModuleType("a_vllm")
    made.WorkerBase = WorkerBase  # type: ignore[attr-defined]
    worker.note_selection(made)
    config = SimpleNamespace(
        structured_outputs_config=SimpleNamespace(backend=backend),
        device_config=SimpleNamespace(device_type="cpu"),
    )
    assert made.WorkerBase(config, rank=3).rank == 3
    assert selection.is_active() is active and len(warmed) == active


@pytest.mark.parametrize(
    ("backend", "device", "expected"),
    [("vllm_guided", "cuda:1", ["cuda:1"]), ("vllm_guided", "cpu", []), ("xgrammar", "cuda:1", [])],
)
def test_the_kernel_is_compiled_when_the_runner_is_made(
    monkeypatch: pytest.MonkeyPatch, backend: str, device: str, expected: list[str]
) -> None:
    """On the GPU of this worker, which is not yet chosen when the worker is made."""
    warmed: list[str] = []
    monkeypatch.setattr("vllm_guided.kernels.warmup", lambda device: warmed.append(str(device)))
    monkeypatch.setattr(worker, "_broken", False)

    class GPUModelRunner:
        def __init__(self, vllm_config: Any, device: Any) -> None:
            assert not warmed

    made = ModuleType("a_vllm")
    made.GPUModelRunner = GPUModelRunner  # type: ignore[attr-defined]
    worker.warm_up_on_device(made)
    config = SimpleNamespace(structured_outputs_config=SimpleNamespace(backend=backend))
    made.GPUModelRunner(config, torch.device(device))
    assert warmed == expected and not worker._broken


def test_the_rust_frontend_is_refused_by_name() -> None:
    class RustFrontendProcessManager:
        def __init__(self, binary_path: str, args: Any) -> None:
            self.args = args

    made = ModuleType("a_vllm")
    made.RustFrontendProcessManager = RustFrontendProcessManager  # type: ignore[attr-defined]
    rust_frontend.refuse(made)
    rust_frontend.refuse(ModuleType("without one"))
    ours = SimpleNamespace(structured_outputs_config=SimpleNamespace(backend="vllm_guided"))
    other = SimpleNamespace(structured_outputs_config=SimpleNamespace(backend="xgrammar"))
    made.RustFrontendProcessManager("rs", other)
    with pytest.raises(ValueError, match="Unset VLLM_USE_RUST_FRONTEND"):
        made.RustFrontendProcessManager("rs", args=ours)
