"""The table of counters that the metrics are made from."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from vllm_guided.vllm import counters


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "_values", {})


def test_sums_by_name_and_labels() -> None:
    counters.add("compiles", kind="regex", where="service")
    counters.add("compiles", where="service", kind="regex")
    counters.add("compiles", 3, kind="choice", where="process")
    assert counters.value("compiles") == 5
    assert counters.value("compiles", kind="regex") == 2
    assert counters.value("compiles", kind="none") == counters.value("other") == 0
    assert counters.snapshot() == {
        ("compiles", (("kind", "regex"), ("where", "service"))): 2,
        ("compiles", (("kind", "choice"), ("where", "process"))): 3,
    }


def test_nothing_is_lost_between_threads() -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: counters.add("compiles", kind=str(number % 3)), range(3000)))
    assert counters.value("compiles") == 3000


def test_a_forked_child_counts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its parent counted is the parent's to publish, and a lock may have been held by another thread."""
    counters.add("compiles")
    with counters._lock:
        child = os.fork()
        if not child:
            counters.add("compiles", 2)
            os._exit(int(counters.value("compiles")))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert counters.value("compiles") == 1
