"""Which nodes deserve a frame of their own, so that masks inside them are computed once for all grammars."""

from __future__ import annotations

from vllm_guided.frontends import bags
from vllm_guided.grammar import ir


def size(node: ir.Node) -> int:
    """How many nodes there are in ``node``: what it costs to keep."""
    match node:
        case ir.Sequence(items) | ir.Choice(items):
            return 1 + sum(map(size, items))
        case ir.Repeat(item):
            return 1 + size(item)
        case ir.Graph(edges):
            return 1 + sum(size(label) for _, label, _ in edges)
        case ir.Bag() as bag:
            return 1 + sum(map(size, bags.parts(bag)))
        case _:
            return 1


def is_wide(node: ir.Node) -> bool:
    """Whether the node loops over many different bytes: worth a frame whose masks are shared."""
    match node:
        case ir.Repeat(item, _, maximum):
            return ((maximum is None or maximum > 8) and _width(item) > 8) or is_wide(item)
        case ir.Sequence(items):
            return any(is_wide(item) for item in items)
        case ir.Choice(options):
            return any(is_wide(option) for option in options)
        case ir.Graph(edges):
            return any(source == target and _width(label) > 8 for source, label, target in edges) or any(
                is_wide(label) for _, label, _ in edges
            )
        case ir.Bag() as bag:
            return any(map(is_wide, bags.parts(bag)))
        case _:
            return False


def _width(node: ir.Node) -> int:
    match node:
        case ir.ByteSet(mask):
            return mask.bit_count()
        case ir.CharSet(ranges):
            return sum(high - low + 1 for low, high in ranges)
        case ir.Choice(items) | ir.Sequence(items):
            return max(map(_width, items), default=0)
        case ir.Repeat(item):
            return _width(item)
        case _:
            return 0
