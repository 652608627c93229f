"""Automata as arrays: the same for the same grammar whatever was compiled before; keys and parts by hand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import strategies
from hypothesis import given

import vllm_guided as vg
from vllm_guided.automaton.acyclic import acyclic_classes
from vllm_guided.automaton.automaton import ARRAYS, Automaton
from vllm_guided.automaton.build import build_automaton
from vllm_guided.automaton.components import grouped, strong_components
from vllm_guided.automaton.fragments import FRAGMENTS, FragmentCache
from vllm_guided.automaton.minimise import equivalence_classes
from vllm_guided.grammar import ir

A, B = ir.text("a"), ir.text("b")


@pytest.fixture(autouse=True)
def _no_fragments() -> Iterator[None]:
    FRAGMENTS.clear()
    yield
    FRAGMENTS.clear()


def is_same(one: Automaton, other: Automaton) -> bool:
    plain = ("rule_keys", "symbols", "start", "nullable", "names")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ARRAYS) and all(
        getattr(one, name) == getattr(other, name) for name in plain
    )


def key_of(rules: dict[str, ir.Rule], name: str) -> bytes:
    """The key of one rule, found behind a byte."""
    start = ir.Rule(ir.sequence(ir.text("<"), ir.Ref(name), ir.text(">")))
    automaton = build_automaton(ir.Grammar(rules | {"start": start}))
    return automaton.rule_keys[automaton.names.index(name)]


def shared(**bodies: ir.Node) -> dict[str, ir.Rule]:
    return {name: ir.Rule(body, shared=True) for name, body in bodies.items()}


@given(strategies.grammars(), strategies.grammars())
def test_what_was_compiled_before_makes_no_difference(grammar: ir.Grammar, other: ir.Grammar) -> None:
    FRAGMENTS.clear()
    try:
        cold = build_automaton(grammar)
    except vg.GrammarError as error:
        cold = error
    FRAGMENTS.clear()
    for each in (other, grammar, grammar):
        try:
            warm = build_automaton(each)
        except vg.GrammarError as error:
            warm = error
    if isinstance(cold, Automaton):
        assert is_same(cold, warm)
    else:
        assert str(cold) == str(warm)


def test_a_rule_of_the_same_name_is_another_rule() -> None:
    mutual = {"one": ir.choice(A, ir.sequence(A, ir.Ref("two"))), "two": ir.sequence(B, ir.Ref("one"))}
    before = key_of(shared(**mutual), "one")
    assert key_of(shared(**mutual), "one") == before
    # The same bodies, but what "two" refers to is not what it was.
    renamed = shared(other=mutual["one"], two=mutual["two"], one=B)
    assert key_of(renamed, "other") != before


def test_keys_do_not_depend_on_names_or_order() -> None:
    def ring(one: str, two: str) -> dict[str, ir.Rule]:
        first = ir.choice(A, ir.sequence(ir.text("("), ir.Ref(two), ir.Ref(one), ir.text(")")))
        second = ir.choice(B, ir.sequence(ir.text("["), ir.Ref(one), ir.text("]")))
        return shared(**{one: first, two: second})

    assert key_of(ring("x", "y"), "x") == key_of(ring("y", "x"), "y")
    assert key_of(ring("x", "y"), "y") == key_of(ring("y", "x"), "x") != key_of(ring("x", "y"), "x")


def test_rings_that_unfold_alike_have_equal_keys_and_others_have_not() -> None:
    def ring(*ends: bytes) -> dict[str, ir.Rule]:
        """Rules that each say a byte and call the next one."""
        names = [f"r{place}" for place in range(len(ends))]
        following = names[1:] + names[:1]
        return shared(
            **{
                name: ir.choice(ir.Literal(end), ir.sequence(A, ir.Ref(after), A))
                for name, after, end in zip(names, following, ends, strict=True)
            }
        )

    assert key_of(ring(b"x", b"y"), "r0") != key_of(ring(b"y", b"x"), "r0")
    assert key_of(ring(b"x", b"y"), "r0") == key_of(ring(b"y", b"x"), "r1")
    long = [b"x"] * 40
    long[7] = b"y"
    keys = {key_of(ring(*long), f"r{place}") for place in range(40)}
    assert len(keys) == 40


def test_shared_rules_are_compiled_once() -> None:
    body = ir.Repeat(ir.byte_set(b"xyz"), 1, 500)
    grammar = ir.Grammar({"start": ir.Rule(ir.sequence(A, ir.Ref("s"))), "s": ir.Rule(body, shared=True)})
    cold = build_automaton(grammar)
    held = FRAGMENTS.held
    assert held > 0
    assert is_same(build_automaton(grammar), cold)
    assert FRAGMENTS.held == held


def test_the_cache_of_fragments_is_bounded() -> None:
    cache = FragmentCache(10_000)
    grammar = ir.Grammar(shared(s=A) | {"start": ir.Rule(ir.Ref("s"))})
    build_automaton(grammar)
    found = FRAGMENTS.find(grammar.rules, "s")
    assert found is not None
    for number in range(100):
        cache.keep(ir.text(f"{number}"), {}, found[1], 1_000)
        assert cache.held <= 10_000
    assert cache.find(shared(s=ir.text("99")), "s") is not None
    assert cache.find(shared(s=ir.text("0")), "s") is None


@pytest.mark.parametrize("seed", range(20))
def test_strong_components(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 12))
    pairs = random.integers(0, count, (int(random.integers(0, 20)), 2)).astype(np.int32)
    order, component = strong_components(*grouped(count, pairs.ravel()))
    reach = np.eye(count, dtype=bool)
    for _ in range(count):
        for low, high in pairs.tolist():
            reach[low] |= reach[high]
    assert sorted(order.tolist()) == list(range(count))
    assert (np.equal.outer(component, component) == (reach & reach.T)).all()
    place = np.argsort(order)
    for low, high in pairs.tolist():
        assert component[low] == component[high] or place[high] < place[low]
    assert (np.diff(component[order]) >= 0).all()


@pytest.mark.parametrize("seed", range(30))
def test_equivalence_classes_are_those_of_moore(seed: int) -> None:
    """Ranges cut at random against refinement byte by byte, on automata of few classes."""
    random = np.random.default_rng(seed)
    size = int(random.integers(1, 30))
    table = random.integers(0, size, (size, 6))
    table[:, 1:] = np.where(random.random((size, 5)) < 0.6, table[:, :1], table[:, 1:])
    accepting = random.random(size) < 0.3
    offsets, labels, heads = [0], [], []
    for row in table.tolist():
        low = 0
        for byte in range(1, 7):
            # Equal neighbours are one range or two.
            if byte == 6 or row[byte] != row[low] or random.random() < 0.3:
                labels.append(low | (byte - 1) << 8)
                heads.append(row[low])
                low = byte
        offsets.append(len(labels))
    arrays = (np.array(each, np.int32) for each in (offsets, labels, heads))
    found = equivalence_classes(size, *arrays, accepting)
    classes = accepting.astype(int).tolist()
    while True:
        signs = [(classes[s], *(classes[t] for t in table[s])) for s in range(size)]
        place = {sign: number for number, sign in enumerate(dict.fromkeys(signs))}
        refined = [place[sign] for sign in signs]
        if len(place) == len(set(classes)):
            break
        classes = refined
    assert (
        len(set(found.tolist())) == len(set(zip(found.tolist(), classes, strict=True))) == len(set(classes))
    )
    assert sorted(set(found.tolist())) == list(range(len(set(classes))))


@pytest.mark.parametrize("seed", range(40))
def test_classes_without_cycles_are_those_with(seed: int) -> None:
    """From the ends on against refinement; automata with a cycle are left alone."""
    random = np.random.default_rng(seed)
    size = int(random.integers(1, 60))
    kinds = int(random.integers(1, 4))
    offsets, labels, heads = [0], [], []
    for state in range(size):
        later = random.integers(state + 1, min(state + 8, size), kinds) if state < size - 1 else []
        targets = sorted({*map(int, later), state + 1} - {size})  # all are reached, and reach the last
        labels += [byte | byte << 8 for byte in range(len(targets))]
        heads += targets
        offsets.append(len(labels))
    accepting = random.random(size) < 0.2
    accepting[-1] = True
    arrays = [np.array(each, np.int32) for each in (offsets, labels, heads)]
    found, before = np.full(size, -1, np.int32), np.arange(size, dtype=np.int32)
    assert acyclic_classes(size, *arrays, accepting, found)
    wanted = equivalence_classes(size, *arrays, accepting)
    pairs = set(zip(found.tolist(), wanted.tolist(), strict=True))
    assert len(pairs) == len(set(found.tolist())) == len(set(wanted.tolist())) == max(found) + 1
    if heads:
        arrays[2][int(random.integers(0, len(heads)))] = 0  # back to the start
        assert not acyclic_classes(size, *arrays, accepting, found_again := before.copy())
        assert (found_again == before).all()
