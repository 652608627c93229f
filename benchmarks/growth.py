"""Growth: what a mask costs as the output, the nesting, the schema or the vocabulary becomes larger.

    python benchmarks/growth.py [--quick] [--parts length nesting schema vocabulary special] [--engines ...]

length      an array whose items repeat: the masks of each thousand tokens, up to a million
nesting     lists within lists within lists: all masks of an instance, at each depth
schema      objects of more and more properties: the first mask, and all masks of an instance
vocabulary  the schemas of ``benchmarks/schemas`` over 8,000 to 202,000 tokens
special     constraints that are known to be hard: the compile, and the slowest mask
"""

from __future__ import annotations

import json
from time import perf_counter
from typing import Any

import _report

_report.one_thread()

import _data  # noqa: E402
from _engines import BATCH_ENGINES, Engine, Tokens  # noqa: E402
from _vocabularies import llama3, llama4  # noqa: E402
from _workers import Failure, Worker, in_turn, workers  # noqa: E402

WINDOW = 1000
ITEMS = {
    "type": "array",
    "items": {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}},
}
TREE = {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}


def window_masks(
    engine: Engine, schema: str, tokens: list[int], cycle: list[int], count: int, limit: float
) -> Any:
    """Medians in microseconds of the masks and of the commits of each thousand of ``count`` tokens.

    Walks ``tokens``, then ``cycle`` again and again; stops early after ``limit`` seconds.
    """
    clock = _report.clock()
    request = engine.request(engine.compile(schema))
    for token in tokens:
        request.fill()
        request.accept(token)
    windows: list[tuple[float, float]] = []
    place = 0
    end = perf_counter() + limit
    while len(windows) * WINDOW < count and perf_counter() < end:
        masks, commits = [], []
        for _ in range(WINDOW):
            begin = clock()
            request.fill()
            middle = clock()
            accepted = request.accept(cycle[place])
            commits.append(clock() - middle)
            masks.append(middle - begin)
            place = (place + 1) % len(cycle)
            if not accepted:
                raise RuntimeError("a token of the cycle was not accepted")
        windows.append((sorted(masks)[WINDOW // 2] / 1e3, sorted(commits)[WINDOW // 2] / 1e3))
    return windows


def instance_masks(engine: Engine, schema: Any, tokens: list[int], limit: float) -> dict[str, Any]:
    """Microseconds: the compile, each mask of an instance, and its slowest commit.

    Stops after ``limit`` seconds. ``schema`` is text, or a list of tools for a structural tag.
    """
    clock = _report.clock()
    begin = clock()
    compiled = engine.compile(schema) if isinstance(schema, str) else engine.tag(schema)
    compiled_at = clock()
    request = engine.request(compiled)
    masks: list[float] = []
    commit = 0.0
    end = perf_counter() + limit
    for token in tokens:
        before = clock()
        request.fill()
        middle = clock()
        accepted = request.accept(token)
        commit = max(commit, (clock() - middle) / 1e3)
        masks.append((middle - before) / 1e3)
        if not accepted:
            return {"refused": f"refused at token {len(masks):,}"}
        if perf_counter() > end:
            break
    return {"compile": (compiled_at - begin) / 1e3, "masks": masks, "commit": commit}


def many_masks(engine: Engine, plans: list[tuple[str, list[list[int]]]]) -> list[float]:
    """Microseconds of all masks of some instances of some schemas; schemas that are refused are left out."""
    masks: list[float] = []
    for schema, instances in plans:
        for tokens in instances:
            try:
                answer = instance_masks(engine, schema, tokens, 60.0)
            except Exception:  # the engine refuses the schema: its kind of error is its own
                continue
            masks += answer.get("masks", [])
    return masks


def length(made: list[Worker], tokens: Tokens, quick: bool, seconds: float) -> Any:
    """The part ``length``."""
    count = 20_000 if quick else 1_000_000
    cycle = tokens.encode("".join(f'{{"id": {n * 37 % 1000}, "name": "item {n}"}}, ' for n in range(40)))
    head = tokens.encode("[")
    rows, curves = [], {}
    for worker in made:
        found = worker.call(
            window_masks, json.dumps(ITEMS), head, cycle, count, seconds, seconds=seconds + 60
        )
        if isinstance(found, Failure) or len(found) < 2:
            rows.append([worker.name, "–", "–", "–", "–", "–"])
            continue
        (first, first_commit), (last, last_commit) = found[0], found[-1]
        rows.append(
            [worker.name, f"{len(found) * WINDOW:,}"]
            + [_report.number(value) for value in (first, last, last / first, last_commit / first_commit)]
        )
        curves[worker.name] = ([WINDOW * (i + 1) for i in range(len(found))], [mask for mask, _ in found])
    header = ["us", "tokens", "mask p50, first 1,000", "last 1,000", "ratio", "ratio of commits"]
    _report.table("Output length", header, rows)
    return curves, "tokens of output", "mask p50, microseconds"


def nesting(made: list[Worker], tokens: Tokens, quick: bool, seconds: float) -> Any:
    """The part ``nesting``."""
    depths = [1, 4, 16, 64, 256] if quick else [1, 4, 16, 64, 256, 1024, 4096]
    plans = [(json.dumps(TREE), tokens.encode("[" * depth + "]" * depth)) for depth in depths]
    title = "Nesting: mean / max mask of an instance, by depth"
    return _series(made, depths, plans, seconds, title, "depth of lists")


def schema(made: list[Worker], tokens: Tokens, quick: bool, seconds: float) -> Any:
    """The part ``schema``."""
    sizes = [10, 100, 1000] if quick else [10, 100, 1000, 5000]
    kinds: list[tuple[dict[str, Any], Any]] = [
        ({"type": "string", "maxLength": 40}, "some text"),
        ({"type": "integer", "minimum": 0}, 17),
        ({"enum": ["red", "green", "blue"]}, "blue"),
        ({"type": "array", "items": {"type": "number"}}, [1, 2.5]),
    ]
    plans = []
    for size in sizes:
        properties = {f"property_{n}": kinds[n % 4][0] for n in range(size)}
        instance = json.dumps({f"property_{n}": kinds[n % 4][1] for n in range(size)})
        closed = {"type": "object", "properties": properties, "additionalProperties": False}
        plans.append((json.dumps(closed), tokens.encode(instance)))
    title = "Schema size: mean / max mask of an instance, by optional properties"
    return _series(made, sizes, plans, seconds, title, "optional properties")


def _series(
    made: list[Worker], sizes: list[int], plans: list[Any], seconds: float, title: str, x: str
) -> Any:
    """A table of means and slowest masks, one of compiles, and the curves of the means."""
    rows: dict[str, list[str]] = {worker.name: [worker.name] for worker in made}
    compiles: dict[str, list[str]] = {worker.name: [worker.name] for worker in made}
    curves: dict[str, tuple[list[float], list[float]]] = {worker.name: ([], []) for worker in made}
    for size, (text, cut) in zip(sizes, plans, strict=True):
        for worker in in_turn(made, size):
            answer = worker.call(instance_masks, text, cut, seconds, seconds=2 * seconds)
            if isinstance(answer, Failure) or "masks" not in answer:
                rows[worker.name].append(answer.kind if isinstance(answer, Failure) else answer["refused"])
                compiles[worker.name].append("–")
                continue
            found = _report.summary(answer["masks"])
            rows[worker.name].append(f"{_report.number(found['mean'])} / {_report.number(found['max'])}")
            compiles[worker.name].append(_report.number(answer["compile"]))
            curves[worker.name][0].append(size)
            curves[worker.name][1].append(found["mean"])
    _report.table(title, ["us", *(f"{size:,}" for size in sizes)], list(rows.values()))
    _report.table("The same, compile", ["us", *(f"{size:,}" for size in sizes)], list(compiles.values()))
    return curves, x, "mask mean, microseconds"


def vocabulary(made: list[Worker], tokens: Tokens, quick: bool, seconds: float) -> Any:
    """The part ``vocabulary``: its engines are made anew for each vocabulary."""
    cuts: list[int | None] = [8192, None] if quick else [8192, 32_768, 65_536, None]
    every = [llama3(cut) for cut in cuts] + ([] if quick else [llama4()])
    _, chosen = _data.samples(None, _data.OWN)
    rows: dict[str, list[str]] = {worker.name: [worker.name] for worker in made}
    curves: dict[str, tuple[list[float], list[float]]] = {worker.name: ([], []) for worker in made}
    for one in every:
        plans = [(sample.schema, [one.encode(text) for text in sample.valid]) for sample in chosen]
        with workers([worker.name for worker in made], one) as anew:
            for worker in in_turn(anew, one.size):
                answer = worker.call(many_masks, plans, seconds=10 * seconds)
                if isinstance(answer, Failure):
                    rows[worker.name].append(answer.kind)
                    continue
                found = _report.summary(answer)
                cells = (found["mean"], found["p50"], found["max"])
                rows[worker.name].append(" / ".join(_report.number(cell) for cell in cells))
                curves[worker.name][0].append(one.size)
                curves[worker.name][1].append(found["mean"])
    header = ["us", *(f"{one.size:,}" for one in every)]
    _report.table("Vocabulary size: mean / p50 / max mask", header, list(rows.values()))
    return curves, "tokens of the vocabulary", "mask mean, microseconds"


def _special_cases(tokens: Tokens) -> dict[str, tuple[Any, list[int]]]:
    lists: dict[str, Any] = {"type": "array", "minItems": 5, "maxItems": 10, "items": {"type": "integer"}}
    five = [[n, n + 10, n + 200, n + 3000, n - 7] for n in range(5)]
    tools: list[tuple[str, dict[str, Any]]] = []
    for number in range(128):
        properties = {f"argument_{number}": {"type": "string"}, "count": {"type": "integer"}}
        tools.append((f"tool_{number}", {"type": "object", "properties": properties}))
    calls = "I will look.\n" + "".join(
        f'<tool=tool_{n}>{{"argument_{n}": "value", "count": {n}}}</tool> and then ' for n in (0, 77, 127)
    )
    words = ("lorem ipsum dolor sit amet " * 3704)[:100_000]
    return {
        "maxLength: 100000": (
            json.dumps({"type": "string", "maxLength": 100_000}),
            tokens.encode(f'"{words}"'),
        ),
        "maxItems: 1000": (
            json.dumps({"type": "array", "items": {"type": "integer"}, "maxItems": 1000}),
            tokens.encode(json.dumps([n * 7919 % 1000 for n in range(1000)])),
        ),
        "5..10 of 5..10": (json.dumps({**lists, "items": lists}), tokens.encode(json.dumps(five))),
        "128 tools in one tag": (tools, tokens.encode(calls)),
    }  # fmt: skip


def special(made: list[Worker], tokens: Tokens, quick: bool, seconds: float) -> Any:
    """The part ``special``."""
    rows = []
    heights: dict[str, list[float]] = {worker.name: [] for worker in made}
    cases = _special_cases(tokens)
    for place, (name, (text, cut)) in enumerate(cases.items()):
        for worker in in_turn(made, place):
            answer = worker.call(instance_masks, text, cut, seconds, seconds=2 * seconds)
            if isinstance(answer, Failure) or "masks" not in answer:
                why = (
                    f"{answer.kind}: {answer.message}"[:70]
                    if isinstance(answer, Failure)
                    else answer["refused"]
                )
                rows.append([name, worker.name, why, "–", "–", "–", "–", "–"])
                heights[worker.name].append(float("nan"))
                continue
            found = _report.summary(answer["masks"])
            cells = (
                answer["compile"],
                *(found[key] for key in ("mean", "p50", "p99", "max")),
                answer["commit"],
            )
            walked = f"{len(answer['masks']):,} of {len(cut):,} tokens"
            rows.append([name, worker.name, walked, *(_report.number(cell) for cell in cells)])
            heights[worker.name].append(found["max"])
    rows.sort(key=lambda row: list(cases).index(row[0]))
    header = ["case", "engine", "walked", "compile", "mask mean", "p50", "p99", "max", "commit max"]
    _report.table("Special cases, microseconds", header, rows)
    return list(cases), heights


PARTS = {"length": length, "nesting": nesting, "schema": schema, "vocabulary": vocabulary, "special": special}


def main() -> None:
    parser = _report.options(__doc__, BATCH_ENGINES)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    given = _report.parse(parser)
    seconds = given.seconds or (10.0 if given.quick else 120.0)
    tokens = llama3()
    found: dict[str, Any] = {}
    with workers(given.engines, tokens) as made:
        for part in given.parts:
            found[part] = PARTS[part](made, tokens, given.quick, seconds)

    def draw(figure: Any, axes: Any) -> None:
        for axis, (part, results) in zip(axes, found.items(), strict=True):
            if part == "special":
                _report.bars(
                    axis,
                    [name.replace(" ", "\n", 1) for name in results[0]],
                    results[1],
                    y="slowest mask, us",
                )
            else:
                _report.lines(axis, results[0], x=results[1], y=results[2])
            axis.set(title=part)

    _report.keep(given.out, "growth", {"parts": found}, draw, len(found))


if __name__ == "__main__":
    main()
