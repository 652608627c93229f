"""Regular languages as small byte automata: what expressions alone cannot say.

In: an :mod:`~vllm_guided.grammar.ir` node without references, special tokens or bags. Out: a deterministic
automaton (Thompson's construction, then Rabin and Scott's subsets), which can be intersected, subtracted,
cut at its first match, and turned back into a node. Grammar languages need this where they speak of
complements, shortest matches and longest matches; sizes are bounded, so that no request can starve others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.utf8 import utf8_sequences
from vllm_guided.grammar import ir

MAX_NFA_STATES = 60_000
MAX_DFA_STATES = 6_000
MAX_BOUNDED_STATES = 40_000  # of a terminal whose bytes are counted: less than a second's work

_FULL = (1 << 256) - 1


@dataclass(frozen=True, slots=True)
class Dfa:
    """A deterministic automaton over bytes; state 0 is the start.

    ``edges[state]`` holds ``(bytes as a 256-bit mask, target)`` with disjoint masks; a byte in none of
    them is refused.
    """

    edges: tuple[tuple[tuple[int, int], ...], ...]
    accepting: frozenset[int]

    def step(self, state: int, byte: int) -> int | None:
        """The state after ``byte``, or None."""
        for mask, target in self.edges[state]:
            if mask >> byte & 1:
                return target
        return None

    def first_bytes(self) -> int:
        """The mask of bytes a non-empty member can begin with (the automaton must be trimmed)."""
        mask = 0
        for label, _ in self.edges[0]:
            mask |= label
        return mask


TEXT_NODE = ir.star(ir.ANY_CHAR)


class _Nfa:
    """Thompson's automaton under construction: states are numbers, one entry and one exit per node."""

    def __init__(self) -> None:
        self.epsilon: list[list[int]] = []
        self.edges: list[list[tuple[int, int]]] = []

    def state(self) -> int:
        if len(self.edges) >= MAX_NFA_STATES:
            raise ConstraintTooComplex(
                f"a terminal needs more than {MAX_NFA_STATES} automaton states; use smaller repetition counts"
            )
        self.epsilon.append([])
        self.edges.append([])
        return len(self.edges) - 1

    def path(self, source: int, masks: Iterable[int], target: int) -> None:
        masks = list(masks)
        for mask in masks[:-1]:
            middle = self.state()
            self.edges[source].append((mask, middle))
            source = middle
        self.edges[source].append((masks[-1], target))

    def add(self, node: ir.Node, source: int, target: int) -> None:
        match node:
            case ir.Literal(data):
                if data:
                    self.path(source, (1 << byte for byte in data), target)
                else:
                    self.epsilon[source].append(target)
            case ir.ByteSet(mask):
                self.edges[source].append((mask, target))
            case ir.CharSet(ranges):
                for low, high in ranges:
                    for sequence in utf8_sequences(low, high):
                        self.path(source, ((2 << b) - (1 << a) for a, b in sequence), target)
            case ir.Sequence(items):
                for item in items[:-1]:
                    middle = self.state()
                    self.add(item, source, middle)
                    source = middle
                if items:
                    self.add(items[-1], source, target)
                else:
                    self.epsilon[source].append(target)
            case ir.Choice(options):
                for option in options:
                    self.add(option, source, target)
            case ir.Repeat(item, minimum, maximum):
                self.repeat(item, minimum, maximum, source, target)
            case ir.Graph(edges, accepting, start):
                names: dict[int, int] = {}
                for left, _, right in edges:
                    for name in (left, right):
                        if name not in names:
                            names[name] = self.state()
                if start not in names:
                    names[start] = self.state()
                self.epsilon[source].append(names[start])
                for left, label, right in edges:
                    self.add(label, names[left], names[right])
                for name in accepting:
                    if name in names:
                        self.epsilon[names[name]].append(target)
            case _:
                raise TypeError(f"not a regular node: {type(node).__name__}")

    def repeat(self, item: ir.Node, minimum: int, maximum: int | None, source: int, target: int) -> None:
        for _ in range(minimum):
            middle = self.state()
            self.add(item, source, middle)
            source = middle
        if maximum is None:
            loop = self.state()
            self.epsilon[source].append(loop)
            after = self.state()
            self.add(item, loop, after)
            self.epsilon[after].append(loop)
            self.epsilon[loop].append(target)
            return
        for _ in range(maximum - minimum):
            self.epsilon[source].append(target)
            middle = self.state()
            self.add(item, source, middle)
            source = middle
        self.epsilon[source].append(target)

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        seen = set(states)
        stack = list(seen)
        while stack:
            for target in self.epsilon[stack.pop()]:
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
        return frozenset(seen)


