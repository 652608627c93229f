"""Random walks in languages written as Lark grammars, judged by stock Lark.

    python tests/tools/grammar_walks.py [--walks N] [--only NAME ...]

The ten of ``tests/grammars`` and two of the lark package, in both modes, with tokens of Llama 3 that are
drawn from the mask alone. Printed are the walks that finished, those whose output Lark does not parse, and
dead ends; the exit status is 1 if there is any such. Outputs longer than ``--longest`` are not judged, for
Earley's time grows with the cube of the length.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import grammar_walks
import vocabularies

import vllm_guided as vg


def walks(compiler: vg.GrammarCompiler, name: str, mode: str, options: argparse.Namespace) -> Counter[str]:
    """What became of the walks in one language and mode."""
    grammar = compiler.compile_lark(grammar_walks.grammar_of(name), parser=mode)
    parses = grammar_walks.judge(name, mode)
    counts: Counter[str] = Counter()
    for number in range(options.walks):
        choices = random.Random(f"{options.seed} {name} {number}")
        try:
            text = grammar_walks.walk(
                grammar, name, choices, options.steps, lambda token: len(token) < 4, choices.random()
            )
        except AssertionError as error:
            outcome = "dead end"
            print(f"{outcome}: {name}, {mode}, walk {number}: {error}", flush=True)
        else:
            if text is None:
                outcome = "not finished"
            elif len(text) > options.longest:
                outcome = "not judged"
            else:
                outcome = "parses" if parses(text) else "does not parse"
            if outcome == "does not parse":
                print(f"{outcome}: {name}, {mode}, walk {number}: {text!r}", flush=True)
        counts[outcome] += 1
    return counts


def main() -> int:
    """Walk, print, and say by the exit status whether all is well."""
    names = [*grammar_walks.GRAMMARS, *grammar_walks.PACKAGED]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--modes", nargs="+", choices=grammar_walks.MODES, default=list(grammar_walks.MODES))
    parser.add_argument("--walks", type=int, default=50)
    parser.add_argument("--steps", type=int, default=30, help="most tokens that are drawn freely")
    parser.add_argument("--longest", type=int, default=250, help="most characters that are judged")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    _, real = vocabularies.llama3()
    compiler = vg.GrammarCompiler(real)
    total: Counter[str] = Counter()
    for name in options.only:
        for mode in options.modes:
            began = time.process_time()
            counts = walks(compiler, name, mode, options)
            total += counts
            print(f"{name}, {mode}: {dict(counts)}, {time.process_time() - began:.1f} s", flush=True)
    print(f"all: {dict(total)}")
    return 1 if total["does not parse"] or total["dead end"] else 0


if __name__ == "__main__":
    sys.exit(main())
