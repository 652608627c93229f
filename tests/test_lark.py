"""Lark grammars as a table: grammar, accepted texts, refused texts."""

from __future__ import annotations

import itertools
import re
import time

import naive
import pytest

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.lark import lark_grammar
from vllm_guided.grammar import ir

# grammar, accepted, refused
STOCK = [
    ('start: "a" "b" | "c" ("d" | "e")', ["ab", "cd", "ce"], ["", "a", "c", "ade"]),
    ('start: ("a" | "b") ["c"]', ["a", "b", "ac"], ["", "c", "abc"]),
    ('start: | "a"', ["", "a"], ["aa"]),
    ('start: "a" |\n', ["", "a"], ["aa"]),
    ('start: "x"\n  | "y"\n  | "z"', ["x", "y", "z"], ["", "xy"]),
    ('start: "a" \\\n  "b"', ["ab"], ["a"]),
    ('start: "a" -> one\n  | "b" -> two', ["a", "b"], ["one", ""]),
    ('?start: inner\n!inner: "a"\n', ["a"], [""]),
    ('start: _x Y\n_x.2: "a"\nY.-1: "b"', ["ab"], ["a", "b"]),
    ('start: "a"? "b"* "c"+', ["c", "abbcc"], ["", "ab"]),
    ('start: "a"~3', ["aaa"], ["aa", "aaaa"]),
    ('start: ("a" | "bc")~2..3', ["aa", "abc", "bcbcbc"], ["a", "aaaa"]),
    ("start: A~0..2\nA: /x/~2", ["", "xx", "xxxx"], ["x", "xxx"]),
    ('start: "a".."c"+', ["abc"], ["d", ""]),
    ('start: e\ne: e "+" e | "n"', ["n", "n+n", "n+n+n"], ["", "n+"]),
    ('start: a\na: | a "x"', ["", "x", "xx"], ["y"]),
    ("start: /a.b/s /[0-9]{2}/", ["a\nb12"], ["ab12", "a\nb1"]),
    ("start: /a.b/", ["axb"], ["a\nb"]),
    ('start: "Ab"i /c/i', ["abc", "ABC", "aBC"], ["ac"]),
    ("start: /a b/x", ["ab"], ["a b"]),
    ("start: /^a$/m", ["a"], ["b"]),
    (r'start: "\b\f\r" "\\b"', ["\b\f\r\\b"], ["bfr\\b"]),
    ('start: "\\n" "\\u03bb" "\\x41" "\\\\" "\\""', ['\nλA\\"'], ["n"]),
    ('start: "don\'t" | "a\\"b"', ["don't", 'a"b'], ["dont"]),
    ('start: "é" "😀"', ["é😀"], ["e"]),
    ("start: WORD // one\nWORD: /a+/ # two\n", ["aa"], ["", "WORD"]),
    ('start: T\nT: "yes"i | "no"', ["YES", "no"], ["NO"]),
    ("start: A\nA: B+ [C]\nB: /[ab]/\nC: /!/", ["ab!", "a"], ["!", ""]),
    ("start: pair{A, B} pair{B, A}\npair{x, y}: x y\nA: /a/\nB: /b/", ["abba"], ["abab"]),
    (
        'start: list{item}\nlist{x}: x ("," x)*\nitem: list2{"y"}\nlist2{z}: "[" z "]"',
        ["[y]", "[y],[y]"],
        ["[y],"],
    ),
    ("start: apply{wrap}\napply{f}: f{A}\nwrap{x}: /</ x />/\nA: /a/", ["<a>"], ["a"]),
    ("%import common.INT\nstart: INT", ["0", "42"], ["", "-1"]),
    ("%import common (INT, WS)\n%ignore WS\nstart: INT INT", ["1 2", " 12 ", "12"], ["1"]),
    ("%import common.NUMBER -> N\nstart: N", ["1.5e3", ".5"], ["x"]),
    ("%import common.WORD\n%extend WORD: /[0-9]/\nstart: WORD", ["ab", "7"], ["a7"]),
    ("%import common.WORD\n%override WORD: /[0-9]/\nstart: WORD", ["7"], ["ab"]),
    ("%import python.NAME\nstart: NAME", ["a1", "é"], ["1a"]),
    ("%import unicode.WS\nstart: WS", ["\u00a0"], ["x"]),
    ('a: "x"\n%extend a: "y"\nstart: a', ["x", "y"], ["xy"]),
]

