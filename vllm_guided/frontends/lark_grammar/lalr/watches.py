"""What may not follow a token: small automata that run on over the text behind it.

A token that a lexer cut off here would have been longer, or another one, had the text gone on in some ways.
A watch knows these ways. It reads the bytes behind the token: an edge to ``VIOLATED`` is what may not be
read, a byte without an edge ends the watch, and ``may_end`` says whether the text may end while it runs.
Equal watches are one number: minimised (Moore), then named by the graph that can be reached from them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from vllm_guided.errors import ConstraintTooComplex

VIOLATED = -1
NOTHING = 0  # the watch that forbids nothing
MAX_WATCHES = 6_000

#: From a description to whether the text may end there, and where bytes lead: to another description,
#: to None (nothing to watch any more) or to VIOLATED.
Step = Callable[[Hashable], tuple[bool, list[tuple[int, Hashable]]]]


@dataclass(frozen=True, slots=True)
class Watch:
    """``edges`` hold disjoint byte masks and the watch (or VIOLATED) each leads to."""

    may_end: bool
    edges: tuple[tuple[int, int], ...]


class Watches:
    """The watches of one grammar, by number."""

    def __init__(self) -> None:
        self.watches = [Watch(True, ())]
        self.by_graph: dict[Hashable, int] = {}
        self.known: dict[Hashable, int] = {}

    def of(self, description: Hashable, step: Step) -> int:
        """The number of the watch that ``step`` describes."""
        number = self.known.get(description)
        if number is None:
            self._explore(description, step)
            number = self.known[description]
        return number

    def both(self, left: int, right: int) -> int:
        """The watch that forbids what either forbids."""
        if left == right or right == NOTHING:
            return left
        if left == NOTHING:
            return right
        return self.of(("both", *sorted((left, right))), self._both)

    def _both(self, description: Hashable) -> tuple[bool, list[tuple[int, Hashable]]]:
        assert isinstance(description, tuple)
        left, right = (self.watches[number] for number in description[1:])
        edges: list[tuple[int, Hashable]] = []
        for mask, target in left.edges:
            for other, partner in right.edges:
                if mask & other:
                    edges.append((mask & other, self._pair(target, partner)))
                    mask &= ~other
            if mask:
                edges.append((mask, self._pair(target, NOTHING)))
        rest = 0
        for mask, _ in left.edges:
            rest |= mask
        for mask, target in right.edges:
            if mask & ~rest:
                edges.append((mask & ~rest, self._pair(target, NOTHING)))
        return left.may_end and right.may_end, edges

    def _pair(self, left: int, right: int) -> Hashable:
        if VIOLATED in (left, right):
            return VIOLATED
        return ("both", *sorted((left, right)))

    def before(self, number: int, mask: int) -> int:
        """The watch, where the next byte can only be one of ``mask``."""
        watch = self.watches[number]
        live = 0
        for label, _ in watch.edges:
            live |= label
        if not live & ~mask:
            return number
        return self.of(("before", number, live & mask), self._before)

    def _before(self, description: Hashable) -> tuple[bool, list[tuple[int, Hashable]]]:
        assert isinstance(description, tuple)
        watch, allowed = self.watches[description[1]], description[2]
        edges: list[tuple[int, Hashable]] = []
        for mask, target in watch.edges:
            if mask & allowed:
                edges.append((mask & allowed, VIOLATED if target == VIOLATED else ("both", 0, target)))
        return watch.may_end, edges

    def _rows(self, description: Hashable, step: Step) -> tuple[bool, list[tuple[int, Hashable]]]:
        if isinstance(description, tuple) and description[:1] == ("both",):
            return self._both(description)
        return step(description)

    def _explore(self, first: Hashable, step: Step) -> None:
        rows: dict[Hashable, tuple[bool, dict[Hashable, int]]] = {}
        todo = [first]
        seen = {first}
        for description in todo:
            if len(todo) + len(self.watches) > MAX_WATCHES:
                raise ConstraintTooComplex(
                    "telling where tokens end needs too much looking ahead; make the terminals simpler"
                )
            may_end, edges = self._rows(description, step)
            grouped: dict[Hashable, int] = {}
            for mask, target in edges:
                if target is not None:
                    grouped[target] = grouped.get(target, 0) | mask
                    if target != VIOLATED and target not in seen:
                        seen.add(target)
                        todo.append(target)
            rows[description] = may_end, grouped
        harmful = {d for d in todo if not rows[d][0] or VIOLATED in rows[d][1]}
        while more := {d for d in todo if d not in harmful and not harmful.isdisjoint(rows[d][1])}:
            harmful |= more
        classes = _classes({d: row for d, row in rows.items() if d in harmful})
        for description in todo:
            self.known.setdefault(description, NOTHING)
        members: dict[int, Hashable] = {}
        for description, block in classes.items():
            members.setdefault(block, description)
        graphs = {block: (rows[d][0], _edges(rows[d][1], classes)) for block, d in members.items()}
        numbers = {block: self._number(block, graphs) for block in graphs}
        for block, (_, edges_) in graphs.items():
            if self.watches[numbers[block]].edges is _PENDING:
                named = tuple((mask, VIOLATED if to == VIOLATED else numbers[to]) for mask, to in edges_)
                self.watches[numbers[block]] = Watch(graphs[block][0], named)
        for description, block in classes.items():
            self.known[description] = numbers[block]

    def _number(self, block: int, graphs: dict[int, tuple[bool, tuple[tuple[int, int], ...]]]) -> int:
        """The number of a class, by its canonical graph; a new one is filled in later."""
        local = {block: 0}
        order = [block]
        graph = []
        for here in order:
            may_end, edges = graphs[here]
            row = []
            for mask, target in edges:
                if target != VIOLATED and target not in local:
                    local[target] = len(order)
                    order.append(target)
                row.append((mask, VIOLATED if target == VIOLATED else local[target]))
            graph.append((may_end, tuple(row)))
        key = tuple(graph)
        number = self.by_graph.get(key)
        if number is None:
            number = self.by_graph[key] = len(self.watches)
            self.watches.append(Watch(graphs[block][0], _PENDING))
        return number


_PENDING: tuple[tuple[int, int], ...] = ((0, 0),)


def _edges(row: dict[Hashable, int], classes: dict[Hashable, int]) -> tuple[tuple[int, int], ...]:
    """A row over classes, in the order of the lowest bytes; what forbids nothing has no edge."""
    found: dict[int, int] = {}
    for target, mask in row.items():
        block = VIOLATED if target == VIOLATED else classes.get(target)
        if block is not None:
            found[block] = found.get(block, 0) | mask
    return tuple(
        sorted(((mask, block) for block, mask in found.items()), key=lambda edge: edge[0] & -edge[0])
    )


def _classes(rows: dict[Hashable, tuple[bool, dict[Hashable, int]]]) -> dict[Hashable, int]:
    """Moore's partition of descriptions that behave alike."""
    classes: dict[Hashable, int] = {d: int(may_end) for d, (may_end, _) in rows.items()}
    count = len(set(classes.values()))
    while True:
        names: dict[Hashable, int] = {}
        refined: dict[Hashable, int] = {}
        for description, (_, row) in rows.items():
            signature = (classes[description], _edges(row, classes))
            refined[description] = names.setdefault(signature, len(names))
        classes = refined
        if len(names) == count:
            return classes
        count = len(names)


def union(masks: Iterable[int]) -> int:
    """The bytes of any of the masks."""
    whole = 0
    for mask in masks:
        whole |= mask
    return whole
