"""The JSON text of one shape of arrays.

In: an :class:`~.shapes.Arrays` and the nodes of its items. Out: an IR node. Lengths alone are counters;
``contains`` keeps its count in the states; ``uniqueItems`` has a module of its own (:mod:`.array_unique`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.json_schema import limits
from vllm_guided.frontends.json_schema.array_unique import unique_items
from vllm_guided.frontends.json_schema.shapes import Arrays
from vllm_guided.grammar import ir

if TYPE_CHECKING:
    from vllm_guided.frontends.json_schema.emitter import Emitter


def array_node(emitter: Emitter, shape: Arrays) -> ir.Node:
    """The arrays of the shape; ``ir.NOTHING`` if there are none."""
    prefix: list[ir.Node] = []
    most = shape.maximum
    for index, term in enumerate(shape.prefix):
        node = emitter.value(term)
        if ir.is_nothing(node):
            most = index if most is None else min(most, index)
            break
        prefix.append(node)
    rest = emitter.value(shape.rest) if most is None or most > len(prefix) else ir.NOTHING
    if ir.is_nothing(rest):
        most = len(prefix) if most is None else min(most, len(prefix))
    if most is not None:
        if most < shape.minimum:
            return ir.NOTHING
        prefix = prefix[:most]
    least = shape.minimum
    if shape.unique and (most is None or most > 1):
        body = unique_items(emitter, shape, len(prefix), least, most)
    elif shape.contains:
        body = _containing(emitter, shape, prefix, rest, least, most)
    else:
        body = _plain(emitter, prefix, rest, least, most)
    options = [emitter.layout.enclosed("[", body, "]")]
    if least == 0 and all(item.minimum == 0 for item in shape.contains):
        options.append(emitter.layout.empty("[", "]"))
    return ir.choice(*(option for option in options if not ir.is_nothing(option)))


def _plain(emitter: Emitter, prefix: list[ir.Node], rest: ir.Node, least: int, most: int | None) -> ir.Node:
    """At least one item."""
    comma = emitter.layout.comma
    if most == 0:
        return ir.NOTHING
    if not prefix:
        more = ir.sequence(comma, rest)
        return ir.sequence(rest, ir.Repeat(more, max(least - 1, 0), None if most is None else most - 1))
    edges: list[tuple[int, ir.Node, int]] = []
    for index, node in enumerate(prefix):
        edges.append((index, ir.sequence(comma, node) if index else node, index + 1))
    length = len(prefix)
    accepting = {index for index in range(1, length + 1) if index >= least}
    if not ir.is_nothing(rest) and (most is None or most > length):
        lower = max(least - length, 1)
        upper = None if most is None else most - length
        edges.append((length, ir.Repeat(ir.sequence(comma, rest), lower, upper), length + 1))
        accepting.add(length + 1)
    return ir.Graph(tuple(edges), frozenset(accepting), 0)


def _containing(
    emitter: Emitter, shape: Arrays, prefix: list[ir.Node], rest: ir.Node, least: int, most: int | None
) -> ir.Node:
    """At least one item; states are the index, as far as it matters, and the count of each contains."""
    terms, comma = emitter.algebra.terms, emitter.layout.comma
    last = max([1, len(prefix), least, *(item.offset for item in shape.contains)])
    if most is not None:
        last = most + 1
    start = (0, *(0 for _ in shape.contains))
    states: dict[tuple[int, ...], int] = {start: 0}
    queue = [start]
    edges: list[tuple[int, ir.Node, int]] = []
    accepting: set[int] = set()
    while queue:
        state = queue.pop()
        source = states[state]
        index, counts = state[0], state[1:]
        enough = all(count >= item.minimum for count, item in zip(counts, shape.contains, strict=True))
        if index >= max(least, 1) and enough:
            accepting.add(source)
        if most is not None and index >= most:
            continue
        if index >= len(prefix) and ir.is_nothing(rest):
            continue
        item_term = shape.prefix[index] if index < len(prefix) else shape.rest
        options: list[tuple[list[int], list[int]]] = [([item_term], list(counts))]
        for number, item in enumerate(shape.contains):
            if index < item.offset:
                continue
            split: list[tuple[list[int], list[int]]] = []
            for parts, after in options:
                if item.maximum is None:
                    split.append((parts, after))
                    if after[number] < item.minimum:
                        counted = [*after[:number], after[number] + 1, *after[number + 1 :]]
                        split.append(([*parts, item.term], counted))
                else:
                    split.append(([*parts, terms.negation(item.term)], after))
                    if after[number] < item.maximum:
                        counted = [*after[:number], after[number] + 1, *after[number + 1 :]]
                        split.append(([*parts, item.term], counted))
            options = split
        for parts, after in options:
            node = emitter.value(terms.both(parts))
            if ir.is_nothing(node):
                continue
            target = (min(index + 1, last), *after)
            if target not in states:
                states[target] = len(states)
                queue.append(target)
                if len(states) > limits.MAX_OBJECT_STATES // 4:
                    raise ConstraintTooComplex("contains together with the lengths needs too many states")
            edges.append((source, ir.sequence(comma, node) if index else node, states[target]))
    return ir.Graph(tuple(edges), frozenset(accepting), 0) if accepting else ir.NOTHING