# What is matched as lexers match it: ignored terminals the longest, lazy ones the shortest.
LEXING = [
    ('start: "a" "b"\n%ignore " "', ["ab", " a  b ", "a b"], ["a_b"]),
    (
        "start: NAME+\nNAME: /[a-z]+/\n%ignore /#[^\\n]*/\n%ignore /\\s+/",
        ["a #b\nc", "a#b", "#\na"],
        ["#a", "#a b"],
    ),
    ('start: "a" " b"\n%ignore / +/', ["a b", " a b"], ["a  b", "ab"]),
    ('start: "x"\n%ignore "--"\n%ignore /-+>/', ["--x--->", "x"], ["-x"]),
    ('start: ["a"]\n%ignore " "', ["", "  ", " a"], ["aa"]),
    ("%import common.C_COMMENT\nstart: C_COMMENT /x/*", ["/**/", "/* * */x"], ["/* */ */", "/*"]),
    (
        "%import common.ESCAPED_STRING\nstart: ESCAPED_STRING+",
        ['"a"', '"\\""', '""', '"a""b"', '"\\\\"'],
        ['"', '"\\"', '"a"b"', '"\n"'],
    ),
]

# llguidance's additions
DIALECT = [
    ('start: "a"{2,3} "b"{,1} "c"{1,} "d"{2}', ["aacdd", "aaabccdd"], ["acdd", "aacd"]),
    ('start: "a" ""', ["a"], [""]),
    ('start: foo-bar BIG-ONE\nfoo-bar: "a"\nBIG-ONE: "b"', ["ab"], ["a-b"]),
    ("start: T\nT: /[a-z]+/ & ~/.*b.*/", ["ac"], ["abc", "A"]),
    ("start: T\nT: /[ab]/+ | /[cd]/+ & /[de]/+", ["ab", "dd"], ["c", "e"]),
    ('start: %json {"enum": [1, "x"]}', ["1", '"x"'], ["x"]),
    ('start: %json {"type": "integer"}', ["0", "-12"], ["1.0", "1e1", "+1"]),
    ('start: %json {"type": "integer", "minimum": 1, "maximum": 12}', ["1", "12"], ["13", "2.0"]),
    ('start: %json {"type": "number"}', ["1", "1.0"], ["x"]),
    (
        'start: %json {"type": "object", "properties": {"b": {}, "a": {}},'
        ' "additionalProperties": {"type": "null"}}',
        ['{"b":1,"a":2}', '{"a":1,"\\u00e9":null}', '{"\\u001f":null}', "{}"],
        ['{"a":1,"b":2}', '{"\\u0061":null}', '{"\\u00e9":1}'],
    ),
    (
        'start: %json {"items": {"type": "null"}, "type": "array", "maxItems": 2, "x-guidance":'
        ' {"item_separator": ", ", "whitespace_flexible": false}}',
        ["[null, null]", "[]"],
        ["[null,null]", "[ null]", "[null,  null]"],
    ),
    (
        'start: %json {"items": {"type": "null"}, "type": "array",'
        ' "x-guidance": {"whitespace_pattern": " "}}',
        ["[null, null ]", "[null]"],
        ["[null,  null]"],
    ),
    ('start: %lark { start: "a" | b\n b: "c" } "!"', ["a!", "c!"], ["a"]),
    ('start: %regex {"substring_words": "foo bar"}', ["", "foo", "foo bar"], ["fo"]),
    ('start: %regex {"substring_chars": "aba"} "!"', ["ab!", "ba!", "!"], ["aa!"]),
    ('start: %regex {"substring_chunks": ["ab", "c"]}', ["abc", "c"], ["b"]),
    ("start: /\\u{1F600}/", ["😀"], ["u"]),
    ("start: /(?<n>a)\\p{Lu}/", ["aÉ"], ["aé"]),
    (
        "start: p::0\np::_: /x/ %if is_ones([0:2])\n | /a/ p::set_bit(0) %if bit_clear(0)\n"
        " | /b/ p::set_bit(1) %if bit_clear(1)",
        ["abx", "bax"],
        ["x", "aax", "abab"],
    ),
    ("start: n::0\nn::_: /a/ n::incr(_) %if lt(_, 3)\n | /!/ %if ge(_, 2)", ["aa!", "aaa!"], ["a!", "aaaa!"]),
    ("start: r /!/\nr[lazy]: /[a-z]+/", ["a!"], ["ab!"]),
    ('start: r "!"\nr[suffix="ab"]: /[ab]*/', ["ab!", "aab!"], ["abab!", "a!"]),
    ('start: r\nr[stop="", capture="x"]: /a*/', ["", "aa"], ["b"]),
    (
        "start: r\nr[max_tokens=3]: /é*b?/",
        ["", "é", "éb", "b"],
        ["éé", "ééb"],
    ),  # bytes: no more tokens than that
    ("start: r\nr[temperature=0.5, capture]: /a/", ["a"], ["b"]),  # says how to sample, not what
    ("start: r /!/\nr[max_tokens=3, lazy]: /[a-z]+?b/", ["ab!", "aab!"], ["aaab!"]),
    ('start: r\nr[max_tokens=3, stop=""]: /[0-9]+/', ["1", "123"], ["", "1234"]),
    (
        'start: t* TAIL\nt: head /[0-9]/\nhead[lazy]: ANY "<t>"\nANY: /(.|\\n)*/\nTAIL: /(.|\\n)*/',
        ["", "x", "<t>1", "a<t>1b<t>2c", "<t"],
        ["<t>", "<t>x", "a<t>1<t>"],
    ),
]


