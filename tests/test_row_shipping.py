"""Rows by number between the engine core and its workers: opened, sent, received, put onto logits."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from vllm_guided.runtime.row_table import RowTable  # noqa: E402
from vllm_guided.vllm import metrics, selection, shipping, table, worker  # noqa: E402
from vllm_guided.vllm.row_numbers import RowNumbers  # noqa: E402


def numbers_of(*numbers: int, table: int = 7, slots: Any = (), rows: Any = ()) -> RowNumbers:
    held = np.array(rows, np.int32).reshape(len(slots), 3)
    return RowNumbers.of(np.array(numbers, np.int32), table, np.array(slots, np.int32), held)


def test_numbers_travel_with_their_rows() -> None:
    sent = numbers_of(4, -1, 4, slots=[4], rows=[[1, 2, 3]])
    for protocol in (4, 5):
        received = pickle.loads(pickle.dumps(sent, protocol=protocol))
        assert type(received) is RowNumbers and received.tolist() == [[4], [-1], [4]]
        assert (
            received.table == 7 and received.slots.tolist() == [4] and received.rows.tolist() == [[1, 2, 3]]
        )
    buffers: list[Any] = []
    apart = pickle.dumps(sent, protocol=5, buffer_callback=buffers.append)
    assert pickle.loads(apart, buffers=buffers).rows.tolist() == [[1, 2, 3]]


def test_a_part_speaks_of_the_same_table_and_brings_nothing() -> None:
    part = numbers_of(4, -1, 5, slots=[4], rows=[[1, 2, 3]])[[2, 0]]
    assert type(part) is RowNumbers and part.tolist() == [[5], [4]]
    assert part.table == 7 and not len(part.slots) and not len(part.rows)


def test_warm_numbers_take_four_bytes_a_row() -> None:
    some, more = (len(pickle.dumps(numbers_of(*range(n)), protocol=5)) for n in (64, 1064))
    assert more - some < 4 * 1000 + 8
    assert some - 4 * 64 < 400


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A worker with an open table 7 of 6 rows of 3 words."""
    monkeypatch.setattr(selection, "_active", True)
    monkeypatch.setattr(worker, "_broken", False)
    made = a_worker()
    assert table.open_on_worker(SimpleNamespace(worker=made), 7, 6, 3) is None
    return made


def a_worker() -> Any:
    runners = pytest.importorskip("vllm.v1.worker.gpu_model_runner")
    runner = object.__new__(type("ItsRunner", (runners.GPUModelRunner,), {}))
    return SimpleNamespace(worker=None, model_runner=runner, device="cpu")


def test_a_table_ends_with_its_worker(opened: Any) -> None:
    assert 7 in table._tables
    del opened.vllm_guided_table
    assert 7 not in table._tables


def test_who_cannot_hold_a_table_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_active", False)
    assert "not active" in str(table.open_on_worker(a_worker(), 7, 6, 3))
    monkeypatch.setattr(selection, "_active", True)
    strange = SimpleNamespace(worker=None, model_runner=SimpleNamespace(), device="cpu")
    assert "takes no rows by number" in str(table.open_on_worker(strange, 7, 6, 3))
    assert "RuntimeError" in str(table.open_on_worker(a_worker(), 7, 1 << 50, 1 << 10))
    assert "AttributeError" in str(table.open_on_worker(SimpleNamespace(worker=None), 7, 6, 3))


def step(
    numbers: RowNumbers, names: list[str], batch: list[str], drafts: dict[str, Any]
) -> tuple[Any, Any, Any]:
    from vllm.v1.core.sched.output import GrammarOutput

    return (
        SimpleNamespace(scheduled_spec_decode_tokens=drafts),
        GrammarOutput(names, numbers, None),
        SimpleNamespace(req_ids=batch),
    )


