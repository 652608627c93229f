"""Grammars: what a mask costs on ten languages, beside the other engines that read Lark.

    python benchmarks/grammars.py [--quick] [--only NAME ...] [--rounds N] [--engines ...]

The grammars are those of the tests (``tests/grammars``), the texts lie in ``benchmarks/grammars``. In each
round every engine in turn, each in a process of its own and in another order each time, compiles the
grammar anew and walks the texts, cut by the tokenizer itself: for every token the mask is filled (timed),
looked at, and the token accepted (timed). First visits are those of a round's first walk; a second walk of
the same texts follows. The others know no priorities of terminals and no ``!``: these are taken out of
their grammars, the language of any lexing does not depend on them. An engine that refuses a grammar, or a
token of its texts, or takes longer than ``--seconds`` for a round, does not handle it. The last line is the
mean over all languages of our time to that of the best of the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _report

_report.one_thread()

from _engines import Engine  # noqa: E402
from _vocabularies import llama3  # noqa: E402
from _workers import Failure, Worker, in_turn, workers  # noqa: E402

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
WARM_SECONDS = 300.0
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
    clock = _report.clock()
    stop = engine.tokens.stop_token_ids[0]
    for tokens in texts:
        request = engine.request(compiled)
        for token in (*tokens, stop):
            before = clock()
            request.fill()
            masks.append(clock() - before)
            if not request.allows(token):
                raise ValueError(f"refuses token {token} behind {len(commits)} tokens of its texts")
            if token != stop:
                before = clock()
                request.accept(token)
                commits.append(clock() - before)
    return {"masks": masks, "commits": commits}


def measure(engine: Engine, grammar: str, texts: list[list[int]]) -> dict[str, Any]:
    """One round of one engine: compile, walk, walk again."""
    engine.start()
    clock = _report.clock()
    before = clock()
    compiled = COMPILE[engine.name](engine, grammar)
    time = clock() - before
    return {"compile": [time], "first": walk(engine, compiled, texts), "again": walk(engine, compiled, texts)}


def warm(engine: Engine) -> None:
    """Loads modules and compiled functions, as a server's start does."""
    engine.start()
    engine.request(COMPILE[engine.name](engine, 'start: "a" | /b+/')).fill()


def run(made: list[Worker], names: list[str], rounds: int, seconds: float) -> dict[str, dict[str, Any]]:
    """For each grammar and engine the times of all rounds, or why there are none."""
    found: dict[str, dict[str, Any]] = {
        name: {worker.name: {key: [] for key in KINDS} for worker in made} for name in names
    }
    for number in range(rounds):
        for place, name in enumerate(names):
            grammar = (GRAMMARS / f"{name}.lark").read_text()
            texts = [made[0].engine.tokens.encode(text) for text in texts_of(name)]
            for worker in in_turn(made, number * len(names) + place):
                own = found[name][worker.name]
                if "refused" in own:
                    continue
                worker.call(warm, seconds=WARM_SECONDS)  # a process that was ended forgot everything
                times = worker.call(measure, grammar, texts, seconds=seconds)
                if isinstance(times, Failure):
                    own["refused"] = " ".join(f"{times.kind}: {times.message}".split())[:200]
                    continue
                own["compile"] += times["compile"]
                own["masks"] += times["first"]["masks"]
                own["again"] += times["again"]["masks"]
                own["commits"] += times["first"]["commits"] + times["again"]["commits"]
    return found


def show(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Print a line for each grammar and engine; the same as numbers."""
    rows, numbers, ratios, refused = [], {}, [], []
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
                refused.append((name, engine, own["refused"]))
                continue
            first = _report.summary([time / 1e3 for time in own["masks"]])
            again = _report.summary([time / 1e3 for time in own["again"]])
            commit = _report.summary([time / 1e3 for time in own["commits"]])
            compiled = _report.summary([time / 1e6 for time in own["compile"]])
            ratio = first["mean"] * 1e3 / min(others) if others and engine == "vllm_guided" else None
            ratios += [ratio] if ratio is not None else []
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
    if ratios:
        mean = sum(ratios) / len(ratios)
        print(f"ours / best: mean {mean:.2f} over {len(ratios)} languages; at most 1/3 is asked")
    for name, engine, reason in refused:
        print(f"{engine} does not handle {name}: {reason}")
    return numbers


def main() -> None:
    parser = _report.options(__doc__, list(COMPILE))
    names = sorted(path.stem for path in TEXTS.glob("*.txt") if (GRAMMARS / f"{path.stem}.lark").exists())
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--rounds", type=int, help="how often; default: 10, with --quick 1")
    given = _report.parse(parser)
    seconds = given.seconds or (20.0 if given.quick else 120.0)
    with workers(given.engines, llama3()) as made:
        engines = [worker.name for worker in made]
        found = run(made, given.only, given.rounds or (1 if given.quick else 10), seconds)
    numbers = show(found)

    def draw(figure: Any, axes: Any) -> None:
        for axis, key, title in ((axes[0], "masks", "first walk"), (axes[1], "again", "second walk")):
            means = {
                engine: [
                    _report.summary(found[name][engine][key])["mean"] / 1e3
                    if "refused" not in found[name][engine]
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
