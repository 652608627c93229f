"""The JSON text of one shape of objects.

In: an :class:`~.shapes.Objects` and the nodes of its members' values. Out: an IR graph whose nodes are
"so many declared properties are passed" times "a member was written" (or how many, and which wanted
members, where that is asked), and whose edges are members. Passing an optional property is an edge
without text, so the graph grows with the number of properties, not with its square.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends import bags
from vllm_guided.frontends.json_schema import limits, spelling
from vllm_guided.frontends.json_schema import strings as string_sets
from vllm_guided.frontends.json_schema.object_sets import meet_names
from vllm_guided.frontends.json_schema.shapes import Member, Objects, Term
from vllm_guided.frontends.json_schema.strings import Strings
from vllm_guided.grammar import ir

if TYPE_CHECKING:
    from vllm_guided.frontends.json_schema.emitter import Emitter

_MAX_UNORDERED = 4
"""Undeclared required names up to so many stand in any order; more in the order of ``required``."""
_ALL_SUBSETS = 4
"""Up to so many wanted members, one member may be any combination of them; beyond, one or all."""


class _Slot(NamedTuple):
    """One declared property: its text by which wanted members it is; no text where it may not be there."""

    name: str
    required: bool
    variants: tuple[tuple[int, ir.Node], ...]


def object_node(emitter: Emitter, shape: Objects) -> ir.Node:
    """The objects of the shape; ``ir.NOTHING`` if there are none.

    Raises:
        ConstraintTooComplex: counts and wanted members need too many states.
    """
    if len(shape.some) > ir.MAX_WANTED:
        raise ConstraintTooComplex("too many members are asked for by not, oneOf or if at one object")
    slots: list[_Slot] = []
    for name, term in shape.properties:
        variants = _declared_variants(emitter, shape.some, name, term)
        if not variants and name in shape.required:
            return ir.NOTHING
        slots.append(_Slot(name, name in shape.required, variants))
    declared = tuple(name for name, _ in shape.properties)
    free: list[tuple[int, ir.Node]] = []
    for names, term in shape.others:
        free.extend(_free_variants(emitter, shape.some, names, term, declared))
    required = sum(slot.required for slot in slots)
    least = shape.minimum if shape.minimum > required else 0
    if emitter.any_order and sum(1 for slot in slots if slot.variants) > (0 if free else 1):
        body = _bag(emitter, shape, slots, free, least)
    else:
        body = _in_order(emitter, shape, slots, free, least)
    may_be_empty = required == 0 and least == 0 and not shape.some
    options = [emitter.layout.enclosed("{", body, "}")]
    if may_be_empty:
        options.append(emitter.layout.empty("{", "}"))
    return ir.choice(*(option for option in options if option != ir.NOTHING))


def _bag(
    emitter: Emitter, shape: Objects, slots: list[_Slot], free: list[tuple[int, ir.Node]], least: int
) -> ir.Node:
    """Objects with at least one member, in any order."""

    def flags(wanted: int) -> frozenset[int]:
        return frozenset(len(slots) + bit for bit in range(len(shape.some)) if wanted >> bit & 1)

    entries = [
        ir.Entry(node, own=index, flags=flags(wanted))
        for index, slot in enumerate(slots)
        for wanted, node in slot.variants
    ]
    entries.extend(ir.Entry(node, flags=flags(wanted)) for wanted, node in free)
    required = frozenset(index for index, slot in enumerate(slots) if slot.required)
    everything = required | flags((1 << len(shape.some)) - 1)
    return bags.settled(entries, emitter.layout.comma, everything, max(least, 1), shape.maximum)


def _in_order(
    emitter: Emitter, shape: Objects, slots: list[_Slot], free: list[tuple[int, ir.Node]], least: int
) -> ir.Node:
    """Objects with at least one member, declared properties first and in their order."""
    run_of = [number for number, length in enumerate(shape.runs) for _ in range(length)]
    runs: list[list[_Slot]] = [[] for _ in range(max(len(shape.runs), 1))]
    loose: list[ir.Node] = []
    simple = not shape.some and shape.minimum <= max(len(shape.required), 1) and shape.maximum is None
    unordered = shape.unordered if simple and len(shape.unordered) <= _MAX_UNORDERED else frozenset()
    kept: list[_Slot] = []
    for index, slot in enumerate(slots):
        if slot.variants and slot.name in unordered:
            loose.append(slot.variants[0][1])
        elif slot.variants:
            kept.append(slot)
            runs[run_of[index] if run_of else 0].append(slot)
    most = shape.maximum
    if most is not None and not free and most >= len(kept):
        most = None
    if most is None and least <= 1 and not shape.some:
        return _plain_graph(emitter, _within_budget(runs), [node for _, node in free], loose, least)
    return _counted_graph(emitter, kept, free, least, most, (1 << len(shape.some)) - 1)


def _declared_variants(
    emitter: Emitter, wanted: tuple[Member, ...], name: str, term: Term
) -> tuple[tuple[int, ir.Node], ...]:
    key = emitter.layout.key(spelling.literal(name))
    fitting = [index for index, member in enumerate(wanted) if string_sets.accepts(member.names, name)]
    variants: list[tuple[int, ir.Node]] = []
    for flags in _subsets(fitting):
        joint = emitter.algebra.terms.both(
            [term, *(member.term for index, member in enumerate(wanted) if flags >> index & 1)]
        )
        value = emitter.value(joint)
        if value != ir.NOTHING:
            variants.append((flags, ir.sequence(key, value)))
    return tuple(variants)


def _free_variants(
    emitter: Emitter, wanted: tuple[Member, ...], names: Strings, term: Term, declared: tuple[str, ...]
) -> list[tuple[int, ir.Node]]:
    variants: list[tuple[int, ir.Node]] = []
    for flags in _subsets(list(range(len(wanted)))):
        key_names: Strings | None = names
        terms = [term]
        for index, member in enumerate(wanted):
            if flags >> index & 1 and key_names is not None:
                key_names = meet_names(key_names, member.names)
                terms.append(member.term)
        if key_names is None:
            continue
        value = emitter.value(emitter.algebra.terms.both(terms))
        if value == ir.NOTHING:
            continue
        key = emitter.name(key_names, declared)
        if key != ir.NOTHING:
            variants.append((flags, ir.sequence(key, emitter.layout.colon, value)))
    return variants


def _subsets(indexes: list[int]) -> list[int]:
    if len(indexes) > _ALL_SUBSETS:
        return [0, *(1 << index for index in indexes), sum(1 << index for index in indexes)]
    found = [0]
    for index in indexes:
        found.extend([flags | 1 << index for flags in found])
    return found


def _within_budget(runs: list[list[_Slot]]) -> list[list[_Slot]]:
    """Runs that can be shuffled with few states; all in a row where they cannot."""
    runs = [run for run in runs if run]
    if prod(len(run) + 1 for run in runs) <= limits.MAX_SHUFFLE_STATES:
        return runs
    return [[slot for run in runs for slot in run]]


def _plain_graph(
    emitter: Emitter, runs: list[list[_Slot]], free: list[ir.Node], loose: list[ir.Node], least: int
) -> ir.Node:
    """Objects with at least one member.

    A node is how far each run is, and whether a member was written; then comes one for each subset of
    ``loose`` that was written among the ``free`` ones.
    """
    comma = emitter.layout.comma
    nodes: dict[object, int] = {((0,) * len(runs), False): 0}
    queue = [((0,) * len(runs), False)]
    edges: list[tuple[int, ir.Node, int]] = []

    def number(positions: tuple[int, ...], written: bool) -> int:
        key = (positions, written)
        if key not in nodes:
            nodes[key] = len(nodes)
            queue.append(key)
        return nodes[key]

    for positions, written in queue:  # grows while it is read
        source = nodes[(positions, written)]
        for index, run in enumerate(runs):
            if positions[index] == len(run):
                continue
            slot = run[positions[index]]
            after = (*positions[:index], positions[index] + 1, *positions[index + 1 :])
            member = slot.variants[0][1]
            label = ir.sequence(comma, member) if written else member
            edges.append((source, label, number(after, True)))
            if not slot.required:
                edges.append((source, ir.EMPTY, number(after, written)))
    end = tuple(len(run) for run in runs)
    everything = (1 << len(loose)) - 1
    tail = [number(end, True), *range(len(nodes), len(nodes) + everything)]
    for subset, node in enumerate(tail):
        members = [(tail[subset | 1 << i], item) for i, item in enumerate(loose) if not subset >> i & 1]
        if free:
            members.append((node, ir.choice(*free)))
        for target, member in members:
            if subset == 0 and (end, False) in nodes:
                edges.append((nodes[(end, False)], member, target))
            edges.append((node, ir.sequence(comma, member), target))
    return ir.Graph(tuple(edges), frozenset([tail[-1]]), 0) if edges else ir.NOTHING


def _counted_graph(
    emitter: Emitter,
    slots: list[_Slot],
    free: list[tuple[int, ir.Node]],
    least: int,
    most: int | None,
    wanted: int,
) -> ir.Node:
    """Objects with at least one member, with their number and the wanted members found as states."""
    comma = emitter.layout.comma
    ceiling = most + 1 if most is not None else max(least, 1)
    limit = max(ceiling, 1)
    states: dict[tuple[int, int, int], int] = {(0, 0, 0): 0}
    queue = [(0, 0, 0)]
    edges: list[tuple[int, ir.Node, int]] = []
    accepting: set[int] = set()
    end = -1
    required_after = [0] * (len(slots) + 1)
    for index in range(len(slots) - 1, -1, -1):
        required_after[index] = required_after[index + 1] + slots[index].required

    def number(state: tuple[int, int, int]) -> int:
        found = states.get(state)
        if found is None:
            found = states[state] = len(states)
            queue.append(state)
            if found > limits.MAX_OBJECT_STATES:
                raise ConstraintTooComplex("minProperties and maxProperties need too many states")
        return found

    def following(count: int) -> int | None:
        """The count after one more member; ``None`` if that is one too many."""
        if most is not None:
            return count + 1 if count < most else None
        return min(count + 1, limit)

    simple_tail = wanted == 0 and bool(free)
    tail = ir.choice(*(node for flags, node in free if flags == 0)) if free else ir.NOTHING
    while queue:
        state = queue.pop()
        index, count, flags = state
        source = states[state]
        prefix = comma if count else ir.EMPTY
        after = following(count)
        if index < len(slots):
            slot = slots[index]
            if not slot.required:
                edges.append((source, ir.EMPTY, number((index + 1, count, flags))))
            if after is not None and (most is None or after + required_after[index + 1] <= most):
                for found, node in slot.variants:
                    target = (index + 1, after, flags | found)
                    edges.append((source, ir.sequence(prefix, node), number(target)))
            continue
        if count and count >= least and flags == wanted:
            accepting.add(source)
        if simple_tail:
            if after is None:
                continue
            first = 0 if count else 1
            lower = max(least - count, 1)
            upper = None if most is None else most - count
            if first:
                more = None if upper is None else upper - 1
                rest = ir.Repeat(ir.sequence(comma, tail), max(lower - 1, 0), more)
                edges.append((source, ir.sequence(tail, rest), end))
            else:
                edges.append((source, ir.Repeat(ir.sequence(comma, tail), lower, upper), end))
            continue
        if after is not None:
            for found, node in free:
                target = (index, after, flags | found)
                edges.append((source, ir.sequence(prefix, node), number(target)))
    final = len(states)
    moved = [(source, label, final if target == end else target) for source, label, target in edges]
    if simple_tail:
        accepting.add(final)
    return ir.Graph(tuple(moved), frozenset(accepting), 0) if accepting else ir.NOTHING
