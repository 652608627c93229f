"""One decode step on a real vLLM server as a picture: what runs when, and what the forward pass hides.

    python benchmarks/overlap.py [--quick] [--backends vllm_guided xgrammar] [--concurrency 64] [--async]

The functions of vLLM and of this package that make up a step are stamped, in the engine core, the worker and
the API server (:mod:`_overlap_trace`). The table has the median of each part over the steps in which all
requests decode, how much of it lies beside the worker's forward pass, and its processor time; the picture
has two steps of each server, the first as long as their median.

- schedule, send: which requests run; the message that starts the forward pass
- fill: the masks of the step; ship: the message that brings them to the worker
- forward: inputs, forward pass and logits; apply: masks onto logits; sample: the sampler
- update: vLLM's bookkeeping for the step's tokens; accept, inside it: the grammars advance
- outputs: the API server turns tokens into text and events
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import _report
from _model import write_model
from _overlap_trace import ASYNC, PARTS, STAMP
from _serve_client import Client, be_punctual
from _serve_load import Load, split, wave
from _serve_server import BACKENDS, compile_functions, server

CORE = ("schedule", "send", "fill", "ship", "update", "accept")
WORKER = ("forward", "apply", "sample")
API = ("outputs",)
SHOWN = (*CORE[:4], *WORKER, *CORE[4:], *API)
LANES = {"engine core": CORE, "worker": WORKER, "API server": API}
COLOURS = {
    "schedule": "#9aa5b1", "send": "#c9b458", "fill": "#d1495b", "ship": "#e0a030", "update": "#9db4c0",
    "accept": "#8d2f5b", "forward": "#2a6fbb", "apply": "#0b6e4f", "sample": "#7fb2e5", "outputs": "#b0a1ba",
}  # fmt: skip
FREE = "free text"


@dataclass
class Span:
    """A part of a step; seconds on one clock."""

    part: str
    begin: float
    end: float
    cpu: float
    figure: int


@contextmanager
def traced(folder: Path, asynchronous: bool) -> Iterator[tuple[Path, Path]]:
    """The folders of modules that make a server leave its stamps in ``folder``."""
    plugin = folder / "plugin"
    entry = plugin / "overlap_trace-0.dist-info"
    entry.mkdir(parents=True)
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: overlap-trace\nVersion: 0\n")
    (entry / "entry_points.txt").write_text("[vllm.general_plugins]\noverlap = _overlap_trace:start\n")
    os.environ["OVERLAP_FOLDER"] = str(folder)
    if asynchronous:
        os.environ[ASYNC] = "1"
    try:
        yield plugin, Path(__file__).resolve().parent
    finally:
        for name in ("OVERLAP_FOLDER", ASYNC):
            os.environ.pop(name, None)


def spans(folder: Path, begin: float, end: float) -> list[Span]:
    """All stamps of a time, by their begin."""
    found = []
    for file in folder.glob("*.stamps"):
        data = file.read_bytes()
        whole = data[: len(data) // STAMP.size * STAMP.size]
        for part, start, stop, spent, figure in STAMP.iter_unpack(whole):
            if begin <= start / 1e9 <= end:
                found.append(Span(PARTS[part], start / 1e9, stop / 1e9, spent / 1e9, figure))
    return sorted(found, key=lambda one: one.begin)


def steps(found: list[Span], concurrency: int) -> list[list[Span]]:
    """The spans of each step in which all requests decode, from its schedule to that of the next."""
    cut: list[list[Span]] = []
    for one in found:
        if one.part == "schedule":
            cut.append([])
        if cut:
            cut[-1].append(one)
    return [own for own, after in itertools.pairwise(cut) if own[0].figure == after[0].figure == concurrency]


def figures(cut: list[list[Span]]) -> dict[str, dict[str, float]]:
    """Medians in milliseconds: each part's time, what of it lies beside the forward pass, processor time."""
    summed: dict[str, dict[str, float]] = {}
    for part in SHOWN:
        times, beside, cpu = [], [], []
        for own in cut:
            forward = [one for one in own if one.part == "forward"]
            mine = [one for one in own if one.part == part]
            times.append(sum(one.end - one.begin for one in mine))
            cpu.append(sum(one.cpu for one in mine))
            beside.append(sum(
                max(0.0, min(one.end, other.end) - max(one.begin, other.begin))
                for one in mine for other in forward
            ))  # fmt: skip
        summed[part] = {
            name: 1e3 * median(values) for name, values in (("time", times), ("beside", beside), ("cpu", cpu))
        }
    lengths = [after[0].begin - own[0].begin for own, after in itertools.pairwise(cut)]
    whole = [length for length in lengths if length < 3 * median(lengths)]
    return summed | {"step": {"time": 1e3 * median(whole), "beside": float("nan"), "cpu": float("nan")}}


