"""How long a vocabulary takes to be ready: from nothing, and with its trie in the disk cache.

    python benchmarks/vocabulary.py [--quick]

Prints milliseconds, the median of five (two with ``--quick``), for the real vocabularies of the tests.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import vocabularies

from vllm_guided.cachedir import ENVIRONMENT
from vllm_guided.vocab.tokenizers import extract
from vllm_guided.vocab.vocabulary import Vocabulary

KINDS = ("llama3", "llama3_fast", "llama4", "qwen", "deepseek", "tekken", "sentencepiece")


def milliseconds(work: Any, *arguments: Any) -> float:
    begin = time.perf_counter()
    work(*arguments)
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    quick = "--quick" in sys.argv[1:]
    print(
        f"{'vocabulary':16}{'ids':>9}{'nodes':>9}{'bytes of tokens':>18}{'all, cold':>12}{'all, cached':>13}"
    )
    for kind in KINDS[:2] if quick else KINDS:
        tokenizer, vocabulary = getattr(vocabularies, kind)()
        stops = vocabulary.stop_token_ids
        rows: list[tuple[float, float, float]] = []
        for _ in range(2 if quick else 5):
            with tempfile.TemporaryDirectory() as folder:
                os.environ[ENVIRONMENT] = folder
                times = [milliseconds(extract, tokenizer)]
                times += [milliseconds(Vocabulary.from_tokenizer, tokenizer, None, stops) for _ in range(2)]
                rows.append((times[0], times[1], times[2]))
        extraction, cold, cached = (statistics.median(column) for column in zip(*rows, strict=True))
        print(
            f"{kind:16}{vocabulary.size:9}{len(vocabulary.trie):9}"
            f"{extraction:18.0f}{cold:12.0f}{cached:13.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
