"""Masks: what each token costs, first visits included, beside the other engines in one run.

    python benchmarks/masks.py [--quick] [--schemas N] [--engines ...] [--data FILE]

Each schema is compiled by every engine in turn, then its valid instances, cut by the tokenizer itself, are
walked: for every token the mask is filled (timed), looked at, and the token accepted (timed). Instances that
a schema refuses are walked after that, untimed, to see whether the engine refuses them too. A schema that
an engine refuses or does not finish is counted and shown. The last table is of the schemas that all engines
finished, but those that finish less than half.
"""

from __future__ import annotations

from typing import Any

import _report

_report.one_thread()

from _data import Sample, samples  # noqa: E402
from _engines import Engine  # noqa: E402
from _vocabularies import llama3  # noqa: E402
from _workers import Failure, in_turn, workers  # noqa: E402

#: Tokens of one instance that are walked; longer ones are cut off there.
LONGEST = 4000
HEADER = ("mean", "p50", "p99", "p99.9", "max")


def walk(engine: Engine, schema: str, valid: list[list[int]], invalid: list[list[int]]) -> dict[str, Any]:
    """Compile a schema and walk its instances; times in nanoseconds."""
    stop = engine.tokens.stop_token_ids[0]
    clock = _report.clock()
    masks: list[int] = []
    commits: list[int] = []
    false_rejects = false_accepts = 0
    begin = clock()
    compiled = engine.compile(schema)
    compile_time = clock() - begin
    first = 0
    for tokens in valid:
        request = engine.request(compiled)
        for token in (*tokens[:LONGEST], stop):
            before = clock()
            request.fill()
            masks.append(clock() - before)
            first = first or compile_time + masks[-1]
            if not request.allows(token):
                false_rejects += len(tokens) < LONGEST or token != stop
                break
            if token != stop:
                before = clock()
                accepted = request.accept(token)
                commits.append(clock() - before)
                if not accepted:
                    raise RuntimeError(f"the mask allows token {token}, but it is not accepted")
    for tokens in invalid:
        request = engine.request(compiled)
        if len(tokens) < LONGEST and all(request.accept(token) for token in tokens):
            request.fill()
            false_accepts += request.allows(stop)
    return {
        "first": first, "compile": compile_time, "masks": masks, "commits": commits,
        "false_rejects": false_rejects, "false_accepts": false_accepts,
    }  # fmt: skip


def figures(results: list[dict[str, Any]], kind: str) -> dict[str, float]:
    """A summary in microseconds of all times of one kind."""
    return _report.summary([time / 1e3 for result in results for time in result[kind]])


def show(title: str, results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Print masks, commits and first masks of each engine; the same as numbers."""
    rows, numbers = [], {}
    for engine, own in results.items():
        masks, commits = figures(own, "masks"), figures(own, "commits")
        first = _report.summary([result["first"] / 1e3 for result in own if result["first"]])
        numbers[engine] = {"masks": masks, "commits": commits, "first": first}
        rows.append(
            [engine, f"{masks['n']:,}"]
            + [_report.number(masks[name]) for name in HEADER]
            + [_report.number(value) for value in (commits["mean"], first["p50"], first["p99"])]
        )
    header = ["us", "masks", *(f"mask {name}" for name in HEADER), "commit mean", "first mask p50", "p99"]
    _report.table(title, header, rows)
    return numbers


def verdicts(results: dict[str, list[dict[str, Any] | Failure]]) -> None:
    """Print how many schemas each engine finished, and how many it judged wrongly."""
    rows = []
    for engine, own in results.items():
        failures = [result.kind for result in own if isinstance(result, Failure)]
        done = [result for result in own if not isinstance(result, Failure)]
        right = sum(not result["false_rejects"] and not result["false_accepts"] for result in done)
        rows.append(
            [engine, str(len(done)), str(right)]
            + [str(failures.count(kind)) for kind in ("refused", "time", "died")]
            + [
                str(sum(bool(r["false_rejects"]) for r in done)),
                str(sum(bool(r["false_accepts"]) for r in done)),
            ]
        )
    header = ["schemas", "finished", "all verdicts right", "refused", "out of time", "died"]
    _report.table("Schemas", [*header, "false rejects", "false accepts"], rows)


def main() -> None:
    parser = _report.options(__doc__)
    parser.add_argument("--schemas", type=int, help="how many; default: 2,000, with --quick 40")
    parser.add_argument("--data", type=_report.Path, help="JSON Lines of schemas with tests")
    given = _report.parse(parser)
    seconds = given.seconds or (3.0 if given.quick else 30.0)
    name, chosen = samples(given.schemas or (40 if given.quick else 2000), given.data)
    tokens = llama3()
    results: dict[str, list[Any]] = {}
    with workers(given.engines, tokens) as made:
        results = {worker.name: [] for worker in made}
        for place, sample in enumerate(chosen):
            cut: dict[str, list[list[int]]] = {
                kind: [tokens.encode(text) for text in texts]
                for kind, texts in (("valid", sample.valid), ("invalid", sample.invalid))
            }
            for worker in in_turn(made, place):
                results[worker.name].append(
                    worker.call(walk, sample.schema, cut["valid"], cut["invalid"], seconds=seconds)
                )
    report(name, chosen, results, given.out)


def report(name: str, chosen: list[Sample], results: dict[str, list[Any]], out: _report.Path) -> None:
    """Tables, chart and raw numbers."""
    done = {engine: [r for r in own if not isinstance(r, Failure)] for engine, own in results.items()}
    # An engine that finishes few schemas would leave little to compare the others on.
    able = {engine: own for engine, own in results.items() if 2 * len(done[engine]) >= len(chosen)}
    common = [
        place
        for place in range(len(chosen))
        if not any(isinstance(own[place], Failure) for own in able.values())
    ]
    shared = {engine: [own[place] for place in common] for engine, own in able.items()}
    verdicts(results)
    numbers = show(f"Microseconds, {name}: what each engine finished", done)
    numbers_shared = show(f"Microseconds, the {len(common)} schemas that all of these finished", shared)

    def draw(figure: Any, axes: Any) -> None:
        shares = [50, 75, 90, 95, 99, 99.5, 99.9, 99.99]
        for axis, kind, title in ((axes[0], "masks", "mask"), (axes[1], "first", "time to first mask")):
            for engine, own in done.items():
                times = [t for r in own for t in (r[kind] if kind == "masks" else [r[kind]])]
                if times:
                    values = [_report.np.percentile(times, share) / 1e3 for share in shares]
                    places = range(len(shares))
                    axis.plot(places, values, "o-", ms=3, label=engine, color=_report.COLOURS.get(engine))
            axis.set(yscale="log", xlabel="percentile", ylabel="microseconds", title=title)
            axis.set_xticks(range(len(shares)), [f"{share:g}" for share in shares])
            axis.legend(fontsize=8, frameon=False)

    raw = {engine: [vars(r) if isinstance(r, Failure) else r for r in own] for engine, own in results.items()}
    ids = [sample.id for sample in chosen]
    _report.keep(
        out,
        "masks",
        {"data": name, "all": numbers, "common": numbers_shared, "ids": ids, "raw": raw},
        draw,
        2,
    )


if __name__ == "__main__":
    main()
