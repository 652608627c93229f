"""White space between JSON tokens.

In: the caller's choice. Out: the nodes for punctuation. By default a run of at most 32 blanks may stand
between any two tokens; a pattern replaces the blanks, as far as JSON has them; compact output has none.
"""

from __future__ import annotations

from functools import lru_cache

from vllm_guided.automaton.char_sets import Ranges
from vllm_guided.bounded import OBJECT_BYTES, Meter
from vllm_guided.errors import GrammarError, InvalidConstraint
from vllm_guided.frontends.json_schema import limits, spelling
from vllm_guided.frontends.regex import regex_node
from vllm_guided.grammar import ir

BLANKS = "blanks"
BLANK_BYTES = b" \t\n\r"
KEY_BYTES = 2 << 20
"""What the nodes of declared names may take that a layout keeps."""


class Layout:
    """Punctuation with the white space around it.

    Attributes:
        separator: a rule for the comma between two members.
        blank: what may stand between two tokens (nothing included).
        rules: the rules that ``blank`` refers to.
        generic: the rules of any value, array, object, string or number, once somebody asked for them
            (:mod:`.generic`).
    """

    def __init__(self, any_whitespace: bool, whitespace_pattern: str | None) -> None:
        self.rules: dict[str, ir.Rule] = {}
        self.blank: ir.Node = ir.EMPTY
        if whitespace_pattern is not None:
            try:
                node = _blanks_node(whitespace_pattern)
            except GrammarError as error:
                raise type(error)(f"whitespace_pattern: {error.message}", where=error.where) from None
            if ir.is_nothing(node):
                raise InvalidConstraint(
                    "whitespace_pattern: it takes no text of blanks, tabs and line ends, which are all that"
                    " may stand between the tokens of JSON; write [ \\n]* or leave it out"
                )
            self.rules[BLANKS] = ir.Rule(node)
            self.blank = ir.Ref(BLANKS)
        elif any_whitespace:
            body = ir.Repeat(ir.byte_set(BLANK_BYTES), 1, limits.MAX_WHITESPACE)
            self.rules[BLANKS] = ir.Rule(body, shared=True)
            self.blank = ir.optional(ir.Ref(BLANKS))
        self.comma = ir.sequence(self.blank, ir.text(","), self.blank)
        self.colon = ir.sequence(self.blank, ir.text(":"), self.blank)
        self.compact = self.blank == ir.EMPTY
        self.separator = ir.Rule(self.comma, shared=True)
        self.generic: dict[str, dict[str, ir.Rule]] = {}
        blanks = () if self.compact else (self.blank,)
        self._brackets: dict[tuple[str, str], tuple[tuple[ir.Node, ...], tuple[ir.Node, ...], ir.Node]] = {
            (opening, closing): (
                (ir.text(opening), *blanks),
                (*blanks, ir.text(closing)),
                ir.sequence(ir.text(opening), self.blank, ir.text(closing)),
            )
            for opening, closing in ("[]", "{}")
        }
        self._keys: dict[str, tuple[ir.Node, ...]] = {}
        self._meter = Meter(KEY_BYTES)

    def enclosed(self, opening: str, body: ir.Node, closing: str) -> ir.Node:
        """``body`` between brackets, with blanks inside them."""
        if ir.is_nothing(body):
            return ir.NOTHING
        before, after, _ = self._brackets[opening, closing]
        return ir.Sequence(before + (body.items if isinstance(body, ir.Sequence) else (body,)) + after)

    def empty(self, opening: str, closing: str) -> ir.Node:
        """Brackets with nothing but blanks between them."""
        return self._brackets[opening, closing][2]

    def member(self, name: str, value: ir.Node) -> ir.Node:
        """A declared name, its colon and a value that has a text."""
        key = self._keys.get(name)
        if key is None:
            text = spelling.literal(name)
            node = ir.text(text + b":") if self.compact else ir.sequence(ir.text(text), self.colon)
            key = node.items if isinstance(node, ir.Sequence) else (node,)
            if not self._meter.takes(4 * OBJECT_BYTES + 2 * len(text)):
                self._keys.clear()
            self._keys[name] = key
        if isinstance(value, ir.Sequence):
            return ir.Sequence(key + value.items)
        return ir.Sequence((*key, value))


def _blanks_node(pattern: str) -> ir.Node:
    """What of a pattern's texts is white space in JSON: ``\\s`` has others, too."""

    def encode(ranges: Ranges) -> ir.Node:
        members = [byte for byte in BLANK_BYTES if any(low <= byte <= high for low, high in ranges)]
        return ir.byte_set(members) if members else ir.NOTHING

    return regex_node(pattern, dialect="python", encode=encode)


@lru_cache(maxsize=64)
def layout_of(any_whitespace: bool, whitespace_pattern: str | None) -> Layout:
    """The layout of these choices, the same for all grammars of the process: they share its nodes.

    Raises:
        GrammarError: the pattern is refused.
    """
    return Layout(any_whitespace, whitespace_pattern)