def is_regular(node: ir.Node) -> bool:
    """Whether ``node`` has no reference, no special token and no bag in it."""
    match node:
        case ir.Ref() | ir.SpecialToken() | ir.Bag():
            return False
        case ir.Sequence(items):
            return all(is_regular(item) for item in items)
        case ir.Choice(options):
            return all(is_regular(option) for option in options)
        case ir.Repeat(item):
            return is_regular(item)
        case ir.Graph(edges):
            return all(is_regular(label) for _, label, _ in edges)
        case _:
            return True


def _split(edges: Iterable[tuple[int, int]]) -> list[tuple[int, frozenset[int]]]:
    """Disjoint byte masks with the NFA states each leads to."""
    by_mask: dict[int, set[int]] = {}
    for mask, target in edges:
        by_mask.setdefault(mask, set()).add(target)
    parts: list[tuple[int, frozenset[int]]] = [(_FULL, frozenset())]
    for mask, targets in by_mask.items():
        split: list[tuple[int, frozenset[int]]] = []
        for part, reached in parts:
            inside = part & mask
            if inside:
                split.append((inside, reached | targets))
            if part & ~mask:
                split.append((part & ~mask, reached))
        parts = split
    return [(mask, reached) for mask, reached in parts if reached]


def dfa(node: ir.Node) -> Dfa:
    """The trimmed automaton of a regular ``node``.

    Raises:
        ConstraintTooComplex: more than ``MAX_DFA_STATES`` states.
    """
    nfa = _Nfa()
    start, end = nfa.state(), nfa.state()
    nfa.add(node, start, end)
    closures: dict[int, frozenset[int]] = {}
    first = nfa.closure([start])
    numbers = {first: 0}
    order = [first]
    edges: list[tuple[tuple[int, int], ...]] = []
    for states in order:
        found: dict[int, int] = {}
        for mask, targets in _split(edge for state in states for edge in nfa.edges[state]):
            reached: frozenset[int] = frozenset()
            for target in targets:
                if target not in closures:
                    closures[target] = nfa.closure([target])
                reached |= closures[target]
            number = numbers.get(reached)
            if number is None:
                number = numbers[reached] = len(order)
                if number >= MAX_DFA_STATES:
                    raise ConstraintTooComplex(
                        f"a terminal needs more than {MAX_DFA_STATES} automaton states; simplify it"
                    )
                order.append(reached)
            found[number] = found.get(number, 0) | mask
        edges.append(tuple((mask, target) for target, mask in found.items()))
    return _trimmed(edges, {number for states, number in numbers.items() if end in states})


def _trimmed(edges: list[tuple[tuple[int, int], ...]], accepting: Iterable[int]) -> Dfa:
    """Without the states that cannot be reached or cannot reach acceptance; the start stays 0."""
    accepting = set(accepting)
    reachable = {0}
    stack = [0]
    back: dict[int, list[int]] = {}
    while stack:
        state = stack.pop()
        for _, target in edges[state]:
            back.setdefault(target, []).append(state)
            if target not in reachable:
                reachable.add(target)
                stack.append(target)
    alive = accepting & reachable
    stack = list(alive)
    while stack:
        for source in back.get(stack.pop(), ()):
            if source not in alive:
                alive.add(source)
                stack.append(source)
    names = {0: 0}
    for state in sorted(alive):
        names.setdefault(state, len(names))
    kept: list[tuple[tuple[int, int], ...]] = [()] * len(names)
    for state, name in names.items():
        if state in alive:
            kept[name] = tuple((mask, names[target]) for mask, target in edges[state] if target in alive)
    return Dfa(tuple(kept), frozenset(names[state] for state in accepting & alive))


