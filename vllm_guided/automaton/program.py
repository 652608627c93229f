"""The bodies of a grammar's rules as one list of numbers, in prefix order, for compiled code to walk.

Each node is its kind, its own numbers, and then its parts one after the other:

======== ==================================================================================
LITERAL  first byte in ``blob``, number of bytes
SEQUENCE number of parts
CHOICE   number of parts
REPEAT   least and most times (-1: any number); one part
SET      number of a set of bytes or of code points, or of a graph over bytes (``set_offsets``)
REF      rule that may be written in place of its call
CALLED   rule that is always called
SYMBOL   number of a special token
GRAPH    number of edges, vertices, start, number of accepting vertices, number of labels, the
         accepting vertices, and source, label and target of each edge; one part for each label
======== ==================================================================================

A bag becomes a rule whose program is a graph that is not the bag, but nullable, productive and calling
from the left as the bag is: only the analysis of the rules looks at it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from struct import pack

import numpy as np
import numpy.typing as npt

from vllm_guided.automaton.bag_rules import BagRule, Member, PlainBag
from vllm_guided.automaton.fragments import Fragment
from vllm_guided.automaton.ready_rules import write_json_rule
from vllm_guided.automaton.utf8 import utf8_fragment
from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint
from vllm_guided.grammar import ir
from vllm_guided.grammar.json_rules import JSON_RULES

LITERAL, SEQUENCE, CHOICE, REPEAT, SET, REF, CALLED, SYMBOL, GRAPH = range(9)

#: Outputs never get this long, so a larger maximum is no limit and a larger minimum is unreachable.
COUNT_LIMIT = 1 << 26
#: No constraint may have more nodes than about this, written out as a tree.
PROGRAM_LIMIT = 20_000_000

Ints = npt.NDArray[np.int32]
_SetKey = int | tuple[tuple[int, int], ...] | ir.ByteGraph


@dataclass(slots=True)
class Program:
    """The rules that ``grammar.start`` needs, in the order in which they are met; rule 0 is the start.

    Attributes:
        ops: the program of rule ``r`` begins at ``begins[r]``; -1 for rules that are compiled already.
        set_offsets: set ``c`` has ``set_inner[c]`` inner states and the edges
            ``set_edges[set_offsets[c]:set_offsets[c + 1]]`` (see ``utf8_fragment``).
        shared: rules that are never written in place of a call.
        plain: rules whose program holds neither bags nor special tokens.
        refs: of each shared rule with a program, the rules it refers to.
        compiled: of each rule that is compiled already, what it is.
        ready: where ``ready_ops`` describes each of the rules that need no construction (``ready.py``); -1
            for bags among them.
        needed: the rules that those refer to.
    """

    names: list[str] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    shared: list[bool] = field(default_factory=list)
    plain: list[bool] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)
    blob: bytearray = field(default_factory=bytearray)
    set_offsets: list[int] = field(default_factory=lambda: [0])
    set_inner: list[int] = field(default_factory=list)
    set_edges: array[int] = field(default_factory=lambda: array("i"))
    bags: list[BagRule | PlainBag] = field(default_factory=list)
    symbols: list[ir.SpecialToken] = field(default_factory=list)
    refs: dict[int, list[int]] = field(default_factory=dict)
    compiled: dict[int, Fragment] = field(default_factory=dict)
    ready: dict[int, int] = field(default_factory=dict)
    ready_ops: list[int] = field(default_factory=list)
    needed: list[int] = field(default_factory=list)

    def ready_array(self) -> Ints:
        """``ready_ops`` as an array."""
        return as_array(self.ready_ops)

    def length(self, rule: int) -> int:
        """How many numbers the rule's program has."""
        return (
            next((begin for begin in self.begins[rule + 1 :] if begin >= 0), len(self.ops))
            - self.begins[rule]
        )


def as_array(numbers: list[int]) -> Ints:
    """A long list of numbers as an array, in the fastest way there is."""
    return np.frombuffer(bytearray(pack(f"={len(numbers)}i", *numbers)), np.int32)


def write_program(
    grammar: ir.Grammar, compiled: Callable[[str], Fragment | None] = lambda _: None
) -> Program:
    """The program of ``grammar``.

    Args:
        compiled: what is known already of a shared rule; such a rule has no program.

    Raises:
        InvalidConstraint: a Ref names no rule.
        ConstraintTooComplex: a bag asks for too much, or more than ``PROGRAM_LIMIT`` numbers.
    """
    return _Writer(grammar, compiled).write()


