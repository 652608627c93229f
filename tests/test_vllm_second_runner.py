"""The second model runner's masks go onto the right rows, whatever the device has made of the batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vllm_guided.vllm import second_runner, selection, table
from vllm_guided.vllm.row_numbers import RowNumbers

torch = pytest.importorskip("torch")

TOKENS, WORDS = 125, 4


class Worker:
    """As vLLM's ``StructuredOutputsWorker`` is made; ``calls`` has what reached vLLM's own function."""

    def __init__(self, max_num_logits: int, vocab_size: int, device: Any, mask_stride: int) -> None:
        self.logits_indices = torch.zeros(max_num_logits, dtype=torch.int32, device=device)
        self.grammar_bitmask = torch.zeros((max_num_logits, -(-vocab_size // 32)), dtype=torch.int32)
        self.copy_stream: Any = None
        self.mask_stride = mask_stride
        self.calls: list[Any] = []

    def apply_grammar_bitmask(
        self, logits: Any, input_batch: Any, grammar_req_ids: list[str], grammar_bitmask: Any
    ) -> None:
        self.calls.append(grammar_bitmask)


class CompactWorker(Worker):
    """0.30 to 0.32."""

    def __init__(
        self, max_num_logits: int, vocab_size: int, device: Any, mask_stride: int, num_bonus_tokens: int
    ) -> None:
        super().__init__(max_num_logits, vocab_size, device, mask_stride)
        self.num_bonus_tokens = num_bonus_tokens


class Step:
    """A random batch: its requests, their drafts, those that are masked, and the masks, whole and by number.

    Args:
        strided: one mask for each of a request's positions, scheduled or not (0.33).
        drafts: whether any were scheduled.
    """

    def __init__(self, seed: int, *, strided: bool = False, drafts: bool = True) -> None:
        random = np.random.default_rng(seed)
        self.stride = int(random.integers(2, 5)) if drafts else 1
        count = int(random.integers(1, 8))
        scheduled = random.integers(0, self.stride, count)
        # The device may have trimmed drafts, and the host may or may not know.
        kept = random.integers(0, scheduled + 1)
        known = scheduled if random.random() < 0.5 else kept
        ids = [f"r{i}" for i in range(count)]
        self.batch = SimpleNamespace(
            req_ids=ids,
            cu_num_logits_np=np.cumsum([0, *(1 + (known if drafts else scheduled))]).astype(np.int32),
            cu_num_logits=torch.from_numpy(np.cumsum([0, *(1 + kept)]).astype(np.int32)),
            num_draft_tokens_per_req=scheduled if drafts else None,
        )
        masked = random.permutation(count)[: int(random.integers(1, count + 1))]
        self.masked = [ids[i] for i in masked]
        self.owners = [
            (int(i), position)
            for i in masked
            for position in range(self.stride if strided else 1 + int(scheduled[i]))
        ]
        self.table = random.integers(-(2**31), 2**31, (9, WORDS), dtype=np.int64).astype(np.int32)
        self.table[random.random(self.table.shape) < 0.3] = -1
        self.numbers = random.integers(-1, 9, len(self.owners)).astype(np.int32)
        self.whole = np.where(self.numbers[:, None] >= 0, self.table[self.numbers], np.int32(-1))
        self.logits = torch.from_numpy(
            random.standard_normal((count * self.stride + 2, TOKENS), dtype=np.float32)
        )
        maker: Any = Worker if strided else CompactWorker
        extra = () if strided else (1,)
        self.worker = maker(count * self.stride, TOKENS, torch.device("cpu"), self.stride, *extra)

    def by_number(self) -> RowNumbers:
        return RowNumbers.of(self.numbers, 7, np.empty(0, np.int32), np.empty((0, WORDS), np.int32))

    def expected(self) -> Any:
        """Token by token, from the definition."""
        logits = self.logits.clone()
        starts = self.batch.cu_num_logits.tolist()
        for (request, position), mask in zip(self.owners, self.whole, strict=True):
            row = starts[request] + position
            if row < starts[request + 1]:
                bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:TOKENS]
                logits[row, torch.from_numpy(bits == 0)] = float("-inf")
        return logits


@pytest.fixture(autouse=True)
def selected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_active", True)
    monkeypatch.setattr(second_runner, "_broken", False)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """Table 7 is the step's, once a test puts it here."""
    tables: dict[int, Any] = {}
    monkeypatch.setattr(table, "_tables", tables)
    return tables


