"""The engine against the reference, on random grammars, vocabularies and walks.

The mask is compared bit for bit at every step of a walk; accept, validate, rollback, copy, reset and the
rest must agree with the reference's history of the same walk.
"""

from __future__ import annotations

import random
import threading

import naive
import numpy as np
import pytest
import strategies
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from numpy.typing import NDArray
from strategies import Words

import vllm_guided as vg
from vllm_guided.grammar import ir


def compiled(grammar: ir.Grammar, words: Words) -> vg.CompiledGrammar:
    """The grammar compiled afresh; a language without a string is refused, and the example given up."""
    try:
        return vg.GrammarCompiler(words.build()).compile_grammar_ir(grammar)
    except vg.InvalidConstraint:
        assert not naive.Recogniser(grammar, words).alive(), "refused, but the language has strings"
        assume(False)
        raise


def row_of(matcher: vg.GrammarMatcher, size: int) -> NDArray[np.int32]:
    """One filled row; the buffer holds rubbish before. Where no token is allowed, filling says so."""
    bitmask = vg.allocate_token_bitmask(3, size)
    bitmask.fill(0x5A5A5A5A)
    try:
        matcher.fill_bitmask(bitmask, 1)
    except vg.ConstraintTooComplex:
        assert not bitmask[1].any()
    else:
        assert bitmask[1].any()
    assert (bitmask[[0, 2]] == 0x5A5A5A5A).all(), "other rows were written"
    return bitmask[1].copy()


def bits_of(row: NDArray[np.int32], size: int) -> set[int]:
    """The ids whose bit is set; those at and above ``size`` must not be."""
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    assert not bits[size:].any(), "a bit above the vocabulary"
    return set(np.flatnonzero(bits).tolist())


def mask_of(matcher: vg.GrammarMatcher, words: Words) -> set[int]:
    size = len(words.token_bytes)
    return bits_of(row_of(matcher, size), size)


def agree(matcher: vg.GrammarMatcher, walk: naive.Walk, words: Words) -> set[int]:
    """Every read-only answer of the matcher is the reference's; the mask.

    After the end nothing is accepted, but a row is filled with the stop tokens: a step that was under way may
    still sample from it, and no row may be empty.
    """
    expected = walk.mask()
    if walk.terminated():
        assert mask_of(matcher, words) == set(words.stop_token_ids)
        assert not any(matcher.accept_tokens([stop]) for stop in words.stop_token_ids)
        assert matcher.is_terminated() and matcher.is_accepting()
        return expected
    got = mask_of(matcher, words)
    assert got == expected, f"extra {sorted(got - expected)}, missing {sorted(expected - got)}"
    assert matcher.is_accepting() == walk.accepting()
    assert not matcher.is_terminated()
    return expected


def both(grammar: ir.Grammar, words: Words) -> tuple[vg.GrammarMatcher, naive.Walk]:
    return compiled(grammar, words).matcher(), naive.Walk(grammar, words)


@st.composite
def situations(
    draw: st.DrawFn, special: bool = False, complete: bool = False
) -> tuple[ir.Grammar, Words, random.Random]:
    """A grammar, a vocabulary, and a source of choices for the walk."""
    grammar = draw(strategies.grammars(special))
    words = draw(strategies.vocabularies(grammar, complete))
    return grammar, words, draw(st.randoms(use_true_random=False))


def next_token(mask: set[int], words: Words, choices: random.Random) -> int:
    """A token of the mask, a stop token seldom, so that walks get somewhere."""
    going_on = sorted(mask - set(words.stop_token_ids))
    if going_on and choices.random() < 0.95:
        return choices.choice(going_on)
    return choices.choice(sorted(mask))


@given(situations())
def test_mask_is_the_naive_mask(situation: tuple[ir.Grammar, Words, random.Random]) -> None:
    grammar, words, choices = situation
    matcher, walk = both(grammar, words)
    for _ in range(8):
        mask = agree(matcher, walk, words)
        if not mask:
            break
        token = next_token(mask, words, choices)
        assert matcher.accept_tokens([token])
        assert walk.accept(token)