class _Writer:
    def __init__(self, grammar: ir.Grammar, compiled: Callable[[str], Fragment | None]) -> None:
        self.rules = grammar.rules
        self.start = grammar.start
        self.compiled = compiled
        self.program = Program()
        self.number_of: dict[str, int] = {}
        self.pending: list[tuple[int, ir.Node]] = []
        self.set_number: dict[_SetKey, int] = {}
        self.symbol_number: dict[ir.SpecialToken, int] = {}
        # Rules, and programs, of nodes by identity; the nodes are kept alive.
        self.part_rules: dict[int, int] = {}
        self.repeated_refs: dict[int, tuple[int, ...]] = {}
        self.kept: list[ir.Node] = []

    def write(self) -> Program:
        program = self.program
        self._new_rule(self.start, self._body(self.start).body, True)
        self.number_of[self.start] = 0
        for rule, body in self.pending:  # grows while it is read
            if type(body) in JSON_RULES:
                write_json_rule(program, rule, body, self._number)  # type: ignore[arg-type]
                continue
            program.begins[rule] = len(program.ops)
            if type(body) is ir.Bag:
                self._bag(rule, body)
                # Its program is not what it is.
                program.plain[rule], program.shared[rule] = False, True
            else:
                self._write(rule, body)
        return program

    def _body(self, name: str) -> ir.Rule:
        rule = self.rules.get(name)
        if rule is None:
            raise InvalidConstraint(f"rule {name!r} is used but not defined")
        return rule

    def _number(self, name: str) -> int:
        number = self.number_of.get(name)
        if number is None:
            rule = self._body(name)
            known = self.compiled(name) if rule.shared else None
            number = self.number_of[name] = self._new_rule(name, rule.body, rule.shared, known)
            if rule.shared and known is None:
                self.program.refs[number] = []
        return number

    def _new_rule(self, name: str, body: ir.Node, shared: bool, known: Fragment | None = None) -> int:
        program = self.program
        number = len(program.names)
        program.names.append(name)
        program.begins.append(-1)
        program.shared.append(shared)
        program.plain.append(True)
        if known is None:
            self.pending.append((number, body))
        else:
            program.compiled[number] = known
        return number

    def _write(self, rule: int, body: ir.Node) -> None:
        program, number_of = self.program, self.number_of
        blob, ops = program.blob, program.ops
        refs: list[int] = program.refs.get(rule, [])
        stack = [body]
        pop = stack.pop
        while stack:
            node = pop()
            kind = type(node)
            if kind is ir.Literal:
                data = node.data  # type: ignore[union-attr]
                ops += (LITERAL, len(blob), len(data))
                blob += data
            elif kind is ir.Sequence:
                items = node.items  # type: ignore[union-attr]
                ops += (SEQUENCE, len(items))
                stack += items[::-1]
            elif kind is ir.Ref:
                name = node.name  # type: ignore[union-attr]
                number = number_of.get(name)
                if number is None:
                    number = self._number(name)
                ops += (REF, number)
                refs.append(number)
            elif kind is ir.Choice:
                options = node.options  # type: ignore[union-attr]
                ops += (CHOICE, len(options))
                stack += options[::-1]
            elif kind is ir.ByteSet:
                mask = node.mask  # type: ignore[union-attr]
                number = self.set_number.get(mask)
                ops += (SET, self._set(mask, byte_fragment(mask)) if number is None else number)
            elif kind is ir.Repeat:
                known = self.repeated_refs.get(id(node))
                if known is not None:
                    ops += known
                    refs.append(known[-1])
                else:
                    self._repeat(node, ops, stack)  # type: ignore[arg-type]
            elif kind is ir.CharSet:
                ranges = node.ranges  # type: ignore[union-attr]
                number = self.set_number.get(ranges)
                ops += (SET, self._set(ranges, utf8_fragment(ranges)) if number is None else number)
            elif kind is ir.Graph:
                stack += _graph(node, ops)[::-1]  # type: ignore[arg-type]
            elif kind is ir.ByteGraph:
                number = self.set_number.get(node)  # type: ignore[call-overload]
                ops += (SET, self._byte_graph(node) if number is None else number)  # type: ignore[arg-type]
            elif kind is ir.Bag:
                ops += (CALLED, self._part(node, "members"))
                program.plain[rule] = False
            elif kind is ir.SpecialToken:
                symbol = self.symbol_number.get(node)  # type: ignore[arg-type]
                if symbol is None:
                    symbol = self.symbol_number[node] = len(program.symbols)  # type: ignore[index]
                    program.symbols.append(node)  # type: ignore[arg-type]
                ops += (SYMBOL, symbol)
                program.plain[rule] = False
            else:
                raise TypeError(f"not an IR node: {node!r}")
            if len(ops) > PROGRAM_LIMIT:
                raise ConstraintTooComplex(
                    "the constraint is too large; make its rules or alternatives fewer"
                )

    def _repeat(self, node: ir.Repeat, ops: list[int], stack: list[ir.Node]) -> None:
        minimum, maximum = node.minimum, node.maximum
        if maximum is None or maximum >= COUNT_LIMIT:
            maximum = -1
        elif maximum < minimum or maximum < 0:
            ops += (CHOICE, 0)
            return
        elif maximum == 0:
            ops += (SEQUENCE, 0)
            return
        item = node.item
        ops += (REPEAT, min(minimum, COUNT_LIMIT), maximum)
        stack.append(item)
        if type(item) is ir.Ref:
            # The same node stands in many places: blanks between tokens.
            self.repeated_refs[id(node)] = (*ops[-3:], REF, self._number(item.name))
            self.kept.append(node)

    def _byte_graph(self, graph: ir.ByteGraph) -> int:
        return self._set(graph, (graph.vertices - 2, array("i", graph.moves)))

    def _set(self, key: _SetKey, fragment: tuple[int, Iterable[int]]) -> int:
        program = self.program
        number = self.set_number[key] = len(program.set_inner)
        inner, edges = fragment
        program.set_inner.append(inner)
        program.set_edges.extend(edges)
        program.set_offsets.append(len(program.set_edges))
        return number

    def _part(self, node: ir.Node, name: str) -> int:
        """A rule for a bag, or for a part of one."""
        if type(node) is ir.Ref:
            return self._number(node.name)
        rule = self.part_rules.get(id(node))
        if rule is None:
            rule = self.part_rules[id(node)] = self._new_rule(name, node, True)
            self.kept.append(node)
        return rule

    def _bag(self, rule: int, bag: ir.Bag) -> None:
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
                    self._part(whole, "member"),
                    -1 if rest == ir.EMPTY else self._part(rest, "member"),
                    -1 if entry.own is None else group[entry.own],
                    sum(bit.get(flag, 0) for flag in entry.flags),
                    entry.distinct,
                    entry.first,
                    -1 if entry.last is None else entry.last,
                )
            )  # fmt: skip
        members.sort(key=lambda member: member.own if member.own >= 0 else len(owns))
        required = frozenset(group[flag] for flag in bag.required if flag in group)
        found = BagRule(
            rule, self._part(bag.separator, "member"), members, len(owns), required, (1 << len(flags)) - 1,
            bag.minimum, bag.maximum,
        )  # fmt: skip
        self.program.bags.append(found)
        self.program.ops += _bag_graph(found)


