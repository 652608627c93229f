"""``%ignore``: what may stand before every token and behind the last one.

Lark's dynamic Earley parser matches an ignored terminal where a token could begin, takes its longest match,
and goes on behind it. Longest means: what follows cannot lengthen the match, so that ``#`` begins a comment
to the end of the line, and never a comment of one character with tokens behind it. A run of ignored
terminals is therefore one automaton, in which every accepting state knows the bytes that may not follow;
a token takes those of its runs that end before bytes it does not begin with.
"""

from __future__ import annotations

from vllm_guided.frontends import regular
from vllm_guided.frontends.first import First
from vllm_guided.grammar import ir


class Skips:
    """The runs of the given ignored terminals (regular nodes), as rules added to ``rules`` on demand."""

    def __init__(self, ignored: list[ir.Node], rules: dict[str, ir.Rule], prefix: str = "%ignore") -> None:
        self.rules = rules
        self.prefix = prefix
        self.edges: list[tuple[int, ir.Node, int]] = []
        self.groups: dict[int, set[int]] = {}
        self.names: dict[frozenset[int], str] = {}
        automata = [regular.dfa(node) for node in ignored]
        bases = [1 + sum(len(a.edges) for a in automata[:k]) for k in range(len(automata))]
        for automaton, base in zip([None, *automata], [0, *bases], strict=True):
            for state in range(len(automaton.edges)) if automaton else (0,):
                live = 0
                for mask, target in automaton.edges[state] if automaton else ():
                    self.edges.append((base + state, ir.ByteSet(mask), base + target))
                    live |= mask
                if automaton is None or state in automaton.accepting:
                    if automaton is not None and state != 0:
                        self.groups.setdefault(live, set()).add(base + state)
                    for other, entry in zip(automata, bases, strict=True):
                        for mask, target in other.edges[0]:
                            if mask & ~live:
                                self.edges.append((base + state, ir.ByteSet(mask & ~live), entry + target))

    def run(self, forbidden: frozenset[int]) -> ir.Node:
        """A non-empty run that ends where one of these byte masks may not follow."""
        if forbidden not in self.names:
            name = self.names[forbidden] = f"{self.prefix}{len(self.names) or ''}"
            accepting = frozenset(state for mask in forbidden for state in self.groups[mask])
            self.rules[name] = ir.Rule(ir.Graph(tuple(self.edges), accepting), shared=True)
        return ir.Ref(self.names[forbidden])

    def before(self, token: ir.Node, first: First, body: ir.Node | None) -> ir.Node:
        """``token`` with any run that may stand before it; ``body`` is its regular node, if it has one."""
        if not self.groups:
            return token
        nullable, mask = first
        allowed = frozenset(group for group in self.groups if not group & mask)
        options: list[ir.Node] = []
        if nullable:
            options.append(token)
            if body is not None and allowed:
                lasting = regular.node(regular.without_first_bytes(regular.dfa(body), 0))
                options.append(ir.sequence(self.run(allowed), lasting))
        elif allowed:
            options.append(ir.sequence(ir.optional(self.run(allowed)), token))
        else:
            options.append(token)
        if body is not None:
            for group in self.groups:
                if group & mask and mask & ~group:
                    rest = regular.node(regular.without_first_bytes(regular.dfa(body), group))
                    options.append(ir.sequence(self.run(frozenset([group])), rest))
        return ir.choice(*options)

    def behind(self, node: ir.Node) -> ir.Node:
        """``node`` and any run behind it, at the end of the text."""
        if not self.groups:
            return node
        return ir.sequence(node, ir.optional(self.run(frozenset(self.groups))))
