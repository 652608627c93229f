"""``parser="lalr"``: the verdicts of stock Lark's LALR parser with its contextual lexer, on every text."""

from __future__ import annotations

import itertools
import random
import time

import naive
import pytest
from lark import Lark
from lark.exceptions import LarkError

import vllm_guided as vg
from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends.lark import lark_grammar

# grammar, the letters of the texts
TABLE = {
    "keywords before names": ('start: NAME | "if" NAME\nNAME: /[if]+/\n%ignore " "', "if "),
    "keyword in some states only": ('start: "if" NAME | "[" NAME "]"\nNAME: /[if]+/', "if[]"),
    "keyword with a flag": ('start: "a"i "A" | NAME\nNAME: /[a-b]+/i', "aAb"),
    "keyword and line end": ('start: ("a" | N)+\nN: /a\\n?|b/', "ab\n"),
    "longer terminal": (
        'start: (INT|FLOAT|".")+\nINT: /[0-9]+/\nFLOAT: /[0-9]+[.][0-9]+/\n%ignore " "',
        "1. ",
    ),
    "longer string": ('start: "a" "+" | "a" "++" "+"\n%ignore / +/', "a+ "),
    "longer string in other states": ('start: a*\na: "x" | "xy" "z" | "xyzz"', "xyz"),
    "not the longest but the first": ("start: A B*\nA: /a|ab/\nB: /b|c/", "abc"),
    "first alternatives": ("start: X Y?\nX: /(?:a|ab)(?:c|bcd)?/\nY: /[abcd]+/", "abcd"),
    "priority": ("start: (A | B)+\nA.2: /a/\nB: /[ab]+/", "ab"),
    "looking far ahead": ("start: (W | N)*\nW: /[ab]+/\nN: /a+c/", "abc"),
    "lazy": ('start: STR+ X?\nSTR: /".*?"/\nX: /"/', '"a'),
    "lazy and greedy": ("start: X Y?\nX: /a+?b?/\nY: /[ab]+/", "ab"),
    "shift before reduce": ('start: s\ns: "i" s | "i" s "e" s | "x"', "iex"),
    "rule priority": ('start: (a | b) "c"?\na.2: "x"\nb.1: "x" | "y"', "xyc"),
    "recursion": (
        'start: [e]\ne: e "+" f | f\nf: N | "-" f | "(" e ")"\nN: /1+/\n%ignore " "',
        "1+-( ",
    ),
    "ignored and used": ('start: "a" [C] "b"\n%ignore C\nC: /#[^#]*#?/', "ab#"),
    "ignored before others": ("start: A+\nA: /a+b?/\n%ignore /ab/", "ab"),
    "lookahead": ('start: OP+ "x"?\nOP: /[+]|[?](?![a-c])/', "+?ax"),
    "lookahead wanted": ('start: OP+ "x"?\nOP: /[+]|[?](?=[+])/', "+?x"),
    "lookahead with a priority": ("start: KW N | N\nKW.2: /if(?!f)/\nN: /[if]+/\n%ignore / /", "if "),
    "lookahead with a word's end": ("start: (A|N)+\nA: /(?!on\\b)[no]+/\nN: /[on]+ /", "on "),
    "word boundary": ("start: (A|N)+\nA: /no\\b/\nN: /[on]| /", "on "),
    "nested lookahead": ("start: (A|N)+\nA.1: /n(?=o(?=n))/\nN: /[on]| /", "on "),
    "line end": ("start: LINE+\nLINE: /[ab]+$/m NL?\nNL: /\\n/", "ab\n"),
    "text end": ("start: (A | B)+\nA.1: /a$/\nB: /[ab\\n]/", "ab\n"),
    "lookbehind": ("start: S+ Q?\nS: /'.*?(?<!!)'/\nQ: /'/", "a!'"),
    "templates": ('start: sep{A, ","} "!"?\nsep{x, s}: x (s x)*\nA: /a,?/', "a,!"),
}


def verdict(parser: Lark, text: str) -> bool:
    try:
        parser.parse(text)
    except LarkError:
        return False
    return True


def texts(letters: str) -> list[str]:
    longest = 6 if len(letters) <= 3 else 5
    return ["".join(word) for n in range(longest + 1) for word in itertools.product(letters, repeat=n)]


@pytest.mark.parametrize("name", TABLE)
def test_every_short_text(name: str) -> None:
    text, letters = TABLE[name]
    grammar, parser = lark_grammar(text, parser="lalr"), Lark(text, parser="lalr")
    seen = set()
    for word in texts(letters):
        right = verdict(parser, word)
        assert naive.accepts(grammar, word.encode()) == right, (word, right)
        seen.add(right)
    assert seen == {True, False}


