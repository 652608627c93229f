"""Objects whose declared properties come first, in their order.

In: an :class:`~.shapes.Objects` and its members. Out: an IR graph whose nodes are "so many declared
properties are passed" times "a member was written" (or how many, and which wanted members, where that is
asked), and whose edges are members. Passing an optional property is an edge without text, so the graph grows
with the number of properties, not with its square. What is not declared follows as one edge.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.json_schema import limits
from vllm_guided.frontends.json_schema.members import (
    Members,
    Slot,
    bag,
    free_members,
    free_nodes,
    repeated_names_matter,
)
from vllm_guided.frontends.json_schema.shapes import Objects
from vllm_guided.grammar import ir

if TYPE_CHECKING:
    from vllm_guided.frontends.json_schema.emitter import Emitter


def in_order(
    emitter: Emitter, shape: Objects, found: Members, least: int, tail: Tail | None = None
) -> ir.Node:
    """The members of an object that has at least one, and at least ``least``.

    ``tail`` says what may follow the declared properties, if it is not what the shape says.
    """
    run_of = [number for number, length in enumerate(shape.runs) for _ in range(length)]
    runs: list[list[Slot]] = [[] for _ in range(max(len(shape.runs), 1))]
    kept: list[Slot] = []
    loose: list[int] = []
    for index, slot in enumerate(found.slots):
        if slot.name in shape.unordered:
            loose.append(index)
        elif slot.variants:
            kept.append(slot)
            runs[run_of[index] if run_of else 0].append(slot)
    tail = tail or Tail(emitter, found, loose)
    most = shape.maximum
    if most is not None and not found.free and most >= len(kept) + len(loose):
        most = None
    if most is None and least <= 1 and not shape.some:
        return _in_blocks(emitter, _within_budget(emitter, runs), tail)
    return _Counted(emitter, kept, tail, least, most, found.wanted).node()


class Tail:
    """What follows the declared properties: required names that are not declared, and free ones."""

    def __init__(self, emitter: Emitter, found: Members, loose: list[int]) -> None:
        self.emitter = emitter
        self.found = found
        self.loose = loose
        self._known: dict[tuple[int, int | None, int], ir.Node] = {}

    def node(self, least: int, most: int | None, missing: int) -> ir.Node:
        """From ``least`` (at least one) to ``most`` members with the ``missing`` wanted ones among them."""
        key = (least, most, missing)
        if key not in self._known:
            self._known[key] = self._members(*key)
        return self._known[key]

    def _members(self, least: int, most: int | None, missing: int) -> ir.Node:
        distinct = repeated_names_matter(self.found, missing, least - len(self.loose))
        if self.loose or distinct or missing:
            return bag(
                self.emitter, self.found, least, most, slots=self.loose, missing=missing, distinct=distinct
            )
        if not self.found.free or most == 0:
            return ir.NOTHING
        member = ir.choice(*free_nodes(self.emitter, self.found, free_members(self.found, 0)))
        more = ir.sequence(self.emitter.layout.comma, member)
        return ir.sequence(member, ir.Repeat(more, least - 1, None if most is None else most - 1))


def _within_budget(emitter: Emitter, runs: list[list[Slot]]) -> list[list[Slot]]:
    """Runs that can be shuffled with few states; all in a row where they cannot."""
    runs = [run for run in runs if run]
    states = prod(len(run) + 1 for run in runs) if len(runs) > 1 else 0
    if states <= limits.MAX_SHUFFLE_STATES and emitter.shuffled + states <= limits.MAX_SHUFFLES:
        emitter.shuffled += states
        return runs
    return [[slot for run in runs for slot in run]]


def _in_blocks(emitter: Emitter, runs: list[list[Slot]], tail: Tail) -> ir.Node:
    """Members of ``runs`` and then of the tail; a long run in blocks that are rules of their own.

    After each property any later one may come, so that one automaton of all grows with the square of their
    number. A block knows its own properties and, as one call, those behind it.
    """
    rest, needed = tail.node(1, None, 0), bool(tail.loose)
    if len(runs) != 1 or len(runs[0]) <= 2 * limits.PROPERTIES_IN_BLOCK:
        return _plain_graph(emitter, runs, rest, needed)
    size = limits.PROPERTIES_IN_BLOCK
    blocks = [runs[0][first : first + size] for first in range(0, len(runs[0]), size)]
    for block in reversed(blocks[1:]):
        rest = emitter.rule("members", _plain_graph(emitter, [block], rest, needed), shared=False)
        needed = needed or any(slot.required for slot in block)
    return _plain_graph(emitter, blocks[:1], rest, needed)


def _plain_graph(emitter: Emitter, runs: list[list[Slot]], rest: ir.Node, needed: bool) -> ir.Node:
    """Members of ``runs``, shuffled, and then of ``rest``; at least one in all.

    ``rest`` may be left out if it is not ``needed``. A node is how far each run is, and whether a member was
    written.
    """
    comma = emitter.layout.comma
    start, end = (0,) * len(runs), tuple(len(run) for run in runs)
    nodes: dict[tuple[tuple[int, ...], bool], int] = {(start, False): 0}
    queue = [(start, False)]
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
    accepting = {nodes[(end, True)]} if (end, True) in nodes and not needed else set()
    if not ir.is_nothing(rest):
        final = len(nodes)
        accepting.add(final)
        if (end, False) in nodes:
            edges.append((nodes[(end, False)], rest, final))
        if (end, True) in nodes:
            edges.append((nodes[(end, True)], ir.sequence(comma, rest), final))
    return ir.Graph(tuple(edges), frozenset(accepting), 0) if accepting else ir.NOTHING


class _Counted:
    """The graph whose nodes are how many properties are passed, written, and which wanted members."""

    def __init__(
        self, emitter: Emitter, slots: list[Slot], tail: Tail, least: int, most: int | None, wanted: int
    ) -> None:
        self.comma = emitter.layout.comma
        self.slots = slots
        self.tail = tail
        self.least = least
        self.most = most
        self.wanted = wanted
        self.required_after = [len(tail.loose)] * (len(slots) + 1)
        for index in range(len(slots) - 1, -1, -1):
            self.required_after[index] = self.required_after[index + 1] + slots[index].required
        self.states: dict[tuple[int, int, int], int] = {(0, 0, 0): 0}
        self.queue = [(0, 0, 0)]
        self.edges: list[tuple[int, ir.Node, int]] = []
        self.accepting: set[int] = set()
        self.ends: list[tuple[int, ir.Node]] = []

    def node(self) -> ir.Node:
        while self.queue:
            state = self.queue.pop()
            if state[0] < len(self.slots):
                self._slot(state)
            else:
                self._end(state)
        final = len(self.states)
        self.edges.extend((source, label, final) for source, label in self.ends)
        if self.ends:
            self.accepting.add(final)
        return ir.Graph(tuple(self.edges), frozenset(self.accepting), 0) if self.accepting else ir.NOTHING

    def _number(self, state: tuple[int, int, int]) -> int:
        found = self.states.get(state)
        if found is None:
            found = self.states[state] = len(self.states)
            self.queue.append(state)
            if found > limits.MAX_OBJECT_STATES:
                raise ConstraintTooComplex("minProperties and maxProperties need too many states")
        return found

    def _slot(self, state: tuple[int, int, int]) -> None:
        index, count, wanted = state
        source, slot = self.states[state], self.slots[index]
        if not slot.required:
            self.edges.append((source, ir.EMPTY, self._number((index + 1, count, wanted))))
        after = count + 1
        if self.most is None:
            after = min(after, max(self.least, 1))
        elif after + self.required_after[index + 1] > self.most:
            return
        for found, node in slot.variants:
            label = ir.sequence(self.comma, node) if count else node
            self.edges.append((source, label, self._number((index + 1, after, wanted | found))))

    def _end(self, state: tuple[int, int, int]) -> None:
        _, count, wanted = state
        source, missing = self.states[state], self.wanted & ~wanted
        lower = max(self.least - count, 0)
        if count and not lower and not missing and not self.tail.loose:
            self.accepting.add(source)
        rest = self.tail.node(max(lower, 1), None if self.most is None else self.most - count, missing)
        if not ir.is_nothing(rest):
            self.ends.append((source, ir.sequence(self.comma, rest) if count else rest))