@pytest.mark.parametrize(("text", "accepted", "refused"), STOCK + LEXING + DIALECT)
def test_language(text: str, accepted: list[str], refused: list[str]) -> None:
    grammar = lark_grammar(text)
    for word in accepted:
        assert naive.accepts(grammar, word.encode()), word
    for word in refused:
        assert not naive.accepts(grammar, word.encode()), word


JOINED = ["a*", "[ab]+", "a|ab", "(a|b)*b", "é?[^a]", "(?i:AB?)", "b{2,3}", "(?!b).*", "a+$|b", "", "a.?b"]


@pytest.mark.parametrize("right", JOINED)
@pytest.mark.parametrize("left", JOINED)
def test_conjunctions_and_complements(left: str, right: str) -> None:
    """Texts are in ``A & ~B & ~C`` as ``re`` says of each."""
    shown = [f"/{part}/" if part else '""' for part in (left, right)]
    both = lark_grammar(f'start: T "."?\nT: {shown[0]} & ~{shown[1]} & ~"b" | {shown[0]} & {shown[1]}')
    for word in ("".join(letters) for n in range(4) for letters in itertools.product("abé", repeat=n)):
        first, second = (bool(re.fullmatch(part, word)) for part in (left, right))
        wanted = first and (second or word != "b")
        assert naive.accepts(both, word.encode()) == wanted, word


def test_conjunctions_with_counts() -> None:
    """As many states as characters, not as their bytes."""
    grammar = lark_grammar("start: T\nT: /.{0,200}/ & ~/.*foo.*/ & /\\w*/")
    assert naive.accepts(grammar, ("é" * 200).encode()) and not naive.accepts(grammar, ("é" * 201).encode())
    assert not naive.accepts(grammar, b"afoob") and not naive.accepts(grammar, b"a b")


