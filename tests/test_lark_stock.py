"""Lark's own Earley parser as the judge, with ``lexer="dynamic_complete"``, on texts near the language.

Texts are sampled from the grammar's IR, and each is also changed in one or two places; both verdicts must
agree on every one of them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import naive
import pytest
from grammar_samples import Sampler
from lark import Lark
from lark.exceptions import LarkError

from vllm_guided.frontends.lark import lark_grammar

GRAMMARS = {
    "arithmetic": """
        ?start: expr
        ?expr: term (("+"|"-") term)*
        ?term: factor (("*"|"/") factor)*
        ?factor: NUMBER | "-" factor | "(" expr ")"
        %import common.NUMBER
        %import common.WS
        %ignore WS
        """,
    "json": """
        ?start: value
        ?value: object | array | ESCAPED_STRING | SIGNED_NUMBER -> number | "true" | "false" | "null"
        array: "[" [value ("," value)*] "]"
        object: "{" [pair ("," pair)*] "}"
        pair: ESCAPED_STRING ":" value
        %import common (ESCAPED_STRING, SIGNED_NUMBER, WS)
        %ignore WS
        """,
    "statements": """
        start: stmt+
        stmt: NAME "=" (NAME|INT) ";" | "if" NAME stmt
        NAME: /[a-z]+/
        INT: /[0-9]+/
        %import common.WS
        %import common.C_COMMENT
        %ignore WS
        %ignore C_COMMENT
        %ignore /#[^\\n]*/
        """,
    "counts": """
        start: "a"~2..4 ("b" "c")~3 ["q"] x~0..2
        x: "x"i | "y".."z"
        """,
    "templates": """
        start: sep{item, ","} | sep{NUM, ";"} "!"
        sep{x, s}: x (s x)*
        item: "[" sep{NUM, "-"} "]"
        NUM: "0".."3"+
        """,
    "left recursion": """
        start: e
        e: e "+" e | e "*" e | "n" | f
        f: | f "x"
        """,
    "ignored inside tokens": """
        start: "a" " b" | "c" WORD
        WORD: /[a-z]+( [a-z]+)?/
        %ignore " "
        %ignore "--"
        """,
    "selectors": """
        start: rule_*
        rule_: sel ("," sel)* "{" (decl ";")* "}"
        sel: (TAG | "." CNAME | "#" CNAME)+
        decl: CNAME ":" (CNAME | NUMBER ("px"|"em"|"%")?)
        TAG.2: "div" | "p" | "a"
        %import common (CNAME, NUMBER, WS)
        %ignore WS
        %ignore /\\/\\*.*?\\*\\//s
        """,
}
# Terminals that look at the text around them, and the letters of the texts; the first matches count here.
LOOKING = [
    ("start: A B\nA: /if\\b/\nB: /[a-z ]+/", "if "),
    ("start: A B?\nA: /a(?!b)/\nB: /[ab]+/", "ab"),
    ("start: A B?\nA: /a(?=b)/\nB: /[ab]+/", "ab"),
    ("start: A B?\nA: /a+(?!b)/\nB: /[ab]+/", "ab"),
    ("start: A B?\nA: /a+$/\nB: /[ab]+/", "ab"),
    ("start: A B?\nA: /[ab]+(?<!b)/\nB: /[ab]+/", "ab"),
    ("start: A? B\nA: /^a/\nB: /^b/", "ab"),
    ("start: (A|N)*\nA: /a$/m\nN: /[b\\n]/", "ab\n"),
    ('start: r "!"?\nr: "(" r ")" | A\nA: /a(?=[)!])/\n%ignore " "', "(a)! "),
    ("start: A~1..2 /b/\nA: /a(?!a)/\n%ignore /#.*$/m", "ab#"),
    ("start: /a\\b/ / b/ | x\nx: y x | y\ny: /c(?=c|$)/", "abc "),
]
TEXTS = 60
LONGEST = 40


def near(text: str, random_: random.Random) -> Iterator[str]:
    """``text``, and two texts with one or two characters more, less or other."""
    yield text
    for _ in range(2):
        chars = list(text)
        for _ in range(random_.randint(1, 2)):
            place = random_.randrange(len(chars) + 1)
            new = random_.choice([*text, *' ab#"\\/*\n,1'])
            chars[place : place + random_.randint(0, 1)] = random_.choice([[new], []])
        yield "".join(chars)


@pytest.mark.parametrize("name", GRAMMARS)
def test_same_verdicts(name: str) -> None:
    text = GRAMMARS[name]
    grammar = lark_grammar(text)
    judge = Lark(text, parser="earley", lexer="dynamic_complete")
    random_ = random.Random(7)
    sampler = Sampler(grammar, random_)
    verdicts = {True: 0, False: 0}
    while sum(verdicts.values()) < TEXTS * 3:
        sample = sampler.text()
        if sample is None or len(sample) > LONGEST:
            continue
        for word in near(sample, random_):
            try:
                judge.parse(word)
                right = True
            except LarkError:
                right = False
            assert naive.accepts(grammar, word.encode()) == right, (word, right)
            verdicts[right] += 1
    assert min(verdicts.values()) >= TEXTS / 4, verdicts  # both kinds were seen


@pytest.mark.parametrize(("text", "letters"), LOOKING)
def test_looking_around(text: str, letters: str) -> None:
    grammar = lark_grammar(text)
    judge = Lark(text, parser="earley", lexer="dynamic_complete")
    seen = set()
    for word in ("".join(word) for n in range(6) for word in itertools.product(letters, repeat=n)):
        try:
            judge.parse(word)
            right = True
        except LarkError:
            right = False
        assert naive.accepts(grammar, word.encode()) == right, (word, right)
        seen.add(right)
    assert seen == {True, False}
