"""Regular expressions of Python and of ECMA-262: pattern text to the grammar IR.

    regex_grammar(r"\\d{4}-\\d\\d")                          # guided_regex: a full match, UTF-8
    regex_node("^a+$", dialect="ecma", search=True)         # JSON Schema's pattern: found anywhere
    CharDfa.from_pattern("^a", dialect="ecma", search=True)  # for schema algebra

Patterns without lookaround go straight to IR (:mod:`translate`); the others through the exact automata of
:mod:`vllm_guided.automaton.characters`.
"""

from __future__ import annotations

from vllm_guided.automaton.char_expression import (
    ANYTHING,
    Alternation,
    Chars,
    Concat,
    Expression,
    Repetition,
    concat,
)
from vllm_guided.automaton.characters import CharDfa
from vllm_guided.errors import InvalidConstraint
from vllm_guided.frontends.regex.parser import empty_class, parse
from vllm_guided.frontends.regex.translate import Encoder, pattern_node, utf8
from vllm_guided.grammar import ir

__all__ = ["CharDfa", "Encoder", "pattern_expression", "regex_grammar", "regex_node", "utf8"]


def pattern_expression(
    pattern: str, *, dialect: str = "python", search: bool = False, flags: str = ""
) -> Expression:
    """The tree of ``pattern``; with ``search``, of "a match occurs somewhere in the text"."""
    tree = parse(pattern, dialect=dialect, flags=flags)
    return concat([ANYTHING, tree, ANYTHING]) if search else tree


def regex_node(
    pattern: str, *, dialect: str = "python", search: bool = False, flags: str = "", encode: Encoder = utf8
) -> ir.Node:
    """The language of ``pattern``, each set of characters spelt as ``encode`` says.

    Args:
        pattern: the text of the pattern.
        dialect: ``python`` (``re`` on ``str``) or ``ecma`` (ECMA-262, as with the u flag).
        search: the pattern may occur anywhere in the text (JSON Schema); otherwise it matches all of it.
        flags: letters of flags that hold for the whole pattern, as ``"i"``.
        encode: from a set of code points (sorted inclusive ranges) to the node of its spellings.

    Returns:
        The node; ``ir.NOTHING`` where no text matches.

    Raises:
        InvalidConstraint: not a pattern of the dialect.
        UnsupportedConstraint: back-references and other things no regular language has, by name.
        ConstraintTooComplex: nested too deeply, or lookaround that needs too large an automaton.
    """
    return pattern_node(parse(pattern, dialect=dialect, flags=flags), search=search, encode=encode)


def regex_grammar(pattern: str, *, dialect: str = "python", flags: str = "") -> ir.Grammar:
    """The grammar of the texts that ``pattern`` matches whole, in UTF-8.

    Raises:
        InvalidConstraint: not a pattern of the dialect, or one that no text matches.
        UnsupportedConstraint, ConstraintTooComplex: as :func:`regex_node`.
    """
    node = regex_node(pattern, dialect=dialect, flags=flags)
    if node == ir.NOTHING:
        if not _has_text(parse(pattern, dialect=dialect, flags=flags)):
            raise InvalidConstraint(
                "no character is in this class, so no text matches the pattern; take it out, or name"
                " characters in it",
                where=empty_class(pattern, dialect=dialect, flags=flags) or "regex",
            )
        raise InvalidConstraint(
            "no text matches the whole pattern: a lookaround or anchor in it contradicts the rest;"
            " take it out",
            where="regex",
        )
    return ir.Grammar({"start": ir.Rule(node)}, "start")


def _has_text(tree: Expression) -> bool:
    """Whether some text matches the tree, its lookaround aside."""
    match tree:
        case Chars(ranges):
            return bool(ranges)
        case Concat(items):
            return all(map(_has_text, items))
        case Alternation(options):
            return any(map(_has_text, options))
        case Repetition(item, minimum, _):
            return minimum == 0 or _has_text(item)
    return True
