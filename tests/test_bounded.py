"""Caches that are bounded in bytes."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import vllm_guided as vg
from vllm_guided import compiler as compilers
from vllm_guided import constraints
from vllm_guided.automaton.automaton import Automaton
from vllm_guided.automaton.fragments import FRAGMENTS
from vllm_guided.automaton_cache import AutomatonCache
from vllm_guided.bounded import Meter, bounded_cache, rough_size, size_made
from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.json_schema import number_text, numbers
from vllm_guided.frontends.json_schema.leaves import Leaves
from vllm_guided.grammar import ir


def test_a_cache_remembers_and_forgets_all_beyond_its_bytes() -> None:
    calls: list[int] = []

    @bounded_cache(100, 12_000)
    def text(length: int) -> str:
        calls.append(length)
        return "x" * length

    assert text(10) == text(10) == "x" * 10 and calls == [10]
    for length in range(1000, 1008):
        assert len(text(length)) == length
    assert text(10) and calls.count(10) == 1
    assert len(text(5000)) == 5000  # too much: all but this is forgotten
    assert text.cache_info().currsize == 1
    assert text(5000) and calls.count(5000) == 1
    assert text(10) and calls.count(10) == 2
    assert len(text(1_000_000)) == 1_000_000
    assert text.cache_info().currsize == 1


def test_entries_are_bounded_too_and_errors_are_not_kept() -> None:
    @bounded_cache(3, 1 << 20)
    def inverse(value: int) -> float:
        return 1 / value

    for value in range(1, 10):
        assert inverse(value) == 1 / value
    assert inverse.cache_info().currsize == 3
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            inverse(0)


def test_what_a_meter_holds_is_never_more_than_it_may_but_for_one() -> None:
    meter = Meter(1000)
    held: list[int] = []
    for size in np.random.default_rng(1).integers(1, 400, 500).tolist():
        if not meter.takes(size):
            held.clear()
        held.append(size)
        assert sum(held) == meter.held and (meter.held <= 1000 or len(held) == 1)
    assert not meter.takes(5000) and meter.held == 5000


def test_a_cache_is_safe_among_threads() -> None:
    @bounded_cache(64, 3_000)
    def text(length: int) -> str:
        return "x" * length

    together = threading.Barrier(4)

    def work(_: int) -> bool:
        together.wait(60)
        return all(len(text(length % 97)) == length % 97 for length in range(5_000))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        (None, 0, 0),
        ("x" * 10_000, 10_000, 10_200),
        (("x" * 10_000,) * 50, 10_000, 11_000),
        ({"a": ["y" * 500, b"z" * 500]}, 1_000, 1_500),
        (np.zeros(1000, np.int64), 8_000, 8_200),
        (ir.Sequence((ir.Literal(b"x" * 3_000), ir.Ref("y"))), 3_000, 3_600),
        (ir.Graph(tuple((n, ir.EMPTY, n + 1) for n in range(100)), frozenset([100])), 10_000, 40_000),
    ],
)
def test_rough_sizes(value: object, least: int, most: int) -> None:
    assert least <= rough_size(value) <= most


@pytest.mark.parametrize("count", [0, 1, 100, 3_000])
def test_what_was_made_is_counted(count: int) -> None:
    gc.disable()
    try:
        before = gc.get_count()[0]
        made = [[number] for number in range(count)]
        # The interpreter keeps some free lists, which are not counted.
        assert (
            100 * (count - 100)
            <= size_made(before, "x" * 500, (np.zeros(100),)) - 1_300
            <= 300 * count + 20_000
        )
        del made
        assert size_made(gc.get_count()[0] + 1_000, ("x" * 9_000,)) > 9_000
        assert size_made(gc.get_count()[0] + 1_000, ir.Rule(ir.ByteGraph(2, bytes(9_000)))) > 9_000
    finally:
        gc.enable()


def test_numbers_with_ever_new_bounds_take_no_more_and_no_more() -> None:
    for low in range(3_000):
        number_text.number_node(numbers.Numbers(low=low * 7 + 1, high=low * 1000 + 12345))
    info = number_text.number_node.cache_info()
    assert info.currsize < 3_000


def test_leaves_are_forgotten_by_their_bytes_but_for_those_in_use() -> None:
    leaves = Leaves(100, 10_000)
    rule = ir.Rule(ir.Literal(b"x" * 1_000))
    for number in range(50):
        leaves.keep((number,), rule, 1_200)
        assert leaves.find((0,)) is rule
        assert leaves.held == 1_200 * len(leaves) <= 10_000
    assert leaves.find((1,)) is None and leaves.find((49,)) is rule
    leaves.keep(("large",), rule, 50_000)
    assert len(leaves) == 1 and leaves.find(("large",)) is rule
    few = Leaves(3, 10_000)
    for number in range(9):
        few.keep((number,), rule, 1)
        few.keep((number,), rule, 1)
    assert len(few) == few.held == 3


def test_compiled_grammars_are_kept_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: list[bytes | None] = [b"a", b"b", None]
    compiler = vg.GrammarCompiler(vg.Vocabulary(tokens, stop_token_ids=[2]))
    one = compiler.compile_regex("(ab){40}")
    assert compiler.compile_regex("(ab){40}") is one
    monkeypatch.setattr(compilers, "GRAMMAR_BYTES", 5 * one.nbytes)
    for count in range(41, 61):
        assert compiler.compile_regex(f"(ab){{{count}}}").matcher().accept_tokens([0, 1])
    kept = compiler._grammars.values()
    assert 2 <= len(kept) <= 6
    assert compiler._grammar_bytes == sum(grammar.nbytes for grammar in kept) <= 5 * one.nbytes
    monkeypatch.setattr(compilers, "GRAMMAR_BYTES", one.nbytes // 2)
    assert compiler.compile_regex("(ba){40}").matcher().accept_tokens([1, 0])
    assert not compiler._grammars and compiler._grammar_bytes == 0


def test_a_process_holds_no_more_compiled_constraints_than_it_is_told() -> None:
    before = constraints._cache.limit + FRAGMENTS.limit
    constraints.clear_cache()
    try:
        constraints.limit_cached_bytes(100_000)
        for number in range(60):
            schema = {"properties": {f"name_{number}_{other}": {"type": "integer"} for other in range(9)}}
            assert constraints.compile_constraint("json_schema", schema).state_count
            # One constraint alone may be larger than its part.
            assert len(constraints._cache.entries) == 1 or constraints._cache.held <= 80_000
            assert FRAGMENTS.held <= 20_000
        held = constraints.cached_bytes()
        constraints.limit_cached_bytes(held // 2)
        assert constraints.cached_bytes() < held
    finally:
        constraints.limit_cached_bytes(before)


def test_refusals_count_with_their_messages() -> None:
    """A message may quote what a client wrote."""
    cache = AutomatonCache(100_000)

    def refuse() -> Automaton:
        raise ConstraintTooComplex("x" * 10_000)

    for number in range(50):
        with pytest.raises(ConstraintTooComplex):
            cache.get(bytes([number]), refuse)
    assert cache.held <= 100_000 and len(cache.entries) < 10


def test_refusals_of_the_moment_are_not_kept() -> None:
    cache = AutomatonCache(1 << 20)
    calls: list[str] = []

    def refuse(passing: bool) -> Automaton:
        calls.append("")
        error = ConstraintTooComplex("no time")
        error.passing = passing
        raise error

    def fault() -> Automaton:
        raise RuntimeError("a fault")

    for _ in range(2):
        with pytest.raises(ConstraintTooComplex):
            cache.get(b"a", lambda: refuse(True))
    assert len(calls) == 2 and cache.at_hand(b"a") is None
    for _ in range(2):
        with pytest.raises(ConstraintTooComplex):
            cache.get(b"a", lambda: refuse(False))
    assert len(calls) == 3 and isinstance(cache.at_hand(b"a"), ConstraintTooComplex)
    with pytest.raises(RuntimeError):
        cache.get(b"b", fault)
    assert not cache.under_way
    made = cache.get(b"b", lambda: constraints.compile_constraint("regex", "ab"))
    assert cache.at_hand(b"b") is made
