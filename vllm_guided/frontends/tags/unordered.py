"""Members in any order, each declared one at most once.

In: the node of each declared member, which are required, a node for other members, a separator. Out: a
graph with one node for each set of declared members that may be behind us. Sets are many, so this is for
few members; whoever has more of them keeps the declared order, which is one of the orders.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from vllm_guided.grammar import ir

MAX_MEMBERS = 8


def in_any_order(
    members: Mapping[str, ir.Node],
    required: Collection[str],
    other: ir.Node | None = None,
    separator: ir.Node = ir.EMPTY,
) -> ir.Node:
    """Every declared member at most once, the required ones once, ``other`` ones any number of times.

    The empty sequence is among them unless something is required. ``members`` has at most ``MAX_MEMBERS``.
    """
    names = list(members)
    whole = 1 << len(names)
    edges: list[tuple[int, ir.Node, int]] = []

    def add(source: int, member: ir.Node, target: int) -> None:
        edges.append((source, ir.sequence(separator, member) if source else member, target))

    for done in range(whole):
        for place, name in enumerate(names):
            if not done >> place & 1:
                add(done, members[name], done | 1 << place)
                if other is not None and done == 0:
                    add(whole, members[name], 1 << place)
        if other is not None:
            add(done, other, done or whole)
    if other is not None:
        add(whole, other, whole)
    needed = sum(1 << place for place, name in enumerate(names) if name in required)
    accepting = {done for done in range(whole) if done & needed == needed}
    if not needed and other is not None:
        accepting.add(whole)
    return ir.Graph(tuple(edges), frozenset(accepting))
