"""LALR(1) states of a grammar in plain rules, and what decides their conflicts.

In: productions over symbols that are numbers. Out: the LR(0) states with their transitions, and for each
reduction the lookaheads at which the parser does something else. Lookaheads by DeRemer and Pennello (1982).
Conflicts are decided as Lark decides them: a shift wins over a reduction, the rule with the higher
priority over one with a lower, and two of the same are an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint

MAX_ITEMS = 400_000


@dataclass(frozen=True, slots=True)
class Production:
    """``left`` derives ``right``; symbols below ``Tables.terminals`` are terminals."""

    left: int
    right: tuple[int, ...]
    priority: int = 0


@dataclass(slots=True)
class State:
    """One LR(0) state.

    ``accepts`` is the mask of the terminals that have an action here (the end of the text among them), and
    ``lost[production]`` that of its lookaheads at which another action is taken.
    """

    kernel: tuple[tuple[int, int], ...]
    transitions: dict[int, int] = field(default_factory=dict)
    complete: list[int] = field(default_factory=list)
    accepts: int = 0
    lost: dict[int, int] = field(default_factory=dict)


class Tables:
    """The states for ``productions``, the first of which is ``root: start`` and used nowhere else."""

    def __init__(
        self, productions: Sequence[Production], terminals: int, end: int, names: Sequence[str]
    ) -> None:
        self.productions = productions
        self.terminals = terminals
        self.end = end
        self.names = names
        self.by_left: dict[int, list[int]] = {}
        for number, production in enumerate(productions):
            self.by_left.setdefault(production.left, []).append(number)
        self.nullable = self._nullable()
        self.states: list[State] = []
        self._build()
        self._decide(self._lookaheads())

    def _nullable(self) -> frozenset[int]:
        found: set[int] = set()
        while True:
            more = {p.left for p in self.productions if p.left not in found and found.issuperset(p.right)}
            if not more:
                return frozenset(found)
            found |= more

    def _build(self) -> None:
        first: tuple[tuple[int, int], ...] = ((0, 0),)
        numbers = {first: 0}
        self.states.append(State(first))
        work = 0
        for state in self.states:
            moves: dict[int, list[tuple[int, int]]] = {}
            todo = list(state.kernel)
            entered: set[int] = set()
            for number, dot in todo:
                work += 1
                right = self.productions[number].right
                if dot == len(right):
                    state.complete.append(number)
                    continue
                symbol = right[dot]
                moves.setdefault(symbol, []).append((number, dot + 1))
                if symbol >= self.terminals and symbol not in entered:
                    entered.add(symbol)
                    todo.extend((other, 0) for other in self.by_left[symbol])
            if work > MAX_ITEMS:
                raise ConstraintTooComplex(
                    f"the LALR parser of this grammar has more than {MAX_ITEMS:,} items; make it smaller"
                )
            for symbol, items in moves.items():
                kernel = tuple(sorted(items))
                target = numbers.get(kernel)
                if target is None:
                    target = numbers[kernel] = len(self.states)
                    self.states.append(State(kernel))
                state.transitions[symbol] = target

    def _lookaheads(self) -> dict[tuple[int, int], int]:
        """The mask of lookaheads of each (state, complete production)."""
        sets: dict[tuple[int, int], int] = {}
        reads: dict[tuple[int, int], list[tuple[int, int]]] = {}
        includes: dict[tuple[int, int], list[tuple[int, int]]] = {}
        lookback: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for number, state in enumerate(self.states):
            for symbol, target in state.transitions.items():
                if symbol < self.terminals:
                    continue
                here = (number, symbol)
                mask = 1 << self.end if number == 0 and symbol == self.productions[0].right[0] else 0
                for later in self.states[target].transitions:
                    if later < self.terminals:
                        mask |= 1 << later
                    elif later in self.nullable:
                        reads.setdefault(here, []).append((target, later))
                sets[here] = mask
                for production in self.by_left[symbol]:
                    place = number
                    right = self.productions[production].right
                    rest = len(right)
                    while rest and right[rest - 1] in self.nullable:
                        rest -= 1
                    for index, item in enumerate(right):
                        if item >= self.terminals and index + 1 >= rest:
                            includes.setdefault((place, item), []).append(here)
                        place = self.states[place].transitions[item]
                    lookback.setdefault((place, production), []).append(here)
        _spread(sets, reads)
        _spread(sets, includes)
        found = {}
        for key, sources in lookback.items():
            mask = 0
            for source in sources:
                mask |= sets[source]
            found[key] = mask
        return found

    def _decide(self, lookaheads: dict[tuple[int, int], int]) -> None:
        for number, state in enumerate(self.states):
            shifts = 0
            for symbol in state.transitions:
                if symbol < self.terminals:
                    shifts |= 1 << symbol
            state.accepts = shifts
            rivals = [production for production in state.complete if production]
            for production in rivals:
                mine = lookaheads.get((number, production), 0)
                state.accepts |= mine
                state.lost[production] = mine & shifts
            if len(rivals) > 1:
                self._rank(state, {rival: lookaheads.get((number, rival), 0) for rival in rivals})

    def _rank(self, state: State, lookaheads: dict[int, int]) -> None:
        """Decide between reductions: at each lookahead the one with the highest priority."""
        seen = several = 0
        for mask in lookaheads.values():
            several |= seen & mask
            seen |= mask
        while several:
            bit = several & -several
            several ^= bit
            ranked = sorted(
                (number for number, mask in lookaheads.items() if mask & bit),
                key=lambda number: -self.productions[number].priority,
            )
            if self.productions[ranked[0]].priority == self.productions[ranked[1]].priority:
                self._collision(ranked[0], ranked[1], bit)
            for number in ranked[1:]:
                state.lost[number] |= bit

    def _collision(self, one: int, other: int, bit: int) -> None:
        terminal = self.names[bit.bit_length() - 1]
        rules = " and ".join(sorted(self.shown(number) for number in (one, other)))
        raise InvalidConstraint(
            f"not LALR(1): before {terminal} the parser cannot tell {rules} apart (a reduce/reduce conflict);"
            " give one rule a priority, or use Lark's Earley parser (parser='earley')"
        )

    def shown(self, number: int) -> str:
        """A production in Lark's way of writing."""
        production = self.productions[number]
        return f"{self.names[production.left]}: {' '.join(self.names[item] for item in production.right)}"


def _spread(sets: dict[tuple[int, int], int], edges: dict[tuple[int, int], list[tuple[int, int]]]) -> None:
    """Grow every set by those it has edges to, until nothing changes."""
    back: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for source, targets in edges.items():
        for target in targets:
            back.setdefault(target, []).append(source)
    todo = list(back)
    waiting = set(todo)
    while todo:
        target = todo.pop()
        waiting.discard(target)
        for source in back.get(target, ()):
            grown = sets[source] | sets[target]
            if grown != sets[source]:
                sets[source] = grown
                if source not in waiting:
                    waiting.add(source)
                    todo.append(source)
