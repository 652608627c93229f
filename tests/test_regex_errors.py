"""Every refusal of a pattern: the inputs that raise it, the position it names and what it says to do."""

from __future__ import annotations

import contextlib
import pickle

import pytest

from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends.regex import CharDfa, regex_grammar, regex_node

BOTH = ("python", "ecma")

# dialects, pattern, position, a part of the message
INVALID = [
    (BOTH, "abc)", 4, r"unmatched '\)'"),
    (BOTH, "ab(c", 3, "unclosed group"),
    (BOTH, "((a)", 1, "unclosed group"),
    (BOTH, "(?", 1, "unclosed group"),
    (BOTH, "(?=a", 1, "unclosed group"),
    (BOTH, "[a-z", 1, "unclosed class"),
    (BOTH, "x[^", 2, "unclosed class"),
    (("python",), "[]", 1, "unclosed class"),
    (BOTH, "[z-a]", 2, "range out of order: write a-z"),
    (("python",), r"[\w-z]", 2, "a range needs a character at each end"),
    (BOTH, "a{3,2}", 2, "counts out of order: write \\{2,3}"),
    (BOTH, "*a", 1, "nothing to repeat"),
    (BOTH, "a|+", 3, "nothing to repeat"),
    (BOTH, "({2})", 2, "nothing to repeat"),
    (BOTH, "^*", 2, r"nothing to repeat: '\^' matches no character"),
    (BOTH, r"\b+", 3, "nothing to repeat"),
    (BOTH, "a**", 3, "two quantifiers in a row"),
    (("ecma",), "a++", 3, "two quantifiers in a row"),
    (BOTH, "a???", 4, "two quantifiers in a row"),
    (BOTH, "a{1,3}?{1,3}", 8, "two quantifiers in a row"),
    (BOTH, "ab\\", 3, "a backslash at the end"),
    (BOTH, r"\q", 1, r"'\\q' is not an escape"),
    (BOTH, r"a\x4", 2, "needs 2 hexadecimal digits"),
    (BOTH, r"\u12", 1, "needs 4 hexadecimal digits"),
    (BOTH, r"\u{110000}", 1, "at most 10FFFF"),
    (BOTH, r"\u{}", 1, "hexadecimal digits"),
    (("python",), r"\U00110000", 1, "names no character above"),
    (BOTH, r"\c1", 1, "needs a letter"),
    (("python",), r"\N{no such name}", 1, "no character is named 'no such name'"),
    (("python",), r"\N", 1, "needs a name"),
    (BOTH, r"\p", 1, "needs a property"),
    (BOTH, r"\p{L", 1, "needs a property"),
    (("ecma",), r"\01", 1, "octal escapes are not ECMA-262"),
    (("python",), r"\777", 1, r"octal escape above \\377"),
    (("python",), r"[\8]", 2, "back-reference in a class"),
    (BOTH, "(?<1>a)", 1, "must be an identifier"),
    (BOTH, "(?<n", 1, "must be an identifier"),
    (BOTH, "(?zz)", 1, "unknown group"),
    (BOTH, "a(?i)", 2, "must be at its start"),
    (BOTH, "(?i-s)a", 1, "must be at its start"),
    (BOTH, "(?i-i:a)", 1, "a flag both on and off"),
    (("python",), "(?au:a)", 1, "exclude one another"),
    (BOTH, "(?#abc", 1, "unclosed comment"),
]

UNSUPPORTED = [
    (BOTH, r"(a)\1", 4, r"back-reference '\\1'"),
    (BOTH, r"(?<n>a)\k<n>", 8, "named back-reference"),
    (BOTH, r"(?P<n>a)(?P=n)", 9, r"back-reference \(\?P=name\)"),
    (BOTH, r"(?P>n)", 1, "recursion"),
    (BOTH, r"(a)(?(1)b|c)", 4, "conditional"),
    (BOTH, r"\p{Emojis}", 1, r"Unicode property '\\p{Emojis}'"),
    (BOTH, r"a\p{Script=Klingon}", 2, r"Unicode property '\\p{Script=Klingon}'"),
    (BOTH, r"\p{Block=Basic_Latin}", 1, "code point ranges"),
    (BOTH, r"\p{RGI_Emoji}", 1, "code point ranges"),
    (("python",), r"(?>a+b)", 1, "atomic group"),
    (("python",), r"(?:ab?)*+", 8, "possessive quantifier"),
]

TOO_COMPLEX = [
    (BOTH, "(" * 500 + ")" * 500, "nested deeper than"),
    (BOTH, "a{9999999}", "repetition count above"),
    (BOTH, "a{99999999999999999999}", "repetition count above"),
    (BOTH, "(?!xy)(a|b)*a(a|b){16}", "automaton of more than"),
    (BOTH, "(?=.*a.{20}).*b.{20}(?<=c.{20}.*)", "states|decisions"),
    (BOTH, "(?=aa)" + "a?" * 3000, "too many optional parts"),
]


def _refused(kind: type[GrammarError], dialect: str, pattern: str, message: str) -> GrammarError:
    with pytest.raises(kind, match=message) as raised:
        regex_node(pattern, dialect=dialect)
    assert pickle.loads(pickle.dumps(raised.value)).args == raised.value.args
    return raised.value


@pytest.mark.parametrize(("dialects", "pattern", "position", "message"), INVALID)
def test_invalid(dialects: tuple[str, ...], pattern: str, position: int, message: str) -> None:
    for dialect in dialects:
        error = _refused(InvalidConstraint, dialect, pattern, message)
        assert error.where == f"position {position} of the pattern"


@pytest.mark.parametrize(("dialects", "pattern", "position", "message"), UNSUPPORTED)
def test_unsupported(dialects: tuple[str, ...], pattern: str, position: int, message: str) -> None:
    for dialect in dialects:
        error = _refused(UnsupportedConstraint, dialect, pattern, message)
        assert error.where == f"position {position} of the pattern"


@pytest.mark.parametrize(("dialects", "pattern", "message"), TOO_COMPLEX)
def test_too_complex(dialects: tuple[str, ...], pattern: str, message: str) -> None:
    for dialect in dialects:
        _refused(ConstraintTooComplex, dialect, pattern, message)


@pytest.mark.parametrize("pattern", ["(?=a)", "a^b", "[^\\s\\S]", r"\ud800", "a(?<!a)", "$a", r"x\by"])
def test_no_text_matches(pattern: str) -> None:
    with pytest.raises(InvalidConstraint, match="no text matches"):
        regex_grammar(pattern)


def test_unknown_dialects_and_flags() -> None:
    with pytest.raises(InvalidConstraint, match="unknown regex dialect 'perl'"):
        regex_node("a", dialect="perl")
    with pytest.raises(InvalidConstraint, match="unknown flag 'v' for dialect 'ecma'"):
        regex_node("a", dialect="ecma", flags="v")
    with pytest.raises(InvalidConstraint, match="a pattern must be a string, not int"):
        regex_node(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "pattern", ["(?:" * 140 + "a" + ")?" * 140, "(?=" * 100 + "a" + ")" * 100 + "a", "a?" * 3000]
)
def test_deep_and_long_patterns_do_not_overflow(pattern: str) -> None:
    with contextlib.suppress(ConstraintTooComplex):
        CharDfa.from_pattern(pattern)
    with contextlib.suppress(ConstraintTooComplex):
        regex_node(pattern, search=True)
