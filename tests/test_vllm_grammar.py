"""A request's grammar behind vLLM's interface: right answers, and never an exception."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stub_engine import StubMatcher

pytest.importorskip("vllm.v1.structured_output.backend_types")
from vllm_guided.vllm.grammar import GuidedGrammar

A, B, AB, END, EOT, C = range(6)
TOKENS: list[bytes | None] = [b"a", b"b", b"ab", None, None, b"c"]
KNOWN = frozenset({END})


def grammar(*texts: str, extra: frozenset[int] = frozenset()) -> GuidedGrammar:
    matcher = StubMatcher([text.encode() for text in texts], TOKENS, KNOWN)
    return GuidedGrammar(matcher, "r", extra, KNOWN | extra)


def allowed(g: GuidedGrammar) -> set[int]:
    bitmask = np.zeros((2, 1), dtype=np.int32)
    g.fill_bitmask(bitmask, 1)
    assert not bitmask[0].any()
    return {i for i in range(32) if int(bitmask[1, 0]) >> i & 1}


def test_the_usual_way() -> None:
    g = grammar("ab", "a")
    assert allowed(g) == {A, AB}
    assert g.validate_tokens([A, B, C]) == [A, B]
    assert g.accept_tokens("r", [A])
    assert allowed(g) == {B, END}
    assert not g.is_terminated()
    assert g.validate_tokens([END, A]) == [END]
    assert g.accept_tokens("r", [B, END, A])
    assert g.is_terminated() and g.validate_tokens([A]) == []
    assert allowed(g) == {END}
    assert g.accept_tokens("r", [A])
    g.rollback(2)
    assert allowed(g) == {B, END}
    g.reset()
    assert allowed(g) == {A, AB}
    assert not g.accept_tokens("r", [C])


def test_a_torch_bitmask_is_filled_in_place() -> None:
    torch = pytest.importorskip("torch")
    bitmask = torch.zeros((1, 1), dtype=torch.int32)
    grammar("a").fill_bitmask(bitmask, 0)
    assert bitmask[0, 0] == 1 << A


def test_stop_tokens_of_the_request() -> None:
    g = grammar("ab", "a", extra=frozenset({EOT, B}))
    assert allowed(g) == {A, AB}
    assert g.accept_tokens("r", [A])
    assert allowed(g) == {B, END, EOT}
    assert g.validate_tokens([EOT, A]) == [EOT]
    assert g.validate_tokens([B, A]) == [B]
    assert g.accept_tokens("r", [EOT])
    assert g.is_terminated() and g.validate_tokens([A]) == []
    assert allowed(g) == {B, END, EOT}
    g.rollback(1)
    assert not g.is_terminated() and allowed(g) == {B, END, EOT}
    g.rollback(1)
    assert allowed(g) == {A, AB}
    assert g.validate_tokens([B]) == []
    assert g.validate_tokens([A, EOT]) == [A, EOT]


def test_a_token_that_the_request_does_not_allow() -> None:
    """vLLM's sampler picks one where ``allowed_token_ids`` and the mask have nothing in common."""
    matcher = StubMatcher([b"ab", b"c"], TOKENS, KNOWN)
    g = GuidedGrammar(matcher, "r", stop_ids=KNOWN, allowed_ids=frozenset({A, B, END}))
    assert not g.is_plain and allowed(g) == {A, AB, C}
    assert g.validate_tokens([A, B, END]) == [A, B, END]
    assert g.validate_tokens([C]) == [] and g.validate_tokens([AB]) == []
    assert not g.accept_tokens("r", [C]) and not g.failed
    assert g.accept_tokens("r", [A, B, END]) and g.is_terminated()


def test_a_stop_token_that_is_the_only_way_stays_allowed() -> None:
    g = grammar("c", extra=frozenset({C}))
    assert allowed(g) == {C}
    assert g.accept_tokens("r", [C])
    assert allowed(g) == {C, END}


@pytest.mark.parametrize(
    ("method", "call", "answer"),
    [
        ("accept_tokens", lambda g: g.accept_tokens("r", [A]), False),
        ("validate_tokens", lambda g: g.validate_tokens([A]), []),
        ("rollback", lambda g: g.rollback(1), None),
        ("fill_bitmask", allowed, set(range(32))),
        ("is_terminated", lambda g: g.is_terminated(), False),
    ],
)
@pytest.mark.parametrize("extra", [frozenset(), frozenset({EOT})])
def test_a_fault_ends_only_this_request(
    caplog: pytest.LogCaptureFixture, method: str, call: Any, answer: Any, extra: frozenset[int]
) -> None:
    g = grammar(f"boom-{method}", extra=extra)
    assert call(g) == answer
    assert g.failed
    assert g.accept_tokens("r", [A]) is False
    assert g.validate_tokens([A]) == []
    assert g.is_terminated() is False
    assert allowed(g) == set(range(32))
    g.rollback(1)
    g.reset()
    assert [
        record.getMessage() for record in caplog.records if "ends with an error" in record.getMessage()
    ] == [record.getMessage() for record in caplog.records]
    assert len(caplog.records) == 1 and "request r" in caplog.text


@pytest.fixture(autouse=True)
def logs(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    import logging

    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
