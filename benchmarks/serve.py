"""A real vLLM server under load, with each backend in turn: tokens a second, first tokens, gaps.

    python benchmarks/serve.py [--quick] [--backends ...] [--concurrency 1 16 64 256] [--data FILE]

A tiny random Llama with Llama 3's vocabulary, so that what is seen is the serving and not the model; float32,
greedy, outputs of ``--tokens`` tokens. On each server, in turn and several times over: free text, one schema
that is warm, 64 of MaskBench's schemas that are warm, schemas that were never seen, each of them 1 to 256 at
a time. Every constrained round stands between two of free text, and *structured / free* is its rate over
theirs, so that drift cancels. Then: first tokens one at a time; and streams that run on while one request a
second arrives.

The processor time is that of the server's processes for each output token, over that of free text: where
others use the machine too, it is the steadier figure. The client is one process and uses the same cores.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import _report
from _model import write_model
from _serve_client import Client, be_punctual
from _serve_load import Load, Wave, arrivals, first_tokens, split, wave
from _serve_server import API, BACKENDS, ROLES, compile_functions, server

KINDS = ("one schema", "64 schemas", "never seen")
ARRIVALS = ("none", "free", "never seen")
#: Rounds of one request at a time, for each that is asked for.
LONE_ROUNDS = 5
#: Tokens of a prompt and its output: room for streams that run as long as requests arrive.
LONGEST = 8192
#: A column each.
KEYS = (
    "rate",
    "free rate",
    "ratio",
    "cpu ratio",
    "first",
    "free first",
    "gap p50",
    "gap p99",
    "free gap p99",
)
Waves = dict[int, dict[str, list[list[Wave]]]]


async def measure(port: int, given: Any, schemas: tuple[list[str], list[str]]) -> dict[str, Any]:
    """All figures of one server."""
    load = Load(Client(port, "tiny"), given.tokens, iter(schemas[1]))
    await load.warm_up(iter(schemas[0]))
    rounds = 1 if given.quick else given.rounds
    waves: Waves = {}
    for concurrency in given.concurrency:
        count = concurrency * max(1, (16 if given.quick else 64) // concurrency) if concurrency > 1 else 8
        own = waves.setdefault(concurrency, {kind: [] for kind in KINDS})
        await wave(load, "free", concurrency, concurrency)
        # Where few run at a time, a wave is as lucky as the placing of three processes on the cores.
        for _ in range(rounds * (LONE_ROUNDS if concurrency < 16 and not given.quick else 1)):
            before = await wave(load, "free", concurrency, count)
            for kind in KINDS:
                structured = await wave(load, kind, concurrency, count)
                after = await wave(load, "free", concurrency, count)
                own[kind].append([before, structured, after])
                before = after
            print(".", end="", file=sys.stderr, flush=True)
    first = await first_tokens(load, 20 if given.quick else 150)
    came: dict[str, list[Any]] = {kind: [] for kind in ARRIVALS}
    for turn in range(rounds + 1):
        for kind in ARRIVALS if turn % 2 == 0 else ARRIVALS[::-1]:
            try:
                came[kind].append(await arrivals(load, kind, given.bystanders, 5 if given.quick else 9))
            except RuntimeError as fault:  # of one turn; the others stand
                print(f"\n{kind}: {fault}", file=sys.stderr)
    load.client.close()
    print(file=sys.stderr)
    return {"waves": waves, "first": first, "arrivals": came, "schemas": len(load.schemas)}


def ratios(trios: list[list[Wave]]) -> dict[str, Any]:
    """The medians of one kind of load at one concurrency, over the free text around it."""
    rate, cpu, roles = [], [], {}
    for before, own, after in trios:
        rate.append(own.rate / ((before.rate + after.rate) / 2))
        free = {role: before.cpu.get(role, 0) + after.cpu.get(role, 0) for role in before.cpu}
        free_tokens = before.tokens + after.tokens
        cpu.append((sum(own.cpu.values()) / own.tokens) / (sum(free.values()) / free_tokens))
        for role in (API, *ROLES.values()):
            more = own.cpu.get(role, 0) / own.tokens - free.get(role, 0) / free_tokens
            roles.setdefault(role, []).append(1e3 * more)
    middle = [trio[1] for trio in trios]
    free_waves = [one for trio in trios for one in (trio[0], trio[2])]
    return {
        "rate": median(one.rate for one in middle), "free rate": median(one.rate for one in free_waves),
        "ratio": median(rate), "cpu ratio": median(cpu),
        "more cpu ms a token": {role: median(values) for role, values in roles.items()},
        "first": _middle([one.first for one in middle], "p50"),
        "free first": _middle([one.first for one in free_waves], "p50"),
        "gap p50": _middle([one.gaps for one in middle], "p50"),
        "gap p99": _middle([one.gaps for one in middle], "p99"),
        "free gap p99": _middle([one.gaps for one in free_waves], "p99"),
        "refused": sum(one.refused for one in middle),
    }  # fmt: skip


def _middle(values: list[list[float]], name: str) -> float:
    """A percentile in milliseconds, the median over the rounds."""
    return 1e3 * median(_report.summary(some)[name] for some in values)


def report_load(name: str, given: Any, figures: dict[str, Any]) -> None:
    """A table for each concurrency."""
    number = _report.number
    header = ["backend, load", "tokens/s", "free", "structured / free", "cpu time / free",
              "first token ms", "free", "gap p50 ms", "p99", "free p99", "refused"]  # fmt: skip
    for concurrency in given.concurrency:
        rows = []
        for backend, found in figures.items():
            for kind in KINDS:
                one = found["loads"][concurrency][kind]
                rows.append([f"{backend}, {kind}", *(number(one[key]) for key in KEYS), str(one["refused"])])
        _report.table(f"{concurrency} at a time, medians of the rounds: {name}", header, rows)


def report_arrivals(given: Any, figures: dict[str, Any]) -> None:
    """First tokens, and what running streams notice of requests that arrive."""
    number = _report.number
    rows = []
    for backend, found in figures.items():
        first, came = found["first"], found["arrivals"]
        rows.append([
            backend, *(number(1e3 * median(first[kind])) for kind in ("free", "never seen")),
            number(1e3 * (median(first["never seen"]) - median(first["free"]))),
            *(number(came[kind]["p99"]) for kind in ARRIVALS),
            *(number(came[kind]["p99"] / came["none"]["p99"]) for kind in ARRIVALS[1:]),
            number(came["never seen"]["max"]), number(came["never seen"]["first"] - came["free"]["first"]),
        ])  # fmt: skip
    header = [
        "backend", "first token, free, ms", "never seen", "more", "p99 gap ms, none arrives", "free arrives",
        "never seen arrives", "free / none", "never seen / none", "longest gap", "first token, more",
    ]  # fmt: skip
    title = f"first tokens one at a time; {given.bystanders} streams while one request a second arrives"
    _report.table(title, header, rows)


def summed_arrivals(found: dict[str, list[Any]]) -> dict[str, dict[str, float]]:
    """Percentiles of the streams' gaps in milliseconds, and the first token of those that arrived."""
    summed = {}
    for kind, rounds in found.items():
        first = [one.first for _, replies in rounds for one in replies if one.error is None]
        summed[kind] = {
            "p50": _middle([streams.gaps for streams, _ in rounds], "p50"),
            "p99": _middle([streams.gaps for streams, _ in rounds], "p99"),
            "max": 1e3 * max(max(streams.gaps) for streams, _ in rounds),
            "first": 1e3 * median(first) if first else float("nan"),
            "refused": sum(one.error is not None for _, replies in rounds for one in replies),
        }
    return summed


