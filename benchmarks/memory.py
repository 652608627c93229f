"""Memory: many different schemas in one process, each compiled and used once.

    python benchmarks/memory.py [--quick] [--schemas N] [--budget MB] [--engines ...]

Each schema has its own names, limits and choices, and a request of it walks a valid instance. The resident
memory of the process, less what it was before the first schema, and what the engine itself counts are
looked at after every schema. Engines with a budget get the same: vllm_guided half of it for its tables and a
quarter for compiled constraints (the rest is left for what front ends remember), xgrammar for its cache. An
engine that has used up its time for all schemas stops there.
"""

from __future__ import annotations

import gc
import json
import os
import random
import time
from typing import Any

import _report

_report.one_thread()

from _engines import BATCH_ENGINES, Engine  # noqa: E402
from _vocabularies import llama3  # noqa: E402
from _workers import Failure, in_turn, workers  # noqa: E402

WORDS = """
account address amount article author balance batch body branch buyer carrier city client code colour
comment count country currency customer date delivery discount email entry error event field file flag
format group height image index invoice item kind label language length level limit line link list
location mail margin member message method mode model month name note number offer option order owner
page part payment phone place plan point port position price product quantity range rate reason record
region release result role route sample score seller service shape size source stage state status step
stock street subject tag target task tax team text time title token total type unit user value vendor
version view weight width year zone
""".split()  # noqa: SIM905
MEGABYTE = 1 << 20


def schema_and_instance(number: int) -> tuple[str, str]:
    """A schema like no other, and a valid instance."""
    chosen = random.Random(number)
    properties: dict[str, Any] = {}
    instance: dict[str, Any] = {}
    for word in chosen.sample(WORDS, chosen.randint(4, 14)):
        name = f"{word}_{number}" if chosen.random() < 0.3 else word
        kind = chosen.randrange(7)
        if kind == 0:
            limit = chosen.randint(5, 300)
            properties[name], instance[name] = {"type": "string", "maxLength": limit}, word[:limit]
        elif kind == 1:
            low = chosen.randint(-1000, 1000)
            schema = {"type": "integer", "minimum": low, "maximum": low + chosen.randint(1, 5000)}
            properties[name], instance[name] = schema, low
        elif kind == 2:
            options = [f"{other} {chosen.randint(0, 99)}" for other in chosen.sample(WORDS, 5)]
            properties[name], instance[name] = {"enum": options}, chosen.choice(options)
        elif kind == 3:
            count = chosen.randint(2, 12)
            pattern = f"^[A-Z]{{2}}-[0-9]{{{count}}}$"
            properties[name], instance[name] = {"type": "string", "pattern": pattern}, "AB-" + "7" * count
        elif kind == 4:
            most = chosen.randint(2, 40)
            schema = {"type": "array", "items": {"type": "number"}, "maxItems": most}
            properties[name], instance[name] = schema, [1.5, 2]
        elif kind == 5:
            inner = chosen.sample(WORDS, 3)
            schema = {"type": "object", "properties": {key: {"type": "string"} for key in inner}}
            properties[name], instance[name] = schema, {key: key for key in inner}
        else:
            properties[name], instance[name] = {"type": ["boolean", "null"]}, None
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return json.dumps({**schema, "additionalProperties": False}), json.dumps(instance)


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def before(engine: Engine) -> int:
    """Bytes in memory, with everything loaded and nothing compiled."""
    gc.collect()
    return resident()


def use(engine: Engine, schema: str, tokens: list[int]) -> tuple[int, int | None]:
    """Compile a schema and walk an instance; bytes in memory, and bytes that the engine counts."""
    request = engine.request(engine.compile(schema))
    for token in tokens:
        request.fill()
        if not request.accept(token):
            raise RuntimeError("a token of a valid instance was not accepted")
    return resident(), engine.held_bytes()


def main() -> None:
    parser = _report.options(__doc__, BATCH_ENGINES)
    parser.add_argument("--schemas", type=int, help="how many; default: 10,000, with --quick 300")
    parser.add_argument("--budget", type=int, help="megabytes; default: 512, with --quick 64")
    parser.add_argument("--minutes", type=float, help="what one engine may take for all; default: 30")
    given = _report.parse(parser)
    count = given.schemas or (300 if given.quick else 10_000)
    budget = (given.budget or (64 if given.quick else 512)) * MEGABYTE
    seconds = given.seconds or (5.0 if given.quick else 30.0)
    share = 60.0 * (given.minutes or (0.5 if given.quick else 30.0))
    tokens = llama3()
    grown: dict[str, list[float]] = {}
    counted: dict[str, list[float]] = {}
    failures: dict[str, list[str]] = {}
    with workers(given.engines, tokens) as made:
        for worker in made:
            worker.engine.budget = budget  # type: ignore[attr-defined]
        start = {worker.name: worker.call(before, seconds=60.0) for worker in made}
        spent = {worker.name: 0.0 for worker in made}
        for worker in made:
            grown[worker.name], counted[worker.name], failures[worker.name] = [], [], []
        for number in range(count):
            schema, instance = schema_and_instance(number)
            cut = tokens.encode(instance)
            for worker in in_turn(made, number):
                if spent[worker.name] > share:
                    continue
                begin = time.perf_counter()
                answer = worker.call(use, schema, cut, seconds=seconds)
                spent[worker.name] += time.perf_counter() - begin
                if isinstance(answer, Failure):
                    failures[worker.name].append(answer.kind)
                    continue
                grown[worker.name].append((answer[0] - start[worker.name]) / MEGABYTE)
                counted[worker.name].append((answer[1] or 0) / MEGABYTE)
    report(count, budget // MEGABYTE, grown, counted, failures, given.out)


def report(count: int, budget: int, grown: Any, counted: Any, failures: Any, out: _report.Path) -> None:
    """Table, chart and raw numbers, in megabytes."""
    rows = []
    for engine, own in grown.items():
        middle = own[len(own) // 2] if own else None
        held = max(counted[engine], default=0.0)
        rows.append(
            [engine, str(len(own)), str(len(failures[engine]))]
            + [_report.number(value) for value in (middle, own[-1] if own else None, max(own, default=0.0))]
            + [_report.number(held or None), str(budget)]
        )
    header = [
        "MB",
        "schemas",
        "failures",
        "grown at half",
        "at the end",
        "at most",
        "counted, at most",
        "budget",
    ]
    _report.table(f"Memory of one process, {count:,} different schemas", header, rows)

    def draw(figure: Any, axes: Any) -> None:
        for axis, series, title in (
            (axes[0], grown, "grown, resident"),
            (axes[1], counted, "counted by itself"),
        ):
            for engine, own in series.items():
                axis.plot(own, label=engine, color=_report.COLOURS.get(engine))
            axis.axhline(budget, color="#888", linestyle=":", label="budget")
            axis.set(xlabel="schemas", ylabel="megabytes", title=title)
            axis.legend(fontsize=8, frameon=False)

    _report.keep(out, "memory", {"grown": grown, "counted": counted, "failures": failures}, draw, 2)


if __name__ == "__main__":
    main()
