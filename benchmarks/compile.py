"""Time to first mask: in a new process, of a new schema, of the same schema again; by the schema's size.

    python benchmarks/compile.py [--quick] [--schemas N] [--engines ...] [--data FILE]

Each is the time from the schema's text to the first mask of a new request:

warm    a schema that the process sees for the first time
again   the same schema once more, by the engine's own cache (llguidance has none and compiles again)
stored  the schema that an earlier process has compiled, from disk (vllm_guided alone does that)
cold    imports, vocabulary and one schema, in a new process
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from time import perf_counter
from typing import Any

import _report

_report.one_thread()

from _data import Sample, samples  # noqa: E402
from _engines import ENGINES, Engine  # noqa: E402
from _vocabularies import llama3  # noqa: E402
from _workers import Failure, in_turn, workers  # noqa: E402

SIZES = ((0, 500), (500, 2000), (2000, 8000), (8000, 32_000), (32_000, 1 << 60))
AGAIN = 5


def first_masks(engine: Engine, schema: str) -> dict[str, float]:
    """Microseconds to the first mask: new to the process, and the median of the same again."""

    clock = _report.clock()

    def once() -> float:
        begin = clock()
        engine.request(engine.compile(schema)).fill()
        return (clock() - begin) / 1e3

    warm = once()
    again = sorted(once() for _ in range(AGAIN))
    return {"warm": warm, "again": again[AGAIN // 2]}


def stored_masks(engine: Engine, schema: str) -> float:
    """Microseconds to the first mask of a schema that lies on disk, in a process that does not know it."""
    from vllm_guided import constraints

    clock = _report.clock()
    os.environ["VLLM_GUIDED_DISK_CACHE_MB"] = "1024"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VLLM_GUIDED_CACHE_DIR"] = folder
        constraints.clear_cache()
        engine.compile(schema)
        engine.start()
        begin = clock()
        engine.request(engine.compile(schema)).fill()
        time = (clock() - begin) / 1e3
    os.environ["VLLM_GUIDED_DISK_CACHE_MB"] = "0"
    return time


def cold(name: str) -> None:
    """In a process of its own: print the seconds from its start to the first mask of a small schema."""
    begin = perf_counter()
    engine = ENGINES[name](llama3())
    engine.start()
    engine.request(engine.compile('{"type": "object", "properties": {"a": {"type": "string"}}}')).fill()
    print(perf_counter() - begin, flush=True)


def cold_starts(names: list[str], times: int) -> dict[str, list[float]]:
    """Seconds of ``cold`` of each engine, in turn."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(times):
        for name in names:
            done = subprocess.run(
                [sys.executable, __file__, "--cold", name], capture_output=True, text=True, check=False
            )
            if done.stdout:
                found[name].append(float(done.stdout))
    return found


def main() -> None:
    if sys.argv[1:2] == ["--cold"]:
        cold(sys.argv[2])
        return
    parser = _report.options(__doc__)
    parser.add_argument("--schemas", type=int, help="how many; default: 1,000, with --quick 40")
    parser.add_argument("--data", type=_report.Path, help="JSON Lines of schemas with tests")
    given = _report.parse(parser)
    seconds = given.seconds or (3.0 if given.quick else 30.0)
    name, chosen = samples(given.schemas or (40 if given.quick else 1000), given.data, seed=1)
    results: dict[str, list[Any]] = {}
    stored: list[Any] = []
    with workers(given.engines, llama3()) as made:
        results = {worker.name: [] for worker in made}
        for place, sample in enumerate(chosen):
            for worker in in_turn(made, place):
                results[worker.name].append(worker.call(first_masks, sample.schema, seconds=seconds))
        for worker in made:
            if worker.name == "vllm_guided":
                stored = [worker.call(stored_masks, sample.schema, seconds=seconds) for sample in chosen]
    report(name, chosen, results, stored, cold_starts(list(results), 1 if given.quick else 5), given.out)


def report(
    name: str, chosen: list[Sample], results: dict[str, list[Any]], stored: list[Any],
    starts: dict[str, list[float]], out: _report.Path,
) -> None:  # fmt: skip
    """Tables, chart and raw numbers."""
    rows, sizes, curves = [], [], {}
    numbers: dict[str, Any] = {}
    for engine, own in results.items():
        done = [result for result in own if not isinstance(result, Failure)]
        warm = _report.summary([result["warm"] for result in done])
        again = _report.summary([result["again"] for result in done])
        disk = _report.summary([time for time in stored if not isinstance(time, Failure)])
        start = sorted(starts[engine])
        numbers[engine] = {"warm": warm, "again": again, "cold_seconds": start}
        if engine == "vllm_guided":
            numbers[engine]["stored"] = disk
        cells = [warm["p50"], warm["p99"], warm["max"], again["p50"], again["p99"]]
        cells += [disk["p50"], disk["p99"]] if engine == "vllm_guided" else [None, None]
        cells.append(start[len(start) // 2] * 1e6 if start else None)
        failures = [result.kind for result in own if isinstance(result, Failure)]
        rows.append(
            [engine, str(len(done)), str(len(failures) - failures.count("time")), str(failures.count("time"))]
            + [_report.number(cell) for cell in cells]
        )
        buckets = [
            [r["warm"] for r, s in zip(own, chosen, strict=True)
             if low <= s.size < high and not isinstance(r, Failure)]
            for low, high in SIZES
        ]  # fmt: skip
        medians = [_report.summary(bucket)["p50"] for bucket in buckets]
        sizes.append(
            [engine, *(f"{_report.number(m)} ({len(b)})" for m, b in zip(medians, buckets, strict=True))]
        )
        curves[engine] = medians
    header = ["us", "finished", "refused", "out of time", "warm p50", "warm p99", "warm max"]
    header += ["again p50", "again p99", "stored p50", "stored p99", "cold start"]
    _report.table(f"Microseconds to the first mask, {name}", header, rows)
    labels = [f"{low:,} – {high:,}" if high < 1 << 60 else f"from {low:,}" for low, high in SIZES]
    _report.table(
        "Warm, median microseconds by characters of the schema (finished schemas)", ["size", *labels], sizes
    )

    def draw(figure: Any, axes: Any) -> None:
        _report.bars(axes[0], labels, curves, y="microseconds to the first mask, median")
        axes[0].set(xlabel="characters of the schema", title="a new schema, warm process")
        axes[0].tick_params(axis="x", labelsize=7)
        kinds = ("warm", "again")
        groups = [f"{kind} {name}" for kind in kinds for name in ("p50", "p99")]
        heights = {
            engine: [own[kind][name] for kind in kinds for name in ("p50", "p99")]
            for engine, own in numbers.items()
        }
        _report.bars(axes[1], groups, heights, y="microseconds to the first mask")

    raw = {engine: [vars(r) if isinstance(r, Failure) else r for r in own] for engine, own in results.items()}
    raw["stored"] = [vars(time) if isinstance(time, Failure) else time for time in stored]
    _report.keep(out, "compile", {"data": name, "figures": numbers, "raw": raw}, draw, 2)


if __name__ == "__main__":
    main()
