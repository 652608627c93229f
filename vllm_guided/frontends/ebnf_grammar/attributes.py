"""Rule attributes of xgrammar's EBNF: ``lazy`` and ``max_chars`` change the language, captures do not."""

from __future__ import annotations

from typing import Any

from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends import regular
from vllm_guided.grammar import ir

MAX_INLINED = 2_000

_HARMLESS = frozenset({"capture", "capture_hidden_suffix_bytes", "capture_hidden_stop_bytes", "stop_capture"})
_REFUSED = {
    "max_tokens": "counts tokens, which a grammar over text cannot; use max_chars",
    "temperature": "changes sampling, which this package never does; set it in the request",
}


def applied(name: str, attributes: dict[str, Any], bodies: dict[str, ir.Node]) -> ir.Node:
    """The body of rule ``name`` with its attributes carried out.

    Raises:
        InvalidConstraint, UnsupportedConstraint: without a place, which the caller adds.
    """
    body = bodies[name]
    for key, value in attributes.items():
        if key in _REFUSED:
            raise UnsupportedConstraint(f"the attribute {key} {_REFUSED[key]}")
        if key not in _HARMLESS and key not in ("lazy", "max_chars"):
            raise UnsupportedConstraint(f"the attribute {key} is not known")
        if key == "lazy" and value is not True:
            raise InvalidConstraint("lazy takes no value")
    if "lazy" in attributes:
        body = regular.node(regular.shortest(regular.dfa(regular_body(name, bodies))))
    if "max_chars" in attributes:
        limit = str(attributes["max_chars"])
        if not limit.isdigit() or int(limit) > 5_000:
            raise InvalidConstraint("max_chars is a whole number, at most 5000")
        inner = body if "lazy" in attributes else regular_body(name, bodies)
        bound = regular.dfa(ir.Repeat(ir.ANY_CHAR, 0, int(limit)))
        body = regular.node(regular.intersection(regular.dfa(inner), bound))
    return body


def regular_body(name: str, bodies: dict[str, ir.Node]) -> ir.Node:
    """The rule as a regular node: rules it uses are put in place, recursion is allowed at the end only."""
    return _Inliner(bodies).rule(name, ())


class _Inliner:
    def __init__(self, bodies: dict[str, ir.Node]) -> None:
        self.bodies = bodies
        self.budget = MAX_INLINED

    def rule(self, name: str, under_way: tuple[str, ...]) -> ir.Node:
        """A right-linear rule as a graph: node 0 begins it, node 1 ends it."""
        if name in under_way:
            raise UnsupportedConstraint(
                f"a rule with lazy or max_chars is a regular language, but {name} calls itself in the middle"
            )
        self.spend(name)
        edges: list[tuple[int, ir.Node, int]] = []
        body = self.bodies[name]
        for option in body.options if isinstance(body, ir.Choice) else (body,):
            items = option.items if isinstance(option, ir.Sequence) else (option,)
            loops = bool(items) and items[-1] == ir.Ref(name)
            kept = items[:-1] if loops else items
            node = ir.sequence(*(self.inline(item, (*under_way, name)) for item in kept))
            edges.append((0, node, 0 if loops else 1))
        return ir.Graph(tuple(edges), frozenset([1]))

    def spend(self, name: str) -> None:
        self.budget -= 1
        if self.budget < 0:
            raise ConstraintTooComplex(f"the rule {name} grows too large where it is put into a lazy one")

    def inline(self, node: ir.Node, under_way: tuple[str, ...]) -> ir.Node:
        match node:
            case ir.Ref(name):
                return self.rule(name, under_way)
            case ir.SpecialToken():
                raise UnsupportedConstraint("a rule with lazy or max_chars cannot hold special tokens")
            case ir.Sequence(items):
                return ir.sequence(*(self.inline(item, under_way) for item in items))
            case ir.Choice(options):
                return ir.choice(*(self.inline(option, under_way) for option in options))
            case ir.Repeat(item, minimum, maximum):
                return ir.Repeat(self.inline(item, under_way), minimum, maximum)
            case ir.Graph(edges, accepting, start):
                moved = tuple(
                    (source, self.inline(label, under_way), target) for source, label, target in edges
                )
                return ir.Graph(moved, accepting, start)
            case _:
                return node