def draw(axes: Any, given: Any, figures: dict[str, Any]) -> None:
    """Structured over free, tokens a second, gaps."""
    sizes = [str(concurrency) for concurrency in given.concurrency]

    def of(key: str, kind: str = KINDS[1]) -> dict[str, list[float]]:
        return {
            backend: [found["loads"][concurrency][kind][key] for concurrency in given.concurrency]
            for backend, found in figures.items()
        }

    for axis, kind in zip(axes, KINDS[1:], strict=False):
        _report.bars(axis, sizes, of("ratio", kind), y=f"structured / free tokens per second, {kind}")
        axis.set(yscale="linear", xlabel="requests at a time", ylim=(0, 1.2))
        axis.axhline(1, color="black", linewidth=0.8)
    p99 = {name: [found["arrivals"][kind]["p99"] for kind in ARRIVALS] for name, found in figures.items()}
    _report.bars(axes[2], [f"{kind} arrives" for kind in ARRIVALS], p99, y="p99 gap between tokens, ms")


def main() -> None:
    parser = _report.options(__doc__)
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS[:3]), choices=BACKENDS)
    parser.add_argument(
        "--concurrency", type=int, nargs="*", default=[1, 16, 64, 256], help="at a time; none: arrivals alone"
    )
    parser.add_argument("--tokens", type=int, default=96, help="of each output")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bystanders", type=int, default=16, help="streams that run while requests arrive")
    parser.add_argument("--data", type=Path, help="JSON Lines of schemas with tests")
    given = _report.parse(parser)
    name, *schemas = split(given.data)
    figures: dict[str, Any] = {}
    raw: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        model.mkdir()
        write_model(model)
        compile_functions()
        be_punctual()
        for backend in given.backends:
            print(f"{backend}: ", end="", file=sys.stderr, flush=True)
            with server(model, backend, Path(folder, backend), "--max-model-len", str(LONGEST)) as port:
                found = asyncio.run(measure(port, given, (schemas[0], schemas[1])))
            loads = {
                concurrency: {kind: ratios(trios) for kind, trios in own.items()}
                for concurrency, own in found["waves"].items()
            }
            figures[backend] = {
                "loads": loads, "first": found["first"], "arrivals": summed_arrivals(found["arrivals"]),
                "schemas": found["schemas"],
            }  # fmt: skip
            raw[backend] = {
                concurrency: {
                    kind: [[_brief(one) for one in trio] for trio in trios] for kind, trios in own.items()
                }
                for concurrency, own in found["waves"].items()
            }
    report_load(name, given, figures)
    report_arrivals(given, figures)
    results = {"data": name, "tokens": given.tokens, "figures": figures, "raw": raw}
    _report.keep(given.out, "serve", results, lambda figure, axes: draw(axes, given, figures), 3)


def _brief(one: Wave) -> dict[str, Any]:
    kept = dataclasses.asdict(one)
    return kept | {name: _report.summary(kept[name]) for name in ("first", "gaps")}


if __name__ == "__main__":
    sys.exit(main())