@given(situations(special=True))
def test_mask_with_special_tokens(situation: tuple[ir.Grammar, Words, random.Random]) -> None:
    grammar, words, choices = situation
    matcher, walk = both(grammar, words)
    for _ in range(5):
        mask = agree(matcher, walk, words)
        if not mask:
            break
        token = next_token(mask, words, choices)
        assert matcher.accept_tokens([token])
        assert walk.accept(token)


@given(situations(special=True))
def test_accept_and_validate_any_tokens(situation: tuple[ir.Grammar, Words, random.Random]) -> None:
    """Tokens of any sort, also impossible ones: taken exactly as far as the reference takes them."""
    grammar, words, choices = situation
    matcher, walk = both(grammar, words)
    size = len(words.token_bytes)
    for _ in range(4):
        mask = walk.mask()
        tokens = [choices.choice(sorted(mask) or [0]) if choices.random() < 0.7 else choices.randrange(size)]
        tokens += [choices.randrange(size) for _ in range(choices.randrange(3))]
        taken = 0
        while taken < len(tokens) and walk.accept(tokens[taken]):
            taken += 1
        before = mask_of(matcher, words)
        assert list(matcher.validate_tokens(tokens)) == tokens[:taken]
        assert mask_of(matcher, words) == before, "validation changed the state"
        assert matcher.accept_tokens(tokens[:taken])
        if taken < len(tokens):
            after = mask_of(matcher, words)
            assert not matcher.accept_tokens([tokens[taken]])
            assert mask_of(matcher, words) == after, "a refused token changed the state"
        agree(matcher, walk, words)


class History(RuleBasedStateMachine):
    """Accept, roll back, copy and reset in any order; matchers that share a past stay apart."""

    @initialize(situation=situations(special=True))
    def begin(self, situation: tuple[ir.Grammar, Words, random.Random]) -> None:
        grammar, self.words, self.choices = situation
        self.grammar = compiled(grammar, self.words)
        walk = naive.Walk(grammar, self.words)
        self.ir = grammar
        self.pairs = [(self.grammar.matcher(), walk)]

    def pick(self) -> tuple[vg.GrammarMatcher, naive.Walk]:
        return self.choices.choice(self.pairs)

    @rule()
    def accept(self) -> None:
        matcher, walk = self.pick()
        mask = agree(matcher, walk, self.words)
        if mask and len(walk.tokens) < 12:
            token = next_token(mask, self.words, self.choices)
            assert matcher.accept_tokens([token])
            assert walk.accept(token)

    @rule()
    def rollback(self) -> None:
        matcher, walk = self.pick()
        count = self.choices.randint(0, len(walk.tokens))
        matcher.rollback(count)
        walk.rollback(count)
        agree(matcher, walk, self.words)

    @precondition(lambda self: len(self.pairs) < 4)
    @rule()
    def copy(self) -> None:
        matcher, walk = self.pick()
        twin = naive.Walk(self.ir, self.words)
        for token in walk.tokens:
            twin.accept(token)
        self.pairs.append((matcher.copy(), twin))

    @rule()
    def reset(self) -> None:
        matcher, walk = self.pick()
        matcher.reset()
        walk.rollback(len(walk.tokens))
        agree(matcher, walk, self.words)

    @rule()
    def start_afresh(self) -> None:
        """A second matcher of the same grammar, with warm caches, answers as the first did."""
        _, walk = self.pick()
        fresh = self.grammar.matcher()
        assert fresh.accept_tokens(walk.tokens)
        agree(fresh, walk, self.words)


TestHistory = History.TestCase
TestHistory.settings = settings(
    settings.get_profile(settings._current_profile), max_examples=60, stateful_step_count=20
)


@given(situations(special=True))
def test_rollback_too_far_is_refused(situation: tuple[ir.Grammar, Words, random.Random]) -> None:
    grammar, words, _ = situation
    matcher, walk = both(grammar, words)
    with pytest.raises(ValueError):
        matcher.rollback(1)
    agree(matcher, walk, words)


