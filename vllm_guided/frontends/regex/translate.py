"""Pattern trees straight to the grammar IR, where nothing in them asserts but ``^`` and ``$`` at the edges.

Repetition stays a counter (``ir.Repeat``), so that ``{0,10000}`` costs nothing. What asserts elsewhere
is decided by the automata of :mod:`vllm_guided.automaton.characters` instead.
"""

from __future__ import annotations

from collections.abc import Callable

from vllm_guided.automaton.char_expression import (
    ANYTHING,
    EMPTY,
    END,
    NOTHING,
    START,
    Alternation,
    Chars,
    Concat,
    Expression,
    Look,
    Repetition,
    concat,
    has_look,
)
from vllm_guided.automaton.char_sets import Ranges
from vllm_guided.automaton.characters import CharDfa
from vllm_guided.grammar import ir

NEWLINE = Chars(((10, 10),))
FINAL_NEWLINE = Look(Concat((NEWLINE, END)))
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
                return ir.Repeat(self.node(item), minimum, maximum)
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


Edge = tuple[Expression, bool, bool]
"""A tree without lookaround, whether it is bound to the start of the text, and to its end."""


def edges(expression: Expression, search: bool) -> list[Edge] | None:
    """The tree as alternatives whose anchors are taken off their edges; None if it asserts anywhere else."""
    if not has_look(expression):
        return [(expression, False, False)]
    match expression:
        case Alternation(options):
            found: list[Edge] = []
            for option in options:
                part = edges(option, search)
                if part is None:
                    return None
                found.extend(part)
            return found
        case Look():
            if expression == START:
                return [(EMPTY, True, False)]
            if (
                expression == FINAL_NEWLINE
            ):  # the other half of Python's $: never so at the end of a full match
                return [(NEWLINE if search else NOTHING, False, True)]
            return [(EMPTY, False, True)] if expression == END else None
        case Concat(items):
            return _sequence_edges(items, search)
        case _:
            return None


def _sequence_edges(items: tuple[Expression, ...], search: bool) -> list[Edge] | None:
    first, last = 0, len(items)
    at_start = at_end = False
    while first < last and items[first] == START:
        first, at_start = first + 1, True
    while first < last and items[last - 1] == END:
        last, at_end = last - 1, True
    middle = items[first:last]
    if not any(has_look(item) for item in middle):
        return [(concat(list(middle)), at_start, at_end)]
    if len(middle) == 1:
        inner = edges(middle[0], search)
        return inner and [(tree, left or at_start, right or at_end) for tree, left, right in inner]
    if any(has_look(item) for item in middle[1:-1]):
        return None
    left_parts, right_parts = edges(middle[0], search), edges(middle[-1], search)
    if left_parts is None or right_parts is None:
        return None
    if any(right for _, _, right in left_parts) or any(left for _, left, _ in right_parts):
        return None
    between = list(middle[1:-1])
    return [
        (concat([head, *between, tail]), left or at_start, right or at_end)
        for head, left, _ in left_parts
        for tail, _, right in right_parts
    ]


def pattern_node(expression: Expression, *, search: bool, encode: Encoder) -> ir.Node:
    """The IR of a whole pattern, matched in full or (``search``) somewhere in the text."""
    parts = edges(expression, search)
    if parts is None:
        whole = concat([ANYTHING, expression, ANYTHING]) if search else expression
        return CharDfa.from_expression(whole).to_node(encode)
    translator = Translator(encode)
    options = []
    for tree, at_start, at_end in parts:
        padded = concat(
            [
                *([ANYTHING] if search and not at_start else []),
                tree,
                *([ANYTHING] if search and not at_end else []),
            ]
        )
        options.append(translator.node(padded))
    return ir.choice(*options)
