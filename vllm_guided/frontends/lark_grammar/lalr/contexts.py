"""The parser's runs as grammar rules: productions in the parser's states, tokens in the lexers' contexts.

A context is what the text so far says about what comes next: the lexer (that of the state behind the last
token), the watch of the tokens before, and the terminals that may not come next, because the parser would
have shifted them where it has reduced. A nonterminal at a state and in a context has a rule for each context
it can leave; together they derive exactly what Lark's parser accepts.
"""

from __future__ import annotations

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.lark_grammar.lalr.merge import merged, trimmed
from vllm_guided.frontends.lark_grammar.lalr.tables import Tables
from vllm_guided.frontends.lark_grammar.lalr.tokens import Tokens
from vllm_guided.frontends.lark_grammar.lalr.watches import Watches
from vllm_guided.grammar import ir

MAX_PLACES = 30_000

#: Accepted terminals, a watch, and the mask of terminals that may not come next.
Context = tuple[frozenset[int], int, int]
#: A parser state, a nonterminal, and the context before it.
Place = tuple[int, int, Context]


class Contexts:
    """Writes the rules of one grammar."""

    def __init__(self, tables: Tables, tokens: Tokens, watches: Watches) -> None:
        self.tables = tables
        self.tokens = tokens
        self.watches = watches
        self.accepted = [
            frozenset(i for i in range(tables.terminals) if state.accepts >> i & 1 and i != tables.end)
            for state in tables.states
        ]
        self.exits: dict[Place, dict[Context, int]] = {}
        self.readers: dict[Place, set[Place]] = {}
        self.queue: list[Place] = []
        self.waiting: set[Place] = set()
        self.numbers: dict[Place, int] = {}

    def grammar(self) -> ir.Grammar:
        """The grammar of the first production's right side."""
        begin: Context = (self.accepted[0], 0, 0)
        start = self.tables.productions[0].right[0]
        first: Place = (0, start, begin)
        self._exits(first, first)
        while self.queue:
            place = self.queue.pop()
            self.waiting.discard(place)
            self._look(place)
        rules = self.tokens.rules
        for place, exits in self.exits.items():
            if exits:
                self._write(place)
        options: list[ir.Node] = []
        for context in self.exits[first]:
            accepted, watch, refused = context
            if refused >> self.tables.end & 1:
                continue
            for last, node in self.tokens.skips(accepted, watch).items():
                if self.watches.watches[last].may_end:
                    options.append(ir.sequence(ir.Ref(self._name(first, context)), node))
        rules["%start"] = ir.Rule(ir.choice(*options))
        return merged(ir.Grammar(rules, "%start"))

    def _exits(self, place: Place, reader: Place) -> dict[Context, int]:
        if place not in self.exits:
            if len(self.exits) >= MAX_PLACES:
                raise ConstraintTooComplex(
                    f"with parser='lalr', more than {MAX_PLACES:,} contexts of rules are to be told apart;"
                    " make the grammar smaller, or its terminals easier to tell apart"
                )
            self.exits[place] = {}
            self.readers[place] = set()
            self.numbers[place] = len(self.numbers)
            self._enqueue(place)
        self.readers[place].add(reader)
        return self.exits[place]

    def _enqueue(self, place: Place) -> None:
        if place not in self.waiting:
            self.waiting.add(place)
            self.queue.append(place)

    def _after(
        self, state: int, symbol: int, context: Context, reader: Place
    ) -> list[tuple[ir.Node, Context]]:
        """What a symbol can be at a state in a context, and the context behind it."""
        if symbol >= self.tables.terminals:
            place = (state, symbol, context)
            return [(ir.Ref(self._name(place, after)), after) for after in list(self._exits(place, reader))]
        accepted, watch, refused = context
        if refused >> symbol & 1:
            return []
        target = self.accepted[self.tables.states[state].transitions[symbol]]
        return [
            (node, (target, self.tokens.before(target, later), 0))
            for later, node in self.tokens.token(accepted, watch, symbol).items()
        ]

    def _paths(self, place: Place) -> tuple[list[tuple[int, ir.Node, int]], dict[Context, set[int]]]:
        """The graph of a place's productions, and its accepting nodes by the context behind them."""
        state, left, context = place
        edges: list[tuple[int, ir.Node, int]] = []
        ends: dict[Context, set[int]] = {}
        size = 1
        for number in self.tables.by_left[left]:
            here: dict[Context, int] = {context: 0}
            at = state
            for symbol in self.tables.productions[number].right:
                following: dict[Context, int] = {}
                for before, node in here.items():
                    for label, after in self._after(at, symbol, before, place):
                        if after not in following:
                            following[after] = size
                            size += 1
                        edges.append((node, label, following[after]))
                here = following
                at = self.tables.states[at].transitions[symbol]
            lost = self.tables.states[at].lost.get(number, 0)
            for (accepted, watch, refused), node in here.items():
                ends.setdefault((accepted, watch, refused | lost), set()).add(node)
        return edges, ends

    def _look(self, place: Place) -> None:
        _, ends = self._paths(place)
        known = self.exits[place]
        before = len(known)
        for context in ends:
            known.setdefault(context, len(known))
        if len(known) > before:
            for reader in self.readers[place]:
                self._enqueue(reader)

    def _write(self, place: Place) -> None:
        edges, ends = self._paths(place)
        for context, accepting in ends.items():
            graph = ir.Graph(tuple(edges), frozenset(accepting))
            self.tokens.rules[self._name(place, context)] = ir.Rule(_plain(graph))

    def _name(self, place: Place, after: Context) -> str:
        left = self.tables.names[place[1]]
        return f"{left}@{self.numbers[place]}>{self.exits[place][after]}"


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