def hooked(worker: Any) -> Any:
    """A module with ``worker``'s class, after our hook, and a worker of it."""
    kind = type(worker)
    made: Any = ModuleType("a_vllm")
    made.StructuredOutputsWorker = type(kind.__name__, (kind,), {})
    for name in ("__init__", "apply_grammar_bitmask"):
        setattr(made.StructuredOutputsWorker, name, getattr(kind, name))
    made.async_tensor_h2d = lambda data, out: out.copy_(torch.from_numpy(data))
    second_runner.apply_in_place(made)
    second_runner.apply_in_place(made)
    worker.__class__ = made.StructuredOutputsWorker
    return made


KINDS = [(False, True), (True, True), (False, False), (True, False)]


@pytest.mark.parametrize("by_number", [False, True])
@pytest.mark.parametrize(("strided", "drafts"), KINDS)
def test_logits(strided: bool, drafts: bool, by_number: bool, held: dict[int, Any]) -> None:
    trimmed = 0
    for seed in range(60):
        step = Step(seed, strided=strided, drafts=drafts)
        held[7] = SimpleNamespace(rows=torch.from_numpy(step.table))
        hooked(step.worker)
        logits, masks = step.logits.clone(), step.by_number() if by_number else step.whole.copy()
        step.worker.apply_grammar_bitmask(logits, step.batch, step.masked, masks)
        assert torch.equal(logits, step.expected()), seed
        assert not step.worker.calls and not second_runner._broken
        starts = step.batch.cu_num_logits.tolist()
        trimmed += any(starts[r] + p >= starts[r + 1] for r, p in step.owners)
    assert trimmed > 10 or not drafts


@pytest.mark.parametrize("drafts", [False, True])
def test_places_are_those_of_vllm(drafts: bool) -> None:
    module = pytest.importorskip("vllm.v1.worker.gpu.structured_outputs")
    if not hasattr(module, "_build_grammar_mapping"):
        pytest.skip("another layout")
    for seed in range(60):
        step = Step(seed, drafts=drafts)
        batch = step.batch
        assert second_runner.find_places(step.worker, batch, step.masked).tolist() == (
            module._build_grammar_mapping(
                batch.req_ids,
                step.masked,
                batch.cu_num_logits_np,
                batch.num_draft_tokens_per_req,
                step.worker.num_bonus_tokens,
                step.stride,
            )
        )


def test_parts_of_a_batch(held: dict[int, Any]) -> None:
    """Where the sampler's batch is shared out, each rank gets the numbers of its requests."""
    shard = pytest.importorskip("vllm.v1.worker.gpu.sample.batch_shard")
    output = pytest.importorskip("vllm.v1.core.sched.output")
    for seed in range(20):
        step = Step(seed, drafts=False)
        step.batch.cu_num_logits_np = step.batch.cu_num_logits.numpy()
        held[7] = SimpleNamespace(rows=torch.from_numpy(step.table))
        hooked(step.worker)
        whole, logits = step.expected(), step.logits.clone()
        given = output.GrammarOutput(
            structured_output_request_ids=step.masked, grammar_bitmask=step.by_number()
        )
        for part in (step.batch.req_ids[::2], step.batch.req_ids[1::2]):
            share = shard._shard_grammar_output(given, step.batch, part)
            if share is not None:
                ids, masks = share.structured_output_request_ids, share.grammar_bitmask
                step.worker.apply_grammar_bitmask(logits, step.batch, ids, masks)
        assert torch.equal(logits, whole)


def test_nothing_masked() -> None:
    step = Step(0)
    hooked(step.worker)
    step.worker.apply_grammar_bitmask(step.logits, step.batch, [], step.whole[:0])
    assert not step.worker.calls and not second_runner._broken


def test_vllms_own_serves_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_active", False)
    step = Step(0)
    hooked(step.worker)
    step.worker.apply_grammar_bitmask(step.logits, step.batch, step.masked, step.whole)
    assert len(step.worker.calls) == 1 and step.worker.calls[0] is step.whole


