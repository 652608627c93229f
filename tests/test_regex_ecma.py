"""The ECMA dialect, searched as JSON Schema searches, against ``regress`` (ECMA-262 with the u flag)."""

from __future__ import annotations

from typing import Any

import naive
import pytest
from hypothesis import given
from hypothesis import strategies as st
from regex_patterns import TEXTS, patterns

from vllm_guided.errors import GrammarError
from vllm_guided.frontends.regex import CharDfa, regex_node
from vllm_guided.grammar import ir

regress = pytest.importorskip("regress")

# pattern, texts that hold a match, texts that hold none
TABLE = [
    (r"", ["", "a"], []),
    (r"a", ["a", "xay", "\na"], ["", "b"]),
    (r"^a", ["a", "ab"], ["ba", "b\na"]),
    (r"a$", ["a", "ba"], ["ab", "a\n"]),
    (r"^a|b$", ["ax", "xb"], ["xa", "bx"]),
    (r"(^|,)a(,|$)", ["a", ",a,", "x,a"], ["xa", "ax"]),
    (r"^[^]$", ["a", "\n"], ["", "ab"]),
    (r"[]", [], ["", "a"]),
    (r"^.$", ["a", "é", "😀"], ["\n", "\r", "\u2028", "\u2029"]),
    (r"^\d+$", ["042"], ["٣"]),
    (r"^\w+$", ["a_Z9"], ["é", "-"]),
    (r"^\s$", [" ", "\ufeff", "\u2028", "\u00a0", "\v"], ["a", "\u0085", "\u200b"]),
    (r"^\S$", ["a"], ["\u3000"]),
    (r"^[\s\S]*$", ["", "a\n\u2028"], []),
    (r"^\u{1F600}[\u{1F600}-\u{1F64F}]\ud83d\ude00$", ["😀😁😀"], ["😀a😀"]),
    (r"^\cJ\0\x41\t\/\-\_\@$", ["\n\0A\t/-_@"], ["A"]),
    (r"^a{,2}$", ["a{,2}"], ["", "aa"]),
    (r"^{a}]}$", ["{a}]}"], ["a"]),
    (r"^[\w-.]+$", ["a-.b"], ["+"]),
    (r"^\p{Letter}+$", ["aéß"], ["1", ""]),
    (r"\p{Lu}\P{L}", ["É1"], ["é1", "É"]),
    (r"^\p{digit}+$", ["42", "৪২"], ["-%#"]),
    (r"^[^\p{L}\d]$", ["-"], ["a", "1"]),
    (r"^\p{ASCII}\p{Any}\p{White_Space}$", ["a😀 "], ["éa "]),
    (r"(?<year>\d{4})-(?:\d\d)", ["on 2024-05"], ["202-05"]),
    (r"\bfoo\b", ["foo", "a foo.", "éfoo"], ["food", "_foo"]),
    (r"^\Bx", [], ["x"]),
    (r"^(?!.*--)[a-z-]+$", ["a-b", "-a"], ["a--b", ""]),
    (r"^(?=.{3,5}$)[a-z]+(-[a-z]+)?$", ["abc", "ab-cd"], ["ab", "abc-de", "abc-"]),
    (r"^((?!mode)(?!Mode).)*$", ["", "mod", "moMod"], ["xmode", "Modex"]),
    (r"(?<=\$)\d+(?!\d|%)", ["$12", "a$1"], ["12", "$"]),
    (r"(?<!(a|bc+))x", ["x", "cx", "bax"[:1] + "x"], ["ax", "bccx"]),
    (r"^(?=a)", ["ab"], ["ba", ""]),
    (r"((?:[^/]*/)*)(?=\.(yaml|yml|json))", ["x/y.yml", ".json"], ["x.txt", "yaml"]),
    (r"^\s*$", ["", " \n"], ["a"]),
    (r"^(\S+\s+){0,3}\S+$", ["a b", "a"], ["a b c d e", " a"]),
    (r"(?i:straße)K", ["STRASSE".replace("SS", "ẞ") + "K", "straßeK"], ["straßek", "strasseK"]),
]


@pytest.mark.parametrize(("pattern", "found", "missed"), TABLE)
def test_table(pattern: str, found: list[str], missed: list[str]) -> None:
    automaton = CharDfa.from_pattern(pattern, dialect="ecma", search=True)
    grammar = ir.Grammar({"start": ir.Rule(regex_node(pattern, dialect="ecma", search=True))}, "start")
    for text in found:
        assert automaton.accepts(text), text
        assert naive.accepts(grammar, text.encode()), text
    for text in missed:
        assert not automaton.accepts(text), text
        assert not naive.accepts(grammar, text.encode()), text
    judge = _judge(pattern)
    if judge is not None:
        assert all(judge.find(text) for text in found)
        assert not any(judge.find(text) for text in missed)


