"""Grammars bound one after the other share states, and with them masks; none disturbs another."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
import strategies
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import Words
from test_engine_properties import mask_of, next_token

import vllm_guided as vg
from vllm_guided.grammar import ir


def side_by_side(
    shared: vg.GrammarMatcher, alone: vg.GrammarMatcher, words: Words, choices: random.Random, steps: int
) -> None:
    """The same walk in both: masks, ends, what is accepted."""
    for _ in range(steps):
        mask = mask_of(alone, words)
        assert mask_of(shared, words) == mask
        assert shared.is_accepting() == alone.is_accepting()
        token = choices.randrange(len(words.token_bytes))
        if mask and choices.random() < 0.8:
            token = next_token(mask, words, choices)
        assert shared.accept_tokens([token]) == alone.accept_tokens([token])
        if alone.is_terminated():
            assert shared.is_terminated()
            break


@given(st.data())
def test_masks_are_those_of_a_compiler_of_its_own(data: st.DataObject) -> None:
    choices = data.draw(st.randoms(use_true_random=False))
    grammars = data.draw(st.lists(strategies.grammars(special=True), min_size=2, max_size=5))
    words = data.draw(strategies.vocabularies(grammars[-1]))
    vocabulary = words.build()
    compiler = vg.GrammarCompiler(vocabulary)
    bound = []
    for grammar in grammars:
        try:
            one = compiler.compile_grammar_ir(grammar)
        except vg.InvalidConstraint:
            with pytest.raises(vg.InvalidConstraint):
                vg.GrammarCompiler(vocabulary).compile_grammar_ir(grammar)
            continue
        bound.append((one, grammar))
        # Some are walked before the next is bound, all once more when all are.
        if choices.random() < 0.5:
            alone = vg.GrammarCompiler(vocabulary).compile_grammar_ir(grammar)
            side_by_side(one.matcher(), alone.matcher(), words, choices, 4)
    assume(bound)
    for one, grammar in bound:
        alone = vg.GrammarCompiler(vocabulary).compile_grammar_ir(grammar)
        side_by_side(one.matcher(), alone.matcher(), words, choices, 6)


def bytes_vocabulary() -> vg.Vocabulary:
    return vg.Vocabulary([*(bytes([byte]) for byte in range(256)), b"ab", None], stop_token_ids=[257])


LOOP = ir.Sequence((ir.Repeat(ir.byte_set(b"ab"), 0, None), ir.text("c")))
TWO_LOOPS = ir.Repeat(
    ir.Choice(
        (ir.Sequence((ir.text("a"), ir.star(ir.text("b")))), ir.Sequence((ir.text("c"), ir.text("d"))))
    ),
    1,
    None,
)
CHARACTERS = ir.star(ir.char_set([(0x20, 0x7E), (0xA0, 0x2FFF)]))
#: Regular bodies, inlined into whatever rule uses them, and a text after which they have not ended.
BODIES: dict[str, tuple[ir.Node, bytes]] = {
    "text": (ir.text("abcdef"), b"ab"),
    "choice": (ir.Choice((ir.text("abc"), ir.text("abd"), ir.text("e"))), b"ab"),
    "loop": (LOOP, b"abba"),
    "two loops": (TWO_LOOPS, b"abbcdac"),
    "characters": (ir.Sequence((CHARACTERS, ir.text("\n"))), "xé€".encode()),
}


def after(begin: bytes, body: ir.Node) -> ir.Grammar:
    return ir.Grammar({"start": ir.Rule(ir.Sequence((ir.Literal(begin), body)))})


@pytest.mark.parametrize("name", BODIES)
def test_equal_futures_are_one_state(name: str) -> None:
    """What follows different beginnings, in grammars of their own, is the same configuration."""
    body, text = BODIES[name]
    compiler = vg.GrammarCompiler(bytes_vocabulary())
    states = []
    for begin in (b"x", b"yy", b"z-long-beginning"):
        matcher = compiler.compile_grammar_ir(after(begin, body)).matcher()
        assert matcher.accept_tokens(list(begin))
        seen = [matcher.state]
        for byte in text:
            assert matcher.accept_tokens([byte])
            seen.append(matcher.state)
        states.append(seen)
    assert states[0] == states[1] == states[2]


@pytest.mark.parametrize("name", BODIES)
def test_only_the_beginning_is_new(name: str) -> None:
    body, _ = BODIES[name]
    compiler = vg.GrammarCompiler(bytes_vocabulary())
    compiler.compile_grammar_ir(after(b"x", body))
    before = compiler.statistics()["states"]
    compiler.compile_grammar_ir(after(b"yy", body))
    assert compiler.statistics()["states"] - before <= 2


def test_different_futures_stay_apart() -> None:
    """Cycles that look alike but for one move, an end, or where they are entered."""
    a, b, c = ir.text("a"), ir.text("b"), ir.text("c")

    def graph(edges: list[tuple[int, ir.Node, int]], *ends: int) -> ir.Grammar:
        return after(b"x", ir.Graph(tuple(edges), frozenset(ends), 0))

    ring = [(0, a, 1), (1, a, 2), (2, a, 0)]
    grammars = [
        graph([*ring, (0, b, 3)], 3),
        graph([*ring, (1, b, 3)], 3),
        graph([*ring, (0, b, 3), (1, c, 3)], 3),
        graph([*ring, (0, b, 3), (2, c, 3)], 3),
        graph([*ring, (0, b, 3)], 0, 3),
        graph([(0, a, 1), (1, a, 0), (0, b, 3)], 3),
        graph([(0, a, 0), (0, b, 3)], 3),
    ]
    vocabulary = bytes_vocabulary()
    words = Words([*(bytes([byte]) for byte in range(256)), b"ab", None], [257])
    for order in (grammars, grammars[::-1]):
        compiler = vg.GrammarCompiler(vocabulary)
        for seed, grammar in enumerate([*order, *order]):
            alone = vg.GrammarCompiler(vocabulary).compile_grammar_ir(grammar)
            one = compiler.compile_grammar_ir(grammar)
            for walk in range(3):
                side_by_side(one.matcher(), alone.matcher(), words, random.Random(10 * seed + walk), 12)


def schema(first: str, second: str, **more: Any) -> dict[str, Any]:
    part = {"type": "object", "properties": {"q": {"type": "string", "maxLength": 9}}, "required": ["q"]}
    return {
        "type": "object",
        "properties": {first: {"type": "array", "items": part}, second: part},
        "required": [first, second],
        **more,
    }


def test_sub_schemas_under_other_names() -> None:
    """The second object costs its own names' states; the third of the same names none at all."""
    compiler = vg.GrammarCompiler(bytes_vocabulary())
    counts = []
    for first, second in (("alpha", "beta"), ("gamma", "delta"), ("gamma", "delta"), ("delta", "gamma")):
        compiler.compile_json_schema(schema(first, second, additionalProperties=False))
        counts.append(compiler.statistics()["states"])
    grown = [counts[0], *(b - a for a, b in pairwise(counts))]
    assert max(grown[1:]) < grown[0] / 10 and grown[2] == 0, grown


