"""Look-ahead assertions of rules, ``rule ::= body (= what follows)``, carried out exactly.

In: rule bodies and, for some rules, a regular node that what follows the rule must begin with. Out: bodies
without assertions for the same language. The idea is Bar-Hillel's product (1961) of a context-free grammar
with a finite automaton: behind such a rule an obligation is open, the automaton of its assertion; bytes
advance all open ones, an accepting state closes one, and the output may end only where none is open. A rule
met with obligations becomes a rule for each way it can leave them. What no obligation reaches stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint
from vllm_guided.frontends import regular
from vllm_guided.frontends.embedding import references
from vllm_guided.frontends.utf8 import utf8_sequences
from vllm_guided.grammar import ir

MAX_WORK = 40_000

Open = frozenset[tuple[str, int]]
"""The obligations that are open: the rule that asked, and the state of its assertion's automaton."""

NONE: Open = frozenset()


def carried_out(
    bodies: Mapping[str, ir.Node], root: str, assertions: Mapping[str, ir.Node]
) -> dict[str, ir.Node]:
    """The bodies of the rules that ``root`` needs, with ``assertions`` (regular nodes) honoured.

    Raises:
        InvalidConstraint: no output fulfils the assertions; without a place.
        ConstraintTooComplex: they need too many rules.
    """
    return _Product(bodies, assertions).grammar(root)


class _Front:
    """States of a graph under construction by the obligations open in them; made when first asked for."""

    def __init__(self, product: _Product) -> None:
        self.product = product
        self.states: dict[Open, int] = {}
        self.new: list[Open] = []

    def at(self, open_: Open) -> int:
        state = self.states.get(open_)
        if state is None:
            state = self.states[open_] = self.product.state()
            self.new.append(open_)
        return state