def _judge(pattern: str) -> Any:
    """The pattern as ECMA-262 takes it; None where only our leniency does."""
    try:
        return regress.Regex(pattern, "u")
    except regress.RegressError:
        return None


@given(patterns(fixed_lookbehind=False, extra=(r"(?<!a(?=b))", r"(?=b(?<=ab))", "[]", "[^]")))
def test_random_patterns_are_found_where_regress_finds_them(pattern: str) -> None:
    judge = regress.Regex(pattern, "u")
    automaton = CharDfa.from_pattern(pattern, dialect="ecma", search=True)
    wrong = [text for text in TEXTS if automaton.accepts(text) != bool(judge.find(text))]
    assert not wrong


@given(patterns(fixed_lookbehind=False, extra=("[é-ü]", "😀")), st.booleans(), st.data())
def test_nodes_say_what_automata_say(pattern: str, search: bool, data: st.DataObject) -> None:
    automaton = CharDfa.from_pattern(pattern, dialect="ecma", search=search)
    grammar = ir.Grammar({"start": ir.Rule(regex_node(pattern, dialect="ecma", search=search))}, "start")
    texts = data.draw(st.lists(st.one_of(st.sampled_from(TEXTS), st.text("abé😀_", max_size=3)), max_size=10))
    for text in [*texts, automaton.shortest() or "a"]:
        assert naive.accepts(grammar, text.encode()) == automaton.accepts(text), text


@given(st.text(alphabet="ab(|)[]^$*+?{},0123-\\.<>=!:iuwbdpL#", max_size=12))
def test_any_text_compiles_or_is_refused(pattern: str) -> None:
    try:
        automaton = CharDfa.from_pattern(pattern, dialect="ecma", search=True)
    except GrammarError:
        return
    judge = _judge(pattern)
    if judge is not None:
        assert [t for t in TEXTS[:200] if automaton.accepts(t)] == [t for t in TEXTS[:200] if judge.find(t)]


@pytest.mark.parametrize(
    "name",
    [
        "L",
        "Lu",
        "Ll",
        "Lt",
        "Lm",
        "Lo",
        "Mn",
        "Nd",
        "Nl",
        "P",
        "Sc",
        "Zs",
        "Cc",
        "White_Space",
        "Uppercase",
        "Lowercase",
        "ASCII",
    ],
)
def test_properties_are_those_of_unicode(name: str) -> None:
    """On the characters of an early Unicode, which all tables have alike."""
    judge = regress.Regex(rf"\p{{{name}}}", "u")
    automaton = CharDfa.from_pattern(rf"\p{{{name}}}", dialect="ecma")
    for point in [
        *range(0x0, 0x0250),
        *range(0x0370, 0x0530),
        *range(0x2000, 0x2070),
        *range(0x3000, 0x3100),
        *range(0x1D400, 0x1D500),
    ]:
        assert automaton.accepts(chr(point)) == bool(judge.find(chr(point))), hex(point)


def test_case_folding_is_simple_folding() -> None:
    letters = [chr(point) for point in (*range(0x41, 0x250), *range(0x370, 0x590), *range(0x1E00, 0x2130))]
    text = "".join(letters)
    for letter in letters[::5]:
        if not letter.isalpha():
            continue
        judge = regress.Regex(letter, "iu")
        automaton = CharDfa.from_pattern(letter, dialect="ecma", flags="i")
        assert [c for c in text if automaton.accepts(c)] == [c for c in text if judge.find(c)], hex(
            ord(letter)
        )


@pytest.mark.parametrize(
    "pattern", [r"\p{Lu}", r"\P{Lu}", r"[^\P{Lu}]", r"[^\p{Lu}]", r"\w", r"\W", "[^k-s]", "[K-S]"]
)
def test_ignoring_case_in_sets(pattern: str) -> None:
    judge = regress.Regex(pattern, "iu")
    automaton = CharDfa.from_pattern(pattern, dialect="ecma", flags="i")
    for character in map(
        chr, [*range(0x19B), *range(0x1DD, 0x250), *range(0x370, 0x400), 0x1E9E, 0x212A, 0x212B]
    ):
        assert automaton.accepts(character) == bool(judge.find(character)), hex(ord(character))
