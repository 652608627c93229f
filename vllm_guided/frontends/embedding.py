"""Grammars inside grammars: rules that are the same everywhere are put in once.

In: the rules so far and a grammar to put among them. Out: a reference to its start. Shared rules (a JSON
string, a number) that an earlier grammar brought already are not brought again.
"""

from __future__ import annotations

from collections.abc import Mapping

from vllm_guided.bounded import EDGE_BYTES, OBJECT_BYTES, Meter
from vllm_guided.grammar import ir
from vllm_guided.grammar.expansion import expanded

SHARED = "shared/"
LEAVES = (ir.Literal, ir.ByteSet, ir.CharSet, ir.SpecialToken, ir.ByteGraph)
#: What the nodes may take whose freedom from references is remembered.
FREE_BYTES = 8 << 20


def embed(rules: dict[str, ir.Rule], grammar: ir.Grammar, prefix: str) -> ir.Ref:
    """Add ``grammar`` to ``rules``, its own rules under ``prefix``."""
    grammar = expanded(grammar)
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
    if isinstance(node, ir.Ref):
        return {node.name}
    if isinstance(node, LEAVES) or _is_free(node):
        return set()
    found = set().union(*map(references, ir.parts(node)))
    if not found:
        _remember_free(node)
    return found


def renamed(node: ir.Node, names: Mapping[str, str]) -> ir.Node:
    """``node`` with every reference renamed; what has none stays the same object."""
    if isinstance(node, ir.Ref):
        return ir.Ref(names[node.name])
    if isinstance(node, LEAVES) or _is_free(node):
        return node
    moved = ir.mapped(node, lambda part: renamed(part, names))
    if moved is node:
        _remember_free(node)
    return moved


#: Nodes that were found to refer to nothing, by identity: a string's text or a number's is one object in all
#: the grammars of a process, and would be looked through for each tool of a list of tools.
_free: dict[int, ir.Node] = {}
_meter = Meter(FREE_BYTES)


def _is_free(node: ir.Node) -> bool:
    return _free.get(id(node)) is node


def _remember_free(node: ir.Node) -> None:
    parts = ir.parts(node)  # they are there already, but for literals
    texts = sum([len(part.data) for part in parts if isinstance(part, ir.Literal)])
    if not _meter.takes(OBJECT_BYTES + EDGE_BYTES * len(parts) + texts):
        _free.clear()
    _free[id(node)] = node
