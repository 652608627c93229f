"""The JSON text of one shape of arrays.

In: an :class:`~.shapes.Arrays` and the nodes of its items. Out: an IR node. Lengths alone are counters;
``contains`` keeps its count in the states; ``uniqueItems`` over few scalars keeps the set of those used.
"""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING

from vllm_guided.errors import ConstraintTooComplex, UnsupportedConstraint
from vllm_guided.frontends.json_schema import limits
from vllm_guided.frontends.json_schema.shapes import FALSE, NULL, TRUE, Arrays, Norm
from vllm_guided.frontends.json_schema.strings import Strings
from vllm_guided.grammar import ir

if TYPE_CHECKING:
    from vllm_guided.frontends.json_schema.emitter import Emitter


def array_node(emitter: Emitter, shape: Arrays) -> ir.Node:
    """The arrays of the shape; ``ir.NOTHING`` if there are none."""
    prefix: list[ir.Node] = []
    most = shape.maximum
    for index, term in enumerate(shape.prefix):
        node = emitter.value(term)
        if node == ir.NOTHING:
            most = index if most is None else min(most, index)
            break
        prefix.append(node)
    rest = emitter.value(shape.rest) if most is None or most > len(prefix) else ir.NOTHING
    if rest == ir.NOTHING:
        most = len(prefix) if most is None else min(most, len(prefix))
    if most is not None:
        if most < shape.minimum:
            return ir.NOTHING
        prefix = prefix[:most]
    least = shape.minimum
    if shape.unique and (most is None or most > 1):
        body = _unique(emitter, shape, len(prefix), least, most)
    elif shape.contains:
        body = _containing(emitter, shape, prefix, rest, least, most)
    else:
        body = _plain(emitter, prefix, rest, least, most)
    options = [emitter.layout.enclosed("[", body, "]")]
    if least == 0 and all(item.minimum == 0 for item in shape.contains):
        options.append(emitter.layout.empty("[", "]"))
    return ir.choice(*(option for option in options if option != ir.NOTHING))


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
    if rest != ir.NOTHING and (most is None or most > length):
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
        if index >= len(prefix) and rest == ir.NOTHING:
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
            if node == ir.NOTHING:
                continue
            target = (min(index + 1, last), *after)
            if target not in states:
                states[target] = len(states)
                queue.append(target)
                if len(states) > limits.MAX_OBJECT_STATES // 4:
                    raise ConstraintTooComplex("contains together with the lengths needs too many states")
            edges.append((source, ir.sequence(comma, node) if index else node, states[target]))
    return ir.Graph(tuple(edges), frozenset(accepting), 0) if accepting else ir.NOTHING


def _scalars(norm: Norm) -> list[Norm] | None:
    """The values of a finite set of words, numbers and strings, one by one; ``None`` if it is not one."""
    if norm.arrays or norm.objects:
        return None
    found = [Norm(words=bit) for bit in (NULL, FALSE, TRUE) if norm.words & bit]
    for numbers in norm.numbers:
        low, high = numbers.low, numbers.high
        if low is None or high is None:
            return None
        if low == high:
            found.append(Norm(numbers=(numbers,)))
        elif numbers.multiple is not None and (high - low) / numbers.multiple <= 64 and not numbers.excluded:
            value = low
            while value <= high:
                found.append(Norm(numbers=(numbers._replace(low=value, high=value, multiple=1),)))
                value = value + numbers.multiple
        else:
            return None
    for strings in norm.strings:
        if strings.finite is None:
            return None
        found.extend(Norm(strings=(Strings(finite=(value,)),)) for value in strings.finite)
    return list(dict.fromkeys(found))


def _unique(emitter: Emitter, shape: Arrays, length: int, least: int, most: int | None) -> ir.Node:
    """At least one item, all different, over a finite set."""
    values = _scalars(emitter.algebra.norm(shape.rest)) if length == 0 else None
    if values is None or shape.contains:
        raise UnsupportedConstraint(
            "uniqueItems: only over a finite set of words, numbers or strings (an enum), "
            "without tuples and contains"
        )
    nodes = [emitter.norm_node(value) for value in values]
    total = len(nodes)
    longest = total if most is None else min(most, total)
    if longest < least:
        return ir.NOTHING
    # Any order as far as the subsets are few enough; beyond that, in the order of the set.
    any_order, subsets = 0, 1
    while any_order < longest:
        subsets += comb(total, any_order + 1)
        if subsets * total > limits.MAX_UNIQUE_EDGES:
            break
        any_order += 1
    comma = emitter.layout.comma
    states: dict[object, int] = {frozenset(): 0}
    queue: list[frozenset[int]] = [frozenset()]
    edges: list[tuple[int, ir.Node, int]] = []
    accepting: set[int] = set()
    while queue:
        used = queue.pop()
        source = states[used]
        if len(used) >= max(least, 1):
            accepting.add(source)
        if len(used) >= any_order:
            continue
        for index, node in enumerate(nodes):
            if index not in used:
                target = used | {index}
                if target not in states:
                    states[target] = len(states)
                    queue.append(target)
                edges.append((source, ir.sequence(comma, node) if used else node, states[target]))
    if any_order < longest:
        _in_order(comma, nodes, least, longest, states, edges, accepting)
    return ir.Graph(tuple(edges), frozenset(accepting), 0) if accepting else ir.NOTHING


def _in_order(
    comma: ir.Node,
    nodes: list[ir.Node],
    least: int,
    longest: int,
    states: dict[object, int],
    edges: list[tuple[int, ir.Node, int]],
    accepting: set[int],
) -> None:
    """Add the arrays whose items stand in the order of the set."""
    limit = longest if longest < len(nodes) else least
    if len(nodes) * (limit + 1) > limits.MAX_OBJECT_STATES:
        raise ConstraintTooComplex("uniqueItems: too many values for the lengths")

    def number(position: int, count: int) -> int:
        return states.setdefault((position, count), len(states))

    edges.append((0, ir.EMPTY, number(0, 0)))
    for position in range(len(nodes)):
        for count in range(min(position, limit) + 1):
            source = number(position, count)
            edges.append((source, ir.EMPTY, number(position + 1, count)))
            if longest < len(nodes) and count >= longest:
                continue
            after = min(count + 1, max(limit, 1))
            node = nodes[position]
            edges.append((source, ir.sequence(comma, node) if count else node, number(position + 1, after)))
    for (position, count), state in [(key, value) for key, value in states.items() if isinstance(key, tuple)]:
        if position == len(nodes) and count >= max(least, 1):
            accepting.add(state)
