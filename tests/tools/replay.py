"""Replay a corpus of cases and print what passed: ``python tests/tools/replay.py maskbench --sample 500``.

Names: reported, peers, peer_errors, maskbench, suite, suite_declared. With ``--update`` the result is kept in
``tests/ratchets`` (whole corpora only), against which ``tests/test_corpora.py`` compares.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import corpora

_engine: corpora.NaiveEngine | corpora.RealEngine


def make_engine(options: argparse.Namespace) -> corpora.NaiveEngine | corpora.RealEngine:
    """The engine the options ask for."""
    if options.engine == "naive":
        return corpora.NaiveEngine()
    return corpora.RealEngine(options.vocabulary, options.tokens, options.masks)


def begin(options: argparse.Namespace) -> None:
    """A worker process starts."""
    global _engine
    faulthandler.enable()
    _engine = make_engine(options)


def work(cases: list[corpora.Case], seconds: float) -> list[corpora.Result]:
    """A worker's share."""
    return list(corpora.replay(_engine, cases, seconds))


def results_of(cases: list[corpora.Case], options: argparse.Namespace) -> Iterator[corpora.Result]:
    """The results as they come."""
    if options.processes == 1:
        yield from corpora.replay(make_engine(options), cases, options.seconds)
        return
    shares = [cases[i : i + 20] for i in range(0, len(cases), 20)]
    with ProcessPoolExecutor(options.processes, initializer=begin, initargs=(options,)) as pool:
        futures = {pool.submit(work, share, options.seconds): share for share in shares}
        for future in as_completed(futures):
            try:
                yield from future.result()
            except BrokenProcessPool:
                for case in futures[future]:
                    yield corpora.Result(
                        case.id, case.kind, "crash", "the process died at this case or beside it"
                    )


def percentile(values: list[float], share: float) -> float:
    """The value that ``share`` of the values do not exceed."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else 0.0


def report(name: str, results: list[corpora.Result], listed: int) -> None:
    """Print counts, reasons, times and the failing ids."""
    for kind in sorted({result.kind for result in results}):
        mine = [result for result in results if result.kind == kind]
        counts = Counter(result.status for result in mine)
        spread = ", ".join(f"{status} {counts[status]}" for status in corpora.STATUSES if counts[status])
        outputs = sum(result.outputs for result in mine)
        false_accepts = sum(result.false_accepts for result in mine)
        false_rejects = sum(result.false_rejects for result in mine)
        times = [result.compile_seconds * 1000 for result in mine]
        print(f"{name} {kind}: {len(mine)} cases: {spread}")
        print(f"  {outputs} outputs, {false_accepts} false accepts, {false_rejects} false rejects")
        print(
            f"  compile ms: median {percentile(times, 0.5):.1f}, p99 {percentile(times, 0.99):.1f}, "
            f"most {max(times):.1f}"
        )
    reasons = Counter(corpora.short_reason(result) for result in results if result.status == "refused")
    for reason, count in reasons.most_common(listed):
        print(f"  refused {count:5d}  {reason}")
    for status in reversed(corpora.STATUSES[2:]):
        failing = [result for result in results if result.status == status]
        for result in failing[:listed]:
            print(f"  {status} {result.id}: {result.detail[:200]!r}")
        if len(failing) > listed:
            print(f"  ... and {len(failing) - listed} more {status}")


def report_instances(cases: list[corpora.Case], results: list[corpora.Result]) -> None:
    """Of the JSON Schema test suite: how many instances of each draft's parts were judged right."""
    judged = {result.id: result for result in results}
    for part in ("required", "optional", "optional/format"):
        total: Counter[str] = Counter()
        for draft in sorted({case.id.partition("/")[0] for case in cases}):
            counts: Counter[str] = Counter()
            for case in cases:
                name = case.id.partition("/")[2].rpartition("/")[0] or "required"
                result = judged.get(case.id)
                if result is None or not case.id.startswith(f"{draft}/") or name != part:
                    continue
                counts["valid"] += len(case.accept)
                counts["invalid"] += len(case.reject)
                counts["wrongly accepted"] += result.false_accepts
                if result.status in ("pass", "false_reject", "false_accept"):
                    counts["accepted"] += len(case.accept) - result.false_rejects
            total += counts
            print_instances(f"{draft} {part}", counts)
        print_instances(f"all drafts {part}", total)


def print_instances(title: str, counts: Counter[str]) -> None:
    """One line."""
    if counts["valid"]:
        print(
            f"  {title}: {counts['accepted']} of {counts['valid']} valid instances accepted "
            f"({100 * counts['accepted'] / counts['valid']:.2f} %), "
            f"{counts['wrongly accepted']} of {counts['invalid']} invalid ones accepted"
        )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", choices=corpora.CORPORA)
    parser.add_argument("--sample", type=int, help="how many of the cases (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", help="only cases of this kind")
    parser.add_argument("--id", help="only cases whose id contains this")
    parser.add_argument("--engine", choices=["real", "naive"], default="real")
    parser.add_argument("--vocabulary", choices=["bytes", "llama3"], default="bytes")
    parser.add_argument("--tokens", choices=["bytes", "longest"], default="bytes")
    parser.add_argument("--masks", action="store_true", help="fill the mask at each step and check it")
    parser.add_argument("--seconds", type=float, default=10.0, help="limit for one case")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--list", type=int, default=20, help="how many failing cases to print of each sort")
    parser.add_argument("--update", action="store_true", help="keep the result as the new ratchet")
    options = parser.parse_args()
    if not corpora.DATA.exists():
        print(f"{corpora.DATA} is not there")
        return 2
    cases = corpora.CORPORA[options.corpus]()
    if options.kind or options.id:
        cases = [
            case
            for case in cases
            if (not options.kind or case.kind == options.kind) and (not options.id or options.id in case.id)
        ]
    whole = options.sample is None and not options.kind and not options.id
    cases = corpora.sample(cases, options.sample, options.seed)
    started, results = time.perf_counter(), []
    for result in results_of(cases, options):
        results.append(result)
        if sys.stderr.isatty() or len(results) % 500 == 0:
            print(f"\r{len(results)}/{len(cases)}", end="", file=sys.stderr, flush=True)
    if not results:
        print("no such case")
        return 2
    report(options.corpus, results, options.list)
    if options.corpus.startswith("suite"):
        report_instances(cases, results)
    print(f"  {time.perf_counter() - started:.1f} s")
    worse, better = corpora.Ratchet.load(options.corpus).compare(results)
    print(f"  against the ratchet: {len(worse)} worse, {len(better)} better")
    if options.update:
        if not whole:
            print("only a whole corpus can be kept: leave --sample, --kind and --id out")
            return 2
        corpora.Ratchet.of(results).save(options.corpus)
    return 0


if __name__ == "__main__":
    sys.exit(main())
