"""States that no short text tells apart: against their definition, and the masks that are found by them."""

from __future__ import annotations

import random
from functools import cache

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Words
from test_engine_properties import mask_of

import vllm_guided as vg
from vllm_guided.runtime import entry
from vllm_guided.runtime.arena import arena_at
from vllm_guided.runtime.horizon import FAR, MIDDLE, NEAR, like_states

Moves = list[tuple[int, int, int]]


@st.composite
def automata(draw: st.DrawFn) -> tuple[list[Moves], list[int], list[int]]:
    """Moves (low, high, target) of each state, which are accepting, and which are looked at."""
    count = draw(st.integers(1, 60))
    random_ = random.Random(draw(st.integers(0, 1 << 30)))
    kinds = draw(st.integers(1, 3))
    odd = draw(st.sampled_from([0.0, 0.02, 0.3]))
    ranges = [(48, 57), (65, 70), (97, 122)]
    moves: list[Moves] = []
    for state in range(count):
        # Mostly a chain with ways back, as counted text has.
        targets = [min(state + 1, count - 1), 0, state]
        moves.append(
            [
                (low, high, random_.randrange(count) if random_.random() < odd else targets[k % kinds])
                for k, (low, high) in enumerate(ranges)
                if random_.random() >= odd
            ]
        )
    accepting = [int(random_.random() < odd or state == count - 1) for state in range(count)]
    chosen = [state for state in range(count) if random_.random() >= odd / 2]
    return moves, accepting, chosen


@given(automata())
def test_like_states_are_those_that_no_short_text_tells_apart(
    automaton: tuple[list[Moves], list[int], list[int]],
) -> None:
    moves, accepting, chosen = automaton
    flat = [move for own in moves for move in own]
    like, reach = like_states(
        np.array(chosen, np.int32),
        np.cumsum([0, *map(len, moves)]).astype(np.int32),
        *(
            np.array([move[k] for move in flat], dtype)
            for k, dtype in enumerate((np.uint8, np.uint8, np.int32))
        ),
        np.array(accepting, np.uint8),
    )

    @cache
    def alike(one: int, other: int, length: int) -> bool:
        if one == other:
            return True
        if not (
            one in chosen
            and other in chosen
            and accepting[one] == accepting[other]
            and [move[:2] for move in moves[one]] == [move[:2] for move in moves[other]]
        ):
            return False
        targets = [(a[2], b[2]) for a, b in zip(moves[one], moves[other], strict=True)]
        if length == 0:
            return all(a == b or (a in chosen and b in chosen) for a, b in targets)
        return all(alike(a, b, length - 1) for a, b in targets)

    for state in range(len(moves)):
        assert alike(state, like[state], int(reach[state]))
        assert reach[state] == max(n for n in (NEAR, MIDDLE, FAR) if alike(state, like[state], n))
        for other in range(state):
            assert alike(state, other, NEAR) == (like[state] == like[other])


@numba.njit(numba.int64(numba.int64))
def like_states_of(address: int) -> int:
    arena = arena_at(address)
    return (arena.state_like[: arena.state_count] >= 0).sum()


def words() -> Words:
    """Bytes, and runs of each length up to 40: of letters, with blanks, with characters, with an end."""
    choices = random.Random(11)
    tokens = [bytes([byte]) for byte in b'ab01 ",\\n-' + "é\u3000".encode()]
    for length in range(2, 41):
        tokens += [
            b"a" * length,
            b" " + b"b" * (length - 1),
            b"a " * (length // 2),
            b"-" * (length - 1) + b'"',
        ]
        for alphabet in ("ab01", "ab  ", "aé", "ab\u3000é ", 'ab ",\\n'):
            tokens.append("".join(choices.choices(alphabet, k=length)).encode()[:length])
    listed = sorted(set(tokens))
    return Words([*listed, None], [len(listed)])


@pytest.mark.parametrize(
    ("pattern", "most"),
    [
        (r"^(\S+\s+){0,9}\S+$", 45),
        (r"^(\S+\s+){0,3}\S+$", 64),
        (r"^[a-z]+( [a-z]+)*$", 90),
        (r"^([a-z0-9]|ab )*(-[0-9]+)?$", 70),
        (r"a[^b]{3}|^[^0]*$", 40),
    ],
)
def test_masks_near_and_far_from_the_limits(pattern: str, most: int) -> None:
    vocabulary = words()
    compiler = vg.GrammarCompiler(vocabulary.build())
    schema = {"type": "array", "items": {"type": "string", "pattern": pattern, "maxLength": most}}
    matcher = compiler.compile_json_schema(schema).matcher()
    choices = random.Random(most)
    data = vocabulary.token_bytes
    ids = np.arange(len(data), dtype=np.int32)
    beginnings = [b'["' + b"a" * count for count in (0, 1, 9, most - 26, most - 13, most - 7)]
    looked_at = 0
    for beginning in beginnings * 3:
        matcher.reset()
        if not matcher.accept_bytes(beginning):
            continue
        for _ in range(12):
            tried = np.zeros(len(ids), np.int32)
            states = np.full_like(tried, matcher.state)
            entry.advance_batch(matcher._runtime.address, states, ids, tried)
            allowed = set(np.flatnonzero(tried).tolist())
            assert mask_of(matcher, vocabulary) == allowed
            looked_at += 1
            short = [id for id in sorted(allowed) if len(data[id] or b"x" * 9) < 9]
            if not short or not matcher.accept_tokens([choices.choice(short)]):
                break
    assert looked_at > 60
    assert like_states_of(matcher._runtime.address) > 20