@pytest.mark.parametrize("broken", [False, True])
def test_the_logits_are_those_of_whole_rows(
    opened: Any, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    utils = pytest.importorskip("vllm.v1.structured_output.utils")
    monkeypatch.setattr(worker, "_broken", broken)
    generator = np.random.default_rng(0)
    held = np.zeros((6, 3), np.int32)
    for turn in range(30):
        names = [f"r{i}" for i in range(generator.integers(1, 5))]
        batch = [*names, "free"]
        generator.shuffle(batch)
        drafts = {name: [1] * int(generator.integers(1, 3)) for name in batch if generator.random() < 0.4}
        count = sum(1 + len(drafts.get(name, ())) for name in names)
        slots = generator.permutation(6)[: generator.integers(0, 4) if turn else 6].astype(np.int32)
        rows = generator.integers(-(2**31), 2**31, (len(slots), 3)).astype(np.int32)
        held[slots] = rows
        ids = generator.integers(-1, 6, count).astype(np.int32)
        output = step(RowNumbers.of(ids, 7, slots, rows), names, batch, drafts)
        table.receive(output[1])
        logits = torch.randn(sum(1 + len(drafts.get(name, ())) for name in batch), 96)
        expected = logits.clone()
        whole = np.where(ids[:, None] < 0, np.int32(-1), held[ids])
        np.testing.assert_array_equal(table.whole_rows(output[1].grammar_bitmask), whole)
        utils.apply_grammar_bitmask.__wrapped__(
            output[0], step(whole, names, batch, drafts)[1], output[2], expected
        )
        utils.apply_grammar_bitmask(*output, logits)
        assert torch.equal(logits, expected), turn


class Executor:
    """Workers behind vLLM's two calls; ``answers`` takes the place of a worker's."""

    def __init__(self, workers: list[Any], answers: list[Any] | None = None) -> None:
        self.workers, self.answers = workers, answers
        self.sent: list[Any] = []

    def collective_rpc(self, method: Any, args: tuple[Any, ...] = ()) -> list[Any]:
        travelled = cloudpickle.dumps(method)
        assert b"vllm_guided_by_value" not in travelled or "vllm_guided_by_value" not in sys.modules
        if self.answers is not None:
            return self.answers
        return [cloudpickle.loads(travelled)(one, *args) for one in self.workers]

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> bool:
        self.sent.append(grammar_output)
        return non_block


def a_manager(size: int = 96) -> Any:
    config = SimpleNamespace(
        structured_outputs_config=SimpleNamespace(backend="vllm_guided"),
        model_config=SimpleNamespace(get_vocab_size=lambda: size),
        parallel_config=SimpleNamespace(data_parallel_index=3),
    )
    return SimpleNamespace(vllm_config=config, backend=object(), row_table=None)


def core_of(manager: Any, executor: Any) -> Any:
    class EngineCore:
        def __init__(self, vllm_config: Any) -> None:
            self.structured_output_manager, self.model_executor = manager, executor

    module = ModuleType("a_vllm")
    module.EngineCore = EngineCore  # type: ignore[attr-defined]
    shipping.open_tables(module)
    return EngineCore(None)


def test_a_core_opens_its_workers_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_active", True)
    monkeypatch.setenv(shipping.ENVIRONMENT, "0.001")
    published: list[str] = []
    monkeypatch.setattr(metrics, "publish", lambda engine, gauges: published.append(engine))
    manager, workers = a_manager(), [a_worker(), a_worker()]
    core = core_of(manager, Executor(workers))
    number = manager.row_table.number
    assert manager.row_table.index.capacity == 1048 // 12
    assert [len(one.vllm_guided_table.rows) for one in workers] == [1048 // 12] * 2
    assert number in table._tables
    manager.row_table.begin()
    assert not manager.row_table.is_sent
    masks = SimpleNamespace(grammar_bitmask=numbers_of(0, table=number))
    assert core.model_executor.sample_tokens(masks, non_block=True)
    assert manager.row_table.is_sent and core.model_executor.sent == [masks]
    manager.row_table.begin()
    core.model_executor.sample_tokens(None)
    assert not manager.row_table.is_sent
    assert published == ["3"]


@pytest.mark.parametrize(
    ("megabytes", "size", "answers", "reason"),
    [
        ("0", 96, None, "leaves room for 0 rows"),
        ("64", 32, None, "leaves room"),
        ("64", 96, [None, "no memory left"], "no memory left"),
        ("64", 96, RuntimeError("gone"), "gone"),
    ],
)
def test_whole_rows_are_sent_where_a_worker_cannot(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    megabytes: str,
    size: int,
    answers: Any,
    reason: str,
) -> None:
    import logging

    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(metrics, "publish", lambda engine, gauges: None)
    monkeypatch.setattr(selection, "_active", True)
    monkeypatch.setenv(shipping.ENVIRONMENT, megabytes)
    executor = Executor([a_worker()], answers)
    if isinstance(answers, Exception):
        monkeypatch.setattr(executor, "collective_rpc", lambda *_, **__: (_ for _ in ()).throw(answers))
    manager = a_manager(size)
    core_of(manager, executor)
    assert manager.row_table is None
    assert "whole mask rows" in caplog.text and reason in caplog.text


def test_another_backend_opens_nothing() -> None:
    manager = a_manager()
    manager.vllm_config.structured_outputs_config.backend = "xgrammar"
    core_of(manager, Executor([], [AssertionError]))
    assert manager.row_table is None


def test_what_was_not_sent_is_sent_again() -> None:
    shipped = shipping.ShippedTable(7, RowTable(4, 3))
    row = np.array([1, 2, 3], np.int32)
    for is_sent, expected in ((False, 1), (True, 1), (True, 0)):
        shipped.begin()
        shipped.index.number_row(row)
        assert len(shipped.index.added()[0]) == expected
        shipped.is_sent = is_sent


def test_rows_of_a_step_that_sent_whole_rows_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a step does that fails after it has numbered its rows: the numbers' rows never left."""
    monkeypatch.setattr(selection, "_active", True)
    monkeypatch.setattr(metrics, "publish", lambda engine, gauges: None)
    manager = a_manager()
    core = core_of(manager, Executor([a_worker()]))
    row = np.array([1, 2, 3], np.int32)
    shipped = manager.row_table
    for _ in range(2):
        shipped.begin()
        shipped.index.number_row(row)
        slots, rows = shipped.index.added()
        assert rows.tolist() == [[1, 2, 3]]
        core.model_executor.sample_tokens(SimpleNamespace(grammar_bitmask=row[None, :]))
    numbers = RowNumbers.of(slots, shipped.number, slots, rows)
    core.model_executor.sample_tokens(SimpleNamespace(grammar_bitmask=numbers))
    shipped.begin()
    shipped.index.number_row(row)
    assert not len(shipped.index.added()[0])


def test_a_worker_without_the_package_answers_too() -> None:
    scope: dict[str, Any] = {"__name__": "vllm_guided_by_value"}
    exec(shipping._OPEN.replace("vllm_guided.vllm.table", "a_package_that_is_not_there"), scope)
    with ThreadPoolExecutor(1) as pool:
        assert "ModuleNotFoundError" in pool.submit(scope["open_table"], None, 1, 2, 3).result()
