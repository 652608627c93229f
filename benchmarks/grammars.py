"""Grammars: what a mask costs on ten languages, beside the other engines that read Lark, in one process.

    python benchmarks/grammars.py [--quick] [--only NAME ...] [--rounds N] [--engines ...]

The grammars are those of the tests (``tests/grammars``), the texts lie in ``benchmarks/grammars``. In each
round every engine in turn, in another order each time, compiles the grammar anew and walks the texts, cut by
the tokenizer itself: for every token the mask is filled (timed), looked at, and the token accepted (timed).
First visits are those of a round's first walk; a second walk of the same texts follows. The others know no
priorities of terminals and no ``!``: these are taken out of their grammars, the language of any lexing does
not depend on them. An engine that refuses a grammar, or a token of its texts, does not handle it.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import _report

_report.one_thread()

from _engines import ENGINES, Engine  # noqa: E402
from _vocabularies import llama3  # noqa: E402

HERE = Path(__file__).resolve().parent
GRAMMARS = HERE.parent / "tests" / "grammars"
TEXTS = HERE / "grammars"
COMPILE: dict[str, Callable[[Any, str], Any]] = {
    "vllm_guided": lambda engine, text: engine.compiler.compile_lark(text),
    "llguidance": lambda engine, text: engine._matcher(
        engine.llguidance.LLMatcher.grammar_from_lark(without_priorities(text))
    ),
    "xgrammar": lambda engine, text: engine.compiler.compile_lark(without_priorities(text)),
}
KINDS = ("compile", "masks", "again", "commits")
HEADER = ("mean", "p50", "p99", "max")


def without_priorities(text: str) -> str:
    """A grammar without the priorities of its terminals and the ``!`` of its rules."""
    return re.sub(r"^!?(\??\w+)(?:\.-?\d+)?[ \t]*:", r"\1:", text, flags=re.MULTILINE)


def texts_of(name: str) -> list[str]:
    """The texts in a language."""
    return [text.strip("\n") for text in (TEXTS / f"{name}.txt").read_text().split("\n%%\n")]


def walk(engine: Engine, compiled: Any, texts: list[list[int]]) -> dict[str, list[int]]:
    """Times in nanoseconds of each mask and each token; raises where the engine refuses a token."""
    masks: list[int] = []
    commits: list[int] = []
    stop = engine.tokens.stop_token_ids[0]
    for tokens in texts:
        request = engine.request(compiled)
        for token in (*tokens, stop):
            before = perf_counter_ns()
            request.fill()
            masks.append(perf_counter_ns() - before)
            if not request.allows(token):
                raise ValueError(f"refuses token {token} behind {len(commits)} tokens of its texts")
            if token != stop:
                before = perf_counter_ns()
                request.accept(token)
                commits.append(perf_counter_ns() - before)
    return {"masks": masks, "commits": commits}


def measure(engine: Engine, grammar: str, texts: list[list[int]]) -> dict[str, Any]:
    """One round of one engine: compile, walk, walk again."""
    engine.start()
    before = perf_counter_ns()
    compiled = COMPILE[engine.name](engine, grammar)
    time = perf_counter_ns() - before
    return {"compile": [time], "first": walk(engine, compiled, texts), "again": walk(engine, compiled, texts)}


def run(engines: list[Engine], names: list[str], rounds: int) -> dict[str, dict[str, Any]]:
    """For each grammar and engine the times of all rounds, or why there are none."""
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for number in range(rounds):
        for name in names:
            grammar = (GRAMMARS / f"{name}.lark").read_text()
            texts = [engines[0].tokens.encode(text) for text in texts_of(name)]
            order = list(engines)
            random.Random(f"{name} {number}").shuffle(order)
            for engine in order:
                own = found[name].setdefault(engine.name, {key: [] for key in KINDS})
                if "refused" in own:
                    continue
                try:
                    times = measure(engine, grammar, texts)
                except Exception as error:  # whatever an engine raises, it does not handle the grammar
                    own["refused"] = " ".join(str(error).split())[:200]
                    continue
                own["compile"] += times["compile"]
                own["masks"] += times["first"]["masks"]
                own["again"] += times["again"]["masks"]
                own["commits"] += times["first"]["commits"] + times["again"]["commits"]
    return found


def show(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Print a line for each grammar and engine; the same as numbers."""
    rows, numbers = [], {}
    for name, engines in found.items():
        others = [
            _report.summary(own["masks"])["mean"]
            for engine, own in engines.items()
            if engine != "vllm_guided" and "refused" not in own
        ]
        for engine, own in engines.items():
            if "refused" in own:
                rows.append([f"{name}, {engine}", "refused", *["–"] * 8])
                numbers[f"{name}, {engine}"] = {"refused": own["refused"]}
                continue
            first = _report.summary([time / 1e3 for time in own["masks"]])
            again = _report.summary([time / 1e3 for time in own["again"]])
            commit = _report.summary([time / 1e3 for time in own["commits"]])
            compiled = _report.summary([time / 1e6 for time in own["compile"]])
            ratio = first["mean"] * 1e3 / min(others) if others and engine == "vllm_guided" else None
            numbers[f"{name}, {engine}"] = {
                "first": first,
                "again": again,
                "commit": commit,
                "compile_ms": compiled,
                "of_best_peer": ratio,
            }
            rows.append(
                [f"{name}, {engine}", f"{first['n']:,}"]
                + [_report.number(first[key]) for key in HEADER]
                + [_report.number(again["mean"]), _report.number(commit["mean"])]
                + [_report.number(compiled["mean"]), _report.number(ratio)]
            )
    header = [
        "us",
        "masks",
        *(f"mask {key}" for key in HEADER),
        "again",
        "commit",
        "compile ms",
        "ours / best",
    ]
    _report.table("Masks on grammars: first walk, second walk, commits", header, rows)
    return numbers


def main() -> None:
    parser = _report.options(__doc__, list(COMPILE))
    names = sorted(path.stem for path in TEXTS.glob("*.txt") if (GRAMMARS / f"{path.stem}.lark").exists())
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--rounds", type=int, help="how often; default: 10, with --quick 1")
    given = parser.parse_args()
    # What this process compiles must not come from what an earlier run has stored.
    os.environ["VLLM_GUIDED_DISK_CACHE_MB"] = "0"
    tokens = llama3()
    engines = []
    for name in given.engines:
        try:
            engines.append(ENGINES[name](tokens))
        except ImportError as error:
            print(f"{name} is left out: {error}")
    for engine in engines:  # loads modules and compiled functions, as a server's start does
        engine.start()
        engine.request(COMPILE[engine.name](engine, 'start: "a" | /b+/')).fill()
    chosen = given.only[:4] if given.quick and given.only == names else given.only
    found = run(engines, chosen, given.rounds or (1 if given.quick else 10))
    numbers = show(found)

    def draw(figure: Any, axes: Any) -> None:
        for axis, key, title in ((axes[0], "masks", "first walk"), (axes[1], "again", "second walk")):
            means = {
                engine.name: [
                    _report.summary(found[name][engine.name][key])["mean"] / 1e3
                    if "refused" not in found[name][engine.name]
                    else float("nan")
                    for name in found
                ]
                for engine in engines
            }
            _report.bars(axis, list(found), means, y="mean mask, microseconds")
            axis.set_title(title)
            axis.tick_params(axis="x", labelrotation=35)

    _report.keep(given.out, "grammars", {"grammars": numbers}, draw, 2)


if __name__ == "__main__":
    main()
