"""Which rules have a text at all.

In: rules. Out: the names of those from which no text can be derived (the least fixed point of "derives
something"), and the rules a body refers to.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from vllm_guided.frontends import bags
from vllm_guided.grammar import ir
from vllm_guided.grammar.json_rules import JsonArray, JsonObject, JsonValue


def derives(node: ir.Node, productive: Container[str]) -> bool:
    """Whether ``node`` has a text if the rules in ``productive`` have one."""
    kind = type(node)
    if kind is ir.Ref:
        return node.name in productive  # type: ignore[union-attr]
    if isinstance(node, JsonObject):
        if node.least and not node.required:
            return node.other in productive or any([name in productive for name in node.values])
        return all([node.values[place] in productive for place in node.required])
    if isinstance(node, JsonArray):
        return node.least == 0 or node.item in productive
    if isinstance(node, JsonValue):
        return bool(node.texts) or any([name in productive for name in node.rules])
    if kind is ir.Literal or kind is ir.ByteSet or kind is ir.CharSet or kind is ir.SpecialToken:
        return True
    if isinstance(node, ir.Sequence):
        for item in node.items:
            kind = type(item)
            if kind is ir.Ref:
                if item.name not in productive:  # type: ignore[union-attr]
                    return False
            elif kind is not ir.Literal and not derives(item, productive):
                return False
        return True
    if isinstance(node, ir.Choice):
        return any(derives(option, productive) for option in reversed(node.options))  # short ones stand last
    if isinstance(node, ir.Repeat):
        return node.minimum == 0 or derives(node.item, productive)
    if isinstance(node, ir.Bag):
        return bags.can_be_filled(node, lambda part: derives(part, productive))
    assert isinstance(node, ir.Graph)
    outgoing: dict[int, list[tuple[ir.Node, int]]] = {}
    for source, label, target in node.edges:
        outgoing.setdefault(source, []).append((label, target))
    reached, queue = {node.start}, [node.start]
    while queue:
        here = queue.pop()
        if here in node.accepting:
            return True
        for label, target in outgoing.get(here, ()):
            if target not in reached and derives(label, productive):
                reached.add(target)
                queue.append(target)
    return False


def without_dead(node: ir.Node, productive: Container[str]) -> ir.Node:
    """``node`` without the entries of bags that have no text, so that counts do not count on them.

    Bags are looked for where this frontend puts them: in choices, sequences and graphs.
    """
    if isinstance(node, ir.Bag):
        live = [
            entry
            for entry in node.entries
            if derives(entry.item, productive) and derives(entry.rest, productive)
        ]
        return bags.settled(live, node.separator, node.required, node.minimum, node.maximum)
    if isinstance(node, ir.Sequence):
        return ir.sequence(*(without_dead(item, productive) for item in node.items))
    if isinstance(node, ir.Choice):
        return ir.Choice(tuple(without_dead(option, productive) for option in node.options))
    if isinstance(node, ir.Graph) and type(node) is not ir.ByteGraph:
        edges = tuple(
            (source, without_dead(label, productive), target) for source, label, target in node.edges
        )
        return ir.Graph(edges, node.accepting, node.start)
    return node


def unproductive(rules: Mapping[str, ir.Rule], known: Iterable[str] = ()) -> set[str]:
    """The rules without a text. Shared and ``known`` ones have one: they are never made without."""
    productive = {name for name, rule in rules.items() if rule.shared}
    productive.update(known)
    waiting = [name for name in reversed(list(rules)) if name not in productive]
    while waiting:
        left = []
        for name in waiting:
            if derives(rules[name].body, productive):
                productive.add(name)
            else:
                left.append(name)
        if len(left) == len(waiting):
            break
        waiting = left
    return set(waiting)


def references(node: ir.Node) -> Iterator[str]:
    """The names that ``node`` refers to."""
    if isinstance(node, ir.Ref):
        yield node.name
    else:
        for part in ir.parts(node):
            yield from references(part)
