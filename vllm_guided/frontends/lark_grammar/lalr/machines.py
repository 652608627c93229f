"""One terminal as one lexer of Lark's matches it: an automaton that knows where the token may end.

In: the scanner and the terminals that take part, in the lexer's order. Out: a minimal automaton over bytes;
each state lists the watches with which a token of the wanted terminal may end there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.lark_grammar.lalr.scanner import Before, Place, Scanner
from vllm_guided.frontends.lark_grammar.lalr.watches import Watches
from vllm_guided.frontends.regular import Dfa

MAX_STATES = 6_000

#: Pairs of a word's index and the state of its automaton.
Words = frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Machine:
    """State 0 is the start. ``ends`` per state: the watches with which the token may end there."""

    edges: tuple[tuple[tuple[int, int], ...], ...]
    ends: tuple[tuple[int, ...], ...]

    def first_bytes(self) -> int:
        """The mask of the bytes a token can begin with."""
        whole = 0
        for mask, _ in self.edges[0]:
            whole |= mask
        return whole


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which ends count: those of ``plain`` terminals that are none of their words, or one of ``words``.

    ``words`` are the texts that Lark gives another type, in its order, as automata: ``chosen[end]`` is None
    where the text has to be no word of ``listed[end]``, or the word that it has to be.
    """

    automata: tuple[Dfa, ...]
    listed: dict[int, tuple[int, ...]]
    chosen: dict[int, int | None]

    def start(self) -> Words:
        """The words before the first byte."""
        return frozenset((index, 0) for index in range(len(self.automata)))

    def step(self, words: Words, byte: int) -> Words:
        """The words that the text can still be."""
        out = set()
        for index, state in words:
            after = self.automata[index].step(state, byte)
            if after is not None:
                out.add((index, after))
        return frozenset(out)

    def counts(self, end: int, words: Words) -> bool:
        """Whether the text read, whose terminal is through at ``end``, is what is wanted."""
        if end not in self.chosen:
            return False
        complete = {index for index, state in words if state in self.automata[index].accepting}
        first = next((index for index in self.listed[end] if index in complete), None)
        return first == self.chosen[end]


def build(
    scanner: Scanner,
    watches: Watches,
    instructions: Sequence[int],
    wanted: Wanted,
    before: Before = "unknown",
) -> Machine:
    """The automaton of the tokens ``wanted`` among the terminals that begin at ``instructions``.

    ``before`` is what is known of the text before them.
    """
    first = (scanner.start(tuple(instructions), before), wanted.start())
    numbers: dict[tuple[Place, Words], int] = {first: 0}
    order = [first]
    edges: list[list[tuple[int, int]]] = []
    ends: list[tuple[int, ...]] = []
    masks = {mask for automaton in wanted.automata for row in automaton.edges for mask, _ in row}
    for place, words in order:
        ends.append(_ends(scanner, watches, place, words, wanted))
        found: dict[int, int] = {}
        for mask, later in scanner.moves(place):
            for part in _cut(mask, masks) if words else (mask,):
                byte = (part & -part).bit_length() - 1
                after = (later, wanted.step(words, byte))
                number = numbers.get(after)
                if number is None:
                    number = numbers[after] = len(order)
                    if number >= MAX_STATES:
                        raise ConstraintTooComplex(
                            f"with parser='lalr', a terminal needs more than {MAX_STATES:,} states beside"
                            " those it competes with; make it simpler"
                        )
                    order.append(after)
                found[number] = found.get(number, 0) | part
        edges.append([(mask, target) for target, mask in found.items()])
    return _minimal(edges, ends)


def _cut(mask: int, masks: set[int]) -> list[int]:
    parts = [mask]
    for other in masks:
        parts = [p for part in parts for p in (part & other, part & ~other) if p]
    return parts


def _ends(scanner: Scanner, watches: Watches, place: Place, words: Words, wanted: Wanted) -> tuple[int, ...]:
    found = set()
    for index, (number, conditions) in enumerate(place.threads):
        if number in scanner.ends and wanted.counts(number, words):
            before = scanner.relevant(Place(place.threads[:index], place.past, place.scanner))
            found.add(watches.of((before, conditions), scanner.watched))
    return tuple(sorted(found))


def _minimal(edges: list[list[tuple[int, int]]], ends: list[tuple[int, ...]]) -> Machine:
    """Without states from which no token ends, equal states (Moore) as one."""
    back: list[list[int]] = [[] for _ in edges]
    for source, row in enumerate(edges):
        for _, target in row:
            back[target].append(source)
    alive = {state for state, found in enumerate(ends) if found}
    todo = list(alive)
    while todo:
        for source in back[todo.pop()]:
            if source not in alive:
                alive.add(source)
                todo.append(source)
    if 0 not in alive:
        return Machine(((),), ((),))
    kept = [[(mask, target) for mask, target in row if target in alive] for row in edges]
    names: dict[object, int] = {}
    classes = {state: names.setdefault(ends[state], len(names)) for state in sorted(alive)}
    while True:
        count = len(names)
        names = {}
        classes = {
            state: names.setdefault((classes[state], _row(kept[state], classes)), len(names))
            for state in sorted(alive)
        }
        if len(names) == count:
            break
    member: dict[int, int] = {}
    for state in sorted(alive):
        member.setdefault(classes[state], state)
    order = [classes[0]]
    numbers = {classes[0]: 0}
    rows: list[tuple[tuple[int, int], ...]] = []
    for block in order:
        edges_ = _row(kept[member[block]], classes)
        for _, target in edges_:
            if target not in numbers:
                numbers[target] = len(order)
                order.append(target)
        rows.append(tuple((mask, numbers[target]) for mask, target in edges_))
    return Machine(tuple(rows), tuple(ends[member[block]] for block in order))


def _row(edges: list[tuple[int, int]], classes: dict[int, int]) -> tuple[tuple[int, int], ...]:
    grouped: dict[int, int] = {}
    for mask, target in edges:
        grouped[classes[target]] = grouped.get(classes[target], 0) | mask
    return tuple(sorted(((mask, block) for block, mask in grouped.items()), key=lambda e: e[0] & -e[0]))
