"""Equal rules once: rules whose bodies are the same, references taken up to sameness, become one.

Partition refinement, coarsest first: rules of one shape are one class, and a class is cut until its members
refer to equal classes. What is left merged has one language (as with the states of a minimal automaton).
"""

from __future__ import annotations

from vllm_guided.frontends.embedding import renamed
from vllm_guided.grammar import ir


def merged(grammar: ir.Grammar) -> ir.Grammar:
    """The grammar with one rule for each class of equal ones, those that the start needs."""
    needed = [grammar.start]
    seen = {grammar.start}
    uses: dict[str, list[str]] = {}
    for name in needed:
        uses[name] = _ordered(grammar.rules[name].body)
        for other in uses[name]:
            if other not in seen:
                seen.add(other)
                needed.append(other)
    shapes: dict[object, int] = {}
    classes = {
        name: shapes.setdefault(
            (renamed(grammar.rules[name].body, dict.fromkeys(uses[name], "")), grammar.rules[name].shared),
            len(shapes),
        )
        for name in needed
    }
    while True:
        blocks: dict[object, int] = {}
        refined = {}
        for name in needed:
            below = tuple(classes[other] for other in uses[name])
            refined[name] = blocks.setdefault((classes[name], below), len(blocks))
        done = len(blocks) == len(set(classes.values()))
        classes = refined
        if done:
            break
    leaders: dict[int, str] = {}
    for name in needed:
        leaders.setdefault(classes[name], name)
    names = {name: leaders[classes[name]] for name in needed}
    rules = {
        name: ir.Rule(renamed(grammar.rules[name].body, names), grammar.rules[name].shared)
        for name in leaders.values()
    }
    return ir.Grammar(rules, names[grammar.start])


def _ordered(node: ir.Node) -> list[str]:
    """The references of a node in the order in which they are written."""
    match node:
        case ir.Ref(name):
            return [name]
        case ir.Sequence(items) | ir.Choice(items):
            return [name for item in items for name in _ordered(item)]
        case ir.Repeat(item):
            return _ordered(item)
        case ir.Graph(edges):
            return [name for _, label, _ in edges for name in _ordered(label)]
        case _:
            return []


def trimmed(graph: ir.Graph) -> ir.Graph:
    """Without the edges that are on no way from the start to an end."""
    forward: dict[int, list[int]] = {}
    back: dict[int, list[int]] = {}
    for source, _, target in graph.edges:
        forward.setdefault(source, []).append(target)
        back.setdefault(target, []).append(source)
    alive = _reach(set(graph.accepting), back) & _reach({graph.start}, forward)
    edges = tuple(edge for edge in graph.edges if edge[0] in alive and edge[2] in alive)
    return ir.Graph(edges, graph.accepting & frozenset(alive | {graph.start}), graph.start)


def _reach(states: set[int], edges: dict[int, list[int]]) -> set[int]:
    todo = list(states)
    while todo:
        for target in edges.get(todo.pop(), ()):
            if target not in states:
                states.add(target)
                todo.append(target)
    return states