def _graph(graph: ir.Graph, ops: list[int]) -> list[ir.Node]:
    """Write the graph without its labels; the labels, each once as an object."""
    if not graph.edges:
        ops += (GRAPH, 0, 1, 0, 1, 0, 0) if graph.start in graph.accepting else (CHOICE, 0)
        return []
    sources, labels, targets = zip(*graph.edges, strict=True)
    start, accepting = graph.start, sorted(graph.accepting)
    vertices = max(max(sources), max(targets), start, *accepting[-1:]) + 1
    if vertices > 4 * len(labels) + 16 or min(min(sources), min(targets), start, *accepting[:1]) < 0:
        place: dict[int, int] = {}
        sources = tuple([place.setdefault(vertex, len(place)) for vertex in sources])
        targets = tuple([place.setdefault(vertex, len(place)) for vertex in targets])
        accepting = [place.setdefault(vertex, len(place)) for vertex in accepting]
        start = place.setdefault(start, len(place))
        vertices = len(place)
    identities = list(map(id, labels))
    parts = dict(zip(identities, labels, strict=True))  # each once, in the order in which they are met
    number = dict(zip(parts, range(len(parts)), strict=True))
    ops += (GRAPH, len(labels), vertices, start, len(accepting), len(parts), *accepting)
    numbers = [number[each] for each in identities]
    ops += chain.from_iterable(zip(sources, numbers, targets, strict=True))
    return list(parts.values())


def _bag_graph(bag: BagRule) -> list[int]:
    """A graph that is nullable, productive and calls from the left as the bag is."""
    start, here, vertices = 0, 1, 2
    edges: list[int] = []
    labels: list[int] = []
    number: dict[tuple[int, int], int] = {}

    def member(source: int, rule: int, rest: int, target: int) -> None:
        label = number.get((rule, rest))
        if label is None:
            label = number[rule, rest] = len(number)
            labels.extend((SEQUENCE, 2, CALLED, rule, CALLED, rest) if rest >= 0 else (CALLED, rule))
        edges.extend((source, label, target))

    for each in bag.members:
        member(start, each.rule, each.rest, here)
    member(here, bag.separator, -1, start)
    asked = [[each for each in bag.members if each.own == own] for own in sorted(bag.required)]
    asked += [
        [each for each in bag.members if each.wanted >> flag & 1] for flag in range(bag.wanted.bit_length())
    ]
    for able in asked:
        there, vertices = vertices, vertices + 1
        for each in able:
            member(here, each.rule, each.rest, there)
        here = there
    accepting = [here]
    if bag.minimum == 0 and not bag.required and not bag.wanted:
        accepting.append(start)
    header = (GRAPH, len(edges) // 3, vertices, start, len(accepting), len(number))
    return [*header, *accepting, *edges, *labels]


@lru_cache(maxsize=4096)
def byte_fragment(mask: int) -> tuple[int, tuple[int, ...]]:
    """One byte of a 256-bit mask, as ``utf8_fragment`` returns it: an edge for each run of bits."""
    edges: list[int] = []
    low = 0
    while mask >> low:
        low += ((mask >> low) & -(mask >> low)).bit_length() - 1
        rest = mask >> low
        length = (~rest & (rest + 1)).bit_length() - 1
        edges += (0, low | (low + length - 1) << 8, 1)
        low += length
    return 0, tuple(edges)
