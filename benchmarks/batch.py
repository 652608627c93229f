"""One step of a batch: every request accepts its token and gets its mask, by each engine's own batch call.

    python benchmarks/batch.py [--quick] [--sizes 1 16 ...] [--engines ...] [--data FILE]

64 schemas, their requests at different places of valid instances. A step is timed from the list of sampled
tokens to the filled bitmask, with the Python that the call needs for each request (lists of matchers and
tokens), in one thread. The engines take turns. Requests begin anew between two steps, untimed.

Two tables: warm (each engine has walked every instance once), and the first steps (nothing was walked yet).
"""

from __future__ import annotations

import random
from typing import Any

import _report

_report.one_thread()

from _data import samples  # noqa: E402
from _engines import BATCH_ENGINES, Engine, Tokens  # noqa: E402
from _vocabularies import llama3  # noqa: E402
from _workers import Failure, Worker, in_turn, workers  # noqa: E402

SIZES = (1, 16, 64, 256, 1024)
SCHEMAS = 64
#: Tokens of an instance that are used, and how many it must have.
LONGEST, SHORTEST = 400, 12
#: Characters of a schema: larger ones take some engines too long to be in the common set.
LARGEST = 4000


def follow(engine: Engine, schema: str, tokens: list[int]) -> bool:
    """Whether the engine compiles the schema and allows the whole instance; the compiled form is kept."""
    compiled = engine.compile(schema)
    request = engine.request(compiled)
    for token in tokens:
        if not request.accept(token):
            return False
    vars(engine).setdefault("kept", {})[schema] = compiled
    return True


def forget(engine: Engine) -> None:
    """Drop masks and caches, but not what was compiled before it is compiled again."""
    engine.start()
    for schema in engine.kept:  # type: ignore[attr-defined]
        engine.kept[schema] = engine.compile(schema)  # type: ignore[attr-defined]


def steps(engine: Engine, plans: list[tuple[str, list[int]]], count: int, warm: bool) -> list[float]:
    """Microseconds of each of ``count`` steps of a batch of ``len(plans)`` requests.

    A plan is a schema and the tokens of its instance. The requests begin at different places of them.
    """
    clock = _report.clock()
    kept: dict[str, Any] = engine.kept  # type: ignore[attr-defined]
    if warm:
        for schema, tokens in plans[:SCHEMAS]:
            request = engine.request(kept[schema])
            for token in tokens:
                request.fill()
                request.accept(token)
    size = len(plans)
    compiled = [kept[schema] for schema, _ in plans]
    # As many steps as the shortest instance has, then all requests anew: the same for every engine.
    length = min(count, min(len(tokens) for _, tokens in plans))
    times: list[float] = []
    done = 0
    while len(times) < count:
        offsets = [(7 * (place + done)) % max(1, len(plans[place][1]) - length) for place in range(size)]
        batch = engine.batch(compiled)
        for place, offset in enumerate(offsets):
            for token in plans[place][1][:offset]:
                batch.accept_one(place, token)
        for step in range(min(length, count - len(times))):
            tokens = [plans[place][1][offsets[place] + step] for place in range(size)]
            begin = clock()
            accepted = batch.accept(tokens)
            batch.fill()
            times.append((clock() - begin) / 1e3)
            if not all(accepted):
                raise RuntimeError("a token of a valid instance was not accepted")
        done += 1
    return times


def choose(
    made: list[Worker], tokens: Tokens, wanted: int, data: _report.Path | None, seconds: float
) -> tuple[str, list[tuple[str, list[int]]]]:
    """Schemas with an instance that all engines compile and follow."""
    found: list[tuple[str, list[int]]] = []
    name, candidates = samples(None, data)
    random.Random(2).shuffle(candidates)
    for sample in candidates:
        cut = [tokens.encode(text)[:LONGEST] for text in sample.valid]
        cut = [one for one in cut if len(one) >= SHORTEST]
        if not cut or sample.size > LARGEST:
            continue
        longest = max(cut, key=len)
        answers = [worker.call(follow, sample.schema, longest, seconds=seconds) for worker in made]
        lost = [
            worker
            for worker, answer in zip(made, answers, strict=True)
            if isinstance(answer, Failure) and answer.kind != "refused"
        ]
        if lost:
            # That process is gone, and what it kept.
            for worker in lost:
                for schema, old in found:
                    worker.call(follow, schema, old, seconds=600.0)
        elif all(answer is True for answer in answers):
            found.append((sample.schema, longest))
        if len(found) == wanted:
            break
    return f"{len(found)} schemas of {name.partition(' schemas of ')[2]}", found


def main() -> None:
    parser = _report.options(__doc__, BATCH_ENGINES)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="requests of a batch")
    parser.add_argument("--data", type=_report.Path, help="JSON Lines of schemas with tests")
    given = _report.parse(parser)
    seconds = given.seconds or (2.0 if given.quick else 20.0)
    count = 40 if given.quick else 200
    rounds = 1 if given.quick else 3
    tokens = llama3()
    times: dict[str, dict[str, dict[int, list[float]]]] = {}
    with workers([name for name in given.engines if name in BATCH_ENGINES], tokens) as made:
        name, found = choose(made, tokens, 16 if given.quick else SCHEMAS, given.data, seconds)
        times = {worker.name: {"first": {}, "warm": {}} for worker in made}
        for kind, turns in (("first", 1), ("warm", rounds)):
            for size in given.sizes:
                plans = [found[place % len(found)] for place in range(size)]
                for turn in range(turns):
                    for worker in in_turn(made, size + turn):
                        if kind == "first":
                            worker.call(forget, seconds=600.0)
                        answer = worker.call(steps, plans, count, kind == "warm", seconds=600.0)
                        if isinstance(answer, Failure):
                            print(f"{worker.name}, {size} requests: {answer}")
                        else:
                            times[worker.name][kind].setdefault(size, []).extend(answer)
    report(name, given.sizes, times, given.out)


def report(name: str, sizes: list[int], times: Any, out: _report.Path) -> None:
    """Tables, chart and raw numbers."""
    numbers: dict[str, Any] = {}
    for kind, title in (("warm", "warm"), ("first", "first visits")):
        rows = []
        for engine, own in times.items():
            found = {size: _report.summary(own[kind].get(size, [])) for size in sizes}
            numbers.setdefault(engine, {})[kind] = found
            cells = [(found[size]["p50"], found[size]["p99"]) for size in sizes]
            rows.append([engine, *(f"{_report.number(a)} / {_report.number(b)}" for a, b in cells)])
        header = ["requests", *(f"{size:,}" for size in sizes)]
        _report.table(f"Microseconds of one step (accept + fill), p50 / p99, {title}: {name}", header, rows)

    def draw(figure: Any, axes: Any) -> None:
        for axis, kind in zip(axes, ("warm", "first"), strict=True):
            curves = {
                engine: (sizes, [own[kind][size]["p50"] for size in sizes]) for engine, own in numbers.items()
            }
            _report.lines(axis, curves, x="requests", y="microseconds a step, median")
            axis.set(title=kind)

    _report.keep(out, "batch", {"data": name, "figures": numbers, "raw": times}, draw, 2)


if __name__ == "__main__":
    main()
