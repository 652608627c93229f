"""How many texts a node has at least: quickly, where they are too many to be listed.

In: a node, and the rules it refers to. Out: a number that is not above the number of its texts (without the
white space between JSON tokens), at most a cap; 0 where nothing is known. Texts of which none begins another
(a prefix code: single bytes and characters, literals, and sequences of those) can be told apart wherever
others follow, so that their numbers multiply; where that is not known, the largest number counts.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from vllm_guided.frontends.json_schema.layout import BLANKS
from vllm_guided.grammar import ir


class Count(NamedTuple):
    """At least so many texts; whether they are a prefix code; whether they are the empty text alone."""

    least: int
    coded: bool = False
    blank: bool = False


UNKNOWN = Count(0)
ONE = Count(1, True)
BLANK = Count(1, True, True)


class AtLeast:
    """Numbers of texts over one set of rules.

    Args:
        body: the body of a rule.
        endless: rules that count as endless.
        cap: no number is above it.
    """

    def __init__(self, body: Callable[[str], ir.Node], endless: Container[str], cap: int) -> None:
        self._body = body
        self._endless = endless
        self._cap = cap
        self._known: dict[int, tuple[ir.Node, Count]] = {}
        self._active: set[str] = set()

    def of(self, node: ir.Node) -> int:
        """At least so many texts has ``node``."""
        return self._count(node).least

    def _count(self, node: ir.Node) -> Count:
        match node:
            case ir.Literal():
                return ONE
            case ir.ByteSet(mask):
                return self._coded(mask.bit_count())
            case ir.CharSet(ranges):
                return self._coded(
                    sum(
                        max(min(high, last) - max(low, first) + 1, 0)
                        for low, high in ranges
                        for first, last in ((0, 0xD7FF), (0xE000, ir.MAX_CODE_POINT))
                    )
                )
            case ir.Ref(name):
                return self._rule(name)
        known = self._known.get(id(node))
        if known is not None:
            return known[1]
        found = self._computed(node)
        self._known[id(node)] = node, found  # with the node, so that its identity stays its own
        return found

    def _computed(self, node: ir.Node) -> Count:
        match node:
            case ir.Sequence(items):
                return self._sequence([self._count(item) for item in items])
            case ir.Choice(options):
                return self._choice(options)
            case ir.Repeat(item, minimum, maximum):
                return self._repeat(self._count(item), minimum, maximum)
            case ir.Graph():
                return self._graph(node)
            case _:
                return UNKNOWN

    def _coded(self, number: int) -> Count:
        return Count(min(number, self._cap), True)

    def _rule(self, name: str) -> Count:
        if name == BLANKS:
            return BLANK
        if name in self._endless:
            return Count(self._cap)
        if name in self._active:
            return UNKNOWN
        self._active.add(name)
        found = self._count(self._body(name))
        self._active.discard(name)
        return found

    def _sequence(self, parts: list[Count]) -> Count:
        number, most, coded, blank = 1, 1, True, True
        for part in parts:
            if not part.least:
                return UNKNOWN
            if part.blank:
                continue
            blank = False
            if coded and part.coded:
                number = min(number * part.least, self._cap)
            else:
                coded = False
                most = max(most, part.least)
        return Count(min(number * most, self._cap), coded, blank)

    def _choice(self, options: tuple[ir.Node, ...]) -> Count:
        if all(type(option) is ir.Literal for option in options):
            return Count(min(len(set(options)), self._cap), len(options) == 1)
        counts = [self._count(option) for option in options]
        if len(counts) == 1:
            return counts[0]
        return Count(max((count.least for count in counts), default=0))

    def _repeat(self, item: Count, minimum: int, maximum: int | None) -> Count:
        if maximum is not None and maximum < minimum:
            return UNKNOWN
        if item.blank:
            return BLANK
        if not item.least:
            return UNKNOWN if minimum else Count(1)
        if item.coded and item.least > 1:  # none of them is empty
            number, power = 0, item.least**minimum if minimum < 64 else self._cap
            for _ in range(minimum, self._cap if maximum is None else maximum + 1):
                number += power
                power *= item.least
                if number >= self._cap:
                    return Count(self._cap, minimum == maximum)
            return Count(number, minimum == maximum)
        return Count(item.least if minimum else max(1, item.least if maximum != 0 else 1))

    def _graph(self, graph: ir.Graph) -> Count:
        outgoing: dict[int, list[tuple[ir.Node, int]]] = {}
        for source, label, target in graph.edges:
            outgoing.setdefault(source, []).append((label, target))
        order = topological(graph.start, outgoing)
        if order is None:  # counts as endless
            return Count(self._cap)
        known: dict[int, int] = {}
        for state in reversed(order):
            best = int(state in graph.accepting)
            for label, target in outgoing.get(state, ()):
                rest = known[target]
                here = self._count(label)
                if rest and here.least:
                    best = max(best, here.least * rest if here.coded else max(here.least, rest))
            known[state] = min(best, self._cap)
        return Count(known[graph.start])


def topological(start: int, outgoing: dict[int, list[tuple[ir.Node, int]]]) -> list[int] | None:
    """The states that are reached from ``start``, each before its targets; ``None`` if there is a cycle."""
    order: list[int] = []
    seen: dict[int, bool] = {start: False}
    stack = [(start, iter(outgoing.get(start, ())))]
    while stack:
        state, edges = stack[-1]
        for _, target in edges:
            if target not in seen:
                seen[target] = False
                stack.append((target, iter(outgoing.get(target, ()))))
                break
            if not seen[target]:
                return None
        else:
            seen[state] = True
            order.append(state)
            stack.pop()
    return order[::-1]
