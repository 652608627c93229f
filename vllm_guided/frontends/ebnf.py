"""EBNF grammars as users of xgrammar and of llama.cpp (GBNF) write them, to the grammar IR.

    ebnf_grammar('root ::= "[" item ("," item){2,4} "]"\\nitem ::= [a-z]+')

Both dialects are read as one. Strings take ``\\n \\t \\xHH \\uHHHH \\UHHHHHHHH`` and the like; classes too;
``.`` is any character. Macros are those of xgrammar (``Regex``, ``Substring``, ``TagDispatch``, ``Token``,
``ExcludeToken``, ``TokenTagDispatch``); ``<name>``, ``<[5]>`` and ``!<name>`` are special tokens as in GBNF.
The steps are the modules of :mod:`vllm_guided.frontends.ebnf_grammar`.
"""

from __future__ import annotations

from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint
from vllm_guided.frontends.ebnf_grammar.attributes import applied
from vllm_guided.frontends.ebnf_grammar.parser import Parser
from vllm_guided.frontends.positions import half_a_pair, line_and_column
from vllm_guided.frontends.regular import is_regular
from vllm_guided.frontends.wide import is_wide
from vllm_guided.grammar import ir

MAX_TEXT = 500_000


def ebnf_grammar(text: str, root: str = "root") -> ir.Grammar:
    """The grammar of what ``root`` derives in the EBNF grammar ``text``.

    Raises:
        InvalidConstraint: not an EBNF grammar, or no such rule; with line and column.
        UnsupportedConstraint: lookahead assertions, unknown macros and attributes, by name.
        ConstraintTooComplex: larger or deeper than the limits.
    """
    if len(text) > MAX_TEXT:
        raise ConstraintTooComplex(f"an EBNF grammar has at most {MAX_TEXT:,} characters")
    try:
        return _convert(text, root)
    except UnicodeEncodeError:
        raise half_a_pair(text) from None
    except RecursionError:
        raise ConstraintTooComplex("the grammar is nested too deeply", where="line 1, column 1") from None


def _convert(text: str, root: str) -> ir.Grammar:
    parsed = Parser(text).parse()
    if root not in parsed.bodies:
        raise InvalidConstraint(
            f"there is no rule {root!r} to start from; there are {', '.join(list(parsed.bodies)[:5])}",
            where="line 1, column 1",
        )
    bodies = dict(parsed.bodies)
    for name, attributes in parsed.attributes.items():
        try:
            bodies[name] = applied(name, attributes, parsed.bodies)
        except GrammarError as error:
            raise type(error)(error.message, where=line_and_column(text, parsed.places[name])) from None
    return ir.Grammar(
        {name: ir.Rule(body, is_regular(body) and is_wide(body)) for name, body in bodies.items()}, root
    )
