"""Values written in one way each, so that equal items of an array have equal texts.

In: terms. Out: nodes in which every value has at most one text, white space between tokens aside. Scalars are
spelt as :mod:`.canonical` says; arrays item by item. Members of objects stand in one order that is the same
for every object of the grammar, whatever shape it has, so that it follows from the value alone: names that
any of these shapes declares, as far as possible in the order of each, and then at most one other name.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TypeVar

from vllm_guided.frontends.json_schema import canonical, limits
from vllm_guided.frontends.json_schema import strings as string_sets
from vllm_guided.frontends.json_schema.emitter import INLINE, WORDS, Emitter
from vllm_guided.frontends.json_schema.few_texts import FewTexts
from vllm_guided.frontends.json_schema.members import Members, Slot, members
from vllm_guided.frontends.json_schema.numbers import Numbers
from vllm_guided.frontends.json_schema.object_order import Tail, in_order
from vllm_guided.frontends.json_schema.object_text import with_braces
from vllm_guided.frontends.json_schema.plain import NotPlain
from vllm_guided.frontends.json_schema.shapes import Arrays, Norm, Objects
from vllm_guided.frontends.json_schema.strings import Strings
from vllm_guided.grammar import ir

_Scalars = TypeVar("_Scalars", Numbers, Strings)


class CanonicalEmitter(Emitter):
    """Writes rules into the grammar of another emitter.

    Attributes:
        narrowed: an object that needs two undeclared members was met.
    """

    def __init__(self, base: Emitter) -> None:
        super().__init__(base.algebra, base.layout)
        self.rules, self.places, self._queue = base.rules, base.places, base._queue
        self._certain = base._certain
        self.fresh = base.fresh  # type: ignore[method-assign]
        self.narrowed = False
        self._base_plain = base.plain
        self._ranks: dict[str, int] = {}
        self._objects: list[tuple[str, Objects, Members]] = []
        self._late: dict[str, Callable[[FewTexts], ir.Node]] = {}
        self._few = FewTexts(self._finished_body, limits.MAX_FEW_ITEMS)

    def close(self) -> None:
        self._late.clear()
        del self._few, self.fresh, self._base_plain

    def canonical(self) -> CanonicalEmitter:
        return self

    def later(self, build: Callable[[FewTexts], ir.Node]) -> ir.Node:
        """A rule whose body is made when all others are known: it depends on how many texts they have."""
        name = self.fresh("unique")
        self.rules[name] = ir.Rule(ir.NOTHING)
        self.places[name] = self._place
        self._late[name] = build
        return ir.Ref(name)

    def finish(self) -> None:
        """Make what had to wait: members in their common order, and then distinct items."""
        orders = [[slot.name for slot in found.slots] for _, _, found in self._objects]
        self._ranks = {name: rank for rank, name in enumerate(common_order(orders))}
        for name, shape, found in self._objects:
            self.rules[name] = ir.Rule(self._object(shape, found))
        for name in list(self._late):
            self._finished_body(name)

    def _finished_body(self, name: str) -> ir.Node:
        build = self._late.pop(name, None)
        if build is not None:
            self._few.endless.add(name)
            self.rules[name] = ir.Rule(build(self._few))
            self._few.endless.discard(name)
        return self.rules[name].body

    def _compute(self, norm: Norm) -> ir.Node:
        options: list[ir.Node] = [word for bit, word in WORDS if norm.words & bit]
        options.extend(self._scalar("number", numbers, canonical.number_node) for numbers in norm.numbers)
        options.extend(self._scalar("string", strings, canonical.string_node) for strings in norm.strings)
        options.extend(self._arrays(norm.arrays))
        options.extend(self._shape("object", shape) for shape in norm.objects)
        kept = [option for option in options if not ir.is_nothing(option)]
        node = ir.choice(*kept)
        return self.rule("choice", node, shared=False) if len(kept) > INLINE else node

    def _scalar(self, kind: str, values: _Scalars, write: Callable[[_Scalars], ir.Node]) -> ir.Node:
        found = self._by_shape.get(values)
        if found is None:
            node = write(values)
            found = node if ir.is_nothing(node) else self.rule(kind, node, shared=True)
            self._by_shape[values] = found
        return found

    def _shape(self, kind: str, shape: Arrays | Objects) -> ir.Node:
        if isinstance(shape, Objects) and self._base_plain is not None:
            # The order of members is that in which objects are met, which is to be the same for all.
            raise NotPlain
        return super()._shape(kind, shape)

    def _body(self, name: str, shape: Arrays | Objects) -> ir.Node:
        if isinstance(shape, Arrays):
            return super()._body(name, shape)
        found = members(self, shape)
        if found is not None:
            self._objects.append((name, shape, found))
        return ir.NOTHING

    def _object(self, shape: Objects, found: Members) -> ir.Node:
        slots = list(found.slots)
        if len(self._ranks) <= limits.MAX_SHARED_NAMES:
            declared = {slot.name for slot in slots}
            slots.extend(self._shared(found, name) for name in self._ranks if name not in declared)
        slots.sort(key=lambda slot: self._ranks[slot.name])
        found = found._replace(slots=tuple(slots))
        shape = shape._replace(runs=(), unordered=frozenset())
        required = sum(slot.required for slot in slots)
        least = shape.minimum if shape.minimum > required else 0
        body = in_order(self, shape, found, least, _OneMore(self, found, tuple(self._ranks)))
        return with_braces(self, shape, required, body)

    def _shared(self, found: Members, name: str) -> Slot:
        """A name that another object declares, as what it is here: one of the free ones."""
        free = [each for each in found.free if string_sets.accepts(each.names, name)]
        return Slot(name, False, tuple((each.wanted, self.layout.member(name, each.value)) for each in free))


def common_order(orders: list[list[str]]) -> list[str]:
    """All names in one order that agrees with each of the orders, as far as those agree with one another.

    Kahn's topological sorting; where the orders contradict each other, the name met first goes first.
    """
    ranks = {
        name: rank for rank, name in enumerate(dict.fromkeys(name for order in orders for name in order))
    }
    after: dict[str, set[str]] = {name: set() for name in ranks}
    for order in orders:
        for left, right in pairwise(order):
            after[left].add(right)
    before = dict.fromkeys(ranks, 0)
    for names in after.values():
        for name in names:
            before[name] += 1
    ready = [rank for name, rank in ranks.items() if not before[name]]
    heapify(ready)
    waiting = dict.fromkeys(ranks)
    names_by_rank, found = list(ranks), []
    while waiting:
        name = names_by_rank[heappop(ready)] if ready else next(iter(waiting))
        if name not in waiting:
            continue
        del waiting[name]
        found.append(name)
        for follower in after[name]:
            before[follower] -= 1
            if not before[follower] and follower in waiting:
                heappush(ready, ranks[follower])
    return found


class _OneMore(Tail):
    """At most one member under a name that nothing declares."""

    def __init__(self, emitter: CanonicalEmitter, found: Members, taken: tuple[str, ...]) -> None:
        super().__init__(emitter, found, [])
        self._canonical = emitter
        self._taken = taken

    def _members(self, least: int, most: int | None, missing: int) -> ir.Node:
        if least > 1 and self.found.free:
            self._canonical.narrowed = True
        if least > 1 or most == 0:
            return ir.NOTHING
        options = []
        for each in self.found.free:
            if each.wanted & missing == missing:
                key = self.emitter.name(each.names, self._taken, plain=True)
                options.append(ir.sequence(key, self.emitter.layout.colon, each.value))
        return ir.choice(*(option for option in dict.fromkeys(options) if option != ir.NOTHING))
