"""Which rules are written in place of their calls, and about how large nodes are when written out."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_guided.automaton.components import strong_components
from vllm_guided.grammar import ir

#: A repetition is written out while copies x size stays below this; beyond, it becomes a counter.
UNROLL_LIMIT = 400
#: A rule used more than once is inlined while its size stays below this.
INLINE_LIMIT = 24
#: A rule used once is inlined while its size stays below this.
INLINE_ONCE_LIMIT = 2_000


def size_of(
    node: ir.Node, rules: Mapping[str, ir.Rule], sizes: dict[int, int], inline: Mapping[str, int]
) -> int:
    """About how many edges ``node`` writes (a call counts 1, an inlined rule its own size)."""
    known = sizes.get(id(node))
    if known is not None:
        return known
    stack = [node]
    while stack:
        top = stack[-1]
        if id(top) in sizes:
            stack.pop()
            continue
        kind = type(top)
        size = 1
        missing = False
        if kind is ir.Literal:
            size = len(top.data)  # type: ignore[union-attr]
        elif kind is ir.CharSet:
            size = 1 if top.ranges[-1][1] < 128 else 8  # type: ignore[union-attr]
        elif kind is ir.Ref:
            size = inline.get(top.name, 1)  # type: ignore[union-attr]
        elif kind is ir.Bag:
            pass  # one call
        else:
            for child in ir.parts(top):
                known = sizes.get(id(child))
                if known is None:
                    stack.append(child)
                    missing = True
                else:
                    size += known
            if kind is ir.Repeat and not missing:
                copies = top.minimum if top.maximum is None else top.maximum  # type: ignore[union-attr]
                unrolled = size * max(copies, 1)
                size = unrolled if unrolled <= UNROLL_LIMIT or copies < 2 else 1
        if not missing:
            sizes[id(top)] = size
            stack.pop()
    return sizes[id(node)]


def inlinable(grammar: ir.Grammar, sizes: dict[int, int]) -> dict[str, int]:
    """The rules to write in place of their calls, each with its size."""
    uses: dict[str, int] = {}
    order: list[str] = []
    callees: dict[str, list[str]] = {}
    found = [grammar.start]
    seen = {grammar.start}
    while found:
        name = found.pop()
        rule = grammar.rules.get(name)
        called: list[str] = []
        if rule is not None:
            stack = [rule.body]
            while stack:
                node = stack.pop()
                if type(node) is ir.Ref:
                    called.append(node.name)
                else:
                    stack.extend(ir.parts(node))
        callees[name] = called
        order.append(name)
        for callee in called:
            uses[callee] = uses.get(callee, 0) + 1
            if callee not in seen:
                seen.add(callee)
                found.append(callee)
    inline: dict[str, int] = {}
    for component in strong_components(order, callees):
        name = component[0]
        rule = grammar.rules.get(name)
        if (
            rule is None
            or rule.shared
            or name == grammar.start
            or len(component) > 1
            or name in callees[name]
        ):
            continue
        size = size_of(rule.body, grammar.rules, sizes, inline)
        if size <= INLINE_LIMIT or (uses[name] == 1 and size <= INLINE_ONCE_LIMIT):
            inline[name] = size
    return inline