def at_most(automaton: Dfa, length: int) -> Dfa:
    """The members of at most so many bytes.

    Raises:
        ConstraintTooComplex: more than ``MAX_BOUNDED_STATES`` states.
    """
    return _counted(automaton, length, _FULL, "bytes")


def characters_at_most(automaton: Dfa, length: int) -> Dfa:
    """The members of at most so many characters: bytes that continue one do not count."""
    return _counted(automaton, length, _FULL & ~_CONTINUING, "characters")


_CONTINUING = sum(1 << byte for byte in range(0x80, 0xC0))


def _counted(automaton: Dfa, length: int, counted: int, what: str) -> Dfa:
    """Pairs of a state and how many ``counted`` bytes were read, as far as an end can be reached in time."""
    edges = [
        tuple(
            (part, target, cost)
            for mask, target in row
            for part, cost in ((mask & counted, 1), (mask & ~counted, 0))
            if part
        )
        for row in automaton.edges
    ]
    left = _distances(edges, automaton.accepting)
    if not 0 <= left[0] <= length:
        return Dfa(((),), frozenset())
    pairs = [(0, 0)]
    numbers = {(0, 0): 0}
    rows: list[tuple[tuple[int, int], ...]] = []
    for state, count in pairs:
        found: dict[int, int] = {}
        for mask, target, cost in edges[state]:
            if 0 <= left[target] <= length - count - cost:
                pair = (target, count + cost)
                if pair not in numbers:
                    if len(pairs) >= MAX_BOUNDED_STATES:
                        raise ConstraintTooComplex(
                            f"{length:,} {what} of a terminal need more than {MAX_BOUNDED_STATES:,} automaton"
                            " states; take fewer, or a simpler terminal"
                        )
                    numbers[pair] = len(pairs)
                    pairs.append(pair)
                number = numbers[pair]
                found[number] = found.get(number, 0) | mask
        rows.append(tuple((mask, target) for target, mask in found.items()))
    return Dfa(tuple(rows), frozenset(numbers[pair] for pair in pairs if pair[0] in automaton.accepting))


def _distances(edges: list[tuple[tuple[int, int, int], ...]], accepting: Iterable[int]) -> list[int]:
    """The least cost from each state to acceptance, -1 where there is no way; costs are 0 and 1."""
    back: list[list[tuple[int, int]]] = [[] for _ in edges]
    for state, row in enumerate(edges):
        for _, target, cost in row:
            back[target].append((state, cost))
    left = [-1] * len(edges)
    queue = deque((state, 0) for state in accepting)
    while queue:
        state, distance = queue.popleft()
        if left[state] >= 0:
            continue
        left[state] = distance
        for source, cost in back[state]:
            if left[source] < 0:
                if cost:
                    queue.append((source, distance + 1))
                else:
                    queue.appendleft((source, distance))
    return left


def _product(left: Dfa, right: Dfa, *, keep_left: bool) -> Dfa:
    """Pairs of states; with ``keep_left`` the right side may have died (-1), for a difference."""
    numbers = {(0, 0): 0}
    order = [(0, 0)]
    edges: list[tuple[tuple[int, int], ...]] = []
    for a, b in order:
        found: dict[int, int] = {}
        for mask, target in left.edges[a]:
            rest = mask
            pairs: list[tuple[int, int]] = []
            for other, partner in right.edges[b] if b >= 0 else ():
                if mask & other:
                    pairs.append((mask & other, partner))
                    rest &= ~other
            if rest and keep_left:
                pairs.append((rest, -1))
            for common, partner in pairs:
                key = (target, partner)
                number = numbers.get(key)
                if number is None:
                    number = numbers[key] = len(order)
                    if number >= MAX_DFA_STATES:
                        raise ConstraintTooComplex(
                            f"a terminal needs more than {MAX_DFA_STATES} automaton states; simplify it"
                        )
                    order.append(key)
                found[number] = found.get(number, 0) | common
        edges.append(tuple((mask, target) for target, mask in found.items()))
    if keep_left:
        accepting = {n for (a, b), n in numbers.items() if a in left.accepting and b not in right.accepting}
    else:
        accepting = {n for (a, b), n in numbers.items() if a in left.accepting and b in right.accepting}
    return _trimmed(edges, accepting)


