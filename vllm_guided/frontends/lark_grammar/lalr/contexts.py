"""The parser's runs as grammar rules: productions at the parser's states, tokens in the lexers' contexts.

A context is what the text so far says about what comes next: the lexer (that of the state behind the last
token), the watch of the tokens before, and the terminals that may not come next, because the parser would
have shifted them where it has reduced. A nonterminal at a state and in a context has a rule for each context
it can leave; together they derive exactly what Lark's parser accepts.
"""

from __future__ import annotations

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.lark_grammar.lalr.merge import merged, trimmed
from vllm_guided.frontends.lark_grammar.lalr.places import Places
from vllm_guided.frontends.lark_grammar.lalr.tables import Tables
from vllm_guided.frontends.lark_grammar.lalr.tokens import Tokens
from vllm_guided.frontends.lark_grammar.lalr.views import Views
from vllm_guided.frontends.lark_grammar.lalr.watches import NOTHING, Watches, union
from vllm_guided.grammar import ir

MAX_SPOTS = 30_000
MAX_EDGES = 400_000
MAX_WORK = 1_500_000  # edges looked at: a few seconds

#: A view, a watch, and the mask of terminals that may not come next.
Context = tuple[int, int, int]
#: A place and the context before it.
Spot = tuple[int, Context]


class Contexts:
    """Writes the rules of one grammar."""

    def __init__(self, tables: Tables, views: Views, watches: Watches) -> None:
        self.tables = tables
        self.watches = watches
        self.tokens = Tokens(views, watches, {})
        accepted = [
            frozenset(i for i in range(tables.terminals) if state.accepts >> i & 1 and i != tables.end)
            for state in tables.states
        ]
        looks = [views.of(terminals) for terminals in accepted]
        # Of the first bytes only those matter that a watch can forbid.
        watched = union(mask for watch in watches.watches for mask, _ in watch.edges)
        numbers: dict[tuple[int, int], int] = {}
        labels = [numbers.setdefault((view, first & watched), len(numbers)) for view, first in looks]
        self.looks = list(numbers)
        self.places = Places(tables, labels)
        self.begin: Context = (looks[0][0], NOTHING, 0)
        self.exits: dict[Spot, dict[Context, int]] = {}
        self.readers: dict[Spot, set[Spot]] = {}
        self.numbers: dict[Spot, int] = {}
        self.queue: list[Spot] = []
        self.waiting: set[Spot] = set()
        self.edges = 0
        self.looked = 0

    def grammar(self) -> ir.Grammar:
        """The grammar of the first production's right side."""
        first: Spot = (self.places.start, self.begin)
        self._exits(first, first)
        while self.queue:
            spot = self.queue.pop()
            self.waiting.discard(spot)
            self._look(spot)
        rules = self.tokens.rules
        for spot in self.exits:
            self._write(spot)
        options: list[ir.Node] = []
        for context in self.exits[first]:
            view, watch, refused = context
            if refused >> self.tables.end & 1:
                continue
            for last, node in self.tokens.skips(view, watch).items():
                if self.watches.watches[last].may_end:
                    options.append(ir.sequence(ir.Ref(self._name(first, context)), node))
        rules["%start"] = ir.Rule(ir.choice(*options))
        return merged(ir.Grammar(rules, "%start"))

    def _exits(self, spot: Spot, reader: Spot) -> dict[Context, int]:
        if spot not in self.exits:
            if len(self.exits) >= MAX_SPOTS:
                raise ConstraintTooComplex(
                    f"with parser='lalr', more than {MAX_SPOTS:,} contexts of rules are to be told apart;"
                    " make the grammar smaller, or its terminals easier to tell apart"
                )
            self.numbers[spot] = len(self.exits)
            self.exits[spot] = {}
            self.readers[spot] = set()
            self._enqueue(spot)
        self.readers[spot].add(reader)
        return self.exits[spot]

    def _enqueue(self, spot: Spot) -> None:
        if spot not in self.waiting:
            self.waiting.add(spot)
            self.queue.append(spot)

    def _after(
        self, symbol: int, number: int, context: Context, reader: Spot
    ) -> list[tuple[Context, ir.Node]]:
        """What one step of a production can be in a context, and the contexts behind it."""
        if symbol < 0:
            spot: Spot = (number, context)
            return [(after, ir.Ref(self._name(spot, after))) for after in list(self._exits(spot, reader))]
        view, watch, refused = context
        if refused >> symbol & 1:
            return []
        target, first = self.looks[number]
        return [
            ((target, self.watches.before(later, first), 0), node)
            for later, node in self.tokens.token(view, watch, symbol).items()
        ]

    def _paths(self, spot: Spot) -> tuple[list[tuple[int, ir.Node, int]], dict[Context, set[int]]]:
        """The graph of a spot's productions, and its accepting nodes by the context behind them."""
        place, context = spot
        edges: dict[tuple[int, ir.Node, int], None] = {}
        ends: dict[Context, set[int]] = {}
        nodes: dict[object, int] = {}
        for way in self.places.ways[place]:
            here: dict[Context, int] = {context: 0}
            for done, (symbol, number) in enumerate(way.steps, start=1):
                # Productions that go on alike share what is left of them.
                rest = (way.steps[done:], way.lost)
                following: dict[Context, int] = {}
                for before, node in here.items():
                    for after, label in self._after(symbol, number, before, spot):
                        target = following.get(after)
                        if target is None:
                            target = following[after] = nodes.setdefault((rest, after), len(nodes) + 1)
                        edges[node, label, target] = None
                here = following
            for (view, watch, refused), node in here.items():
                ends.setdefault((view, watch, refused | way.lost), set()).add(node)
        return list(edges), ends

    def _look(self, spot: Spot) -> None:
        edges, ends = self._paths(spot)
        known = self.exits[spot]
        before = len(known)
        for context in ends:
            known.setdefault(context, len(known))
        self.looked += len(edges)
        if self.looked > MAX_WORK:
            raise ConstraintTooComplex(
                "with parser='lalr', the contexts of rules take too long to tell apart; make the grammar"
                " smaller, or its terminals easier to tell apart"
            )
        if len(known) > before:
            for reader in self.readers[spot]:
                self._enqueue(reader)

    def _write(self, spot: Spot) -> None:
        edges, ends = self._paths(spot)
        self.edges += len(edges) * len(ends)
        if self.edges > MAX_EDGES:
            raise ConstraintTooComplex(
                "with parser='lalr', the rules of this grammar have too many ways to go on; make it smaller"
            )
        for context, accepting in ends.items():
            graph = ir.Graph(tuple(edges), frozenset(accepting))
            self.tokens.rules[self._name(spot, context)] = ir.Rule(_plain(graph))

    def _name(self, spot: Spot, after: Context) -> str:
        return f"{self.places.names[spot[0]]}@{self.numbers[spot]}>{self.exits[spot][after]}"


def _plain(graph: ir.Graph) -> ir.Node:
    """The graph without dead ends, as a sequence where it is one."""
    graph = trimmed(graph)
    items: list[ir.Node] = []
    at = graph.start
    by_source: dict[int, list[tuple[ir.Node, int]]] = {}
    for source, label, target in graph.edges:
        by_source.setdefault(source, []).append((label, target))
    seen = {at}
    while len(by_source.get(at, ())) == 1 and at not in graph.accepting:
        ((label, at),) = by_source[at]
        if at in seen:
            return graph
        seen.add(at)
        items.append(label)
    if at in graph.accepting and not by_source.get(at):
        return ir.sequence(*items)
    return graph
