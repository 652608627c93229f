"""EBNF grammars as a table: grammar, accepted texts, refused texts; refusals are in error_cases."""

from __future__ import annotations

import itertools
import re

import naive
import pytest

from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint
from vllm_guided.frontends import regular
from vllm_guided.frontends.detect import dialect_of, grammar_from_text
from vllm_guided.frontends.ebnf import ebnf_grammar
from vllm_guided.frontends.regex import regex_node
from vllm_guided.grammar import ir

TABLE = [
    ('root ::= "a" "b" | "c"', ["ab", "c"], ["a", "", "abc"]),
    ('root ::= "a" (b | "") # comment\nb ::= "b"  # more\n', ["a", "ab"], ["b"]),
    ('root ::= a\n  | "x"\na ::=\n  "a"', ["a", "x"], ["ax"]),
    ("root ::= [a-c]+ [^a-c] .", ["abz\n", "c\né"], ["abc", "z"]),
    ("root ::= [a-z0-9\\-]+ [\\]\\[^\\\\-]", ["a-1]", "-^", "a\\", "b-"], ["a_", "]"]),
    ("root ::= [а-яё\\u4e00-\\u9fff]{2}", ["ёж", "中文"], ["ab", "я"]),
    ('root ::= "\\n\\t\\"\\\\\\x41\\u00e9\\U0001F600"', ['\n\t"\\Aé😀'], ["n"]),
    ('root ::= "\\ud83d\\ude00"', ["😀"], ["?"]),
    ('root ::= "" | "a"', ["", "a"], ["aa"]),
    ('root ::= | "a"', ["", "a"], ["b"]),
    ('root ::= "a"? "b"* "c"+ "d"{2} "e"{1,} "f"{,2} "g"{0,1}', ["cdde", "abccddeeffg"], ["cde", "ddeg"]),
    ('root ::= item {2, 3}\nitem ::= "a" | "bc"', ["aa", "abca"], ["a", "aaaa"]),
    ('root ::= root "a" | "a"', ["a", "aaa"], ["", "ba"]),
    ('root ::= "(" root ")" | ""', ["", "(())"], ["(()", ")("]),
    ('rule-1.x ::= "b"\nroot ::= rule-1.x _y\n_y ::= "c"', ["bc"], ["b"]),
    ('root ::= Regex("a.c+")', ["a\nc", "abcc"], ["ac"]),
    ('root ::= Regex("a.c", flags="")', ["abc"], ["a\nc"]),
    ('root ::= Regex("(?i)\\\\d[k]")', ["1K"], ["kk"]),
    ('root ::= Regex("é", flags="i")', ["é"], ["É"]),
    ('root ::= Regex(".+", json_string=true)', ["é "], ['"', "\n"]),
    ('root ::= "<" Substring("ab", "c", "ab") ">"', ["<>", "<abc>", "<cab>"], ["<abab>", "<a>"]),
    ('root ::= TagDispatch(("<t>", a))\na ::= [0-9]', ["", "x", "x<t>1y<t>2", "<t"], ["<t>", "<t>x"]),
    ('root ::= TagDispatch(("<t>", a), loop_after_dispatch=false)\na ::= "1"', ["x<t>1"], ["<t>1x"]),
    ('root ::= TagDispatch(excludes=("ab", "bb")) "ab"', ["ab", "xab", "aab"], ["abab", "bbab"]),
    ('root ::= "<" r ">"\nr[lazy] ::= [a-z]+', ["<a>"], ["<ab>", "<>"]),
    ('root ::= r "!"\nr[lazy, capture="x"] ::= a "."\na ::= [a-z] a | [a-z]', ["ab.!"], [".!", "a..!"]),
    # names as llama.cpp has them, and its dot between two of them
    ('root ::= 1st "-" 2\n1st ::= [0-9]+\n2 ::= "z"', ["12-z"], ["2-"]),
    ('root ::= a.b a.*\na ::= "a"\nb ::= "b"', ["axba", "a\nba!!"], ["aba"]),
    ('root ::= a.b\na.b ::= "q"\na ::= "a"\nb ::= "b"', ["q"], ["axb"]),
    ('\ufeffroot ::= -x-\n-x- ::= "q"', ["q"], ["-"]),
    # look-ahead
    ('root ::= a ("x" | "y")\na ::= "a" "b"? (="x")', ["ax", "abx"], ["ay", "aby", "a"]),
    ('root ::= a [a-z]*\na ::= "a" (="bc" | "d")', ["abc", "adz", "abcz"], ["a", "ab", "abd", "axx"]),
    ('root ::= (a | "b")*\na ::= "a" (="ba")', ["", "bb"], ["a", "aba", "ab", "abab"]),
    ('root ::= "(" root ")" | x\nx ::= "x" (=")")', ["(x)", "((x))"], ["x", "((x)"]),
    ("root ::= k .*\nk ::= [k] (= [à-ü])", ["kéx"], ["k", "kz", "kĀ"]),
    ('root ::= k "a"{0,5}\nk ::= "k" (= "a"{2,3})', ["kaa", "kaaaaa"], ["k", "ka", "kaaaaaa"]),
    ('root ::= k n*\nn ::= [0-9]\nk ::= "k" (= n n)', ["k12", "k123"], ["k1"]),
    ('root ::= k\nk ::= "k" (= "b"?)', ["k"], ["", "kb"]),
    ('root ::= x "ab"\nx ::= "a"+ | "b" (= "a")', ["aab", "bab"], ["xab"]),
    ('root ::= s\ns[max_tokens=2] ::= ("é" | "ab")*', ["", "é", "ab"], ["éé", "abé"]),
    ('root ::= s "."\ns[lazy, max_tokens=3, max_chars=2] ::= "é"* "a"', ["a.", "éa."], ["ééa.", "é."]),
    ("root[temperature=0.5] ::= [a-z]", ["a"], ["A"]),  # says how to sample, not what
    ('root ::= s\ns[max_chars=2] ::= ("é" | "ab")*', ["", "éé", "ab"], ["ééé", "abé"]),
]


