"""The table of counters that the metrics are made from."""

from __future__ import annotations

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
