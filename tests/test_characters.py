"""Automata over characters: the algebra against sets of texts, and what they say of their language."""

from __future__ import annotations

import itertools
import re

import naive
import pytest
from hypothesis import given
from hypothesis import strategies as st
from regex_patterns import TEXTS, patterns

from vllm_guided.automaton.char_sets import (
    ALL,
    complement,
    contains,
    difference,
    intersection,
    normalised,
    partition,
    refine,
    union,
)
from vllm_guided.automaton.char_subset import determinised
from vllm_guided.automaton.char_unrolled import unrolled
from vllm_guided.automaton.characters import MAX_STATES, CharDfa
from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.regex.parser import parse
from vllm_guided.grammar import ir

PATTERNS = patterns(fixed_lookbehind=True)
SETS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), max_size=6).map(
    lambda pairs: normalised((low, low + more) for low, more in pairs)
)


def members(ranges: tuple[tuple[int, int], ...]) -> set[int]:
    return {point for low, high in ranges for point in range(low, high + 1)}


def texts_of(automaton: CharDfa) -> set[str]:
    return {text for text in TEXTS if automaton.accepts(text)}


@given(SETS, SETS)
def test_sets(left: tuple[tuple[int, int], ...], right: tuple[tuple[int, int], ...]) -> None:
    assert members(union(left, right)) == members(left) | members(right)
    assert members(intersection(left, right)) == members(left) & members(right)
    assert members(difference(left, right)) == members(left) - members(right)
    assert complement(complement(left)) == left
    assert union(left, complement(left)) == ALL
    assert all(contains(left, point) == (point in members(left)) for point in range(60))
    assert all(high + 1 < low for (_, high), (low, _) in itertools.pairwise(left))


@given(st.lists(SETS, max_size=4), SETS)
def test_partition(sets: list[tuple[tuple[int, int], ...]], other: tuple[tuple[int, int], ...]) -> None:
    classes, masks = partition(sets)
    for point in range(60):
        found = classes.find(point)
        assert contains(classes.members()[found], point)
        assert [bool(mask >> found & 1) for mask in masks] == [contains(ranges, point) for ranges in sets]
    assert classes.find(0xD800) == classes.find(0xDFFF) == -1
    finer, pairs = refine(classes, partition([other])[0])
    for point in range(60):
        assert pairs[finer.find(point)][0] == classes.find(point)


@given(PATTERNS, PATTERNS)
def test_algebra(left_pattern: str, right_pattern: str) -> None:
    left, right = CharDfa.from_pattern(left_pattern), CharDfa.from_pattern(right_pattern)
    assert texts_of(left.intersection(right)) == texts_of(left) & texts_of(right)
    assert texts_of(left.union(right)) == texts_of(left) | texts_of(right)
    assert texts_of(left.difference(right)) == texts_of(left) - texts_of(right)
    assert texts_of(left.complement()) == set(TEXTS) - texts_of(left)
    assert left.complement().complement() == left
    assert left.union(right) == right.union(left)
    assert left.includes(left.intersection(right))
    assert left.difference(left).is_empty()
    assert left.union(left.complement()).is_universal()
    if texts_of(left) != texts_of(right):
        assert left != right


@given(PATTERNS, st.integers(0, 4), st.one_of(st.none(), st.integers(0, 4)))
def test_lengths(pattern: str, minimum: int, maximum: int | None) -> None:
    automaton = CharDfa.from_pattern(pattern)
    expected = {
        text
        for text in texts_of(automaton)
        if minimum <= len(text) and (maximum is None or len(text) <= maximum)
    }
    bounded = automaton.with_length(minimum, maximum)
    assert texts_of(bounded) == expected
    if maximum is not None:
        assert bounded.is_finite()
    if expected:
        assert bounded.minimum_length() == len(bounded.shortest() or "") == min(map(len, expected))
        if maximum is not None:
            assert bounded.maximum_length() is not None
            assert len(max(expected, key=len)) <= (bounded.maximum_length() or 0) <= maximum


@given(PATTERNS, st.lists(st.text("ab_ \né", max_size=5), max_size=5))
def test_nodes(pattern: str, texts: list[str]) -> None:
    automaton = CharDfa.from_pattern(pattern)
    grammar = ir.Grammar({"start": ir.Rule(automaton.to_node(ir.CharSet))}, "start")
    for text in [*texts, automaton.shortest() or ""]:
        assert naive.accepts(grammar, text.encode()) == automaton.accepts(text)


@given(st.lists(st.text("abé", max_size=4), max_size=12), st.lists(st.text("abé", max_size=4), max_size=12))
def test_literals(left: list[str], right: list[str]) -> None:
    automaton = CharDfa.literals(left)
    assert automaton.texts(1000) == sorted(set(left))
    assert automaton.count(1000) == len(set(left))
    assert automaton.intersection(CharDfa.literals(right)).texts(1000) == sorted(set(left) & set(right))
    assert automaton.difference(CharDfa.literals(right)) == CharDfa.literals(set(left) - set(right))