class _Product:
    def __init__(self, bodies: Mapping[str, ir.Node], assertions: Mapping[str, ir.Node]) -> None:
        self.bodies = bodies
        self.automata = {
            name: regular.shortest(regular.dfa(assertion)) for name, assertion in assertions.items()
        }
        self.touched = self._touched()
        self.exits: dict[tuple[str, Open], tuple[Open, ...]] = {}
        self.numbers: dict[tuple[str, Open, Open], str] = {}
        self.edges: list[tuple[int, ir.Node, int]] = []
        self.count = 0
        self.work = 0

    def _touched(self) -> set[str]:
        """The rules in whose derivations an assertion is met."""
        callers: dict[str, set[str]] = {}
        for name, body in self.bodies.items():
            for used in references(body):
                callers.setdefault(used, set()).add(name)
        found, stack = set(self.automata), list(self.automata)
        while stack:
            for name in callers.get(stack.pop(), ()):
                if name not in found:
                    found.add(name)
                    stack.append(name)
        return found

    def grammar(self, root: str) -> dict[str, ir.Node]:
        self.exits[root, NONE] = ()
        changed = True
        while changed:  # least fixpoint; rules met on the way join
            before = dict(self.exits)
            for name, open_ in before:
                self.exits[name, open_] = tuple(self.rule(name, open_)[1])
            changed = before != self.exits
        if NONE not in self.exits[root, NONE]:
            raise InvalidConstraint(
                "no output fulfils the look-ahead (= ...): what it asks for never follows its rule;"
                " leave it out, or change what follows"
            )
        made: dict[str, ir.Node] = {}
        for name, open_ in list(self.exits):
            edges, exits = self.rule(name, open_)
            for leaving, accepting in exits.items():
                made[self.variant(name, open_, leaving)] = ir.Graph(edges, frozenset(accepting))
        top = self.variant(root, NONE, NONE)
        needed, stack = {top}, [top]
        rules: dict[str, ir.Node] = {}
        while stack:
            name = stack.pop()
            rules[name] = made[name] if name in made else self.bodies[name]
            fresh = sorted(references(rules[name]) - needed)
            needed.update(fresh)
            stack += fresh
        return {**rules, root: ir.Ref(top)} if top != root else rules

    def variant(self, name: str, open_: Open, leaving: Open) -> str:
        """The name of the rule as it is met with ``open_`` and left with ``leaving``."""
        if not open_ and not leaving and name not in self.touched:
            return name
        key = (name, open_, leaving)
        return self.numbers.setdefault(key, f"{name}%{len(self.numbers)}")

    def rule(
        self, name: str, open_: Open
    ) -> tuple[tuple[tuple[int, ir.Node, int], ...], dict[Open, set[int]]]:
        """The rule met with ``open_`` as a graph, and the nodes in which it can be left, by what is open."""
        self.edges, self.count = [], 0
        first, last = _Front(self), _Front(self)
        first.at(open_)
        self.add(self.bodies[name], first, last)
        exits: dict[Open, set[int]] = {}
        for leaving, state in last.states.items():
            asked = leaving
            if name in self.automata and 0 not in self.automata[name].accepting:
                asked = leaving | {(name, 0)}
            exits.setdefault(asked, set()).add(state)
        return tuple(self.edges), exits

    def state(self) -> int:
        self.count += 1
        self.work += 1
        if self.work > MAX_WORK:
            raise ConstraintTooComplex(
                "the look-ahead assertions need too many rules; ask for less behind fewer rules"
            )
        return self.count - 1

    def link(self, source: _Front, target: _Front) -> None:
        for open_, state in source.states.items():
            self.edges.append((state, ir.EMPTY, target.at(open_)))

    def step(self, open_: Open, byte: int) -> Open | None:
        """What is open after ``byte``; None where it breaks an obligation."""
        after: set[tuple[str, int]] = set()
        for name, state in open_:
            automaton = self.automata[name]
            target = automaton.step(state, byte)
            if target is None:
                return None
            if target not in automaton.accepting:
                after.add((name, target))
        return frozenset(after)

    def add(self, node: ir.Node, source: _Front, target: _Front) -> None:
        """Edges from every state of ``source``, for what ``node`` derives, to states of ``target``."""
        if NONE in source.states and not references(node) & self.touched:
            self.edges.append((source.states[NONE], node, target.at(NONE)))
            pending = _Front(self)
            pending.states = {open_: state for open_, state in source.states.items() if open_}
            source = pending
        if not source.states:
            return
        match node:
            case ir.Literal(data):
                for open_, state in source.states.items():
                    after: Open | None = open_
                    for byte in data:
                        after = self.step(after, byte) if after else after
                    if after is not None:
                        self.edges.append((state, node, target.at(after)))
            case ir.ByteSet(mask):
                for open_, state in source.states.items():
                    self.add_bytes(mask, open_, state, target)
            case ir.CharSet(ranges):
                for low, high in ranges:
                    for sequence in utf8_sequences(low, high):
                        self.add_all([ir.byte_range(a, b) for a, b in sequence], source, target)
            case ir.SpecialToken():
                pass  # no text, so it fulfils nothing
            case ir.Ref(name):
                for open_, state in source.states.items():
                    for leaving in self.exits.setdefault((name, open_), ()):
                        used = ir.Ref(self.variant(name, open_, leaving))
                        self.edges.append((state, used, target.at(leaving)))
            case ir.Sequence(items):
                self.add_all(list(items), source, target)
            case ir.Choice(options):
                for option in options:
                    self.add(option, source, target)
            case ir.Repeat(item, minimum, maximum):
                self.add_repeat(item, minimum, maximum, source, target)
            case ir.Graph():
                self.add_graph(node, source, target)
            case _:
                raise TypeError(f"no look-ahead over {type(node).__name__}")

    def add_bytes(self, mask: int, open_: Open, state: int, target: _Front) -> None:
        groups: dict[Open, int] = {}
        for byte in range(256):
            if mask >> byte & 1:
                after = self.step(open_, byte)
                if after is not None:
                    groups[after] = groups.get(after, 0) | 1 << byte
        for after, bytes_ in groups.items():
            self.edges.append((state, ir.ByteSet(bytes_), target.at(after)))

    def add_all(self, items: list[ir.Node], source: _Front, target: _Front) -> None:
        for item in items[:-1]:
            middle = _Front(self)
            self.add(item, source, middle)
            source = middle
        if items:
            self.add(items[-1], source, target)
        else:
            self.link(source, target)

    def add_repeat(
        self, item: ir.Node, minimum: int, maximum: int | None, source: _Front, target: _Front
    ) -> None:
        for _ in range(minimum):
            middle = _Front(self)
            self.add(item, source, middle)
            source = middle
        if maximum is None:
            loop = ir.Graph(((0, item, 0),), frozenset([0]))
            self.add_graph(loop, source, target)
            return
        for _ in range(maximum - minimum):
            self.link(source, target)
            middle = _Front(self)
            self.add(item, source, middle)
            source = middle
        self.link(source, target)

    def add_graph(self, graph: ir.Graph, source: _Front, target: _Front) -> None:
        leaving: dict[int, list[tuple[ir.Node, int]]] = {}
        fronts = {graph.start: _Front(self)}
        for left, label, right in graph.edges:
            leaving.setdefault(left, []).append((label, right))
            fronts.setdefault(left, _Front(self))
            fronts.setdefault(right, _Front(self))
        self.link(source, fronts[graph.start])
        queue = [graph.start]
        while queue:
            node = queue.pop()
            front = fronts[node]
            while front.new:
                one = _Front(self)
                open_ = front.new.pop()
                one.states[open_] = front.states[open_]
                for label, right in leaving.get(node, ()):
                    self.add(label, one, fronts[right])
                    queue.append(right)
        for node in graph.accepting:
            if node in fronts:
                self.link(fronts[node], target)
