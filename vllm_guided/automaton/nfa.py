"""Grammar IR to one nondeterministic automaton per rule (Thompson's construction).

All rules share one numbering of states and one list of edges ``(source, label, target)`` (``labels.py``).
Rules that do not recurse, are not marked as shared and stay small are written in
place of their call. A repetition whose copies would be many becomes a *counter*: a rule without
states of its own that calls its body between ``minimum`` and ``maximum`` times. A bag is such a rule too:
what it calls depends on the members it has had. Its states here only serve the analysis of the rules.

Everything works on a list of pending pieces instead of recursion, so deep input costs no call stack.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from vllm_guided.automaton.bag_rules import BagRule, Member, write_bag_states
from vllm_guided.automaton.inlining import UNROLL_LIMIT, inlinable, size_of
from vllm_guided.automaton.labels import CALL, EPSILON, TOKEN
from vllm_guided.automaton.utf8 import utf8_fragment
from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint
from vllm_guided.grammar import ir

#: No constraint may have more edges than this before it is made deterministic.
EDGE_LIMIT = 2_000_000
#: Outputs never get this long, so a larger maximum is no limit and a larger minimum is unreachable.
COUNT_LIMIT = 1 << 26


@dataclass(slots=True)
class Counter:
    """``rule`` stands for between ``minimum`` and ``maximum`` (``None``: any number) of ``body``."""

    rule: int
    body: int
    minimum: int
    maximum: int | None


@dataclass(slots=True)
class Nfa:
    """The rules of a grammar as automata: rule ``r`` owns states ``rule_first[r]:rule_first[r + 1]``."""

    names: list[str] = field(default_factory=list)
    rule_first: list[int] = field(default_factory=list)
    rule_start: list[int] = field(default_factory=list)
    rule_accept: list[int] = field(default_factory=list)
    edges: array[int] = field(default_factory=lambda: array("i"))
    counters: list[Counter] = field(default_factory=list)
    bags: list[BagRule] = field(default_factory=list)
    symbols: list[ir.SpecialToken] = field(default_factory=list)
    states: int = 0


def build_nfa(grammar: ir.Grammar, *, counters: bool = True) -> Nfa:
    """The automata of all rules that ``grammar.start`` needs; rule 0 is the start.

    Args:
        counters: False writes every repetition out (needed where left recursion passes through one).

    Raises:
        InvalidConstraint: a Ref names no rule.
        ConstraintTooComplex: more than ``EDGE_LIMIT`` edges.
    """
    return _Builder(grammar, counters).build()


class _Builder:
    def __init__(self, grammar: ir.Grammar, counters: bool) -> None:
        self.rules: Mapping[str, ir.Rule] = grammar.rules
        self.start = grammar.start
        self.use_counters = counters
        self.nfa = Nfa()
        self.sizes: dict[int, int] = {}
        self.rule_number: dict[str, int] = {}
        self.pending: list[tuple[int, ir.Node]] = []
        self.counter_rules: dict[tuple[int, int, int | None], int] = {}
        self.bag_rules: dict[int, int] = {}
        # Nodes made here whose identity is a key.
        self.kept: list[ir.Node] = []
        self.symbol_number: dict[ir.SpecialToken, int] = {}
        self.inline = inlinable(grammar, self.sizes)

    def build(self) -> Nfa:
        nfa = self.nfa
        self._number(self.start)
        done = 0
        while done < len(self.pending):
            rule, body = self.pending[done]
            done += 1
            nfa.rule_first[rule] = nfa.states
            nfa.rule_start[rule] = self._state()
            nfa.rule_accept[rule] = self._state()
            if type(body) is ir.Bag:
                self._bag(rule, body)
            else:
                self._emit(body, nfa.rule_start[rule], nfa.rule_accept[rule])
        nfa.rule_first.append(nfa.states)
        return nfa

    def _number(self, name: str) -> int:
        number = self.rule_number.get(name)
        if number is None:
            rule = self.rules.get(name)
            if rule is None:
                raise InvalidConstraint(f"rule {name!r} is used but not defined")
            number = self.rule_number[name] = self._new_rule(name, rule.body)
        return number

    def _new_rule(self, name: str, body: ir.Node) -> int:
        nfa = self.nfa
        number = len(nfa.names)
        nfa.names.append(name)
        nfa.rule_first.append(0)
        nfa.rule_start.append(0)
        nfa.rule_accept.append(0)
        self.pending.append((number, body))
        return number

    def _state(self) -> int:
        self.nfa.states += 1
        return self.nfa.states - 1

    def _emit(self, body: ir.Node, source: int, target: int) -> None:
        edges = self.nfa.edges
        stack: list[tuple[ir.Node, int, int]] = [(body, source, target)]
        push = stack.append
        while stack:
            if len(edges) > 3 * EDGE_LIMIT:
                raise ConstraintTooComplex(
                    f"the constraint needs more than {EDGE_LIMIT:,} transitions; make repetitions or "
                    "alternatives smaller"
                )
            node, source, target = stack.pop()
            kind = type(node)
            if kind is ir.Literal:
                self._literal(node.data, source, target)  # type: ignore[union-attr]
            elif kind is ir.Sequence:
                items = node.items  # type: ignore[union-attr]
                if not items:
                    edges.extend((source, EPSILON, target))
                    continue
                here = source
                last = len(items) - 1
                for position, item in enumerate(items):
                    there = target if position == last else self._state()
                    push((item, here, there))
                    here = there
            elif kind is ir.Choice:
                for option in node.options:  # type: ignore[union-attr]
                    push((option, source, target))
            elif kind is ir.Ref:
                name = node.name  # type: ignore[union-attr]
                if name in self.inline:
                    push((self.rules[name].body, source, target))
                else:
                    edges.extend((source, CALL | self._number(name), target))
            elif kind is ir.CharSet:
                self._char_set(node.ranges, source, target)  # type: ignore[union-attr]
            elif kind is ir.ByteSet:
                for label in _byte_labels(node.mask):  # type: ignore[union-attr]
                    edges.extend((source, label, target))
            elif kind is ir.Repeat:
                self._repeat(node, source, target, stack)  # type: ignore[arg-type]
            elif kind is ir.Graph:
                self._graph(node, source, target, stack)  # type: ignore[arg-type]
            elif kind is ir.Bag:
                # Keyed by identity, as counters are.
                rule = self.bag_rules.get(id(node))
                if rule is None:
                    rule = self.bag_rules[id(node)] = self._new_rule("members", node)
                edges.extend((source, CALL | rule, target))
            elif kind is ir.SpecialToken:
                number = self.symbol_number.get(node)  # type: ignore[arg-type]
                if number is None:
                    number = self.symbol_number[node] = len(self.nfa.symbols)  # type: ignore[index]
                    self.nfa.symbols.append(node)  # type: ignore[arg-type]
                edges.extend((source, TOKEN | number, target))
            else:
                raise TypeError(f"not an IR node: {node!r}")

    def _literal(self, data: bytes, source: int, target: int) -> None:
        edges = self.nfa.edges
        if not data:
            edges.extend((source, EPSILON, target))
            return
        here = source
        for byte in data[:-1]:
            there = self._state()
            edges.extend((here, byte | byte << 8, there))
            here = there
        edges.extend((here, data[-1] | data[-1] << 8, target))

    def _char_set(self, ranges: tuple[tuple[int, int], ...], source: int, target: int) -> None:
        inner, edges = utf8_fragment(ranges)
        base = self.nfa.states - 2
        self.nfa.states += inner
        place = (source, target)
        self.nfa.edges.extend(
            value if position % 3 == 1 else place[value] if value < 2 else value + base
            for position, value in enumerate(edges)
        )

    def _repeat(
        self, node: ir.Repeat, source: int, target: int, stack: list[tuple[ir.Node, int, int]]
    ) -> None:
        edges = self.nfa.edges
        item, minimum, maximum = node.item, node.minimum, node.maximum
        if maximum is not None and maximum >= COUNT_LIMIT:
            maximum = None
        if maximum is not None and (maximum < minimum or maximum < 0):
            return
        if maximum == 0:
            edges.extend((source, EPSILON, target))
            return
        copies = minimum if maximum is None else maximum
        if (
            self.use_counters
            and copies > 1
            and copies * size_of(item, self.rules, self.sizes, self.inline) > UNROLL_LIMIT
        ):
            edges.extend((source, CALL | self._counter(item, min(minimum, COUNT_LIMIT), maximum), target))
            return
        if copies > EDGE_LIMIT:
            raise ConstraintTooComplex(f"a repetition of {copies:,} cannot be written out here")
        here = source
        for _ in range(minimum):
            there = self._state()
            stack.append((item, here, there))
            here = there
        if maximum is None:
            loop = self._state()
            edges.extend((here, EPSILON, loop, loop, EPSILON, target))
            stack.append((item, loop, loop))
            return
        for _ in range(maximum - minimum):
            edges.extend((here, EPSILON, target))
            there = self._state()
            stack.append((item, here, there))
            here = there
        edges.extend((here, EPSILON, target))

    def _counter(self, item: ir.Node, minimum: int, maximum: int | None) -> int:
        # Keyed by identity: the grammar keeps its nodes alive while it is being built.
        key = (id(item), minimum, maximum)
        rule = self.counter_rules.get(key)
        if rule is None:
            body_key = (id(item), 1, 1)
            body = self.counter_rules.get(body_key)
            if body is None:
                if type(item) is ir.Ref:
                    body = self._number(item.name)
                else:
                    body = self._new_rule("repeated item", item)
                self.counter_rules[body_key] = body
            rule = self._new_rule("repetition", ir.EMPTY)
            self.counter_rules[key] = rule
            self.nfa.counters.append(Counter(rule, body, minimum, maximum))
        return rule

    def _bag(self, rule: int, bag: ir.Bag) -> None:
        """Number the rules of a bag, and write states from which the rule's analysis comes out right."""
        owns = sorted({entry.own for entry in bag.entries if entry.own is not None})
        group = {own: number for number, own in enumerate(owns)}
        flags = sorted(bag.required - group.keys())
        if len(flags) > ir.MAX_WANTED:
            raise ConstraintTooComplex(
                f"more than {ir.MAX_WANTED} kinds of members are asked for at one place"
            )
        bit = {flag: 1 << number for number, flag in enumerate(flags)}
        members = []
        for entry in bag.entries:
            whole, rest = entry.item, entry.rest
            if not entry.distinct and rest != ir.EMPTY:
                whole, rest = ir.Sequence((whole, rest)), ir.EMPTY
            members.append(
                Member(
                    self._part(whole),
                    -1 if rest == ir.EMPTY else self._part(rest),
                    -1 if entry.own is None else group[entry.own],
                    sum(bit.get(flag, 0) for flag in entry.flags),
                    entry.distinct,
                    entry.first,
                    -1 if entry.last is None else entry.last,
                )
            )  # fmt: skip
        members.sort(key=lambda member: member.own if member.own >= 0 else len(owns))
        required = frozenset(group[flag] for flag in bag.required if flag in group)
        self.nfa.bags.append(
            BagRule(
                rule, self._part(bag.separator), members, len(owns), required, (1 << len(flags)) - 1,
                bag.minimum, bag.maximum,
            )
        )  # fmt: skip
        write_bag_states(
            self.nfa.bags[-1],
            self.nfa.rule_start[rule],
            self.nfa.rule_accept[rule],
            self.nfa.edges,
            self._state,
        )

    def _part(self, node: ir.Node) -> int:
        """A rule for a part of a bag."""
        if type(node) is ir.Ref:
            return self._number(node.name)
        key = (id(node), 1, 1)
        rule = self.counter_rules.get(key)
        if rule is None:
            rule = self.counter_rules[key] = self._new_rule("member", node)
            self.kept.append(node)
        return rule

    def _graph(self, node: ir.Graph, source: int, target: int, stack: list[tuple[ir.Node, int, int]]) -> None:
        edges = self.nfa.edges
        place: dict[int, int] = {}

        def at(vertex: int) -> int:
            state = place.get(vertex)
            if state is None:
                state = place[vertex] = self._state()
            return state

        edges.extend((source, EPSILON, at(node.start)))
        for first, label, second in node.edges:
            stack.append((label, at(first), at(second)))
        for vertex in node.accepting:
            edges.extend((at(vertex), EPSILON, target))


@lru_cache(maxsize=4096)
def _byte_labels(mask: int) -> tuple[int, ...]:
    """The runs of set bits of a 256-bit mask, as labels."""
    labels = []
    low = 0
    while mask >> low:
        low += ((mask >> low) & -(mask >> low)).bit_length() - 1
        rest = mask >> low
        length = (~rest & (rest + 1)).bit_length() - 1
        labels.append(low | (low + length - 1) << 8)
        low += length
    return tuple(labels)
