"""The reference itself: against hand-made truth tables, `re`, and lark's Earley parser."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

import lark
import naive
import pytest

from vllm_guided.grammar import ir

A, B = ir.Literal(b"a"), ir.Literal(b"b")


def grammar(start: ir.Node, **rules: ir.Node) -> ir.Grammar:
    return ir.Grammar({"start": ir.Rule(start), **{name: ir.Rule(body) for name, body in rules.items()}})


# name: (grammar, accepted, only beginnings of accepted strings, neither)
TABLE: dict[str, tuple[ir.Grammar, list[naive.Data], list[naive.Data], list[naive.Data]]] = {
    "literal": (grammar(ir.Literal(b"abc")), [b"abc"], [b"", b"ab"], [b"b", b"abcd", b"abd"]),
    "empty string": (grammar(ir.EMPTY), [b""], [], [b"a"]),
    "empty literal": (grammar(ir.Literal(b"")), [b""], [], [b"a"]),
    "nothing": (grammar(ir.NOTHING), [], [], [b"", b"a"]),
    "empty byte set": (grammar(ir.ByteSet(0)), [], [], [b"", b"\0"]),
    "byte set": (grammar(ir.byte_set([0, 255])), [b"\0", b"\xff"], [b""], [b"\1", b"\0\0"]),
    "char": (
        grammar(ir.char_set([(0x41, 0x42), (0xE9, 0xE9), (0x1F600, 0x1F600)])),
        [b"A", "é".encode(), "😀".encode()],
        [b"", b"\xc3", b"\xf0\x9f\x98"],
        [b"\xc4", b"\xa9", b"\xc3\xaa", b"\xf0\x9f\x99", b"AB", b"\xc1\x81"],
    ),
    "any char": (
        grammar(ir.ANY_CHAR),
        [
            b"\0",
            b"\x7f",
            "߿".encode(),
            "\ud7ff".encode(),
            "\ue000".encode(),
            "\U0010ffff".encode(),
        ],
        [b"", b"\xe0", b"\xe0\xa0", b"\xed\x9f", b"\xf4\x8f", b"\xf0\x90"],
        [b"\x80", b"\xc0", b"\xc1", b"\xe0\x9f", b"\xed\xa0", b"\xf4\x90", b"\xf5", b"\xf0\x8f", b"\xff"],
    ),
    "only surrogates": (grammar(ir.CharSet(((0xD800, 0xDFFF),))), [], [], [b"", b"\xed"]),
    "sequence": (
        grammar(ir.Sequence((A, ir.Ref("x"), B)), x=ir.optional(A)),
        [b"ab", b"aab"],
        [b"a"],
        [b"b", b"aaab"],
    ),
    "dead option": (
        grammar(ir.choice(A, ir.sequence(B, ir.Ref("x"))), x=ir.sequence(A, ir.Ref("x"))),
        [b"a"],
        [b""],
        [b"b"],
    ),
    "ref to itself": (grammar(ir.Ref("start")), [], [], [b""]),
    "two to three": (grammar(ir.Repeat(A, 2, 3)), [b"aa", b"aaa"], [b"", b"a"], [b"aaaa", b"b"]),
    "two or more": (grammar(ir.Repeat(A, 2)), [b"aa", b"a" * 50], [b"", b"a"], [b"aab"]),
    "none": (grammar(ir.Repeat(A, 0, 0)), [b""], [], [b"a"]),
    "minimum above maximum": (grammar(ir.Repeat(A, 3, 2)), [], [], [b"", b"a"]),
    "big counts": (
        grammar(ir.Repeat(A, 200, 100_000)),
        [b"a" * 200, b"a" * 300],
        [b"a" * 199],
        [b"a" * 199 + b"b"],
    ),
    "count of what may be empty": (
        grammar(ir.Repeat(ir.optional(A), 3, 4)),
        [b"", b"a", b"aaaa"],
        [],
        [b"aaaaa"],
    ),
    "count of nothing": (grammar(ir.Repeat(ir.NOTHING, 0, 5)), [b""], [], [b"a"]),
    "count of something dead": (grammar(ir.sequence(A, ir.Repeat(ir.NOTHING, 1, 5))), [], [], [b"", b"a"]),
    "ambiguous count": (
        grammar(ir.sequence(ir.Repeat(ir.choice(A, ir.Literal(b"aa")), 2, 3), B)),
        [b"aab", b"a" * 6 + b"b"],
        [b"", b"a", b"a" * 6],
        [b"ab", b"a" * 7],
    ),
    "left recursion": (
        grammar(ir.choice(ir.sequence(ir.Ref("start"), B), A)),
        [b"a", b"abbb"],
        [b""],
        [b"b", b"aa"],
    ),
    "hidden left recursion": (
        grammar(ir.choice(ir.sequence(ir.Ref("x"), ir.Ref("start"), B), A), x=ir.optional(ir.Literal(b"c"))),
        [b"a", b"ab", b"cab", b"cabb", b"ccabb"],
        [b"c", b"cc", b"ccab"],
        [b"b", b"aa", b"cb"],
    ),
    "nullable and left recursive": (
        grammar(ir.choice(ir.sequence(ir.Ref("start"), ir.Ref("start"), A), ir.EMPTY)),
        [b"", b"a", b"aaaaa"],
        [],
        [b"b"],
    ),
    "brackets": (
        grammar(ir.star(ir.sequence(A, ir.Ref("start"), B))),
        [b"", b"ab", b"aabb", b"abab"],
        [b"a", b"aab"],
        [b"b", b"abb"],
    ),
    "graph": (
        grammar(ir.Graph(((0, A, 1), (1, B, 0), (1, ir.EMPTY, 2), (1, A, 3)), frozenset({2}))),
        [b"a", b"aba"],
        [b"", b"ab"],
        [b"b", b"aa", b"abb"],
    ),
    "graph that starts elsewhere": (
        grammar(ir.Graph(((3, A, 3),), frozenset({3}), 3)),
        [b"", b"aa"],
        [],
        [b"b"],
    ),
    "graph without an end": (grammar(ir.Graph(((0, A, 1),), frozenset({7}))), [], [], [b"", b"a"]),
    "special tokens": (
        grammar(ir.sequence(A, ir.SpecialToken(frozenset({"<x>"}), ((5, 6),)), B)),
        [[b"a", ("token", "<x>"), b"b"], [b"a", ("token", 6), b"b"]],
        [b"a", [b"a", ("token", 5)]],
        [b"ab", b"a<x>b", [b"a", ("token", 7)], [b"a", ("token", "<y>")]],
    ),
    "negated special token": (
        grammar(ir.SpecialToken(frozenset({"<x>"}), ((5, 6),), negated=True)),
        [[("token", "<y>")], [("token", 7)]],
        [b""],
        [b"a", [("token", "<x>")], [("token", 5)]],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_truth_table(name: str) -> None:
    language, accepted, beginnings, neither = TABLE[name]
    for data in accepted:
        assert naive.accepts(language, data) and naive.is_prefix(language, data), data
    for data in beginnings:
        assert naive.is_prefix(language, data) and not naive.accepts(language, data), data
    for data in neither:
        assert not naive.is_prefix(language, data) and not naive.accepts(language, data), data


REGULAR = [
    (ir.sequence(ir.star(ir.choice(A, ir.Literal(b"bb"))), ir.optional(B)), rb"(a|bb)*b?"),
    (ir.Repeat(ir.sequence(ir.optional(A), B), 2, 3), rb"(a?b){2,3}"),
    (ir.Repeat(ir.choice(A, ir.Literal(b"ab"), ir.EMPTY), 2), rb"(a|ab|){2,}"),
    (ir.sequence(ir.Repeat(A, 0, 2), ir.Repeat(ir.choice(A, B), 1, 2), ir.plus(B)), rb"a{0,2}[ab]{1,2}b+"),
    (ir.Repeat(ir.Repeat(ir.choice(A, B), 2, 3), 0, 2), rb"([ab]{2,3}){0,2}"),
]


@pytest.mark.parametrize("node,pattern", REGULAR, ids=lambda value: str(value)[:30])
def test_same_as_re(node: ir.Node, pattern: bytes) -> None:
    language = grammar(node)
    words = [bytes(word) for length in range(8) for word in itertools.product(b"ab", repeat=length)]
    matched = {word for word in words if re.fullmatch(pattern, word)}
    beginnings = {word[:n] for word in matched for n in range(len(word) + 1)}
    for word in words:
        assert naive.accepts(language, word) == (word in matched), word
        # A word at the length limit may be finished by a longer one, so only shorter ones say no.
        if len(word) < 4:
            assert naive.is_prefix(language, word) == (word in beginnings), word


CONTEXT_FREE = [
    (
        'start: start "a" start | "b" | x\nx: "(" start ")" | "a" "b"*',
        grammar(
            ir.choice(ir.sequence(ir.Ref("start"), A, ir.Ref("start")), B, ir.Ref("x")),
            x=ir.choice(
                ir.sequence(ir.Literal(b"("), ir.Ref("start"), ir.Literal(b")")), ir.sequence(A, ir.star(B))
            ),
        ),
    ),
    (
        'start: x start "b" | "a"\nx: "("?',
        grammar(ir.choice(ir.sequence(ir.Ref("x"), ir.Ref("start"), B), A), x=ir.optional(ir.Literal(b"("))),
    ),
    (
        'start: x y\nx: "a" x "b" | "b" y?\ny: y "a" | ")"',
        grammar(
            ir.sequence(ir.Ref("x"), ir.Ref("y")),
            x=ir.choice(ir.sequence(A, ir.Ref("x"), B), ir.sequence(B, ir.optional(ir.Ref("y")))),
            y=ir.choice(ir.sequence(ir.Ref("y"), A), ir.Literal(b")")),
        ),
    ),
]


@pytest.mark.parametrize("text,language", CONTEXT_FREE, ids=lambda value: str(value)[:20])
def test_same_as_lark(text: str, language: ir.Grammar) -> None:
    parser = lark.Lark(text, parser="earley", lexer="dynamic_complete", ambiguity="forest")
    seen = set()
    for length in range(1, 6):
        for letters in itertools.product("ab()", repeat=length):
            word = "".join(letters)
            try:
                parser.parse(word)
                expected = True
            except lark.exceptions.LarkError:
                expected = False
            seen.add(expected)
            assert naive.accepts(language, word.encode()) == expected, word
    assert seen == {True, False}


@dataclass
class Words:
    """As much of a vocabulary as the reference reads."""

    token_bytes: list[bytes | None]
    stop_token_ids: list[int]
    special_tokens: dict[str, int] = field(default_factory=dict)


def test_mask_tries_every_token() -> None:
    words = Words(
        [b"a", b"b", b"ab", b"ba", b"abb", None, None, b"", b"ab", b"a"], [5, 9], {"</s>": 5, "<x>": 6}
    )
    language = grammar(
        ir.sequence(ir.star(ir.Literal(b"ab")), ir.optional(ir.SpecialToken(frozenset({"<x>"}))))
    )
    assert naive.mask(language, words, []) == {0, 2, 8, 5, 9, 6}
    assert naive.mask(language, words, [0]) == {1, 3}
    assert naive.mask(language, words, [0, 3]) == {1, 3}
    assert naive.mask(language, words, [2, 6]) == {5, 9}
    assert naive.mask(language, words, [1]) == set()


def test_a_token_may_be_read_both_ways() -> None:
    words = Words([b"a", b"b", None], [2])
    language = grammar(
        ir.choice(
            ir.sequence(ir.Literal(b"a"), ir.Literal(b"a")), ir.sequence(ir.SpecialToken(ids=((0, 0),)), B)
        )
    )
    assert naive.mask(language, words, []) == {0}
    assert naive.mask(language, words, [0]) == {0, 1}
    assert naive.mask(language, words, [0, 1]) == {2}