@pytest.mark.parametrize("by_number", [False, True])
def test_a_broken_kernel_is_not_asked_again(
    by_number: bool, held: dict[int, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM's own takes over, and gets whole rows whatever was sent."""
    asked: list[int] = []

    def broken(*args: Any, **kwargs: Any) -> None:
        asked.append(1)
        raise RuntimeError("no such device")

    monkeypatch.setattr("vllm_guided.kernels.apply_token_bitmask_inplace", broken)
    monkeypatch.setattr("vllm_guided.kernels.apply_token_bitmask_table_inplace", broken)
    for seed in range(3, 6):
        step = Step(seed)
        step.numbers[0] = 2
        step.whole[0] = step.table[2]
        held[7] = SimpleNamespace(rows=torch.from_numpy(step.table))
        hooked(step.worker)
        masks = step.by_number() if by_number else step.whole
        step.worker.apply_grammar_bitmask(step.logits, step.batch, step.masked, masks)
        np.testing.assert_array_equal(step.worker.calls[0], step.whole)
        assert type(step.worker.calls[0]) is np.ndarray
    assert len(asked) == 1


@pytest.mark.parametrize("fault", ["a row too few", "an unknown request"])
def test_batches_that_do_not_fit_go_to_vllm(fault: str) -> None:
    step = Step(1)
    hooked(step.worker)
    masks, masked = step.whole, step.masked
    if fault == "a row too few":
        masks = masks[1:]
    else:
        masked = [*masked[1:], "unknown"]
    before = step.logits.clone()
    step.worker.apply_grammar_bitmask(step.logits, step.batch, masked, masks)
    assert len(step.worker.calls) == 1 and torch.equal(step.logits, before)


@pytest.mark.parametrize("kind", [Worker, CompactWorker])
def test_a_worker_is_warmed_up_when_made(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    warmed: list[Any] = []
    monkeypatch.setattr("vllm_guided.kernels.warmup", warmed.append)
    extra = {"num_bonus_tokens": 1} if kind is CompactWorker else {}
    made = hooked(kind(1, 64, "cpu", mask_stride=1, **extra)).StructuredOutputsWorker
    worker = made(max_num_logits=6, vocab_size=64, device="cpu", mask_stride=2, **extra)
    assert warmed == [torch.device("cpu")] and worker.vllm_guided_numbers.shape == (12,)
    monkeypatch.setattr(selection, "_active", False)
    made(max_num_logits=6, vocab_size=64, device="cpu", mask_stride=2, **extra)
    assert len(warmed) == 1


def test_a_kernel_that_does_not_compile_is_known_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr("vllm_guided.kernels.warmup", broken)
    made = hooked(Worker(1, 64, "cpu", 1)).StructuredOutputsWorker
    worker = made(4, 64, "cpu", 1)
    assert second_runner._broken
    worker.apply_grammar_bitmask(None, None, ["a"], np.zeros((1, 2), np.int32))
    assert len(worker.calls) == 1


@pytest.mark.parametrize("works", [True, False])
def test_a_table_only_where_the_kernel_works(
    works: bool, held: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the engine core sends whole rows, which vLLM's own kernel takes as they are."""
    name = "vllm.v1.worker.gpu.structured_outputs"
    made: Any = hooked(Worker(1, 64, "cpu", 1))
    made.__name__ = name
    monkeypatch.setattr(table, "_applying", {})
    monkeypatch.setattr(table, "_receiving", {"vllm.v1.worker.gpu.model_runner"})
    monkeypatch.setattr(second_runner, "_broken", not works)
    runner = type("GPUModelRunner", (), {"__module__": "vllm.v1.worker.gpu.model_runner"})
    gpu = SimpleNamespace(model_runner=runner(), device="cpu")
    assert table.open_on_worker(gpu, 7, 16, 2) == f"{runner.__module__} takes no rows by number"
    del made.StructuredOutputsWorker.apply_grammar_bitmask.of_vllm_guided
    second_runner.apply_in_place(made)
    if works:
        assert table.open_on_worker(gpu, 7, 16, 2) is None and held[7].rows.shape == (16, 2)
    else:
        assert table.open_on_worker(gpu, 7, 16, 2) == "our mask kernel does not work in the worker"


def test_another_shape_is_refused() -> None:
    made: Any = ModuleType("a_vllm")
    made.async_tensor_h2d = made.StructuredOutputsWorker = Worker
    second_runner.apply_in_place(made)
    made.StructuredOutputsWorker = type("Worker", (), {"apply_grammar_bitmask": lambda self, logits: None})
    with pytest.raises(selection.UnexpectedVllm, match=r"Worker\.apply_grammar_bitmask takes"):
        second_runner.apply_in_place(made)
    with pytest.raises(selection.UnexpectedVllm, match="has no StructuredOutputsWorker"):
        second_runner.apply_in_place(ModuleType("a_vllm"))


def test_the_installed_vllm_is_hooked() -> None:
    module = pytest.importorskip("vllm.v1.worker.gpu.structured_outputs")
    from vllm_guided.vllm import plugin

    plugin.register()
    assert hasattr(module.StructuredOutputsWorker.apply_grammar_bitmask, "of_vllm_guided")


def test_on_a_device() -> None:
    """The way over the copy stream, with the Triton kernel: ``interpreted_second_runner.py``."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "interpreted_second_runner.py",
        ],
        cwd=Path(__file__).parent,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout and "skipped" not in done.stdout
