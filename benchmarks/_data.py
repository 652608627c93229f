"""JSON schemas with instances for the benchmarks.

In: MaskBench as JSON Lines (``--data FILE``, by default ``../shared/data/maskbench_dev.jsonl.xz`` beside the
repository, where it is there), else the few schemas of ``benchmarks/schemas``. Each line or file is an object
``{"id", "schema", "tests": [{"valid", "data"}]}``. Out: :class:`Sample` s.
"""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MASKBENCH = ROOT.parent / "shared" / "data" / "maskbench_dev.jsonl.xz"
OWN = Path(__file__).resolve().parent / "schemas"


@dataclass(frozen=True)
class Sample:
    """A schema as text, with instances as text."""

    id: str
    schema: str
    valid: tuple[str, ...]
    invalid: tuple[str, ...]

    @cached_property
    def size(self) -> int:
        """Characters of the schema."""
        return len(self.schema)


def written(value: Any) -> str:
    """A value as JSON text: characters as they are, unless half a surrogate pair is among them."""
    text = json.dumps(value, ensure_ascii=False)
    return json.dumps(value) if any("\ud800" <= character <= "\udfff" for character in text) else text


def _rows(path: Path | None) -> tuple[str, Iterator[dict[str, Any]]]:
    if path is None and MASKBENCH.exists():
        path = MASKBENCH
    if path is None or path == OWN:
        return "benchmarks/schemas", (json.loads(file.read_text()) for file in sorted(OWN.glob("*.json")))
    lines = lzma.open(path, "rt") if path.suffix == ".xz" else open(path)  # noqa: SIM115
    return path.name, map(json.loads, lines)


def samples(count: int | None, path: Path | None = None, seed: int = 0) -> tuple[str, list[Sample]]:
    """A name for the data, and ``count`` samples (None: all), the same ones for each seed."""
    name, rows = _rows(path)
    found = [
        Sample(
            row["id"],
            json.dumps(row["schema"], ensure_ascii=False),
            tuple(written(test["data"]) for test in row["tests"] if test["valid"]),
            tuple(written(test["data"]) for test in row["tests"] if not test["valid"]),
        )
        for row in rows
        if row["tests"]
    ]
    chosen = found if count is None or count >= len(found) else random.Random(seed).sample(found, count)
    return f"{len(chosen):,} of the {len(found):,} schemas of {name}", chosen