@given(situations())
def test_forced_tokens_are_the_only_way(situation: tuple[ir.Grammar, Words, random.Random]) -> None:
    """Each forced token is the only one of its mask, and after the last one there is no only one."""
    grammar, words, choices = situation
    matcher = compiled(grammar, words).matcher()
    for _ in range(4):
        before = mask_of(matcher, words)
        forced = list(matcher.forced_tokens())
        assert mask_of(matcher, words) == before, "asking changed the state"
        probe = matcher.copy()
        for token in forced:
            assert mask_of(probe, words) == {token}
            assert probe.accept_tokens([token])
        left = mask_of(probe, words)
        assert len(left) != 1 or probe.is_terminated() or len(forced) >= 4096
        if not before:
            break
        token = next_token(before, words, choices)
        assert matcher.accept_tokens([token])
        if matcher.is_terminated():
            assert matcher.forced_tokens() == []
            break


@given(situations(complete=True))
def test_no_dead_end(situation: tuple[ir.Grammar, Words, random.Random]) -> None:
    """Where every byte is a token each mask has a bit, and its tokens are accepted, until the end."""
    grammar, words, choices = situation
    matcher = compiled(grammar, words).matcher()
    assume(naive.Recogniser(grammar, words).alive())
    for _ in range(25):
        mask = mask_of(matcher, words)
        assert mask
        if matcher.is_terminated():
            assert not matcher.accept_tokens([words.stop_token_ids[0]])
            break
        assert matcher.accept_tokens([next_token(mask, words, choices)])


def shortest_end(grammar: ir.Grammar, start: bytes, limit: int) -> bytes | None:
    """A shortest continuation to a string of the language by breadth first search over the letters' bytes."""
    alphabet = sorted(set(b"".join(strategies.WORDS)))
    recogniser = naive.Recogniser(grammar)
    todo = [start]
    for text in todo:
        if recogniser.push_all(text):
            if recogniser.accepting():
                return text
            if len(todo) < limit:
                todo.extend(text + bytes([byte]) for byte in alphabet)
            recogniser.pop(len(text))
    return None


@settings(max_examples=50)
@given(situations(complete=True))
def test_steered_walks_end(situation: tuple[ir.Grammar, Words, random.Random]) -> None:
    """From where a walk got, the shortest end the reference knows is allowed byte by byte, and may end."""
    grammar, words, choices = situation
    matcher = compiled(grammar, words).matcher()
    text = b""
    for _ in range(4):
        going_on = sorted(mask_of(matcher, words) - set(words.stop_token_ids))
        if not going_on:
            break
        token = choices.choice(going_on)
        assert matcher.accept_tokens([token])
        text += words.token_bytes[token] or b""
    whole = shortest_end(grammar, text, 2000)
    assume(whole is not None)
    assert whole is not None
    single = {data: i for i, data in reversed(list(enumerate(words.token_bytes)))}
    for byte in whole[len(text) :]:
        assert matcher.accept_tokens([single[bytes([byte])]])
    assert matcher.is_accepting()
    assert matcher.accept_tokens([words.stop_token_ids[-1]])
    assert matcher.is_terminated()