# grammar, data with tokens accepted, refused
TOKENS = [
    ('start: <|a|> "x"', [[("token", "<|a|>"), b"x"]], [[b"<|a|>x"], [b"x"]]),
    (
        "start: <[5]> <[7-9,12]>",
        [[("token", 5), ("token", 8)], [("token", 5), ("token", 12)]],
        [[("token", 5), ("token", 10)]],
    ),
    ("start: <[^5]>", [[("token", 6)]], [[("token", 5)]]),
    ("start: <[*]>", [[("token", 6)]], [[]]),
    ('%declare _TOOL\nstart: _TOOL "x"', [[("token", "_TOOL"), b"x"]], [[b"x"]]),
    ('start: "a" <|t|> "b"\n%ignore " "', [[b"a ", ("token", "<|t|>"), b" b "]], [[b"a b"]]),
]


@pytest.mark.parametrize(("text", "accepted", "refused"), TOKENS)
def test_special_tokens(text: str, accepted: list[naive.Data], refused: list[naive.Data]) -> None:
    grammar = lark_grammar(text)
    for data in accepted:
        assert naive.accepts(grammar, data), data
    for data in refused:
        assert not naive.accepts(grammar, data), data


def test_start_rule_by_name() -> None:
    grammar = lark_grammar('a: "x" b\nb: "y"', "b")
    assert naive.accepts(grammar, b"y") and not naive.accepts(grammar, b"xy")


def test_temperature_is_said_to_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    lark_grammar("start: r\nr[temperature=0.5]: /a/")
    assert "temperature of the rule r" in caplog.text and "no effect" in caplog.text


@pytest.mark.parametrize("limit", [3, 20, 600])
def test_max_tokens_of_any_text(limit: int) -> None:
    """Far more bytes than a terminal has states."""
    grammar = lark_grammar(f'start: r "."\nr[max_tokens={limit}, suffix="END"]: /(.|\\n)*/')
    long = "é" * ((limit - 3) // 2)
    assert naive.accepts(grammar, f"{long}END.".encode())
    assert not naive.accepts(grammar, f"{long}éEND.".encode())


def test_large_counts_stay_counts() -> None:
    rule = lark_grammar('start: "ab"~2..100000').rules["start"].body
    assert rule == ir.Repeat(ir.text("ab"), 2, 100_000)


def test_wide_terminals_are_shared_and_narrow_ones_are_not() -> None:
    rules = lark_grammar("start: NAME OP NAME\nNAME: /[a-z]+/\nOP: /[+-]/").rules
    assert rules["NAME"].shared and not rules["OP"].shared


@pytest.mark.parametrize(
    "text",
    [
        "start: " + "(" * 3000 + '"a"' + ")" * 3000,
        "start: T00\n" + "".join(f"T{n:02}: T{n + 1:02} T{n + 1:02}\n" for n in range(40)) + "T40: /ab/",
        'start: t{"x"}\nt{a}: t{u{a}}\nu{b}: b b',
        'start: p::0\np::_: "a" p::incr(_)',
        "start: T\nT: /(a{900}){900}/ & ~/b/",
        "start: t\nt[max_tokens=900000]: /(.|\\n)*/",
        "start: T00\n" + "".join(f"T{n:02}: T{n + 1:02} T{n + 1:02}\n" for n in range(40)) + "T40: /a/ & /a/",
    ],
    ids=["depth", "doubling", "templates", "parameters", "automaton", "max_tokens", "doubled automaton"],
)
def test_budgets(text: str) -> None:
    begin = time.perf_counter()
    with pytest.raises(ConstraintTooComplex):
        lark_grammar(text)
    assert time.perf_counter() - begin < 5
