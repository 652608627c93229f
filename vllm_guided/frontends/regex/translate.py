"""Pattern trees to the grammar IR.

Repetition stays a counter (``ir.Repeat``), so that ``{0,10000}`` costs nothing. Anchors, word boundaries
and their like are decided on the tree; what other lookaround reaches becomes an automaton
(:mod:`vllm_guided.automaton.characters`), and only that.
"""

from __future__ import annotations

from collections.abc import Callable

from vllm_guided.automaton.char_anchors import Items, resolved
from vllm_guided.automaton.char_expression import (
    ANYTHING,
    Alternation,
    Chars,
    Concat,
    Expression,
    Look,
    Repetition,
    concat,
    has_look,
    has_look_ahead,
    has_look_behind,
)
from vllm_guided.automaton.char_sets import Ranges
from vllm_guided.automaton.characters import CharDfa
from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.grammar import ir

Encoder = Callable[[Ranges], ir.Node]


def utf8(ranges: Ranges) -> ir.Node:
    """The UTF-8 encoding of one code point of ``ranges``."""
    if not ranges:
        return ir.NOTHING
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return ir.Literal(chr(ranges[0][0]).encode())
    return ir.CharSet(ranges)


class Translator:
    """Tree to IR with one encoder; equal character sets become one node."""

    def __init__(self, encode: Encoder) -> None:
        self._encode = encode
        self._encoded: dict[Ranges, ir.Node] = {}

    def chars(self, ranges: Ranges) -> ir.Node:
        """The encoder's node for the set."""
        node = self._encoded.get(ranges)
        if node is None:
            node = self._encoded[ranges] = self._encode(ranges) if ranges else ir.NOTHING
        return node

    def node(self, expression: Expression) -> ir.Node:
        """The IR of a tree without lookaround."""
        match expression:
            case Chars(ranges):
                return self.chars(ranges)
            case Concat(items):
                return joined([self.node(item) for item in items])
            case Alternation(options):
                return ir.choice(*(self.node(option) for option in options))
            case Repetition(item, minimum, maximum):
                repeated = self.node(item)
                if ir.is_nothing(repeated):
                    return ir.NOTHING if minimum else ir.EMPTY
                return ir.Repeat(repeated, minimum, maximum)
            case Look():
                raise AssertionError("lookaround needs an automaton")


def joined(nodes: list[ir.Node]) -> ir.Node:
    """A sequence whose neighbouring literals are one."""
    merged: list[ir.Node] = []
    pending: list[bytes] = []
    for node in nodes:
        if type(node) is ir.Literal:
            pending.append(node.data)
            continue
        if pending:
            merged.append(ir.Literal(b"".join(pending)))
            pending.clear()
        merged.append(node)
    if pending:
        merged.append(ir.Literal(b"".join(pending)))
    return ir.sequence(*merged)


def pattern_node(expression: Expression, *, search: bool, encode: Encoder) -> ir.Node:
    """The IR of a whole pattern, matched in full or (``search``) somewhere in the text."""
    whole = concat([ANYTHING, expression, ANYTHING]) if search else expression
    translator = Translator(encode)
    try:
        return ir.choice(*(_sequence_node(items, translator) for items in resolved(whole)))
    except RecursionError:
        raise ConstraintTooComplex("the pattern is nested too deeply: flatten it") from None


def _sequence_node(items: Items, translator: Translator) -> ir.Node:
    """A sequence: what stands clear of its lookaround as IR, the rest as an automaton."""
    looking = [index for index, item in enumerate(items) if has_look(item)]
    if not looking:
        return translator.node(concat(items))
    first, last = 0, len(items)
    if not any(has_look_behind(items[index]) for index in looking):
        first = looking[0]
    elif not any(has_look_ahead(items[index]) for index in looking):
        last = looking[-1] + 1
    middle = CharDfa.from_expression(concat(items[first:last])).to_node(translator.chars)
    before, after = translator.node(concat(items[:first])), translator.node(concat(items[last:]))
    return joined([before, middle, after])
