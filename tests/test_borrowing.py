"""Arenas that grow while they are used: what is read is right, and what grew out of its array is freed."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Any

import numba
import pytest
import strategies
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numba.core.runtime import _nrt_python, rtsys
from strategies import Words
from test_engine_properties import mask_of, next_token

import vllm_guided as vg
from vllm_guided.automaton.automaton import Automaton
from vllm_guided.runtime.arena import arena_at
from vllm_guided.runtime.borrowing import RETIRED_LIMIT

PATTERNS = [
    rf"([a-{last}]{{{least},{least + 500}}}|é*|[^{last}]+ ){last}" for least in (0, 3, 40) for last in "bcxyz"
]
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {f"{first}{second}": {"type": "string", "maxLength": number} for second in "abc"},
    }
    for number, first in enumerate("klmnop", start=5)
]


def words() -> Words:
    choices = random.Random(3)
    longer = {bytes(choices.choices(b'abcxyz{}":, ', k=choices.randint(2, 12))) for _ in range(1500)}
    tokens: list[bytes | None] = [
        *(bytes([byte]) for byte in range(256)),
        *sorted(longer),
        "é".encode(),
        None,
    ]
    return Words(tokens, [len(tokens) - 1])


WORDS = words()
VOCABULARY = WORDS.build()


@pytest.fixture(scope="module")
def automata() -> list[Automaton]:
    """Kept by the tests, so that their arrays are not counted as those of arenas."""
    compiler = vg.GrammarCompiler(VOCABULARY)
    grammars = [compiler.compile_regex(pattern) for pattern in PATTERNS]
    grammars += [compiler.compile_json_schema(schema) for schema in SCHEMAS]
    return [grammar.automaton for grammar in grammars]


def trace(grammar: vg.CompiledGrammar, seed: int, steps: int = 12) -> list[frozenset[int]]:
    """The masks of a fixed walk."""
    choices, seen = random.Random(seed), []
    matcher = grammar.matcher()
    for _ in range(steps):
        mask = mask_of(matcher, WORDS)
        seen.append(frozenset(mask))
        if matcher.is_terminated():
            break
        assert matcher.accept_tokens([next_token(mask, WORDS, choices)])
    return seen


@pytest.mark.parametrize("budget", [0, 1, 1 << 12, 1 << 16, 1 << 20])
def test_tiny_budgets(budget: int, automata: list[Automaton]) -> None:
    """Tables that are replaced all the time, and begin as small as can be."""
    large, small = vg.GrammarCompiler(VOCABULARY), vg.GrammarCompiler(VOCABULARY, max_bytes=budget)
    held = []
    runtimes = set()
    for number, automaton in enumerate([*automata, *automata]):
        one, other = large.bind(automaton), small.bind(automaton)
        assert trace(one, number) == trace(other, number)
        # Matchers outlive the tables that newer ones use.
        held.append((one.matcher(), other.matcher()))
        runtimes.add(id(held[-1][1]._runtime))
    assert len(runtimes) > 5 or budget > 1 << 12
    for one, other in held:
        mask = mask_of(one, WORDS)
        assert mask == mask_of(other, WORDS)
        token = min(mask)
        assert one.accept_tokens([token]) and other.accept_tokens([token])
        assert mask_of(one, WORDS) == mask_of(other, WORDS)


@settings(max_examples=50)
@given(st.data())
def test_tiny_budgets_at_random(data: st.DataObject) -> None:
    """Matchers of several grammars in turn, each in whatever tables were current when it was made."""
    choices = data.draw(st.randoms(use_true_random=False))
    tokens = data.draw(strategies.vocabularies(complete=True))
    vocabulary = tokens.build()
    large = vg.GrammarCompiler(vocabulary)
    small = vg.GrammarCompiler(vocabulary, max_bytes=choices.choice([0, 1 << 10, 1 << 14]))
    pairs = []
    for grammar in data.draw(st.lists(strategies.grammars(), min_size=2, max_size=4)):
        try:
            one = large.compile_grammar_ir(grammar)
        except vg.InvalidConstraint:
            continue
        other = small.compile_grammar_ir(grammar)
        pairs += [(one.matcher(), other.matcher()) for _ in range(2)]
    assume(pairs)
    for _ in range(15):
        one_matcher, other_matcher = choices.choice(pairs)
        mask = mask_of(one_matcher, tokens)
        assert mask_of(other_matcher, tokens) == mask
        if one_matcher.is_terminated():
            continue
        token = next_token(mask, tokens, choices)
        assert one_matcher.accept_tokens([token]) and other_matcher.accept_tokens([token])


@pytest.fixture
def counted() -> Iterator[None]:
    """numba counts what it allocates and frees."""
    before = _nrt_python.memsys_stats_enabled()
    _nrt_python.memsys_enable_stats()
    yield
    if not before:
        _nrt_python.memsys_disable_stats()


def live() -> int:
    """Arrays of compiled code that are allocated (more than were before counting began)."""
    gc.collect()
    found = rtsys.get_allocation_stats()
    return int(found.mi_alloc - found.mi_free)


@numba.njit  # type: ignore[untyped-decorator]
def retired(address: Any) -> Any:
    return arena_at(address).retired_count


def test_outgrown_arrays_are_freed(automata: list[Automaton], counted: None) -> None:
    """An arena has as many arrays when it has grown as when it began."""
    compiler = vg.GrammarCompiler(VOCABULARY, max_bytes=1 << 20)
    address = compiler.runtime().address
    trace(compiler.bind(automata[0]), 0)
    mask_of(compiler.bind(automata[0]).matcher(), WORDS)
    begun, most = live(), 0
    for number, automaton in enumerate(automata):
        matcher = compiler.bind(automaton).matcher()
        choices = random.Random(number)
        for _ in range(20):
            mask = mask_of(matcher, WORDS)
            most = max(most, retired(address))
            assert retired(address) < RETIRED_LIMIT
            if not matcher.is_terminated():
                assert matcher.accept_tokens([next_token(mask, WORDS, choices)])
    assert matcher._runtime is compiler.runtime(), "the test wants one arena"
    assert most > 3, "nothing grew"
    # A fill of what is known grows nothing, and frees what the calls before it retired.
    mask_of(matcher, WORDS)
    assert retired(address) == 0
    assert live() == begun


def test_arenas_are_freed(automata: list[Automaton], counted: None) -> None:
    """Nothing is left of a compiler, and of the tables that it replaced."""

    def use() -> None:
        compiler = vg.GrammarCompiler(VOCABULARY, max_bytes=1 << 14)
        for number, automaton in enumerate(automata):
            trace(compiler.bind(automaton), number)

    use()
    begun = live()
    for _ in range(5):
        use()
    assert live() == begun
