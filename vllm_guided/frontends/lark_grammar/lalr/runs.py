"""Texts of a machine under a watch, as rules.

In: the number of a machine and of a watch that an earlier text left behind. Out: for each watch that can be
left behind the machine's text, the node of the texts that leave it.
"""

from __future__ import annotations

from vllm_guided.frontends.lark_grammar.lalr.machines import Machine
from vllm_guided.frontends.lark_grammar.lalr.merge import trimmed
from vllm_guided.frontends.lark_grammar.lalr.watches import NOTHING, VIOLATED, Watches
from vllm_guided.frontends.wide import is_wide
from vllm_guided.grammar import ir

_WIDE = 8  # bytes over which a state loops that deserves a rule of its own


class Runs:
    """Writes the rules of machines' texts into ``rules``."""

    def __init__(self, machines: list[Machine], watches: Watches, rules: dict[str, ir.Rule]) -> None:
        self.machines = machines
        self.watches = watches
        self.rules = rules
        self.runs: dict[tuple[int, int], dict[int, ir.Node]] = {}
        self.written = 0

    def of(self, machine: int, watch: int) -> dict[int, ir.Node]:
        """Nodes of one text of the machine, read under a watch, by the watch behind it."""
        key = (machine, watch)
        if key not in self.runs:
            self.runs[key] = self._run(self.machines[machine], machine, watch)
        return self.runs[key]

    def _run(self, machine: Machine, number: int, watch: int) -> dict[int, ir.Node]:
        """The product of machine and watch; where the watch is over and the text loops, shared rules."""
        order = [(0, watch)]
        numbers = {order[0]: 0}
        edges: list[tuple[int, ir.Node, int]] = []
        ends: dict[int, set[int]] = {}
        tails: list[tuple[int, int]] = []
        hubs = _hubs(machine)
        for place in order:
            state, watched = place
            here = numbers[place]
            if watched == NOTHING and here and state in hubs:
                tails.append((here, state))
                continue
            for after in machine.ends[state]:
                both = self.watches.both(after, watched)
                ends.setdefault(both, set()).add(here)
            for mask, target, later in self._moves(machine, state, watched):
                pair = (target, later)
                if pair not in numbers:
                    numbers[pair] = len(order)
                    order.append(pair)
                edges.append((here, ir.ByteSet(mask), numbers[pair]))
        behind = {state: self._exits(machine, state) for _, state in tails}
        final = len(order)
        found: dict[int, ir.Node] = {}
        for after in sorted({*ends, *(after for exits in behind.values() for after in exits)}):
            rest = [
                (here, self._tail(machine, number, state, after), final)
                for here, state in tails
                if after in behind[state]
            ]
            accepting = frozenset((*ends.get(after, ()), *((final,) if rest else ())))
            node = trimmed(ir.Graph((*edges, *rest), accepting))
            found[after] = self.named("run", node)
        return found

    def _moves(self, machine: Machine, state: int, watch: int) -> list[tuple[int, int, int]]:
        moves = []
        for mask, target in machine.edges[state]:
            for other, later in self.watches.watches[watch].edges:
                if mask & other:
                    if later != VIOLATED:
                        moves.append((mask & other, target, later))
                    mask &= ~other
            if mask:
                moves.append((mask, target, NOTHING))
        return moves

    def _exits(self, machine: Machine, state: int) -> set[int]:
        """The watches with which a token can end from a state on."""
        seen = {state}
        todo = [state]
        found: set[int] = set()
        for here in todo:
            found.update(machine.ends[here])
            for _, target in machine.edges[here]:
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        return found

    def _tail(self, machine: Machine, number: int, state: int, after: int) -> ir.Node:
        """The rest of the machine's texts from a state on, as a rule of its own."""
        name = f"%tail{number}/{state}>{after}"
        if name not in self.rules:
            order = [state]
            numbers = {state: 0}
            edges = []
            for here in order:
                for mask, target in machine.edges[here]:
                    if target not in numbers:
                        numbers[target] = len(order)
                        order.append(target)
                    edges.append((numbers[here], ir.ByteSet(mask), numbers[target]))
            accepting = frozenset(numbers[s] for s in order if after in machine.ends[s])
            node = trimmed(ir.Graph(tuple(edges), accepting))
            self.rules[name] = ir.Rule(node, shared=is_wide(node))
        return ir.Ref(name)

    def named(self, kind: str, node: ir.Node) -> ir.Node:
        """The node, as a rule of its own unless it is small."""
        if isinstance(node, ir.Ref) or node == ir.EMPTY:
            return node
        if isinstance(node, ir.Graph) and len(node.edges) == 1 and isinstance(node.edges[0][1], ir.ByteSet):
            source, label, target = node.edges[0]
            if source != target and node.accepting == frozenset([target]) and source == node.start:
                return label
        name = f"%{kind}{self.written}"
        self.written += 1
        self.rules[name] = ir.Rule(node, shared=is_wide(node))
        return ir.Ref(name)


def _hubs(machine: Machine) -> frozenset[int]:
    """The states that loop over many bytes: what a text mostly consists of."""
    return frozenset(
        state
        for state, row in enumerate(machine.edges)
        if any(target == state and mask.bit_count() > _WIDE for mask, target in row)
    )
