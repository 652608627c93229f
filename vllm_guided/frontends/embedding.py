"""Grammars inside grammars: rules that are the same everywhere are put in once.

In: the rules so far and a grammar to put among them. Out: a reference to its start. Shared rules (a JSON
string, a number) that an earlier grammar brought already are not brought again.
"""

from __future__ import annotations

from collections.abc import Mapping

from vllm_guided.frontends import bags
from vllm_guided.grammar import ir

SHARED = "shared/"


def embed(rules: dict[str, ir.Rule], grammar: ir.Grammar, prefix: str) -> ir.Ref:
    """Add ``grammar`` to ``rules``, its own rules under ``prefix``."""
    common = {name for name, rule in grammar.rules.items() if rule.shared}
    while True:
        open_ended = {name for name in common if not references(grammar.rules[name].body) <= common}
        common -= open_ended
        names = {name: SHARED + name if name in common else prefix + name for name in grammar.rules}
        moved = {
            names[name]: ir.Rule(renamed(rule.body, names), rule.shared)
            for name, rule in grammar.rules.items()
        }
        clashes = {
            name for name in common if names[name] in rules and rules[names[name]] != moved[names[name]]
        }
        if not clashes and not open_ended:
            rules.update(moved)
            return ir.Ref(names[grammar.start])
        common -= clashes


def references(node: ir.Node) -> set[str]:
    """The names a node refers to."""
    match node:
        case ir.Ref(name):
            return {name}
        case ir.Sequence(items) | ir.Choice(items):
            return set().union(*map(references, items))
        case ir.Repeat(item):
            return references(item)
        case ir.Graph(edges):
            return set().union(*(references(label) for _, label, _ in edges))
        case ir.Bag() as bag:
            return set().union(*map(references, bags.parts(bag)))
        case _:
            return set()


def renamed(node: ir.Node, names: Mapping[str, str]) -> ir.Node:
    """``node`` with every reference renamed."""
    match node:
        case ir.Ref(name):
            return ir.Ref(names[name])
        case ir.Sequence(items):
            return ir.Sequence(tuple(renamed(item, names) for item in items))
        case ir.Choice(options):
            return ir.Choice(tuple(renamed(option, names) for option in options))
        case ir.Repeat(item, minimum, maximum):
            return ir.Repeat(renamed(item, names), minimum, maximum)
        case ir.Graph(edges, accepting, start):
            moved = tuple((source, renamed(label, names), target) for source, label, target in edges)
            return ir.Graph(moved, accepting, start)
        case ir.Bag() as bag:
            return bags.mapped(bag, lambda part: renamed(part, names))
        case _:
            return node
