"""A grammar whose language nobody named: Lark or EBNF, told apart by how its rules begin.

``name ::= ...`` at the start of a line makes it EBNF (xgrammar's or llama.cpp's), ``name: ...`` or a
directive as ``%import`` makes it Lark. The first such line decides; what strings, classes or the first
characters look like does not. A first line ``# dialect: lark`` or ``# dialect: ebnf``, a comment to both
languages, names the language outright.
"""

from __future__ import annotations

import re

from vllm_guided.errors import GrammarError, InvalidConstraint
from vllm_guided.frontends.ebnf import ebnf_grammar
from vllm_guided.frontends.lark import lark_grammar
from vllm_guided.frontends.positions import line_and_column
from vllm_guided.grammar import ir

DIALECTS = ("lark", "ebnf")

_NAMED = re.compile(r"\s*#\s*dialect\s*:\s*(\w+)\s*(?:\n|$)")
_HEAD = re.compile(
    r"""^[ \t]*(?:
        (?P<ebnf>[\w-][\w.-]*[ \t]*(?:\[[^\]\n]*\])?\s*::=)
      | (?P<lark>%[a-z_]+
               | [?!]{0,2}_*[A-Za-z][\w-]*
                 (?:::_)?(?:\[[^\]\n]*\])?(?:\{[^}\n]*\})?(?:\.[-+]?\d+)?[ \t]*:(?![:=]))
    )""",
    re.MULTILINE | re.VERBOSE,
)
_OTHER = re.compile(r"^[ \t]*(?P<name><[\w -]+>|[\w-]+)[ \t]*(?P<sign>::=|:=|=|<-|->|→|←)", re.MULTILINE)
"""Rules as BNF, ISO 14977, PEG and others have them."""

_HOW = "if that is wrong, begin the grammar with the line  # dialect: {other}"


def dialect_of(text: str) -> str:
    """``lark`` or ``ebnf``.

    Raises:
        InvalidConstraint: no line begins a rule of either language, or the named dialect is neither.
    """
    named = _NAMED.match(text)
    if named:
        if named[1] not in DIALECTS:
            raise InvalidConstraint(
                f"the dialect {named[1]!r} is not known; there are {' and '.join(DIALECTS)}",
                where="line 1, column 1",
            )
        return named[1]
    head = _HEAD.search(text)
    if not head:
        raise _no_grammar(text)
    return str(head.lastgroup)


def _no_grammar(text: str) -> InvalidConstraint:
    how = "write name ::= ... (EBNF, GBNF) or name: ... (Lark)"
    other = _OTHER.search(text)
    if other:
        what = "a name in angle brackets" if other["name"].startswith("<") else f"the sign {other['sign']}"
        return InvalidConstraint(
            f"a rule with {what} is of a notation that is not read here: {how}",
            where=line_and_column(text, other.start("name")),
        )
    if text.lstrip().startswith(("{", "[")):
        how += "; a JSON schema is given as json, a pattern as regex"
    return InvalidConstraint(f"this is no grammar, no line begins a rule: {how}", where="line 1, column 1")


def grammar_from_text(text: str, start: str | None = None) -> ir.Grammar:
    """The grammar of a text in Lark or EBNF.

    Args:
        text: the grammar.
        start: the rule to begin with; ``start`` in Lark and ``root`` in EBNF if not given.

    Raises:
        GrammarError: as :func:`lark_grammar` and :func:`ebnf_grammar`; the message says as what the text
            was read, and how to name the other language.
    """
    text = text.removeprefix("\ufeff")
    dialect = dialect_of(text)
    try:
        if dialect == "lark":
            return lark_grammar(text, start or "start")
        return ebnf_grammar(text, start or "root")
    except GrammarError as error:
        if _NAMED.match(text):
            raise
        read, other = ("Lark", "ebnf") if dialect == "lark" else ("EBNF", "lark")
        message = f"{error.message} (read as {read}; {_HOW.format(other=other)})"
        raise type(error)(message, where=error.where) from None
