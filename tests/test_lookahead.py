"""Masks made ahead are the masks that would have been made later, and are made only while nobody waits."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import vocabularies
from hypothesis import given, settings
from hypothesis import strategies as st

import vllm_guided as vg
from vllm_guided.runtime.lookahead import COMMON, Lookahead, common_tokens
from vllm_guided.runtime.matcher import GrammarMatcher
from vllm_guided.vllm import counters, idle

STOP = 300
VOCABULARY = vg.Vocabulary(
    [
        *[bytes([i]) for i in range(256)],
        b'":',
        b'",',
        b'{"',
        b'"}',
        b"ab",
        b"abc",
        b'a"',
        b" :",
        *[None] * 37,
    ],
    stop_token_ids=[STOP],
)
SCHEMAS = (
    {
        "type": "object",
        "properties": {"ab": {"type": "string"}, "abc": {"type": "integer"}},
        "required": ["ab"],
    },
    {"type": "array", "items": {"enum": ["a", "b", 3]}, "uniqueItems": True},
    {"type": "string", "pattern": "^[a-c]+$", "maxLength": 7},
)


def walk(matcher: GrammarMatcher, choices: list[int], ahead: Lookahead | None) -> list[bytes]:
    """The masks on a way through a grammar."""
    bitmask = vg.allocate_token_bitmask(1, VOCABULARY.size)
    seen = []
    for choice in choices:
        matcher.fill_bitmask(bitmask, 0)
        seen.append(bitmask.tobytes())
        allowed = [t for t in range(VOCABULARY.size) if bitmask[0, t >> 5] >> (t & 31) & 1]
        if not matcher.accept_tokens([allowed[choice % len(allowed)]]) or matcher.is_terminated():
            break
        if ahead is not None:
            ahead.work([matcher.state, matcher.state, -1, 0, 1], lambda over=choice % 3 == 0: over)
    return seen


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SCHEMAS), st.lists(st.integers(0, 10**6), min_size=1, max_size=25))
def test_the_masks_stay_the_same(schema: dict[str, object], choices: list[int]) -> None:
    found = []
    for looks in (False, True):
        matcher = vg.GrammarCompiler(VOCABULARY).compile_json_schema(schema).matcher()
        ahead = Lookahead(matcher._runtime, common_tokens(VOCABULARY)) if looks else None
        found.append(walk(matcher, choices, ahead))
    assert found[0] == found[1]


def test_what_follows_is_there_already() -> None:
    compiler = vg.GrammarCompiler(VOCABULARY)
    matcher = compiler.compile_json_schema(SCHEMAS[0]).matcher()
    ahead = Lookahead(matcher._runtime, common_tokens(VOCABULARY))
    bitmask = vg.allocate_token_bitmask(1, VOCABULARY.size)
    assert ahead.work([matcher.state], lambda: False)
    assert ahead.made > 0
    made = compiler.statistics()["masks"]
    for token in (ord("{"), 258):  # {"
        other = matcher.copy()
        assert other.accept_tokens([token])
        other.fill_bitmask(bitmask, 0)
    assert compiler.statistics()["masks"] == made
    before = ahead.made
    assert ahead.work([matcher.state], lambda: False) and ahead.made == before


def test_it_stops_at_the_next_piece() -> None:
    matcher = vg.GrammarCompiler(VOCABULARY).compile_json_schema(SCHEMAS[0]).matcher()
    ahead = Lookahead(matcher._runtime, common_tokens(VOCABULARY))
    answers = iter([False, True])
    assert not ahead.work([matcher.state], lambda: next(answers))
    assert 0 < ahead.made <= 2
    assert ahead.work([matcher.state], lambda: False)
    assert ahead.nbytes > 0


def test_common_tokens() -> None:
    found = common_tokens(VOCABULARY)
    assert ord('"') in found and 256 in found and ord("a") not in found and 260 not in found


def test_common_tokens_of_a_real_vocabulary() -> None:
    _, real = vocabularies.llama3()
    found = [real.token_bytes(int(token)) for token in common_tokens(real)]
    assert len(found) == COMMON and {b'"', b"{", b",", b" {"} <= set(found)


def test_a_thread_works_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "_values", {})
    compiler = vg.GrammarCompiler(VOCABULARY)
    matcher = compiler.compile_json_schema(SCHEMAS[0]).matcher()
    work = idle.IdleWork(compiler)
    work.start()
    work.begin([matcher, matcher], np.array([matcher.state, -1], np.int32))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not counters.value("masks_ahead"):
        time.sleep(0.01)
    assert counters.value("masks_ahead") > 0
    work.begin([], np.array([], np.int32))
    work.pause()
    compiler.max_bytes = 0  # no room left: what requests need comes first
    other = compiler.compile_json_schema(SCHEMAS[2])
    counted = counters.value("masks_ahead")
    work.begin([other.matcher()], np.array([other.matcher().state], np.int32))
    time.sleep(0.2)
    assert counters.value("masks_ahead") == counted
    assert isinstance(work, threading.Thread) and work.daemon and work.is_alive()


@pytest.mark.parametrize(
    ("asked", "cores", "wanted"), [("1", 1, True), ("0", 64, False), ("", 2, False), ("", 4, True)]
)
def test_who_gets_it(monkeypatch: pytest.MonkeyPatch, asked: str, cores: int, wanted: bool) -> None:
    monkeypatch.setenv(idle.ENVIRONMENT, asked)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert idle.is_wanted() is wanted