def test_the_rest_of_a_name_is_one_state() -> None:
    """Behind what no object declares, two open objects' names go on alike: their masks are shared."""
    compiler = vg.GrammarCompiler(bytes_vocabulary())
    words = Words([*(bytes([byte]) for byte in range(256)), b"ab", None], [257])
    made = []
    for names in (("alpha",), ("beta", "bet"), ("gamma", "delta", "x")):
        properties = {name: {"type": "integer"} for name in names}
        grammar = compiler.compile_json_schema({"type": "object", "properties": properties})
        matcher = grammar.matcher()
        assert matcher.accept_tokens(list(b'{"zzz'))
        masks = [mask_of(matcher, words)]
        for byte in b"more":
            assert matcher.accept_tokens([byte])
            masks.append(mask_of(matcher, words))
        made.append(masks)
    assert made[0] == made[1] == made[2]


def test_a_rule_that_only_calls_another() -> None:
    """Tail calls, chains of them, and a recursion of nothing but calls."""
    word = ir.Rule(ir.Sequence((ir.byte_set(b"ab"), ir.optional(ir.Ref("word")))), shared=True)
    p, q = ir.Rule(ir.Ref("p"), shared=True), ir.Rule(ir.Ref("q"), shared=True)
    chain = {"start": p, "p": q, "q": ir.Rule(ir.Ref("word"), shared=True), "word": word}
    ring = {"start": ir.Rule(ir.Choice((ir.Ref("p"), ir.Ref("word")))), "p": q, "q": p, "word": word}
    compiler = vg.GrammarCompiler(bytes_vocabulary())
    matchers = [
        compiler.compile_grammar_ir(ir.Grammar(rules, "start")).matcher()
        for rules in ({"start": ir.Rule(ir.Ref("word")), "word": word}, chain, ring)
    ]
    for token in b"abba":
        assert len({matcher.state for matcher in matchers}) == 1
        assert all(matcher.accept_tokens([token]) for matcher in matchers)
        assert all(matcher.is_accepting() and not matcher.validate_tokens([*b"c"]) for matcher in matchers)