@pytest.mark.parametrize(("text", "accepted", "refused"), TABLE)
def test_language(text: str, accepted: list[str], refused: list[str]) -> None:
    grammar = ebnf_grammar(text)
    for word in accepted:
        assert naive.accepts(grammar, word.encode()), word
    for word in refused:
        assert not naive.accepts(grammar, word.encode()), word


TOKENS = [
    ("root ::= <think> [a] <[5]>", [[("token", "<think>"), b"a", ("token", 5)]], [[b"<think>a"]]),
    ("root ::= !<[5]>", [[("token", 4)]], [[("token", 5)]]),
    ('root ::= Token(3, "<x>")', [[("token", 3)], [("token", "<x>")]], [[("token", 4)]]),
    ("root ::= ExcludeToken(3)", [[("token", 4)]], [[("token", 3)]]),
    (
        'root ::= TokenTagDispatch((3, a), excludes=(5))\na ::= "x"',
        [[], [("token", 4)], [("token", 3), b"x", ("token", 4)]],
        [[("token", 3)], [("token", 5)]],
    ),
]


@pytest.mark.parametrize(("text", "accepted", "refused"), TOKENS)
def test_special_tokens(text: str, accepted: list[naive.Data], refused: list[naive.Data]) -> None:
    grammar = ebnf_grammar(text)
    for data in accepted:
        assert naive.accepts(grammar, data), data
    for data in refused:
        assert not naive.accepts(grammar, data), data


def test_root_by_name_and_counts_stay_counts() -> None:
    grammar = ebnf_grammar('main ::= "ab"{2,50000}', "main")
    assert grammar.rules["main"].body == ir.Repeat(ir.text("ab"), 2, 50_000)


@pytest.mark.parametrize(
    "text",
    [
        "root ::= " + "(" * 5000 + '"a"' + ")" * 5000,
        'root[lazy] ::= r00 "!"\n'
        + "".join(f"r{n:02} ::= r{n + 1:02} r{n + 1:02}\n" for n in range(40))
        + 'r40 ::= "a"',
        "root ::= TagDispatch(" + "(" * 5000,
    ],
    ids=["depth", "doubling", "arguments"],
)
def test_budgets(text: str) -> None:
    with pytest.raises((ConstraintTooComplex, InvalidConstraint)):
        ebnf_grammar(text)


