"""Regexps in Lark grammars: their languages, kept for those that were met before.

Where Python would stop at the first of several alternatives, longer ones count as well; only a lazy
quantifier says something about the text behind it: a regexp with one ends at its first match.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict

from vllm_guided.errors import GrammarError, InvalidConstraint
from vllm_guided.frontends import regular
from vllm_guided.frontends.wide import size
from vllm_guided.grammar import ir

_ESCAPED = re.compile(r"\\.|\[(?:\\.|[^\]\\])(?:\\.|[^\]\\])*\]|\(\?#[^)]*\)", re.DOTALL)
_LAZY = re.compile(r"[*+?}]\?")


class _Kept:
    """Small regexps met before, the last used ones: nodes a request made large are not kept."""

    def __init__(self, entries: int = 1024, largest: int = 2_000) -> None:
        self.entries = entries
        self.largest = largest
        self.nodes: OrderedDict[str, ir.Node] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, pattern: str) -> ir.Node | None:
        with self.lock:
            node = self.nodes.get(pattern)
            if node is not None:
                self.nodes.move_to_end(pattern)
            return node

    def put(self, pattern: str, node: ir.Node) -> None:
        if len(pattern) + size(node) > self.largest:
            return
        with self.lock:
            self.nodes[pattern] = node
            while len(self.nodes) > self.entries:
                self.nodes.popitem(last=False)


_KEPT = _Kept()


def regexp(pattern: str) -> ir.Node:
    """The language of a Python regexp; ECMA-262's and Rust's spellings are taken where Python has none."""
    node = _KEPT.get(pattern)
    if node is None:
        node = unkept(pattern)
        _KEPT.put(pattern, node)
    return node


def unkept(pattern: str) -> ir.Node:
    """The same, without a look at what was met before."""
    from vllm_guided.frontends.regex import regex_node

    try:
        node = regex_node(pattern, dialect="python")
    except InvalidConstraint as error:
        try:
            node = regex_node(pattern, dialect="ecma")
        except GrammarError:
            raise error from None
        if node == ir.NOTHING:
            raise error
    return regular.node(regular.shortest(regular.dfa(node))) if is_lazy(pattern) else node


def is_lazy(pattern: str) -> bool:
    """Whether a quantifier of the regexp is lazy."""
    return bool(_LAZY.search(_ESCAPED.sub("x", pattern)))
