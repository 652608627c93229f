"""Every refusal of a Lark grammar: the text, the error, its place, and a part of the message."""

from __future__ import annotations

import contextlib

import pytest

from vllm_guided.errors import GrammarError, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends.lark import lark_grammar

INVALID = [
    ('start "a"', "line 1, column 7", "missing colon"),
    ('start: ("a"', "line 1, column 12", "the end of the line is not expected"),
    ('start: "a', "line 1, column 8", "Unexpected input"),
    ("start: $", "line 1, column 8", "Unexpected input"),
    ('start: "a"\nfoo: missing', "line 2, column 6", "used but not defined"),
    ("start: A\nA: B", "line 2, column 4", "not defined"),
    ('item: "a"', "line 1, column 1", "no rule 'start'"),
    ('start: "a"\nstart: "b"', "line 1, column 1", "more than once"),
    ("start: A\nA: B\nB: A", "line 1, column 8", "uses itself"),
    ('start: A\nA: rule\nrule: "a"', "line 2, column 4", "cannot use the rule rule"),
    ('start: "ab".."c"', "line 1, column 8", "one character each"),
    ('start: "z".."a"', "line 1, column 8", "wrong way round"),
    ('start: "a"i.."c"', "line 1, column 8", "one character each"),
    ("start: /[abc/", "line 1, column 8", "unclosed class"),
    ('start: "a"\n  /(/', "line 2, column 3", "option"),
    ("start: /a/l", "line 1, column 8", "bytes"),
    ('start: "\\xZZ"', "line 1, column 8", "escapes"),
    ('start: "\\ud800"', "line 1, column 8", "surrogate"),
    ('start: "a"~3..2', "line 1, column 12", "3 to 2"),
    ('start: "a"{3,2}', "line 1, column 11", "3 to 2"),
    ('start: "a"{-1,}', "line 1, column 11", "-1"),
    ('start: "a"{2000000}', "line 1, column 11", "1,000,000"),
    ("%import common.NOPE\nstart: NOPE", "line 1, column 1", "does not define NOPE"),
    ("%import nolib.X\nstart: X", "line 1, column 1", "no such library"),
    ("%import common.INT\nINT: /x/\nstart: INT", "line 1, column 16", "more than once"),
    ('%ignore NOPE\nstart: "a"', "line 1, column 9", "not defined"),
    ("start: tt{A}\ntt{x, y}: x y\nA: /a/", "line 1, column 8", "Wrong number of template arguments"),
    ("start: %json {", "line 1, column 14", "JSON object"),
    ('start: %json {"type": "nope"}', "line 1, column 8", "in %json"),
    ("start: a\n%ignore a -> b\na: /x/", "line 1, column 8", "%ignore cannot use the rule"),
    ("start: A\nA: /x/ -> b", "line 2, column 11", "alias"),
    ('start: %regex {"substring_chars": "\ud800"}', "line 1, column 8", "surrogate"),
    ("start: r\nr[stop=END]: /x/", "line 2, column 3", "END is used but not defined"),
    ("start: r\nr[stop=/x/q]: /x/", "line 2, column 3", "flags"),
    ("start: %lark x { }", "line 1, column 8", "braces"),
    ("start: %lark { a: /x/ }", "line 1, column 8", "in %lark"),
    ('start: %lark "a"', "line 1, column 8", "braces"),
    ("start: %regex {}", "line 1, column 8", "exactly one"),
    ("start: T\nT: <[1]>", "line 2, column 4", "special tokens cannot be used in terminals"),
    ("start: T\nT: %json {}", "line 2, column 4", "cannot be used in terminals"),
    ('start: %json {"const": {"a": 1, "a": 2}}', "line 1, column 14", "names 'a' twice"),
    ("start: <[3-1]>", "line 1, column 8", "wrong way round"),
    ("start: <[,]>", "line 1, column 8", "list of token ids"),
    ("start: <a b>", "line 1, column 8", "special token"),
    ("start: A & B\nA: /a/\nB: /b/", "line 1, column 10", "join terminals"),
    ("T[lazy]: /a/\nstart: T", "line 1, column 2", "not for terminals"),
    ('start: r\nr[lazy]: "a" r', "line 1, column 8", "cannot use the rule r"),
    ('start: r\nr[lazy, lazy]: "a"', "line 2, column 9", "twice"),
    ('start: r\nr[stop="a", suffix="b"]: /x/', "line 2, column 3", "give one"),
    ('start: r\nr[stop_capture="a"]: /x/', "line 2, column 3", "belongs to"),
    ("start: r\nr[max_tokens=x]: /a/", "line 2, column 3", "whole number"),
    ("start: r\nr[max_tokens=-1]: /a/", "line 2, column 3", "whole number"),
    ("start: r\nr[max_tokens=3]: r", "line 1, column 8", "cannot use the rule r"),
    ('start: foo::0\nfoo: "a"', "line 1, column 8", "not parametric"),
    ('start: foo\nfoo::_: "a"', "line 1, column 8", "parametric"),
    ('start: foo::0\nfoo::_: "a" %if nope(0)', "line 2, column 21", "not known"),
    ('start: foo::0\nfoo::_: "a" %if eq([3:3], 0)', "line 2, column 24", "greater"),
    ('%llguidance {"no_forcing": 1}\nstart: "a"', "line 1, column 1", "true or false"),
]

UNSUPPORTED = [
    ("%import .files.X\nstart: X", "line 1, column 1", "not read from files"),
    ('start: %json {"x-guidance": {"nope": 1}}', "line 1, column 8", "nope of x-guidance"),
    ('start: t{"a"} r\nt{x}: x\nr[lazy]: /a/', "line 1, column 8", "templates and parametric rules"),
    ("start: B? A\nA: /\\ba/\nB: /b/", "line 1, column 11", "the text before it"),
    ("start: /a/\n%ignore /b(?=c)/", "line 2, column 9", "looks at the text around"),
    ("start: @other", "line 1, column 8", "@name"),
    ("start: r s\nr[max_tokens=3]: /a/\ns[lazy]: /b+/", "line 2, column 3", "max_tokens"),
    ("start: r\nr[budget=3]: /a/", "line 2, column 3", "budget"),
    ("%nonsense\nstart: /a/", "line 1, column 1", "%nonsense"),
    ("start: /(a)\\1/", "line 1, column 8", "back-reference"),
    ('%llguidance {"no_forcing": true}\nstart: "a"', "line 1, column 1", "no_forcing"),
    ('start: %regex {"x": 1}', "line 1, column 8", "'x'"),
]


@pytest.mark.parametrize(
    ("kind", "text", "where", "part"),
    [(InvalidConstraint, *row) for row in INVALID] + [(UnsupportedConstraint, *row) for row in UNSUPPORTED],
)
def test_refused(kind: type[GrammarError], text: str, where: str, part: str) -> None:
    with pytest.raises(GrammarError) as caught:
        lark_grammar(text)
    assert type(caught.value) is kind, caught.value
    assert caught.value.where == where, caught.value
    assert part in caught.value.message, caught.value


def test_no_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    lark_grammar("%import common.INT\nstart: INT")  # the library grammar is read once

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"opened {args}")

    monkeypatch.setattr("builtins.open", refuse)
    for text in ("%import common.INT\nstart: INT", "%import .x.Y\nstart: Y", "%import x.Y\nstart: Y"):
        with contextlib.suppress(GrammarError):
            lark_grammar(text)
