"""Sets of stacks: united one by one or all at once, and grammars whose states stand on very many."""

from __future__ import annotations

import random

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Words
from test_engine_properties import agree, both, next_token

import vllm_guided as vg
from vllm_guided.grammar import ir
from vllm_guided.runtime.arena import BOTTOM, UNKNOWN, arena_at
from vllm_guided.runtime.collecting import WIDE
from vllm_guided.runtime.stacks import push, union, union_of_all

_int = numba.int64


@numba.njit(_int(_int, _int, _int))
def pushed(address: int, state: int, below: int) -> int:
    return push(arena_at(address), state, below)


@numba.njit(_int(_int, numba.int64[::1]))
def one_by_one(address: int, sets: np.ndarray) -> int:
    arena = arena_at(address)
    whole = sets[0]
    for k in range(1, sets.size):
        whole = union(arena, whole, sets[k], 0)
    return whole


@numba.njit(_int(_int, numba.int64[::1]))
def at_once(address: int, sets: np.ndarray) -> int:
    return union_of_all(arena_at(address), sets.copy(), sets.size)


@settings(max_examples=200)
@given(st.randoms(use_true_random=False), st.integers(1, 40), st.integers(1, 6))
def test_sets_united_at_once_are_the_number_that_they_are_one_by_one(
    choices: random.Random, count: int, states: int
) -> None:
    runtime = vg.GrammarCompiler(Words([b"a", None], [1]).build(), max_bytes=1 << 20).runtime()
    address = runtime.address
    known = [BOTTOM, UNKNOWN]
    for _ in range(3 * count):
        if choices.random() < 0.7:
            known.append(pushed(address, choices.randrange(states), choices.choice(known)))
        else:
            known.append(one_by_one(address, np.array(choices.choices(known, k=3))))
    sets = np.array(choices.choices(known, k=count))
    assert at_once(address, sets) == one_by_one(address, sets)
    assert runtime.statistics()["overflowed"] == 0


def many_callers(count: int, depth: int) -> ir.Grammar:
    """Texts whose middle is a rule that ``count`` places call, each of which goes on in its own way."""
    name = ir.Ref("0")
    rules = {"start": ir.Rule(ir.choice(*(ir.sequence(name, ir.text(f",{k};")) for k in range(count))))}
    for level in range(depth):
        inner = ir.Ref(str(level + 1))
        ways = [ir.sequence(ir.text("("), inner, ir.text(f"){k}")) for k in range(count)]
        rules[str(level)] = ir.Rule(ir.choice(ir.text("a"), *ways), shared=True)
    rules[str(depth)] = ir.Rule(
        ir.choice(ir.text("b"), ir.sequence(ir.text("["), name, ir.text("]"))), shared=True
    )
    return ir.Grammar(rules)


@pytest.mark.parametrize(("count", "depth"), [(WIDE - 1, 1), (WIDE + 1, 1), (40, 1), (3 * WIDE, 2)])
def test_states_on_very_many_stacks(count: int, depth: int) -> None:
    grammar = many_callers(count, depth)
    choices = random.Random(count)
    pieces = ["a,", "((", "b)", ")1", "1;", "[(", "a)", ")12", ",3", "0),", "]", "b)2)1", "[a]", ")"]
    listed = sorted({piece.encode() for piece in pieces} | {bytes([byte]) for byte in b"ab()[],;0123456789"})
    words = Words([*listed, None], [len(listed)])
    for _ in range(6):
        matcher, walk = both(grammar, words)
        for _ in range(14):
            mask = agree(matcher, walk, words)
            if not mask or walk.terminated():
                break
            token = next_token(mask, words, choices)
            assert matcher.accept_tokens([token]) and walk.accept(token)
