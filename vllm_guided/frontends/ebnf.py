"""EBNF grammars as users of xgrammar and of llama.cpp (GBNF) write them, to the grammar IR.

    ebnf_grammar('root ::= "[" item ("," item){2,4} "]"\\nitem ::= [a-z]+')

Both dialects are read as one. Strings take ``\\n \\t \\xHH \\uHHHH \\UHHHHHHHH`` and the like; classes too;
``.`` is any character. ``rule ::= body (= what follows)`` looks ahead, exactly. Macros are those of
xgrammar (``Regex``, ``Substring``, ``TagDispatch``, ``Token``, ``ExcludeToken``, ``TokenTagDispatch``);
``<name>``, ``<[5]>`` and ``!<name>`` are special tokens as in GBNF.
The steps are the modules of :mod:`vllm_guided.frontends.ebnf_grammar`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint
from vllm_guided.frontends.ebnf_grammar.attributes import applied, regular_assertion
from vllm_guided.frontends.ebnf_grammar.lookahead import carried_out
from vllm_guided.frontends.ebnf_grammar.parser import Parser
from vllm_guided.frontends.positions import half_a_pair, line_and_column
from vllm_guided.frontends.productive import refuse_empty
from vllm_guided.frontends.regular import is_regular
from vllm_guided.frontends.wide import is_wide
from vllm_guided.grammar import ir

MAX_TEXT = 500_000


def ebnf_grammar(text: str, root: str = "root") -> ir.Grammar:
    """The grammar of what ``root`` derives in the EBNF grammar ``text``.

    Raises:
        InvalidConstraint: not an EBNF grammar, or no such rule; with line and column.
        UnsupportedConstraint: unknown macros and attributes, look-ahead that is not regular, by name.
        ConstraintTooComplex: larger or deeper than the limits.
    """
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_TEXT:
        raise ConstraintTooComplex(
            f"an EBNF grammar has at most {MAX_TEXT:,} characters; leave out what the root does not need"
        )
    try:
        return _convert(text, root)
    except UnicodeEncodeError:
        raise half_a_pair(text) from None
    except RecursionError:
        raise ConstraintTooComplex(
            "the grammar is nested too deeply; give inner parts rules of their own", where="line 1, column 1"
        ) from None


def _convert(text: str, root: str) -> ir.Grammar:
    parsed = Parser(text).parse()
    if root not in parsed.bodies:
        raise InvalidConstraint(
            f"there is no rule {root!r} to start from; name one of these so:"
            f" {', '.join(list(parsed.bodies)[:5])}",
            where="line 1, column 1",
        )
    bodies = dict(parsed.bodies)
    for name, attributes in parsed.attributes.items():
        with _placed(text, parsed.places[name]):
            bodies[name] = applied(name, attributes, parsed.bodies, parsed.assertions)
    if parsed.assertions:
        assertions = {}
        for name, node in parsed.assertions.items():
            with _placed(text, parsed.places[name]):
                assertions[name] = regular_assertion(node, bodies, parsed.assertions)
        with _placed(text, parsed.places[next(iter(assertions))]):
            bodies = carried_out(bodies, root, assertions)
    grammar = ir.Grammar(
        {name: ir.Rule(body, is_regular(body) and is_wide(body)) for name, body in bodies.items()}, root
    )
    refuse_empty(grammar, lambda name: line_and_column(text, parsed.places.get(name, 0)))
    return grammar


@contextmanager
def _placed(text: str, offset: int) -> Iterator[None]:
    """Errors in the block are given the place of a rule."""
    try:
        yield
    except GrammarError as error:
        raise type(error)(error.message, where=line_and_column(text, offset)) from None
