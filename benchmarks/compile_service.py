"""What a never-seen schema costs an API server and an engine core, with the compile service and without.

    python benchmarks/compile_service.py [--quick] [--schemas N] [--data FILE]

verdict, process    microseconds to the verdict, compiled where it is asked for
verdict, service    the same through the compile service, from the request's event loop and back
loop, process       the longest that the event loop stood still for it, between two ticks
loop, service       the same through the service
loop, processor     processor time of the event loop's thread for it, service (measured without the ticks)
engine core         processor time of the engine core's thread: to map, to bind to the vocabulary, a matcher
hostile             the longest that the loop stood still while a grammar was compiled that takes seconds
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import _report

_report.one_thread()

from _data import samples  # noqa: E402
from _vocabularies import llama3  # noqa: E402

TICK = 0.0005
HOSTILE = (
    "start: "
    + "|".join(f'"w{i}" r{i % 50}' for i in range(20_000))
    + "".join(f'\nr{i}: "x{i}"+' for i in range(50))
)
PAUSE = 0.003
"""Seconds between two requests, in which a server would do something else."""


class Ticker:
    """Notes the longest time between two turns of the event loop."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK)
            now = time.perf_counter()
            self.longest = max(self.longest, now - last)
            last = now

    def take(self) -> float:
        """The longest since it was last asked, in microseconds."""
        longest, self.longest = self.longest, 0.0
        return longest * 1e6


async def serve(jobs: list[Any], hostile: Any, service: Any, figures: dict[str, list[float]]) -> None:
    """Ask for one verdict after another, as an API server does, first in the process."""
    from vllm_guided.vllm import compiled

    ticker = Ticker()
    ticking = asyncio.ensure_future(ticker.run())
    for where, given in (("process", None), ("service", service)):
        compiled.verdicts.clear()
        for job in [*jobs, hostile]:
            await asyncio.sleep(PAUSE)
            ticker.take()
            begin = time.perf_counter()
            if given is None:
                in_process(job)
            else:
                await compiled.judge(job, given)
            end = time.perf_counter()
            await asyncio.sleep(2 * TICK)
            if job is hostile:
                figures[f"hostile, {where}"].append(ticker.take())
                continue
            figures[f"verdict, {where}"].append((end - begin) * 1e6)
            figures[f"loop, {where}"].append(ticker.take())
    ticking.cancel()
    compiled.verdicts.clear()
    for job in jobs:
        await asyncio.sleep(0)
        other = replace(job, text=job.text + " ")  # another spelling of what is on disk by now
        begin = time.thread_time()
        await compiled.judge(other, service)
        figures["loop, processor"].append((time.thread_time() - begin) * 1e6)


def in_process(job: Any) -> None:
    """Compile as a process without the service does, past what is remembered and stored."""
    from vllm_guided import constraints
    from vllm_guided.compile_service.find import spec_of
    from vllm_guided.errors import GrammarError

    try:
        _, read, options = constraints.identify(job.kind, spec_of(job.kind, job.text), dict(job.options))
        constraints.build(job.kind, spec_of(job.kind, job.text), options, read)
    except GrammarError:
        pass


def map_and_bind(jobs: list[Any], figures: dict[str, list[float]]) -> None:
    """The engine core's part, of what was accepted."""
    import vllm_guided as vg
    from vllm_guided.vllm import compiled

    tokens = llama3()
    vocabulary = vg.Vocabulary.from_tokenizer(tokens.encoding, stop_token_ids=tokens.stop_token_ids)
    compiler = vg.GrammarCompiler(vocabulary)
    compiler.compile_json_schema({"type": "object"}).matcher()
    for job in jobs:
        job = replace(job, text=job.text + " ")
        if isinstance(compiled.verdicts.get(job.key), tuple):
            begin = time.thread_time()
            compiler.bind(compiled.automaton_of(job)).matcher()
            figures["engine core"].append((time.thread_time() - begin) * 1e6)


def memory(zygote: int) -> dict[str, float]:
    """Megabytes of the service's processes, what they share counted once (PSS)."""
    processes = [zygote, *map(int, Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split())]
    found = 0.0
    for process in processes:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        found += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return {"processes": len(processes), "megabytes": found}


def main() -> None:
    parser = _report.options(__doc__, ())
    parser.add_argument("--schemas", type=int, help="how many")
    parser.add_argument("--data", type=Path, help="JSON Lines of schemas with tests")
    given = _report.parse(parser)
    from vllm_guided.compile_service.client import CompileService
    from vllm_guided.compile_service.protocol import Job
    from vllm_guided.compile_service.zygote import warm_up

    name, chosen = samples(given.schemas or (300 if given.quick else 3000), given.data)
    options = (("any_whitespace", True), ("property_order", "schema"))
    jobs = [Job("json_schema", sample.schema, options) for sample in chosen]
    figures: dict[str, list[float]] = {
        key: []
        for key in (
            "verdict, process", "verdict, service", "loop, process", "loop, service", "loop, processor",
            "engine core", "hostile, process", "hostile, service",
        )
    }  # fmt: skip
    service = CompileService()

    async def run() -> dict[str, float]:
        begin = time.perf_counter()
        service.start()
        await service.compile(Job("regex", "a", ()))
        started = {"seconds to the first verdict": time.perf_counter() - begin}
        assert service._zygote is not None
        started |= memory(service._zygote.process.pid)
        await serve(jobs, Job("grammar", HOSTILE, ()), service, figures)
        map_and_bind(jobs, figures)
        service.close()
        return started

    warm_up()
    started = asyncio.run(run())
    rows = []
    for key, values in figures.items():
        found = _report.summary(values)
        cells = [_report.number(found[column]) for column in ("mean", "p50", "p99", "max")]
        rows.append([key, f"{found['n']:,}", *cells])
    _report.table(f"Microseconds: {name}", ["", "n", "mean", "p50", "p99", "max"], rows)
    _report.table(
        "The service's processes", ["", ""], [[key, _report.number(value)] for key, value in started.items()]
    )

    def draw(figure: Any, axes: Any) -> None:
        for key in ("verdict, process", "verdict, service", "loop, process", "loop, service"):
            values = sorted(figures[key])
            axes[0].plot(values, [i / len(values) for i in range(len(values))], label=key)
        axes[0].set(
            xscale="log", xlabel="microseconds", ylabel="share of schemas", title="never-seen schemas"
        )
        axes[0].legend(fontsize=8, frameon=False)

    summaries = {key: _report.summary(values) for key, values in figures.items()}
    _report.keep(
        given.out,
        "compile_service",
        {"data": name, "figures": summaries, "started": started, "raw": figures},
        draw,
        1,
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        # Nothing that another process has compiled, but the compiled functions.
        from vllm_guided.cachedir import ENVIRONMENT, cache_directory

        for path in (cache_directory() or Path(folder)).glob("numba-*"):
            (Path(folder) / path.name).symlink_to(path)
        os.environ[ENVIRONMENT] = folder
        main()
