"""Which nodes deserve a frame of their own, so that masks inside them are computed once for all grammars."""

from __future__ import annotations

from vllm_guided.grammar import ir


def size(node: ir.Node) -> int:
    """How many nodes there are in ``node``: what it costs to keep."""
    return 1 + sum(map(size, ir.parts(node)))


def is_wide(node: ir.Node) -> bool:
    """Whether the node loops over many different bytes: worth a frame whose masks are shared."""
    match node:
        case ir.Repeat(item, _, maximum) if (maximum is None or maximum > 8) and _width(item) > 8:
            return True
        case ir.Graph(edges) if any(
            source == target and _width(label) > 8 for source, label, target in edges
        ):
            return True
        case _:
            return any(map(is_wide, ir.parts(node)))


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
