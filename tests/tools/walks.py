"""Random walks in schemas from the wild, each finished output judged: ``python tests/tools/walks.py``.

Tokens of the Llama-3 vocabulary are drawn from the mask alone (``tests/test_walks.py``). Printed are the
walks that finished, those whose output jsonschema refuses (or that write a declared name twice), and dead
ends: a mask without a bit, or a token in the mask that is refused. The exit status is 1 if there is any such.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import corpora
import judges
import test_walks
import vocabularies

import vllm_guided as vg

_compiler: vg.GrammarCompiler


def begin() -> None:
    """A worker process starts."""
    global _compiler
    _, vocabulary = vocabularies.llama3()
    _compiler = vg.GrammarCompiler(vocabulary)


def work(case: corpora.Case, walks: int, seed: int) -> list[tuple[str, str]]:
    """What became of the walks in a schema, each with a complaint."""
    try:
        grammar = _compiler.compile_json_schema(case.constraint)
    except vg.GrammarError as error:
        return [("refused", str(error))]
    judge = judges.json_schema(case.constraint, formats=False, repeats=True)
    names = sorted(judges.declared_names(case.constraint))
    outcomes = []
    for number in range(walks):
        choices = random.Random(f"{seed} {case.id} {number}")
        try:
            output = test_walks.walk(grammar, _compiler.vocabulary, choices, names)
        except (AssertionError, vg.GrammarError) as error:
            outcomes.append(("dead end", f"{case.id}: {error}"))
            continue
        if output is None:
            outcomes.append(("not finished", case.id))
            continue
        text = output.decode("utf-8")
        try:
            complaint = judge(text)
        except Exception as error:  # the judge itself cannot read the schema
            outcomes.append(("not judged", f"{case.id}: {type(error).__name__}"))
            continue
        outcomes.append(
            ("valid", "") if complaint is None else ("invalid", f"{case.id}: {text!r}: {complaint}")
        )
    return outcomes


def main() -> int:
    """Walk, print, and say by the exit status whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemas", type=int, default=2000)
    parser.add_argument("--walks", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    cases = corpora.sample(corpora.maskbench(), options.schemas, options.seed)
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(options.processes, initializer=begin) as pool:
        jobs = [pool.submit(work, case, options.walks, options.seed) for case in cases]
        for job in jobs:
            for outcome, complaint in job.result():
                counts[outcome] += 1
                if outcome in ("invalid", "dead end"):
                    print(f"{outcome}: {complaint}"[:1000], flush=True)
    print(f"{len(cases)} schemas, {options.walks} walks each: {dict(counts)}")
    return 1 if counts["invalid"] or counts["dead end"] else 0


if __name__ == "__main__":
    sys.exit(main())