class Grammars:
    """Random small grammars over ``LETTERS``, many of which no LALR parser takes."""

    LETTERS = "ab1 "

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.terminals = [f"T{n}" for n in range(self.random.randint(1, 3))]
        self.rules = ["start", *(f"r{n}" for n in range(self.random.randint(0, 2)))]

    def text(self) -> str:
        lines = [
            f"{rule}: {' | '.join(self.rule(2) for _ in range(self.random.randint(1, 3)))}"
            for rule in self.rules
        ]
        lines += [
            f"{name}{self.random.choice(['', '', '.1'])}: /{self.pattern(2)}/" for name in self.terminals
        ]
        if self.random.random() < 0.5:
            lines.append(f"%ignore {self.random.choice(['/ /', '/ +/', '/a.?/', self.terminals[0]])}")
        return "\n".join(lines)

    def pattern(self, depth: int) -> str:
        dice = self.random.random()
        if depth == 0 or dice < 0.35:
            return self.random.choice(["a", "b", "1", "[ab]", "[a1]", "[^a]", ".", " ", "(?:ab)"])
        one, two = self.pattern(depth - 1), self.pattern(depth - 1)
        if dice < 0.55:
            return one + two
        if dice < 0.7:
            return f"(?:{one}|{two})"
        if dice < 0.9:
            return f"(?:{one}){self.random.choice(['*', '+', '?', '*?', '+?', '??', '{1,2}'])}"
        look = self.random.choice(["(?!%s)", "(?=%s)", "(?<!%s)", "(?<=%s)"])
        return one + look % self.random.choice("ab1")

    def rule(self, depth: int) -> str:
        dice = self.random.random()
        if depth == 0 or dice < 0.5:
            kind = self.random.random()
            if kind < 0.45:
                return self.random.choice(self.terminals)
            if kind < 0.7:
                letters = "".join(self.random.choices(self.LETTERS, k=self.random.choice([1, 1, 2])))
                return f'"{letters}"{self.random.choice(["", "", "i"])}'
            return self.random.choice(self.rules)
        one, two = self.rule(depth - 1), self.rule(depth - 1)
        if dice < 0.7:
            return f"{one} {two}"
        return f"({one} | {two})" if dice < 0.85 else f"({one}){self.random.choice('*+?')}"


def compare(seed: int) -> bool | None:
    """Whether any text was accepted; None where the grammar is refused, as it must be where Lark does."""
    made = Grammars(seed)
    text = made.text()
    try:
        parser = Lark(text, parser="lalr")
    except Exception:
        with pytest.raises(GrammarError):
            lark_grammar(text, parser="lalr")
        return None
    try:
        grammar = lark_grammar(text, parser="lalr")
    except UnsupportedConstraint:  # by name, see REFUSED
        return None
    except InvalidConstraint as error:
        assert "no output can satisfy" in error.message, (text, error)
        grammar = None
    words = ["".join(word) for n in range(4) for word in itertools.product(made.LETTERS, repeat=n)]
    words += ["".join(made.random.choices(made.LETTERS, k=made.random.randint(4, 7))) for _ in range(40)]
    found = False
    for word in words:
        right = verdict(parser, word)
        assert (grammar is not None and naive.accepts(grammar, word.encode())) == right, (text, word, right)
        found |= right
    return found


def test_random_grammars() -> None:
    outcomes = [compare(seed) for seed in range(60)]
    assert outcomes.count(True) >= 15 and None in outcomes


@pytest.mark.slow
def test_many_random_grammars() -> None:
    outcomes = [compare(seed) for seed in range(100, 500)]
    assert outcomes.count(True) >= 100


REFUSED = [
    (InvalidConstraint, 'start: a | b\na: "x"\nb: "x"', "line 1, column 8", "reduce/reduce"),
    (InvalidConstraint, 'start: "a"{2}', "line 1, column 11", "llguidance's addition"),
    (InvalidConstraint, "start: A\n%declare A", "line 1, column 8", "declared"),
    (InvalidConstraint, "start: A\nA: /a*/", "line 1, column 8", "match nothing"),
    (UnsupportedConstraint, "start: A B\nA: /a/\nB: /\\bb/", "line 1, column 10", "the text before it"),
    (UnsupportedConstraint, "start: A+\nA: /(?:|a)+b/", "line 1, column 8", "match nothing before"),
    (ConstraintTooComplex, "start: " + ' "a"?' * 40, "line 1, column 1", "alternatives"),
    (ConstraintTooComplex, 'start: t{"x"}\nt{a}: t{u{a}}\nu{b}: b b', "line 2, column 9", "templates"),
    (
        ConstraintTooComplex,
        'start: "x"\nr: t{"x"}\nt{a}: t{u{a}}\nu{b}: b b',
        "line 2, column 4",
        "templates",
    ),
]


@pytest.mark.parametrize(("kind", "text", "where", "part"), REFUSED)
def test_refused(kind: type[GrammarError], text: str, where: str, part: str) -> None:
    begin = time.perf_counter()
    with pytest.raises(GrammarError) as caught:
        lark_grammar(text, parser="lalr")
    assert type(caught.value) is kind, caught.value
    assert part in caught.value.message, caught.value
    assert caught.value.where == where, caught.value
    assert time.perf_counter() - begin < 10


def test_only_larks_parsers() -> None:
    with pytest.raises(InvalidConstraint, match="earley, lalr"):
        lark_grammar('start: "a"', parser="cyk")


def test_in_the_compiler() -> None:
    vocabulary = vg.Vocabulary([b"if", b"i", b"f", b" ", None], stop_token_ids=[4])
    compiler = vg.GrammarCompiler(vocabulary)
    text = 'start: NAME | "if" NAME\nNAME: /[if]+/\n%ignore " "'
    wide = compiler.compile_lark(text).matcher()
    assert wide.accept_tokens([0, 0, 4])  # the keyword and a name, cut in any way
    exact = compiler.compile_lark(text, parser="lalr").matcher()
    assert not exact.accept_tokens([0, 0, 3, 0, 4]) and exact.accept_tokens([0, 3, 0, 4])
