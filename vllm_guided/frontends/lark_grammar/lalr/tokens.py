"""Tokens in their contexts, as rules: what is ignored, then one terminal, under an earlier token's watch.

A context's lexer is that of the parser's state; its watch is what the tokens before it forbid to follow. Each
token is a rule for one lexer, one watch before it and one watch behind it.
"""

from __future__ import annotations

from vllm_guided.frontends.lark_grammar.lalr.runs import Runs
from vllm_guided.frontends.lark_grammar.lalr.views import Views
from vllm_guided.frontends.lark_grammar.lalr.watches import Watches
from vllm_guided.grammar import ir


class Tokens:
    """Writes the rules of tokens into ``rules``."""

    def __init__(self, views: Views, watches: Watches, rules: dict[str, ir.Rule]) -> None:
        self.views = views
        self.rules = rules
        self.runs = Runs(views.lexers.machines, watches, rules)
        self.skipped: dict[tuple[int, int], dict[int, ir.Node]] = {}
        self.found: dict[tuple[int, int, int], dict[int, ir.Node]] = {}

    def token(self, view: int, watch: int, terminal: int) -> dict[int, ir.Node]:
        """Nodes of the terminal with ignored text before it, by the watch behind them."""
        key = (view, watch, terminal)
        if key not in self.found:
            options: dict[int, list[ir.Node]] = {}
            machine = self.views.views[view].machines[terminal]
            for between, skipped in self.skips(view, watch).items():
                for after, node in self.runs.of(machine, between).items():
                    options.setdefault(after, []).append(ir.sequence(skipped, node))
            self.found[key] = {
                after: self.runs.named("token", ir.choice(*nodes)) for after, nodes in options.items()
            }
        return self.found[key]

    def skips(self, view: int, watch: int) -> dict[int, ir.Node]:
        """Nodes of any number of ignored texts, by the watch behind them."""
        key = (view, watch)
        if key not in self.skipped:
            edges: list[tuple[int, ir.Node, int]] = []
            numbers = {watch: 0}
            order = [watch]
            for here in order:
                for machine in self.views.views[view].ignored:
                    for after, node in self.runs.of(machine, here).items():
                        if after not in numbers:
                            numbers[after] = len(order)
                            order.append(after)
                        edges.append((numbers[here], node, numbers[after]))
            found: dict[int, ir.Node] = {} if edges else {watch: ir.EMPTY}
            for after, number in numbers.items() if edges else ():
                found[after] = self.runs.named("skip", ir.Graph(tuple(edges), frozenset([number])))
            self.skipped[key] = found
        return self.skipped[key]
