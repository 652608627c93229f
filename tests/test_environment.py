"""Numbers in environment variables: what each text means, and that what is no number is said once."""

from __future__ import annotations

import logging

import pytest

from vllm_guided import environment, store


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 7.0),
        (" ", 7.0),
        ("3", 3.0),
        (" 2.5 ", 2.5),
        ("-1", 1.0),
        ("inf", 100.0),
        ("1e400", 100.0),
        ("nan", 7.0),
        ("2GB", 7.0),
    ],
)
def test_numbers(monkeypatch: pytest.MonkeyPatch, text: str, expected: float) -> None:
    monkeypatch.setenv("A_NUMBER", text)
    assert environment.number("A_NUMBER", 7.0, least=1.0, most=100.0) == expected


def test_what_is_no_number_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    environment._read.cache_clear()
    monkeypatch.setenv("A_NUMBER", "10s")
    for _ in range(3):
        environment.number("A_NUMBER", 7.0, least=1.0, most=100.0)
    assert [record.getMessage() for record in caplog.records] == [
        "A_NUMBER must be a number, not '10s'; 7 is used."
    ]


def test_a_store_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.ENVIRONMENT, "inf")
    assert store.budget_bytes() > 1 << 40
