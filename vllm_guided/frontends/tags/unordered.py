"""Members written as tags in any order, each declared one at most once.

In: the node of each declared member, which are required, a node for other members. Out: a graph with one node
for each set of declared members that may be behind us. Sets are many, so this is for few members; whoever has
more of them keeps the declared order, which is one of the orders. (An ``ir.Bag`` wants a separator.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from vllm_guided.grammar import ir

MAX_MEMBERS = 8


def in_any_order(
    members: Mapping[str, ir.Node], required: Collection[str], other: ir.Node | None = None
) -> ir.Node:
    """Every declared member at most once, the required ones once, ``other`` ones any number of times.

    ``members`` has at most ``MAX_MEMBERS``.
    """
    names = list(members)
    edges: list[tuple[int, ir.Node, int]] = []
    for done in range(1 << len(names)):
        for place, name in enumerate(names):
            if not done >> place & 1:
                edges.append((done, members[name], done | 1 << place))
        if other is not None:
            edges.append((done, other, done))
    needed = sum(1 << place for place, name in enumerate(names) if name in required)
    accepting = frozenset(done for done in range(1 << len(names)) if done & needed == needed)
    return ir.Graph(tuple(edges), accepting)
