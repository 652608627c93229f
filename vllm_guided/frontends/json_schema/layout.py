"""White space between JSON tokens.

In: the caller's choice. Out: the nodes for punctuation. By default a run of at most 32 blanks may stand
between any two tokens; a pattern replaces the blanks; compact output has none.
"""

from __future__ import annotations

from vllm_guided.errors import GrammarError
from vllm_guided.frontends.json_schema import limits
from vllm_guided.frontends.regex import regex_node
from vllm_guided.grammar import ir

BLANKS = "blanks"


class Layout:
    """Punctuation with the white space around it.

    Attributes:
        blank: what may stand between two tokens (nothing included).
        rules: the rules that ``blank`` refers to.
    """

    def __init__(self, any_whitespace: bool, whitespace_pattern: str | None) -> None:
        self.rules: dict[str, ir.Rule] = {}
        self.blank: ir.Node = ir.EMPTY
        if whitespace_pattern is not None:
            try:
                node = regex_node(whitespace_pattern, dialect="python")
            except GrammarError as error:
                raise type(error)(f"whitespace_pattern: {error.message}", where=error.where) from None
            self.rules[BLANKS] = ir.Rule(node)
            self.blank = ir.Ref(BLANKS)
        elif any_whitespace:
            body = ir.Repeat(ir.byte_set(b" \t\n\r"), 1, limits.MAX_WHITESPACE)
            self.rules[BLANKS] = ir.Rule(body, shared=True)
            self.blank = ir.optional(ir.Ref(BLANKS))
        self.comma = ir.sequence(self.blank, ir.text(","), self.blank)
        self.colon = ir.sequence(self.blank, ir.text(":"), self.blank)
        self.compact = self.blank == ir.EMPTY

    def enclosed(self, opening: str, body: ir.Node, closing: str) -> ir.Node:
        """``body`` between brackets, with blanks inside them."""
        if body == ir.NOTHING:
            return ir.NOTHING
        return ir.sequence(ir.text(opening), self.blank, body, self.blank, ir.text(closing))

    def empty(self, opening: str, closing: str) -> ir.Node:
        """Brackets with nothing but blanks between them."""
        return ir.sequence(ir.text(opening), self.blank, ir.text(closing))

    def key(self, name: bytes) -> ir.Node:
        """A declared name and its colon."""
        return ir.text(name + b":") if self.compact else ir.sequence(ir.text(name), self.colon)