async def drive(
    port: int, tokens: int, concurrency: int, data: Path | None
) -> dict[str, tuple[float, float]]:
    """Free text, then the many schemas; when each of them ran."""
    _, some, fresh = split(data)
    load = Load(Client(port, "tiny"), tokens, iter(fresh))
    await load.warm_up(iter(some))
    await wave(load, "64 schemas", concurrency, concurrency)
    ran = {}
    for name, kind in ((FREE, "free"), ("structured", "64 schemas")):
        begin = time.monotonic()
        await wave(load, kind, concurrency, concurrency)
        ran[name] = (begin, time.monotonic())
    await asyncio.sleep(0.5)
    await load.client.ask(load.free(0, 4))  # so that the last stamps are written
    await asyncio.sleep(0.5)
    await load.client.ask(load.free(0, 4))
    load.client.close()
    return ran


def draw(axes: Any, pictures: dict[str, list[Span]]) -> None:
    """A lane for each process; the parts of two steps."""
    for axis, (title, shown) in zip(axes, pictures.items(), strict=True):
        origin = shown[0].begin
        used = set()
        for lane, (name, parts) in enumerate(LANES.items()):
            axis.text(0, lane - 0.46, name, fontsize=8, va="bottom")
            for one in shown:
                if one.part in parts:
                    inner = one.part == "accept"
                    axis.barh(
                        lane, 1e3 * (one.end - one.begin), left=1e3 * (one.begin - origin),
                        height=0.3 if inner else 0.7, label=None if one.part in used else one.part,
                        color=COLOURS[one.part], edgecolor="white", linewidth=0.3,
                    )  # fmt: skip
                    used.add(one.part)
        axis.set(title=title, xlabel="milliseconds", yticks=[], ylim=(2.6, -0.7))
        handles, labels = axis.get_legend_handles_labels()
        axis.legend(handles, labels, fontsize=7, frameon=False, ncols=5, loc="upper center",
                    bbox_to_anchor=(0.5, -0.16))  # fmt: skip


def main() -> None:
    parser = _report.options(__doc__)
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS[:2]), choices=BACKENDS)
    parser.add_argument("--concurrency", type=int, default=64, help="requests at a time")
    parser.add_argument("--tokens", type=int, help="of each output", default=96)
    parser.add_argument("--async", dest="asynchronous", action="store_true", help="with async scheduling")
    parser.add_argument("--data", type=Path, help="JSON Lines of schemas with tests")
    given = _report.parse(parser)
    if given.quick:
        given.tokens = 32
    summed: dict[str, dict[str, Any]] = {}
    pictures: dict[str, list[Span]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model").mkdir()
        write_model(folder / "model")
        compile_functions()
        be_punctual()
        for backend in given.backends:
            with (
                traced(folder / f"{backend}-stamps", given.asynchronous) as paths,
                server(folder / "model", backend, folder / backend, python_path=paths) as port,
            ):
                ran = asyncio.run(drive(port, given.tokens, given.concurrency, given.data))
            for kind, (begin, end) in ran.items():
                found = spans(folder / f"{backend}-stamps", begin, end)
                cut = steps(found, given.concurrency)
                title = f"{backend}, {kind}"
                summed[title] = figures(cut)
                pictures[title] = picture(found, cut)
    report(given, summed)
    part = "overlap-async" if given.asynchronous else "overlap"
    _report.keep(given.out, part, {"figures": summed}, lambda _, axes: draw(axes, pictures), len(pictures))


def picture(found: list[Span], cut: list[list[Span]]) -> list[Span]:
    """The spans of a step of median length and of the one after it."""
    lengths = [after[0].begin - own[0].begin for own, after in itertools.pairwise(cut[:-1])]
    chosen = min(range(len(lengths)), key=lambda index: abs(lengths[index] - median(lengths)))
    begin, end = cut[chosen][0].begin, cut[chosen + 2][0].begin
    return [one for one in found if one.end > begin and one.begin < end]


def report(given: Any, summed: dict[str, dict[str, Any]]) -> None:
    """A table: parts down, servers across."""
    header = ["part"]
    for title in summed:
        header += [f"{title}: ms", "beside forward", "cpu ms"]
    rows = []
    for part in (*SHOWN, "step"):
        row = [part]
        for own in summed.values():
            row += [_report.number(own[part][name]) for name in ("time", "beside", "cpu")]
        rows.append(row)
    mode = ", async scheduling" if given.asynchronous else ""
    _report.table(f"a step of {given.concurrency} requests{mode}, medians", header, rows)


if __name__ == "__main__":
    sys.exit(main())
