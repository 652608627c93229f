"""ECMA-262 patterns, each parsed once per process.

In: the text of a ``pattern``, of a pattern property or of a format. Out: the IR node of the strings in which
it is found, or their automaton.
"""

from __future__ import annotations

from vllm_guided.automaton.char_expression import ANYTHING, Expression, concat
from vllm_guided.bounded import bounded_cache
from vllm_guided.errors import GrammarError
from vllm_guided.frontends.regex import CharDfa, Encoder
from vllm_guided.frontends.regex.parser import parse
from vllm_guided.frontends.regex.translate import pattern_node
from vllm_guided.grammar import ir


@bounded_cache(2048, 8 << 20)
def _tree(pattern: str) -> Expression:
    return parse(pattern, dialect="ecma")


@bounded_cache(4096, 2 << 20)
def fault(pattern: str) -> GrammarError | None:
    """Why the pattern is refused, if it is."""
    try:
        _tree(pattern)
    except GrammarError as error:
        return error.with_traceback(None)
    return None


def node(pattern: str, encode: Encoder) -> ir.Node:
    """The strings that hold a match, each set of characters spelt as ``encode`` says."""
    return pattern_node(_tree(pattern), search=True, encode=encode)


def automaton(pattern: str) -> CharDfa:
    """The strings that hold a match."""
    return CharDfa.from_expression(concat([ANYTHING, _tree(pattern), ANYTHING]))
