"""Lark grammars: text in Lark's language, or in llguidance's dialect of it, to the grammar IR.

    lark_grammar('start: "a" NUMBER+\\n%import common.NUMBER')

The language is that of stock Lark's Earley parser with ``lexer="dynamic_complete"``: every way to cut the
text into tokens counts, and whatever ``%ignore`` names may stand before, between and behind tokens. Rules'
modifiers, aliases and priorities choose among parses and therefore change nothing here. Two places where
Python's regexps are read as languages: a terminal matches everything its regexp can match, whatever its
alternatives' order; and one with a lazy quantifier ends at its first match. One that looks at the text behind
it (``/if\\b/``) matches what ``re`` prefers there. Terminals may match nothing.

The steps are the modules of :mod:`vllm_guided.frontends.lark_grammar`.
"""

from __future__ import annotations

from collections.abc import Mapping

from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint
from vllm_guided.frontends.lark_grammar import dialect, loader
from vllm_guided.frontends.lark_grammar.lalr.frontend import lalr_grammar
from vllm_guided.frontends.lark_grammar.rules import Rules
from vllm_guided.frontends.positions import half_a_pair
from vllm_guided.frontends.productive import refuse_empty
from vllm_guided.grammar import ir

PARSERS = ("earley", "lalr")


def lark_grammar(
    text: str, start: str = "start", parser: str = "earley", imports: Mapping[str, str] | None = None
) -> ir.Grammar:
    """The grammar of what ``start`` derives in the Lark grammar ``text``.

    Args:
        text: the grammar.
        start: the rule to start from.
        parser: which of Lark's parsers is to parse the output: ``earley`` (with ``lexer="dynamic_complete"``)
            or ``lalr`` (with its contextual lexer: keywords before names, priorities, the longest match).
        imports: the texts that ``%import .name.RULE`` may name, by name; files are never read.

    Raises:
        InvalidConstraint: not a Lark grammar, or with ``lalr`` not an LALR(1) one; with line and column.
        UnsupportedConstraint: something this package does not do, by name (an import of what was not
            passed in, ``max_tokens``, a back-reference in a regexp).
        ConstraintTooComplex: larger or deeper than the limits.
    """
    if parser not in PARSERS:
        raise InvalidConstraint(f"the parser is one of {', '.join(PARSERS)}, not {parser!r}")
    if imports is not None and not all(isinstance(item, str) for pair in imports.items() for item in pair):
        raise InvalidConstraint('imports are texts of grammars by name: write {"name": "text"}')
    return _convert(text, start, 0, parser, imports or {})


def nested_lark_grammar(text: str, depth: int, imports: Mapping[str, str]) -> ir.Grammar:
    """The grammar in ``%lark { ... }``, ``depth`` levels down."""
    return _convert(text, "start", depth, "earley", imports)


def _convert(text: str, start: str, depth: int, parser: str, imports: Mapping[str, str]) -> ir.Grammar:
    if len(text) + sum(map(len, imports.values())) > loader.MAX_TEXT:
        raise ConstraintTooComplex(
            f"a Lark grammar has at most {loader.MAX_TEXT:,} characters; make it shorter",
            where="line 1, column 1",
        )
    try:
        plain = dialect.plain(text)
        definitions = loader.load(plain, imports)
        rules = Rules(plain, definitions, depth, imports)
        grammar = rules.grammar(start) if parser == "earley" else rules.unwatched(start)
        if not depth:
            refuse_empty(grammar, lambda name: rules.where(name) or plain.where(0))
        if parser == "earley":
            return grammar
        rules.convert_all()  # Lark compiles every rule, so each has to be sound before it does
        return lalr_grammar(plain, definitions, start)
    except ConstraintTooComplex as error:
        if error.where:
            raise
        raise ConstraintTooComplex(error.message, where="line 1, column 1") from None
    except GrammarError as error:
        if "_x2d_" not in error.message.lower():
            raise
        raise type(error)(loader.as_written(error.message), where=error.where) from None
    except UnicodeEncodeError:
        raise half_a_pair(text) from None
    except RecursionError:
        raise ConstraintTooComplex(
            "the grammar is nested too deeply; give parts of it rules of their own", where="line 1, column 1"
        ) from None
