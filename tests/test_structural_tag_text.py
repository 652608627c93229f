"""The parts under the grammar languages, each against its definition: text, automata, substrings, UTF-8."""

from __future__ import annotations

import itertools
import random

import naive
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_guided.frontends import free_text, regular
from vllm_guided.frontends.first import first_of
from vllm_guided.frontends.spelled import spelled, variants
from vllm_guided.frontends.substring import substring_node
from vllm_guided.frontends.utf8 import utf8_sequences
from vllm_guided.grammar import ir

WORDS = [["ab"], ["aab", "ba"], ["bcd", "abce"], ["aba"], ["aa"], ["a", "ab"]]


def texts(alphabet: str, longest: int) -> list[str]:
    return ["".join(t) for n in range(longest + 1) for t in itertools.product(alphabet, repeat=n)]


def accepts(node: ir.Node, text: str) -> bool:
    return naive.accepts(ir.Grammar({"start": ir.Rule(node)}), text.encode())


@pytest.mark.parametrize("words", WORDS)
def test_text_without(words: list[str]) -> None:
    node = free_text.text_without(words)
    for text in texts("abc", 5):
        assert accepts(node, text) == (not any(word in text for word in words)), text


@pytest.mark.parametrize("words", WORDS)
def test_text_until(words: list[str]) -> None:
    node = free_text.text_until(words)
    for text in texts("abc", 5):
        right = any(text.endswith(w) for w in words) and not any(w in text[:-1] for w in words)
        assert accepts(node, text) == right, text


def test_text_until_with_an_excluded_string_in_the_end() -> None:
    node = free_text.text_until(["bc"], ["b"])
    for text in texts("abc", 5):
        assert accepts(node, text) == (text.endswith("bc") and "b" not in text[:-2]), text


def test_what_may_be_a_token() -> None:
    token = ("token", "<t>")
    grammar = ir.Grammar({"start": ir.Rule(spelled("a<t>b"))})
    assert naive.accepts(grammar, b"a<t>b") and naive.accepts(grammar, [b"a", token, b"b"])
    assert not naive.accepts(grammar, [token])
    assert len(variants("<a><b>")) == 4 and len(variants("<a>" * 9)) <= 8


def test_substrings() -> None:
    chunks = ["a", "b", "a", "b", "b"]
    right = {"".join(chunks[i:j]) for i in range(6) for j in range(i, 6)}
    node = substring_node(chunks)
    for text in texts("ab", 6):
        assert accepts(node, text) == (text in right), text


@st.composite
def nodes(draw: st.DrawFn, depth: int = 3) -> ir.Node:
    """Small regular nodes over the bytes a, b and c."""
    if depth == 0 or draw(st.booleans()):
        return draw(
            st.sampled_from(
                [ir.text("a"), ir.text("bc"), ir.EMPTY, ir.byte_set(b"ab"), ir.char_set([(97, 99)])]
            )
        )
    inner = nodes(depth - 1)
    return draw(
        st.one_of(
            st.lists(inner, min_size=2, max_size=3).map(lambda items: ir.Sequence(tuple(items))),
            st.lists(inner, min_size=2, max_size=3).map(lambda items: ir.Choice(tuple(items))),
            st.builds(ir.Repeat, inner, st.integers(0, 2), st.sampled_from([2, 3, None])),
        )
    )


SHORT = texts("abc", 4)


@given(nodes(), nodes())
def test_automata(left: ir.Node, right: ir.Node) -> None:
    a, b = regular.dfa(left), regular.dfa(right)
    words = {text for text in SHORT if accepts(left, text)}
    others = {text for text in SHORT if accepts(right, text)}

    def language(automaton: regular.Dfa) -> set[str]:
        return {text for text in SHORT if regular.accepts(automaton, text.encode())}

    assert language(a) == words
    assert {text for text in SHORT if accepts(regular.node(a), text)} == words
    assert language(regular.intersection(a, b)) == words & others
    assert language(regular.difference(a, b)) == words - others
    assert language(regular.shortest(a)) == {
        w for w in words if not any(w[:n] in words for n in range(len(w)))
    }
    begun = {w for w in SHORT if any(w[: n + 1] in words or "" in words for n in range(len(w))) or w in words}
    assert language(regular.followed_by_anything(a)) == begun
    assert language(regular.without_first_bytes(a, 1 << 97)) == {w for w in words if w and w[0] != "a"}
    nullable, mask = first_of(left, {})
    assert nullable == ("" in words)
    assert {chr(byte) for byte in range(256) if mask >> byte & 1} >= {w[0] for w in words if w}


def test_ending_before() -> None:
    letters, tag = regular.dfa(ir.plus(ir.byte_set(b"abc"))), regular.dfa(ir.text("ab!"))
    kept = regular.ending_before(letters, [tag], 1 << ord("!") | 1 << ord("a"))
    assert regular.accepts(kept, b"a") and regular.accepts(kept, b"cab")
    assert not regular.accepts(kept, b"ab")  # the tag goes on with "!", the letters with "a"


def test_utf8() -> None:
    random_ = random.Random(3)
    for _ in range(60):
        low, high = sorted(
            random_.choice([random_.randrange(0x300), random_.randrange(0x110000)]) for _ in "12"
        )
        sequences = utf8_sequences(low, high)
        for code in {
            low,
            high,
            max(low - 1, 0),
            min(high + 1, 0x10FFFF),
            *random_.sample(range(0x110000), 200),
        }:
            if 0xD800 <= code <= 0xDFFF:
                continue
            data = chr(code).encode()
            hits = [
                s
                for s in sequences
                if len(s) == len(data) and all(a <= x <= b for (a, b), x in zip(s, data, strict=True))
            ]
            assert len(hits) == (low <= code <= high), (hex(low), hex(high), hex(code))