@pytest.mark.parametrize(
    ("pattern", "minimum", "maximum", "finite", "count"),
    [
        ("", 0, 0, True, 1),
        ("a{3}", 3, 3, True, 1),
        ("[ab]{0,3}", 0, 3, True, 15),
        ("a*", 0, None, False, None),
        ("[a-c]x?|😀", 1, 2, True, 7),
        (".", 1, 1, True, None),
        ("a(?!a)a", None, None, True, 0),
    ],
)
def test_facts(
    pattern: str, minimum: int | None, maximum: int | None, finite: bool, count: int | None
) -> None:
    automaton = CharDfa.from_pattern(pattern)
    assert automaton.minimum_length() == minimum
    assert automaton.maximum_length() == maximum
    assert automaton.is_finite() == finite
    assert automaton.count(1000) == count
    assert automaton.is_empty() == (count == 0)


def test_the_simple_ones() -> None:
    assert CharDfa.any_string().is_universal()
    assert CharDfa.any_string() == CharDfa.from_pattern("(?s).*")
    assert CharDfa.nothing().is_empty() and CharDfa.nothing().shortest() is None
    assert CharDfa.literal("né") == CharDfa.from_pattern("né")
    assert CharDfa.literal("") == CharDfa.from_pattern("")
    assert CharDfa.literal("\ud800").is_empty()
    assert CharDfa.of_length(2, 1).is_empty()
    assert hash(CharDfa.literal("a")) == hash(CharDfa.from_pattern("a"))


def test_forced_characters_are_one_label() -> None:
    utf8 = CharDfa.from_pattern("hello(?= world)( world){1,2}").to_node(
        lambda ranges: ir.text(chr(ranges[0][0])) if len(ranges) == 1 else ir.CharSet(ranges)
    )
    assert isinstance(utf8, ir.Graph)
    assert utf8.edges == ((0, ir.Literal(b"hello world"), 1), (1, ir.Literal(b" world"), 2))


def test_encoder_spells_the_characters() -> None:
    def doubled(ranges: tuple[tuple[int, int], ...]) -> ir.Node:
        return ir.sequence(ir.CharSet(ranges), ir.text("."))

    grammar = ir.Grammar({"start": ir.Rule(CharDfa.from_pattern("(?=.)a?[b-c]*").to_node(doubled))}, "start")
    assert naive.accepts(grammar, b"a.b.c.")
    assert not naive.accepts(grammar, b"a.bc.")
    assert not naive.accepts(grammar, b"")


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?!x)(a|b)*a(a|b){16}",
        r"(?=.*a.{20}).*b.{20}(?<=c.{20}.*)",
        r"(?!.*://)(?=.{1,255}$)((.{1,63}\.){1,127}(?![0-9]*$)[a-z0-9-]+\.?)",
        r"(?!x)([ab]{1,500}c){1,500}",
        r"(abc{0,100000}d\bef)+",
    ],
)
def test_too_complex_is_said_soon(pattern: str) -> None:
    with pytest.raises(ConstraintTooComplex, match=r"states|decisions"):
        CharDfa.from_pattern(pattern)
    assert re.compile(pattern) if "(?<=c" not in pattern else True


def test_too_long_is_too_complex() -> None:
    with pytest.raises(ConstraintTooComplex):
        CharDfa.any_string().with_length(0, MAX_STATES)
    with pytest.raises(ConstraintTooComplex):
        CharDfa.from_pattern("[ab]{1,200}").intersection(CharDfa.from_pattern("(?:[ab]{201})*")).union(
            CharDfa.from_pattern("(?:a{211})*c").union(CharDfa.from_pattern("(?:a{199})*d"))
        )


COUNTED = [
    "[a-z]{0,40}", "(?:ab?){3,5}c*", "(?:a|b){0,7}|c+", "a{3}(?:b{2}c?){2,}", "", "(?:)*", "a?",
    "[^\\s]{2,9}x", ".*[0-9a-f]{4}.*", "(?:a*b*){0,3}", "(?:a{2}|b){5}", "[a-zé-ü😀]{1,3}",
]  # fmt: skip


@pytest.mark.parametrize("pattern", COUNTED)
def test_counts_written_out(pattern: str) -> None:
    """Compiled code makes the automaton that derivatives make."""
    check_unrolled(pattern, wanted=True)


@given(patterns(fixed_lookbehind=True))
def test_counts_written_out_of_random_patterns(pattern: str) -> None:
    check_unrolled(pattern)


def check_unrolled(pattern: str, wanted: bool = False) -> None:
    expression = parse(pattern, dialect="python")
    found = unrolled(expression, MAX_STATES)
    assert found is not None or not wanted
    if found is not None:
        assert CharDfa(*found) == CharDfa(*determinised(expression, MAX_STATES))


@pytest.mark.parametrize(
    "pattern",
    [
        "a{0,1025}",  # too large
        "(?:[ab]{0,33}){32}",
        "a(?=b)b",  # lookaround has another construction
        ".*a.{9}",  # very many more sets than states
    ],
)
def test_counts_that_are_not_written_out(pattern: str) -> None:
    assert unrolled(parse(pattern, dialect="python"), MAX_STATES) is None


def test_more_classes_than_labels() -> None:
    """Of very many sets of characters the classes do not fit into labels, which are bytes."""
    pattern = "".join(f"[{chr(256 + 2 * place)}-{chr(257 + 2 * place)}]" for place in range(300))
    assert unrolled(parse(pattern, dialect="python"), MAX_STATES) is None
    assert CharDfa.from_pattern(pattern).minimum_length() == 300