@given(st.data())
def test_batches_are_the_single_calls(data: st.DataObject) -> None:
    """Matchers of several grammars, some named twice or not at all, in one call."""
    choices = data.draw(st.randoms(use_true_random=False))
    words = data.draw(strategies.vocabularies(complete=True))
    compiler = vg.GrammarCompiler(words.build())
    matchers: list[vg.GrammarMatcher] = []
    for grammar in data.draw(st.lists(strategies.grammars(), min_size=1, max_size=4)):
        try:
            made = compiler.compile_grammar_ir(grammar)
        except vg.InvalidConstraint:
            continue
        matchers += [made.matcher() for _ in range(choices.randint(1, 3))]
    assume(matchers)
    twins = [matcher.copy() for matcher in matchers]
    size = len(words.token_bytes)
    wide = (size + 31) // 32 + choices.randrange(3)
    for _ in range(4):
        count = len(matchers) + 1
        rows = choices.sample(range(2 * count), count)
        bitmask = np.full((2 * count, wide), 0x5A5A5A5A, np.int32)
        # The last row is of a request without a constraint.
        assert vg.fill_bitmask_batch([*matchers, None], bitmask, rows) == []
        masks = []
        for row, twin in zip(rows, twins, strict=False):
            assert (bitmask[row, : (size + 31) // 32] == row_of(twin, size)).all()
            masks.append(bits_of(bitmask[row], size))
        assert (bitmask[rows[-1]] == -1).all()
        untouched = sorted(set(range(2 * count)) - set(rows))
        assert (bitmask[untouched] == 0x5A5A5A5A).all()
        tokens = [
            next_token(mask, words, choices) if mask and choices.random() < 0.7 else choices.randrange(size)
            for mask in masks
        ]
        expected = [twin.accept_tokens([token]) for twin, token in zip(twins, tokens, strict=True)]
        assert list(vg.accept_tokens_batch(matchers, tokens)) == expected
        for matcher, twin in zip(matchers, twins, strict=True):
            assert (row_of(matcher, size) == row_of(twin, size)).all()


def words_for_threads() -> Words:
    pieces = [
        b"a",
        b"b",
        b"ab",
        b"ba",
        b'"',
        b'a"',
        b'"a',
        b"(",
        b")",
        b"((",
        b"))",
        b"()",
        b",",
        b"aaaa",
        b"),(",
    ]
    return Words([*pieces, *(bytes([byte]) for byte in range(256)), None], [len(pieces) + 256])


def grammar_for_threads(number: int) -> ir.Grammar:
    """Each number another language, with parts in common."""
    word = ir.Repeat(ir.byte_set(b"ab"), number % 3, 5 + number)
    tree = ir.choice(
        ir.Ref("word"),
        ir.sequence(
            ir.Literal(b"("),
            ir.Ref("tree"),
            ir.star(ir.sequence(ir.Literal(b","), ir.Ref("tree"))),
            ir.Literal(b")"),
        ),
    )
    return ir.Grammar({"tree": ir.Rule(tree), "word": ir.Rule(word, shared=True)}, "tree")


def trace(compiler: vg.GrammarCompiler, number: int, words: Words) -> list[object]:
    """Everything seen on a fixed walk in one language."""
    matcher = compiler.compile_grammar_ir(grammar_for_threads(number % 7)).matcher()
    choices, seen = random.Random(number), []
    for step in range(40):
        mask = mask_of(matcher, words)
        seen.append(frozenset(mask))
        if matcher.is_terminated():
            break
        token = next_token(mask, words, choices)
        seen.append((token, matcher.accept_tokens([token]), matcher.is_accepting()))
        if step % 9 == 8:
            matcher.rollback(3)
    return seen


def test_threads_do_not_disturb_each_other() -> None:
    words = words_for_threads()
    vocabulary = words.build()
    expected = [trace(vg.GrammarCompiler(vocabulary), number, words) for number in range(24)]
    assert len({tuple(map(str, seen)) for seen in expected}) > 5
    shared = vg.GrammarCompiler(vocabulary)
    got: list[list[object] | BaseException | None] = [None] * 24
    gate = threading.Barrier(8)

    def work(share: int) -> None:
        gate.wait()
        for number in range(share, 24, 8):
            try:
                got[number] = trace(shared, number, words)
            except BaseException as error:
                got[number] = error

    threads = [threading.Thread(target=work, args=(share,)) for share in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == expected


@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 100])
def test_padding_is_never_allowed(size: int) -> None:
    """Vocabularies around a multiple of 32: nothing at or above the tokenizer's size."""
    words = Words([b"a"] * size + [None], [size])
    grammar = ir.Grammar({"start": ir.Rule(ir.star(ir.ANY_CHAR))})
    for padding in (0, 1, 31, 63):
        padded = Words([*words.token_bytes, *[None] * padding], [size])
        matcher = vg.GrammarCompiler(padded.build()).compile_grammar_ir(grammar).matcher()
        assert mask_of(matcher, padded) == set(range(size + 1))


@pytest.mark.parametrize("token", [-1, -(2**31), 258, 2**31, 2**32, 2**33 + 97, 2**63 - 1])
def test_ids_of_no_token_are_refused(token: int) -> None:
    words = Words([*(bytes([byte]) for byte in range(256)), None, None], [256])
    grammar = ir.Grammar({"start": ir.Rule(ir.star(ir.ANY_BYTE))})
    matcher = vg.GrammarCompiler(words.build()).compile_grammar_ir(grammar).matcher()
    assert not matcher.accept_tokens([token])
    assert not matcher.accept_tokens([97, token])
    assert matcher.validate_tokens([97, token]) == [97]
    assert list(vg.accept_tokens_batch([matcher], [token])) == [False]
    assert mask_of(matcher, words) == set(range(257))
    assert matcher.accept_tokens([])
