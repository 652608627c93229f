"""Our figures in vLLM's Prometheus endpoint.

What is worth counting happens in the engine core and in every API server; the endpoint is served by one API
server. So each process publishes its figures as a file, in a folder that all processes of one start know by
an environment variable they inherit, and the endpoint adds up what it finds there. Counters of all processes
are summed; gauges are told apart by the engine they come from. A file is written once a second, by a
thread, and only if something changed: nothing of this is on the way of a step.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from vllm_guided.vllm import counters, selection
from vllm_guided.vllm.run_name import run_folder
from vllm_guided.vllm.selection import UnexpectedVllm, expect, logger

PREFIX = "vllm_guided_"
PERIOD_SECONDS = 1.0

#: What is held at this moment; read in the process that holds it.
GAUGES = {
    "table_rows": "mask rows in the table that lies with each worker",
    "table_bytes": "bytes of that table's index and of its copy in the engine core",
    "runtime_bytes": "bytes of the engine's tables: automata, configurations and masks",
    "runtime_rows": "rows of masks in the engine's tables",
    "runtime_configurations": "configurations in the engine's tables",
}


class Publisher(threading.Thread):
    """Writes this process's figures to its file, once a second while they change.

    Args:
        engine: names the engine that the gauges belong to.
        read_gauges: the gauges, by their names in :data:`GAUGES`.
    """

    def __init__(self, engine: str = "", read_gauges: Callable[[], dict[str, float]] = dict) -> None:
        super().__init__(name="vllm-guided-metrics", daemon=True)
        self.engine = engine
        self.read_gauges = read_gauges
        self._written = ""
        self._stop = threading.Event()

    def run(self) -> None:
        """Publish until the process ends."""
        try:
            while not self._stop.wait(PERIOD_SECONDS):
                with contextlib.suppress(OSError):  # no room on the disk; there may be some in a second
                    self.publish()
        except Exception:
            logger.exception("vllm_guided's figures are not published any more.")

    def publish(self) -> None:
        """Write the file if something changed; a reader sees the old one or the new one."""
        folder = run_folder()
        if folder is None:
            return
        text = json.dumps(
            {
                "engine": self.engine,
                "counters": [
                    [name, dict(labels), value] for (name, labels), value in counters.snapshot().items()
                ],
                "gauges": self.read_gauges(),
            }
        )
        if text == self._written:
            return
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{os.getpid()}.json"
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").replace(path)
        self._written = text

    def stop(self) -> None:
        """Publish no more."""
        self._stop.set()


def publish(engine: str = "", read_gauges: Callable[[], dict[str, float]] = dict) -> None:
    """Start a :class:`Publisher` in this process."""
    if run_folder() is not None:
        Publisher(engine, read_gauges).start()


def engine_gauges(manager: Any) -> dict[str, float]:
    """The gauges of an engine core."""
    found: dict[str, float] = {}
    backend = manager.backend
    if backend is not None and backend.engine is not None:
        held = backend.engine.compiler.statistics()
        found = {
            "runtime_bytes": held["bytes"],
            "runtime_rows": held["rows"],
            "runtime_configurations": held["configurations"],
        }
    if manager.row_table is not None:
        index = manager.row_table.index
        found |= {"table_rows": index.rows_held, "table_bytes": index.nbytes}
    return found


class Collector:
    """What a Prometheus registry asks: the figures of all processes of this start."""

    def collect(self) -> Iterator[Any]:
        """All counters and gauges, counters without labels also before anything was counted."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        files = list(_published())
        own = [[name, dict(labels), value] for (name, labels), value in counters.snapshot().items()]
        for name, meaning in counters.MEANINGS.items():
            sums: dict[tuple[tuple[str, str], ...], float] = {}
            for counted in (own, *(file["counters"] for file in files)):
                for other, labels, value in counted:
                    if other == name:
                        key = tuple(sorted(labels.items()))
                        sums[key] = sums.get(key, 0.0) + value
            names = sorted({label for key in sums for label, _ in key})
            family = CounterMetricFamily(PREFIX + name, meaning, labels=names)
            if not sums and "[" not in meaning:
                sums[()] = 0.0
            for key, value in sums.items():
                given = dict(key)
                family.add_metric([given.get(label, "") for label in names], value)
            yield family
        for name, meaning in GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, meaning, labels=["engine"])
            for file in files:
                if name in file["gauges"]:
                    gauge.add_metric([file["engine"]], file["gauges"][name])
            yield gauge


def _published() -> Iterator[dict[str, Any]]:
    """What the other processes of this start have published."""
    folder = run_folder()
    if folder is None or not folder.is_dir():
        return
    for path in sorted(folder.glob("*.json")):
        if path.stem == str(os.getpid()):
            continue
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(path.read_text())
            if isinstance(found, dict) and {"engine", "counters", "gauges"} <= found.keys():
                yield found


_collector = Collector()


def join_registry(module: ModuleType) -> None:
    """Let the registry that vLLM's endpoint shows have our collector, too, where our backend is selected.

    ``module``: the one that makes the registry, or one that has taken that function from it.
    """
    try:
        original = expect(module, "get_prometheus_registry")
    except UnexpectedVllm as fault:
        logger.debug("%s Figures may be missing in the Prometheus endpoint.", fault)
        return

    @functools.wraps(original)
    def get_prometheus_registry(*args: Any, **kwargs: Any) -> Any:
        registry = original(*args, **kwargs)
        if selection.is_active():
            try:
                if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
                    _join_multiprocess()
                else:
                    registry.register(_collector)
            except ValueError:
                pass  # it is there already
            except Exception:
                logger.exception("vllm_guided's figures are not in the Prometheus endpoint.")
        return registry

    module.get_prometheus_registry = get_prometheus_registry  # type: ignore[attr-defined]


def _join_multiprocess() -> None:
    """With several API servers, whoever answers makes a registry of its own from the files of all of them."""
    from prometheus_client.multiprocess import MultiProcessCollector

    original: Callable[[Any], Iterable[Any]] = MultiProcessCollector.collect
    if hasattr(original, "of_vllm_guided"):
        return

    @functools.wraps(original)
    def collect(self: Any) -> Iterator[Any]:
        yield from original(self)
        yield from _collector.collect()

    collect.of_vllm_guided = True  # type: ignore[attr-defined]
    MultiProcessCollector.collect = collect  # type: ignore[method-assign]
