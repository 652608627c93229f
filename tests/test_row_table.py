"""Rows by number, against a dictionary that keeps every row: numbers always mean the row they should."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vllm_guided as vg
from vllm_guided.runtime.row_table import EVERYTHING, NOTHING, RowTable
from vllm_guided.runtime.steps import draft_states, fill_masks, next_states, number_states, states_of

WORDS = 3
TOKENS: list[bytes | None] = [bytes([65 + i]) for i in range(26)] + [b"AB", b"BC", b"ABC", None]
STOP = len(TOKENS) - 1


@pytest.fixture(scope="module")
def compiler() -> vg.GrammarCompiler:
    return vg.GrammarCompiler(vg.Vocabulary(TOKENS, stop_token_ids=[STOP]))


class Worker:
    """What a worker holds: it sees the new rows of each step, in order."""

    def __init__(self, capacity: int, words: int) -> None:
        self.rows = np.full((capacity, words), 0x5A5A5A5A, np.int32)

    def receive(self, table: RowTable) -> int:
        slots, rows = table.added()
        assert len(set(slots.tolist())) == len(slots)
        self.rows[slots] = rows
        return len(slots)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(2, 6), st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), max_size=30), st.data()
)
def test_numbers_mean_their_rows(capacity: int, steps: list[list[int]], data: st.DataObject) -> None:
    contents = np.arange(10 * WORDS, dtype=np.int32).reshape(10, WORDS)
    table, worker = RowTable(capacity, WORDS), Worker(capacity, WORDS)
    for wanted in steps:
        table.begin()
        numbers = [table.number_row(contents[content]) for content in wanted]
        if len(set(wanted)) > capacity:
            assert None in numbers
            table.forget_added()
            assert not len(table.added()[0])
            continue
        if data.draw(st.booleans()):
            table.forget_added()  # a step that was never sent
            continue
        worker.receive(table)
        for content, number in zip(wanted, numbers, strict=True):
            np.testing.assert_array_equal(worker.rows[number], contents[content])
    assert table.rows_held <= capacity


def test_a_row_is_sent_once() -> None:
    contents = np.arange(4 * WORDS, dtype=np.int32).reshape(4, WORDS)
    table, worker = RowTable(3, WORDS), Worker(3, WORDS)
    sent = []
    for wanted in ([0, 1, 0], [1, 0], [2], [0, 1, 2], [3], [1, 2], [0]):
        table.begin()
        for content in wanted:
            assert table.number_row(contents[content]) is not None
        sent.append(worker.receive(table))
    # In the fifth step row 0, 1 and 2 are equally old; the first slot goes.
    assert sent == [2, 0, 1, 0, 1, 0, 1]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(range(6)), min_size=1, max_size=6), min_size=1, max_size=12),
    st.integers(2, 9),
)
def test_states_are_numbered_as_they_are_filled(
    compiler: vg.GrammarCompiler, steps: list[list[int]], capacity: int
) -> None:
    patterns = ["[A-F]+", "(AB|C)*", "A{3}", "[^A]", "A?B?C?", "(A|AB)(BC|C)"]
    matchers = [compiler.compile_regex(pattern).matcher() for pattern in patterns]
    words = matchers[0].words
    table, worker = RowTable(capacity, words), Worker(capacity, words)
    for step in steps:
        table.begin()
        used = [matchers[i] for i in step]
        bitmask = vg.allocate_token_bitmask(len(used), len(TOKENS))
        assert fill_masks(used, states_of(used), bitmask, np.arange(len(used))) == []
        numbers = number_states(used, states_of(used), table)
        if numbers is None:
            assert len({row.tobytes() for row in bitmask}) > capacity
            table.forget_added()
        else:
            worker.receive(table)
            np.testing.assert_array_equal(worker.rows[numbers], bitmask)
        for matcher, row in zip(used, bitmask, strict=True):
            allowed = [t for t in range(STOP) if row[t >> 5] >> (t & 31) & 1]
            if not (allowed and matcher.accept_tokens(allowed[-1:])):
                matcher.reset()


def test_what_has_no_row_says_so(compiler: vg.GrammarCompiler) -> None:
    matchers = [compiler.compile_regex(pattern).matcher() for pattern in ("é", "A")]
    table = RowTable(4, matchers[0].words)
    table.begin()
    states = states_of(matchers)
    assert number_states(matchers, states, table).tolist() == [NOTHING, 0]  # type: ignore[union-attr]
    assert number_states(matchers, np.array([-1, -1], np.int32), table).tolist() == [EVERYTHING] * 2  # type: ignore[union-attr]


def test_two_runtimes_share_a_table() -> None:
    vocabulary = vg.Vocabulary(TOKENS, stop_token_ids=[STOP])
    one, other = vg.GrammarCompiler(vocabulary), vg.GrammarCompiler(vocabulary)
    matchers = [compiler.compile_regex(p).matcher() for p in ("A", "B", "A") for compiler in (one, other)]
    table = RowTable(4, matchers[0].words)
    table.begin()
    numbers = number_states(matchers, states_of(matchers), table)
    assert numbers is not None and numbers.tolist() == [0, 0, 1, 1, 0, 0]
    assert table.rows_held == 2 and table.nbytes > 0


def slow_draft_states(
    matcher: vg.GrammarMatcher, drafts: list[int], fed_from: int, masked_from: int
) -> list[int]:
    """The rows of one request, by accepting its drafts one after another."""
    matcher = matcher.copy()
    states: list[int] = []
    padded = refused = False
    for position, token in enumerate([*drafts, None]):
        if refused:
            states.append(states[-1])
        else:
            states.append(matcher.state if not padded and position >= masked_from else -1)
        if token is None or padded or refused:
            continue
        if token < 0:
            padded = True
        elif position >= fed_from:
            refused = not matcher.accept_tokens([token])
    return states


TOKEN = st.sampled_from([0, 1, 2, 26, 27, 28, STOP, -1])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["[A-C]+", "(AB|C)*", "A{3}", "A?B?C?"]),
            st.lists(TOKEN, max_size=4),
            st.integers(0, 3),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
def test_draft_states(
    compiler: vg.GrammarCompiler, cases: list[tuple[str, list[int], int, int]], mixed: bool
) -> None:
    other = vg.GrammarCompiler(compiler.vocabulary) if mixed else compiler
    matchers = [
        (other if i % 2 else compiler).compile_regex(pattern).matcher()
        for i, (pattern, *_) in enumerate(cases)
    ]
    offsets = np.concatenate([[0], np.cumsum([len(drafts) for _, drafts, *_ in cases])]).astype(np.int32)
    flat = np.array([t for _, drafts, *_ in cases for t in drafts], np.int32)
    fed, masked = (np.array([case[k] for case in cases], np.int32) for k in (2, 3))
    states, _ = draft_states(matchers, flat, offsets, fed, masked)
    expected = [
        state
        for matcher, (_, drafts, *starts) in zip(matchers, cases, strict=True)
        for state in slow_draft_states(matcher, drafts, *starts)
    ]
    assert states.tolist() == expected
    after = next_states(matchers, flat, offsets)
    for matcher, first, last in zip(matchers, offsets[:-1], offsets[1:], strict=True):
        reached = matcher.peek_states(flat[first:last].tolist()) if last > first else []
        assert after[first:last].tolist() == reached + [0] * (last - first - len(reached))
