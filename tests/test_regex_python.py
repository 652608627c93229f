"""Python's dialect against Python's ``re``, and its grammars against the naive recogniser."""

from __future__ import annotations

import re

import naive
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from regex_patterns import TEXTS, patterns

from vllm_guided.errors import GrammarError
from vllm_guided.frontends.regex import CharDfa, regex_grammar, regex_node
from vllm_guided.grammar import ir

POSSESSIVE = (r"(?:ab?)", "a++", "[ab]{1,2}+", "(?>a|ab)", "(?>ab|a)", "(?:ab)?+", "(?>a*?)")

# pattern, texts it matches whole, texts it does not
TABLE = [
    (r"", [""], ["a", "\n"]),
    (r"abc", ["abc"], ["ab", "abcd", "ABC"]),
    (r"a|bc|", ["a", "bc", ""], ["b", "abc"]),
    (r"(a|b)*a(a|b){2}", ["abb", "bbabb", "aaaa"], ["bbb", "ab"]),
    (r"a{,2}b{2,}c{0}d{1}", ["bbd", "aabbbd"], ["bd", "aaabbd", "bbcd"]),
    (r"x{ 2}|x{|{}", ["x{ 2}", "x{", "{}"], ["xx"]),
    (r"[]a-]+[^]b]", ["]a-x"], ["]]", "ab"]),
    (r"[a\-c]", ["a", "-", "c"], ["b"]),
    (r"[\d_][\w.]", ["1.", "__", "٣é"], ["a.", "1-"]),
    (r"\d\D\w\W\s\S", ["5x_ \t."], ["xx_ \t.", "5x_ \t\n"]),
    (r"(?a)\d\w\s", ["1a "], ["٣a ", "1é ", "1a\u2003"]),
    (r"\x41\u00e9\U0001F600\101\0\07", ["Aé😀A\0\a"], ["A"]),
    (r"[\x41-\x43\b\101\n]+", ["ABC\b\n"], ["b", "D"]),
    (r"\u{1F600}\e\cJ\a\f\v\/\-", ["😀\x1b\n\a\f\v/-"], [""]),
    (r"\ud83d\ude00", ["😀"], ["?"]),
    (r"\N{EM DASH}", ["—"], ["-"]),
    (r".", ["a", "é", "😀", "\r", "\u2028"], ["\n", "", "ab"]),
    (r"(?s).", ["\n", "a"], [""]),
    (r"(?s:.)(?-s:.)", ["\na"], ["a\n"]),
    (r"(?i)stra(?-i:S)e", ["STRaSe", "straSE"], ["STRASE ", "strase"]),
    (r"(?i:k)[^k]", ["ka", "\u212aa", "KK"], ["kk", "k"]),
    (r"(?i)[à-ý]", ["À", "à", "Ý"], ["a", "ß"]),
    (r"(?x) a b # comment )(" + "\n" + r" \ c [ #]", ["ab c#", "ab c "], ["abc", "a b c"]),
    (r"(?P<year>\d)(?<day>\d)(\d)(?:\d)", ["1234"], ["123"]),
    (r"(?#note)a(?#more)", ["a"], [""]),
    (r"a*?b+?c??d{1,2}?", ["aabbcdd", "bd"], ["ad"]),
    (r"^a$", ["a"], ["a\n", "ba"]),
    (r"^yes$|^no$", ["yes", "no"], ["yesno", "", "yes\n"]),
    (r"(^|,)a($|;)", ["a", ",a", "a;"], [",a,"]),
    (r"a$\n", ["a\n"], ["a", "a\n\n"]),
    (r"(?m)^a$\n^b$", ["a\nb"], ["a\n\nb", "ab"]),
    (r"\Aa\Z|\Ab\z", ["a", "b"], ["a\n"]),
    (r"a^b|x$y|c", ["c"], ["ab", "xy"]),
    (r"\bfoo\b", ["foo"], ["food", "foo "]),
    (r"\w+\b.*", ["foo", "foo bar", "foo-bar"], ["", " foo"]),
    (r".*\bcat\b.*", ["cat", "a cat.", "cat-cat"], ["concat", "cats", "_cat"]),
    (r"a\Bb\B-|-\B-", ["--"], ["ab-"]),
    (r"(?=.*\d)(?=.*[a-z])[\w]{3,5}", ["a1_", "1abcd"], ["abc", "123", "a1", "a12345"]),
    (r"(?!.*(foo|bar)).+", ["baz", "fo"], ["", "xfoo", "bar"]),
    (r"((?!ab).)*", ["", "aa", "ba"], ["ab", "xaby"]),
    (r'"(?:[^"\\]|\\.)*?(?<!\\)"', ['"a"', '""', '"a\\"b"'], ['"a\\"', '"']),
    (r"(?<=a)b|ab(?<=ab)(?<!b.)c", ["abc"], ["b", "ab"]),
    (r"a(?<!b)(?<=^a)", ["a"], ["ba"]),
    (r"(?>a|ab)c", ["ac"], ["abc"]),
    (r"(?>ab|a)c", ["abc", "ac"], ["c"]),
    (r"a*+b|[ab]?+c", ["aab", "b", "ac", "c"], ["abc"]),
    (r"a++ab?", [], ["aa", "aab"]),
    (r"\p{Lu}\P{Lu}\pN\p{gc=Nd}\p{Letter}", ["Äa12é"], ["aa123", "AAa12"]),
    (r"[\p{Ll}\d]+[^\p{L}]", ["aé1-"], ["A-", "aé"]),
]