def intersection(left: Dfa, right: Dfa) -> Dfa:
    """Strings of both."""
    return _product(left, right, keep_left=False)


def difference(left: Dfa, right: Dfa) -> Dfa:
    """Strings of ``left`` that are not in ``right``."""
    return _product(left, right, keep_left=True)


def shortest(automaton: Dfa) -> Dfa:
    """The members no proper prefix of which is a member: what stops at its first match."""
    edges = [() if state in automaton.accepting else e for state, e in enumerate(automaton.edges)]
    return _trimmed(edges, automaton.accepting)


def ending_before(automaton: Dfa, others: list[Dfa], following: int) -> Dfa:
    """The members that a byte of ``following`` ends for good.

    A member stays if there is such a byte that can lengthen neither it nor what the ``others`` have read by
    then: the longest match of all of them, read side by side.
    """
    start = (0, *(0 for _ in others))
    numbers = {start: 0}
    order = [start]
    edges: list[tuple[tuple[int, int], ...]] = []
    accepting: set[int] = set()
    for states in order:
        rows = [automaton.edges[states[0]]]
        for other, state in zip(others, states[1:], strict=True):
            rows.append(other.edges[state] if state >= 0 else ())
        live = 0
        for row in rows:
            for mask, _ in row:
                live |= mask
        if states[0] in automaton.accepting and following & ~live:
            accepting.add(numbers[states])
        found: dict[int, int] = {}
        parts: list[tuple[int, tuple[int, ...]]] = [(mask, (target,)) for mask, target in rows[0]]
        for row in rows[1:]:
            split: list[tuple[int, tuple[int, ...]]] = []
            for mask, targets in parts:
                for label, target in row:
                    if mask & label:
                        split.append((mask & label, (*targets, target)))
                        mask &= ~label
                if mask:
                    split.append((mask, (*targets, -1)))
            parts = split
        for mask, targets in parts:
            number = numbers.get(targets)
            if number is None:
                number = numbers[targets] = len(order)
                if number >= MAX_DFA_STATES:
                    raise ConstraintTooComplex(
                        f"a terminal needs more than {MAX_DFA_STATES} automaton states; simplify it"
                    )
                order.append(targets)
            found[number] = found.get(number, 0) | mask
        edges.append(tuple((mask, target) for target, mask in found.items()))
    return _trimmed(edges, accepting)


def followed_by_anything(automaton: Dfa, *, by_something: bool = False) -> Dfa:
    """Every string that begins with a member; with ``by_something`` every one that goes on behind it."""
    sink = ((_FULL, len(automaton.edges)),)
    edges = [sink if state in automaton.accepting else e for state, e in enumerate(automaton.edges)]
    edges.append(sink)
    return _trimmed(edges, [*(() if by_something else automaton.accepting), len(automaton.edges)])


def without_first_bytes(automaton: Dfa, mask: int) -> Dfa:
    """The non-empty members that do not begin with a byte of ``mask``."""
    start = tuple((label & ~mask, target) for label, target in automaton.edges[0] if label & ~mask)
    shifted = [start, *automaton.edges]
    moved = [tuple((label, target + 1) for label, target in e) for e in shifted]
    return _trimmed(moved, [state + 1 for state in automaton.accepting])


def accepts(automaton: Dfa, data: bytes) -> bool:
    """Whether ``data`` is a member."""
    state: int | None = 0
    for byte in data:
        state = automaton.step(state, byte) if state is not None else None
    return state in automaton.accepting


def is_empty(automaton: Dfa) -> bool:
    """Whether no string is a member."""
    return not automaton.accepting


def node(automaton: Dfa) -> ir.Node:
    """The automaton as an IR node."""
    if not automaton.accepting:
        return ir.NOTHING
    if len(automaton.edges) == 1 and not automaton.edges[0]:
        return ir.EMPTY
    edges = tuple(
        (state, ir.ByteSet(mask), target)
        for state, targets in enumerate(automaton.edges)
        for mask, target in targets
    )
    return ir.Graph(edges, automaton.accepting)
