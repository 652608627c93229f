"""Grammars in which some rules leave a watch on what follows: the product of the grammar with its watches.

In: a grammar, some of whose rules stand for terminals that look around (:mod:`outlooks`). Out: a grammar
without them, of the texts in which every look finds what it wants. Each rule is written once for each watch
that can be under way before it and each that can be behind it; rules that no watch reaches stay as they are.
"""

from __future__ import annotations

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends import regular
from vllm_guided.frontends.embedding import references
from vllm_guided.frontends.lark_grammar.lalr.machines import Machine
from vllm_guided.frontends.lark_grammar.lalr.merge import trimmed
from vllm_guided.frontends.lark_grammar.lalr.runs import Runs
from vllm_guided.frontends.lark_grammar.lalr.watches import NOTHING
from vllm_guided.frontends.lark_grammar.outlooks import Outlook, Outlooks
from vllm_guided.grammar import ir

MAX_SPOTS = 10_000
MAX_WRITTEN_OUT = 200
MAX_EDGES = 400_000  # a second's work

#: The watch under way, and whether nothing has been read yet.
Context = tuple[int, bool]
Spot = tuple[str, Context]
Nodes = dict[Context, int]


def watched(grammar: ir.Grammar, looking: dict[str, Outlook], outlooks: Outlooks) -> ir.Grammar:
    """The grammar with the rules ``looking`` as the terminals they are."""
    return _Product(grammar, looking, outlooks).grammar()