@pytest.mark.parametrize(("pattern", "accepted", "refused"), TABLE)
def test_table(pattern: str, accepted: list[str], refused: list[str]) -> None:
    automaton = CharDfa.from_pattern(pattern)
    node = regex_node(pattern)
    grammar = ir.Grammar({"start": ir.Rule(node)}, "start")
    for text in accepted:
        assert automaton.accepts(text), text
        assert naive.accepts(grammar, text.encode()), text
    for text in refused:
        assert not automaton.accepts(text), text
        assert not naive.accepts(grammar, text.encode()), text
    try:
        judge = re.compile(pattern)
    except re.error:
        return  # the other dialect's spelling
    if r"\ud83d" in pattern:
        return  # a pair of escapes is two lone surrogates to re
    for text in accepted:
        assert judge.fullmatch(text), text
    for text in refused:
        assert not judge.fullmatch(text), text


@given(patterns(fixed_lookbehind=True, extra=POSSESSIVE))
@example(r"(?:\b)?a")
@example(r"(?:(?=a)|b){3}a")
@example(r"(?:$|a)\n(?!\n)")
def test_random_patterns_match_what_re_matches(pattern: str) -> None:
    judge = re.compile(pattern)
    automaton = CharDfa.from_pattern(pattern)
    wrong = [text for text in TEXTS if automaton.accepts(text) != bool(judge.fullmatch(text))]
    assert not wrong


@given(patterns(fixed_lookbehind=True))
def test_random_patterns_are_found_where_re_finds_them(pattern: str) -> None:
    judge = re.compile(pattern)
    automaton = CharDfa.from_pattern(pattern, search=True)
    wrong = [text for text in TEXTS if automaton.accepts(text) != bool(judge.search(text))]
    assert not wrong


@given(patterns(fixed_lookbehind=True, extra=("é", "😀")), st.booleans(), st.data())
def test_nodes_say_what_automata_say(pattern: str, search: bool, data: st.DataObject) -> None:
    automaton = CharDfa.from_pattern(pattern, search=search)
    grammar = ir.Grammar({"start": ir.Rule(regex_node(pattern, search=search))}, "start")
    texts = data.draw(st.lists(st.one_of(st.sampled_from(TEXTS), st.text("abé😀_", max_size=3)), max_size=10))
    for text in [*texts, automaton.shortest() or "a"]:
        assert naive.accepts(grammar, text.encode()) == automaton.accepts(text), text


@given(st.text(alphabet="ab(|)[]^$*+?{},0123-\\.<>=!:iPwbd#", max_size=12))
def test_any_text_compiles_or_is_refused(pattern: str) -> None:
    try:
        automaton = CharDfa.from_pattern(pattern)
    except GrammarError:
        return
    try:
        judge = re.compile(pattern)
    except (re.error, OverflowError):
        return
    assert [t for t in TEXTS[:200] if automaton.accepts(t)] == [t for t in TEXTS[:200] if judge.fullmatch(t)]


@pytest.mark.parametrize("escape", [r"\d", r"\D", r"\w", r"\W", r"\s", r"\S"])
def test_unicode_classes_are_those_of_re(escape: str) -> None:
    judge = re.compile(escape)
    automaton = CharDfa.from_pattern(escape)
    points = [point for point in range(0x110000) if not 0xD800 <= point <= 0xDFFF]
    assert [p for p in points if judge.match(chr(p))] == [
        p for low, high in _members(automaton) for p in range(low, high + 1)
    ]


def _members(automaton: CharDfa) -> list[tuple[int, int]]:
    """The characters that lead from the start to an accepting state."""
    classes = automaton.partition.members()
    return sorted(
        item
        for label, target in enumerate(automaton.rows[0])
        if target in automaton.accepting
        for item in classes[label]
    )


def test_case_families_are_those_of_re() -> None:
    letters = [chr(point) for point in range(0x20000) if chr(point).isalpha()]
    cased = [c for c in letters if c.lower() != c or c.upper() != c]
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    for letter in cased[::7]:
        expected = sorted(ord(c) for c in re.findall(f"(?i){letter}", everything[:0x30000]))
        found = [
            p for low, high in _members(CharDfa.from_pattern(f"(?i){letter}")) for p in range(low, high + 1)
        ]
        assert found == expected, letter


def test_large_counts_stay_counters() -> None:
    assert regex_node("[a-z]{0,100000}") == ir.Repeat(ir.CharSet(((97, 122),)), 0, 100_000)
    assert "Graph" not in repr(regex_node("^x{1,5000}y$", search=True, dialect="ecma"))


def test_nothing_matches_is_invalid() -> None:
    with pytest.raises(GrammarError, match="no text matches"):
        regex_grammar("(?=a)")
