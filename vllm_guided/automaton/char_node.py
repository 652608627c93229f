"""A character automaton as a node of the grammar IR, with chains of forced states folded into one label."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm_guided.automaton.char_sets import Ranges, union
from vllm_guided.grammar import ir

if TYPE_CHECKING:
    from vllm_guided.automaton.characters import CharDfa


def to_node(automaton: CharDfa, encode: Callable[[Ranges], ir.Node]) -> ir.Node:
    """``automaton``'s language, each set of characters spelt by ``encode``."""
    if automaton.is_empty():
        return ir.NOTHING
    members = automaton.partition.members()
    encoded: dict[frozenset[int], ir.Node] = {}
    outgoing: list[list[tuple[ir.Node, int]]] = []
    incoming = [0] * len(automaton.rows)
    incoming[0] += 1
    for row in automaton.rows:
        labels: dict[int, list[int]] = {}
        for label, target in enumerate(row):
            if target >= 0:
                labels.setdefault(target, []).append(label)
        state_edges: list[tuple[ir.Node, int]] = []
        for target, classes in labels.items():
            key = frozenset(classes)
            node = encoded.get(key)
            if node is None:
                node = encoded[key] = encode(union(*(members[label] for label in classes)))
            state_edges.append((node, target))
            incoming[target] += 1
        outgoing.append(state_edges)

    def folded(state: int) -> bool:
        """Whether the only edge into ``state`` can run on into the only edge out of it."""
        return incoming[state] == 1 and len(outgoing[state]) == 1 and state not in automaton.accepting

    if len(outgoing) == 1 and outgoing[0]:
        return ir.star(outgoing[0][0][0])
    edges: list[tuple[int, ir.Node, int]] = []
    numbers = {0: 0}
    queue = [0]
    for state in queue:
        for node, target in outgoing[state]:
            whole = node
            if folded(target):
                chain = [node]
                while folded(target):
                    following, target = outgoing[target][0]
                    chain.append(following)
                whole = _joined(chain)
            if target not in numbers:
                numbers[target] = len(numbers)
                queue.append(target)
            edges.append((numbers[state], whole, numbers[target]))
    accepting = frozenset(numbers[state] for state in automaton.accepting)
    if len(numbers) == 1 and not edges:
        return ir.EMPTY
    if len(edges) == 1 and edges[0][0] != edges[0][2] and accepting == {edges[0][2]}:
        return edges[0][1]
    return ir.Graph(tuple(edges), accepting, 0)


def _joined(chain: list[ir.Node]) -> ir.Node:
    merged: list[ir.Node] = []
    for node in chain:
        last = merged[-1] if merged else None
        if isinstance(node, ir.Literal) and isinstance(last, ir.Literal):
            merged[-1] = ir.Literal(last.data + node.data)
        else:
            merged.append(node)
    return ir.sequence(*merged)
