"""Numbers that only grow, counted where things happen and read by whoever exports them.

One table per process, by name and labels; what a name means stands in :data:`MEANINGS`. Adding costs about
a microsecond, so it may stand on the way of a request, but not in a loop over tokens.

    counters.add("compiles", kind="json_schema")
    counters.add("compile_seconds", 0.0012, kind="json_schema")
    counters.snapshot()   # {("compiles", (("kind", "json_schema"),)): 1.0, ...}
"""

from __future__ import annotations

import os
import threading

#: What is counted, with the labels in brackets.
MEANINGS = {
    "compiles": "constraints compiled for this process, by the compile service or in the process itself "
    "[kind: of constraint; where: service, process]",
    "compile_seconds": "processor seconds of those compiles [kind, where]",
    "cache_hits": "constraints that needed no compile [level: memory (of this process), handoff (what a "
    "compile service left in the memory file system), disk (the store)]",
    "refusals": "constraints refused [reason: invalid, unsupported, too_complex, too_many (the queue of the "
    "compile service is full), other]",
    "compile_service_events": "what happened in this process's compile service [event: started (its "
    "processes), cancelled (every client that waited for the constraint had gone), postponed (until the slow "
    "lane has room), out_of_time, crashed (the process that compiled it ended, for want of memory perhaps)]",
    "accept_steps": "engine steps whose sampled tokens the grammars accepted",
    "accept_seconds": "seconds of those, all requests together, without vLLM's own loop",
    "fill_steps": "engine steps whose masks were filled",
    "fill_seconds": "seconds of those, all requests together",
    "rows": "mask rows of those steps [sent_as: number, whole]",
    "rows_sent": "mask rows that were sent to the workers because they had not held them before",
    "masks_ahead": "masks made while the engine core waited for the model, before any request needed them",
}

Key = tuple[str, tuple[tuple[str, str], ...]]
"""A name and its labels in alphabetical order."""

_lock = threading.Lock()
_values: dict[Key, float] = {}


def add(name: str, amount: float = 1.0, **labels: str) -> None:
    """Add ``amount`` to the counter ``name`` with these labels; it begins at 0."""
    key = name, tuple(sorted(labels.items()))
    with _lock:
        _values[key] = _values.get(key, 0.0) + amount


def value(name: str, **labels: str) -> float:
    """The sum of the counters ``name`` that have these labels and perhaps others."""
    wanted = labels.items()
    with _lock:
        return sum(v for (n, given), v in _values.items() if n == name and wanted <= dict(given).items())


def snapshot() -> dict[Key, float]:
    """A copy of all counters of this process."""
    with _lock:
        return dict(_values)


def _after_fork() -> None:
    """Another thread may have held the lock; the child counts what happens in it."""
    global _lock
    _lock = threading.Lock()
    _values.clear()


os.register_at_fork(after_in_child=_after_fork)