class _Product:
    def __init__(self, grammar: ir.Grammar, looking: dict[str, Outlook], outlooks: Outlooks) -> None:
        self.source = grammar
        self.looking = looking
        self.outlooks = outlooks
        self.watches = outlooks.watches
        self.rules: dict[str, ir.Rule] = dict(grammar.rules)
        self.runs = Runs([], self.watches, self.rules)
        self.numbers: dict[object, int] = {}
        self.loud = self._loud()
        self.exits: dict[Spot, dict[Context, int]] = {}
        self.readers: dict[Spot, set[Spot]] = {}
        self.queue: list[Spot] = []
        self.edges: list[tuple[int, ir.Node, int]] = []
        self.size = 0
        self.joined = 0
        self.spot: Spot = (grammar.start, (NOTHING, True))

    def _loud(self) -> set[str]:
        """The rules that can leave a watch behind."""
        loud = set(self.looking)
        uses = {name: references(rule.body) for name, rule in self.source.rules.items()}
        while more := {name for name, used in uses.items() if name not in loud and used & loud}:
            loud |= more
        return loud

    def grammar(self) -> ir.Grammar:
        first = self.spot
        self._known(first)
        while self.queue:
            spot = self.queue.pop()
            ends = self._body(spot)
            found = self.exits[spot]
            before = len(found)
            for context in ends:
                found.setdefault(context, len(found))
            if len(found) > before:
                self.queue.extend(reader for reader in self.readers[spot] if reader not in self.queue)
        for spot in self.exits:
            ends = self._body(spot)
            for context, node in ends.items():
                body = trimmed(ir.Graph(tuple(self.edges), frozenset([node])))
                self.rules[self._name(spot, context)] = ir.Rule(body)
        start = [
            ir.Ref(self._name(first, context))
            for context in self.exits[first]
            if self.watches.watches[context[0]].may_end
        ]
        self.rules["%watched"] = ir.Rule(ir.choice(*start))
        return ir.Grammar(self.rules, "%watched")

    def _known(self, spot: Spot) -> dict[Context, int]:
        if spot not in self.exits:
            if len(self.exits) >= MAX_SPOTS:
                raise _too_many()
            self.exits[spot] = {}
            self.readers[spot] = set()
            self.queue.append(spot)
        self.readers[spot].add(self.spot)
        return self.exits[spot]

    def _name(self, spot: Spot, after: Context) -> str:
        name, (watch, fresh) = spot
        return f"{name}@{watch}{'^' if fresh else ''}>{self.exits[spot][after]}"

    def _body(self, spot: Spot) -> Nodes:
        """Write the graph of a spot's rule into ``edges``; the node behind it by context."""
        self.spot = spot
        self.edges, self.size = [], 1
        return self._node(self.source.rules[spot[0]].body, {spot[1]: 0})

    def _new(self) -> int:
        self.size += 1
        return self.size - 1

    def _join(self, nodes: Nodes, context: Context, label: ir.Node, source: int) -> None:
        self.joined += 1
        if self.joined > MAX_EDGES:
            raise _too_many()
        if context not in nodes:
            nodes[context] = self._new()
        self.edges.append((source, label, nodes[context]))

    def _quiet(self, node: ir.Node) -> bool:
        return references(node).isdisjoint(self.loud)

    def _node(self, node: ir.Node, here: Nodes) -> Nodes:
        after: Nodes = {}
        if self._quiet(node):
            plain = here.get((NOTHING, False))
            if plain is not None:
                self._join(after, (NOTHING, False), node, plain)
                here = {context: at for context, at in here.items() if context != (NOTHING, False)}
            if not here:
                return after
            if regular.is_regular(node):
                self._regular(node, here, after)
                return after
        match node:
            case ir.SpecialToken():
                for (watch, _), at in here.items():
                    if self.watches.watches[watch].may_end:
                        self._join(after, (NOTHING, False), node, at)
            case ir.Ref(name):
                for context, at in here.items():
                    for later, label in self._rule(name, context):
                        self._join(after, later, label, at)
            case ir.Sequence(items):
                inner = here
                for item in items:
                    inner = self._node(item, inner)
                for context, at in inner.items():
                    self._join(after, context, ir.EMPTY, at)
            case ir.Choice(options):
                for option in options:
                    for context, at in self._node(option, here).items():
                        self._join(after, context, ir.EMPTY, at)
            case ir.Repeat(item, minimum, maximum):
                self._repeat(item, minimum, maximum, here, after)
            case ir.Graph():
                self._graph(node, here, after)
            case _:
                raise AssertionError(node)
        return after

    def _rule(self, name: str, context: Context) -> list[tuple[Context, ir.Node]]:
        """What a reference can be in a context, and the contexts behind it."""
        outlook = self.looking.get(name)
        watch, fresh = context
        if outlook is not None:
            machine = self.outlooks.machine(outlook, "nothing" if fresh else "something")
            return [((later, False), label) for later, label in self._run(machine, watch).items()]
        spot = (name, context)
        return [(later, ir.Ref(self._name(spot, later))) for later in list(self._known(spot))]

    def _run(self, machine: Machine, watch: int) -> dict[int, ir.Node]:
        number = self.numbers.get(machine)
        if number is None:
            number = self.numbers[machine] = len(self.runs.machines)
            self.runs.machines.append(machine)
        return self.runs.of(number, watch)

    def _regular(self, node: ir.Node, here: Nodes, after: Nodes) -> None:
        """Text that looks at nothing, under the watches of what is before it."""
        automaton = regular.dfa(node)
        if 0 in automaton.accepting:
            for context, at in here.items():
                self._join(after, context, ir.EMPTY, at)
            automaton = regular.without_first_bytes(automaton, 0)
        ends = tuple((NOTHING,) if s in automaton.accepting else () for s in range(len(automaton.edges)))
        machine = Machine(automaton.edges, ends)
        for (watch, _), at in here.items():
            for later, label in self._run(machine, watch).items():
                self._join(after, (later, False), label, at)

    def _repeat(self, item: ir.Node, minimum: int, maximum: int | None, here: Nodes, after: Nodes) -> None:
        if max(minimum, maximum or 0) > MAX_WRITTEN_OUT:
            raise ConstraintTooComplex(
                f"what is repeated more than {MAX_WRITTEN_OUT} times cannot stand beside terminals that look"
                " around; use + or *"
            )
        for _ in range(minimum):
            here = self._node(item, here)
        if maximum is None:
            loop: Nodes = {}
            todo = list(here.items())
            while todo:
                context, at = todo.pop()
                known = context in loop
                self._join(loop, context, ir.EMPTY, at)
                if not known:
                    todo.extend(self._node(item, {context: loop[context]}).items())
            here = loop
        else:
            for _ in range(maximum - minimum):
                for context, at in here.items():
                    self._join(after, context, ir.EMPTY, at)
                here = self._node(item, here)
        for context, at in here.items():
            self._join(after, context, ir.EMPTY, at)

    def _graph(self, graph: ir.Graph, here: Nodes, after: Nodes) -> None:
        places: dict[int, Nodes] = {}
        todo = [(graph.start, context, at) for context, at in here.items()]
        while todo:
            state, context, at = todo.pop()
            nodes = places.setdefault(state, {})
            known = context in nodes
            self._join(nodes, context, ir.EMPTY, at)
            if known:
                continue
            if state in graph.accepting:
                self._join(after, context, ir.EMPTY, nodes[context])
            for source, label, target in graph.edges:
                if source == state:
                    found = self._node(label, {context: nodes[context]})
                    todo.extend((target, later, node) for later, node in found.items())


def _too_many() -> ConstraintTooComplex:
    return ConstraintTooComplex(
        "terminals that look around can stand in too many places; make them simpler, or the rules fewer"
    )
