"""Figures of several processes meet in one endpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

prometheus = pytest.importorskip("prometheus_client")

from vllm_guided.vllm import counters, metrics, run_name, selection  # noqa: E402


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A start with a name of its own; its folder."""
    monkeypatch.setenv(run_name.RUN, "1-test")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(counters, "_values", {})
    return tmp_path / "vllm-guided-1-test"


def shown() -> dict[str, float]:
    """The lines of the endpoint."""
    registry = prometheus.CollectorRegistry()
    registry.register(metrics.Collector())
    lines = prometheus.generate_latest(registry).decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def write(folder: Path, process: int, **figures: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{process}.json").write_text(
        json.dumps({"engine": "", "counters": [], "gauges": {}} | figures)
    )


def test_counters_are_summed_and_gauges_told_apart(run: Path) -> None:
    counters.add("compiles", kind="regex", where="process")
    write(
        run, 1, counters=[["compiles", {"kind": "regex", "where": "process"}, 2.0], ["fill_steps", {}, 7.0]]
    )
    write(run, 2, engine="0", gauges={"table_rows": 5})
    write(run, 3, engine="1", gauges={"table_rows": 6})
    write(run, os.getpid(), counters=[["fill_steps", {}, 100.0]])  # its own, counted already
    found = shown()
    assert found['vllm_guided_compiles_total{kind="regex",where="process"}'] == 3
    assert found["vllm_guided_fill_steps_total"] == 7
    assert found["vllm_guided_accept_seconds_total"] == 0
    assert found['vllm_guided_table_rows{engine="0"}'] == 5
    assert found['vllm_guided_table_rows{engine="1"}'] == 6


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', '{"engine": ""}'])
def test_a_file_that_cannot_be_read_is_left_out(run: Path, text: str) -> None:
    write(run, 1, counters=[["fill_steps", {}, 1.0]])
    (run / "2.json").write_text(text)
    assert shown()["vllm_guided_fill_steps_total"] == 1


def test_what_is_published_is_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters.add("rows", 3, sent_as="number")
    publisher = metrics.Publisher("4", lambda: {"runtime_bytes": 9.0})
    publisher.publish()
    (path,) = run.glob("*.json")
    before = path.stat().st_mtime_ns
    publisher.publish()
    assert path.stat().st_mtime_ns == before
    assert run.stat().st_mode & 0o777 == 0o700
    path.rename(run / "1.json")
    found = shown()
    assert found['vllm_guided_rows_total{sent_as="number"}'] == 6
    assert found['vllm_guided_runtime_bytes{engine="4"}'] == 9


def test_a_disk_that_is_full_for_a_while(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = metrics.Publisher()
    real, calls = publisher.publish, []

    def publish() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        real()
        publisher.stop()

    monkeypatch.setattr(publisher, "publish", publish)
    monkeypatch.setattr(metrics, "PERIOD_SECONDS", 0.001)
    publisher.run()
    assert len(calls) == 2 and list(run.glob("*.json"))


def test_every_figure_has_a_meaning(run: Path) -> None:
    import vllm_guided as vg

    compiler = vg.GrammarCompiler(vg.Vocabulary([b"a", None], stop_token_ids=[1]))
    index = SimpleNamespace(rows_held=1, nbytes=2)
    manager = SimpleNamespace(
        backend=SimpleNamespace(engine=SimpleNamespace(compiler=compiler)),
        row_table=SimpleNamespace(index=index),
    )
    assert metrics.engine_gauges(manager).keys() == metrics.GAUGES.keys()
    assert metrics.engine_gauges(SimpleNamespace(backend=None, row_table=None)) == {}


def test_a_start_has_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(run_name.RUN, raising=False)
    assert run_name.run_name() == "" and run_name.run_folder() is None
    run_name.name_run()
    first = run_name.run_name()
    run_name.name_run()
    assert run_name.run_name() == first


def test_the_folder_goes_with_who_named_the_start(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(run, 1)
    run_name._remove_folder()  # as in a child
    assert run.is_dir()
    monkeypatch.setenv(run_name.RUN, f"{os.getpid()}-x")
    own = run.with_name(f"vllm-guided-{os.getpid()}-x")
    write(own, 1)
    run_name._remove_folder()
    assert run.is_dir() and not own.exists()


def test_labelled_series_begin_with_their_first_event(run: Path) -> None:
    found = shown()
    assert "vllm_guided_fill_steps_total" in found and "vllm_guided_rows_total" not in found
    counters.add("rows", sent_as="whole")
    assert shown()['vllm_guided_rows_total{sent_as="whole"}'] == 1


def test_the_registry_has_the_collector_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = prometheus.CollectorRegistry()
    module = ModuleType("a_vllm")
    module.get_prometheus_registry = lambda: registry  # type: ignore[attr-defined]
    metrics.join_registry(ModuleType("another vLLM"))
    metrics.join_registry(module)
    metrics.join_registry(module)
    monkeypatch.setattr(selection, "_active", False)
    assert module.get_prometheus_registry() is registry and not list(registry.collect())
    monkeypatch.setattr(selection, "_active", True)
    for _ in range(2):
        module.get_prometheus_registry()
    assert (
        prometheus.generate_latest(registry).decode().count("# TYPE vllm_guided_fill_steps_total counter")
        == 1
    )


def test_a_registry_of_several_servers_has_it_too(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from prometheus_client import multiprocess

    monkeypatch.setattr(
        multiprocess.MultiProcessCollector, "collect", multiprocess.MultiProcessCollector.collect
    )
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(selection, "_active", True)
    module = ModuleType("a_vllm")
    module.get_prometheus_registry = prometheus.CollectorRegistry  # type: ignore[attr-defined]
    metrics.join_registry(module)
    for _ in range(2):
        module.get_prometheus_registry()
    registry = prometheus.CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    assert (
        prometheus.generate_latest(registry).decode().count("# TYPE vllm_guided_fill_steps_total counter")
        == 1
    )