@pytest.mark.parametrize("length", range(5))
@pytest.mark.parametrize("pattern", ["(a|é)*b?", "a{2}|é{1,3}", "(ab|é😀)+", "(?:é|a)*b(?:a|b){2}", "b{7}"])
def test_counted_members(pattern: str, length: int) -> None:
    """Bounds on bytes and characters are intersections with short texts."""
    whole = regular.dfa(regex_node(pattern))
    for count, item in ((regular.at_most, ir.ANY_BYTE), (regular.characters_at_most, ir.ANY_CHAR)):
        short = regular.intersection(whole, regular.dfa(ir.Repeat(item, 0, length)))
        found = count(whole, length)
        assert regular.is_empty(regular.difference(found, short))
        assert regular.is_empty(regular.difference(short, found))


# text, its dialect
DIALECTS = [
    ('root ::= "a" | "b"', "ebnf"),
    ("# Lark: not\nroot ::=\n  [a]", "ebnf"),
    ('root[lazy] ::= "a: b"\n', "ebnf"),
    ('start: "::=" | "a"', "lark"),
    ('?start: "a"', "lark"),
    ("%import common.INT\nstart: INT", "lark"),
    ('start[lazy]: "a"', "lark"),
    ('t{x}: x\nstart: t{"a"}', "lark"),
    ('// a ::= b\nstart.2: "a"', "lark"),
    ("start: p::0\np::_: /x/", "lark"),
    ("# dialect: lark\nx ::= 1", "lark"),
]


@pytest.mark.parametrize(("text", "dialect"), DIALECTS)
def test_dialect(text: str, dialect: str) -> None:
    assert dialect_of(text) == dialect


def test_a_wrong_guess_says_how_to_name_the_dialect() -> None:
    with pytest.raises(InvalidConstraint, match=r"read as Lark; if that is wrong.*# dialect: ebnf"):
        grammar_from_text('start: "a" ::= b')
    with pytest.raises(InvalidConstraint, match=r"read as EBNF; if that is wrong.*# dialect: lark"):
        grammar_from_text("root ::= nope")
    with pytest.raises(InvalidConstraint, match="no grammar, no line"):
        grammar_from_text("hello")
    with pytest.raises(InvalidConstraint, match="'peg' is not known"):
        grammar_from_text("# dialect: peg\na <- b")
    grammar = grammar_from_text('# dialect: lark\nstart: "a"')
    assert naive.accepts(grammar, b"a")


# {look} is where the look-ahead stands, and what it asks for
LOOKING = [
    ('root ::= s s\ns ::= "a" s "b" | t\nt ::= "b"?{look}', '"b" | "aa"'),
    ('root ::= x*\nx ::= "a" | y "b"\ny ::= "a"*{look}', '"ba"'),
    ('root ::= ("a" x){{1,2}} "b"*\nx ::= "b"{{0,2}}{look}', '"b" "b"'),
    ('root ::= x root | "b"\nx ::= "a" | "b" y\ny ::= "" | "a" x{look}', "[ab] [b]"),
]


@pytest.mark.parametrize(("text", "asked"), LOOKING)
def test_look_ahead_against_marked_words(text: str, asked: str) -> None:
    """A word is in the language if marks can be put in it: one behind each rule that looks ahead."""
    lines = text.split("\n")
    lines[-1] = re.sub(r"::= (.*)\{look\}", r'::= (\1) "#"', lines[-1])
    marked = ebnf_grammar("\n".join(lines).replace("{{", "{").replace("}}", "}"))
    looking = ebnf_grammar(text.format(look=f" (= {asked})"))
    follows = ebnf_grammar(f"root ::= {asked}")
    heads = {word for word in words("ab", 3) if naive.accepts(follows, word.encode())}
    expected = set()
    for word in words("ab#", 7):
        tails = [word[place:].replace("#", "") for place, char in enumerate(word) if char == "#"]
        if all(any(tail.startswith(head) for head in heads) for tail in tails) and naive.accepts(
            marked, word.encode()
        ):
            expected.add(word.replace("#", ""))
    found = {word for word in words("ab", 4) if naive.accepts(looking, word.encode())}
    assert {word for word in found if len(word) <= 3} == {word for word in expected if len(word) <= 3}
    assert len(expected) > 1


def words(letters: str, longest: int) -> list[str]:
    return ["".join(word) for size in range(longest + 1) for word in itertools.product(letters, repeat=size)]
