"""From terms to a deterministic automaton: subsets of terms, or boolean functions of them with lookaround.

Without lookaround a state is a set of partial derivatives. With it, a state is

* a boolean function of variables "the rest of the text is in the language of term v": lookahead is
  conjunction with another such variable, negative lookahead with its negation (alternating automata,
  Chandra, Kozen and Stockmeyer 1981);
* for each lookbehind still needed, the terms its matches have left, each with the function under which it
  is alive, run along from every place.

Both are exact. Comes in: an expression. Goes out: rows of targets by class (-1: none), accepting states.
"""

from __future__ import annotations

from vllm_guided.automaton.char_diagrams import FALSE, TRUE, Diagrams
from vllm_guided.automaton.char_expression import Expression, largest_count
from vllm_guided.automaton.char_sets import Partition
from vllm_guided.automaton.char_terms import EMPTY_TERM, RepetitionItem, Terms
from vllm_guided.errors import ConstraintTooComplex

WORK_PER_STATE = 50
"""How many terms the targets of a state may hold on average before the whole is too complex."""

Rows = list[list[int]]
Behind = frozenset[tuple[int, int]]
State = tuple[int, tuple[Behind | None, ...]]


def determinised(expression: Expression, max_states: int) -> tuple[Partition, Rows, set[int]]:
    """The automaton of ``expression``; its state 0 is the start.

    Raises:
        ConstraintTooComplex: more than ``max_states`` states.
    """
    terms = Terms(expression, max_states * WORK_PER_STATE)
    if terms.looks and largest_count(expression) > max_states:
        # Each count is a state here, and a slow one: no need to make the first ten thousand to see that.
        raise too_many_states(max_states)
    builder: _Subsets | _Functions = (_Functions if terms.looks else _Subsets)(terms, max_states)
    return terms.partition, *_explore(builder, terms.partition.count, max_states)


def too_many_states(max_states: int) -> ConstraintTooComplex:
    """The error for an automaton beyond its budget."""
    return ConstraintTooComplex(
        f"the pattern needs an automaton of more than {max_states} states: "
        "use smaller counts, or fewer alternatives that begin alike"
    )


def _explore(builder: _Subsets | _Functions, classes: int, max_states: int) -> tuple[Rows, set[int]]:
    start = builder.start()
    numbers: dict[object, int] = {start: 0}
    queue: list[object] = [start]
    rows: Rows = []
    accepting: set[int] = set()
    for number, state in enumerate(queue):
        row = [-1] * classes
        for mask, target in builder.moves(state):
            found = numbers.get(target)
            if found is None:
                found = numbers[target] = len(queue)
                if found >= max_states:
                    raise too_many_states(max_states)
                queue.append(target)
            while mask:
                low = mask & -mask
                row[low.bit_length() - 1] = found
                mask ^= low
        rows.append(row)
        if builder.accepts(state):
            accepting.add(number)
    return rows, accepting


def _split(masks: set[int], full: int) -> list[int]:
    """The coarsest cut of ``full`` in which each mask is a union of parts."""
    parts = [full]
    for mask in masks:
        cut: list[int] = []
        for part in parts:
            inside = part & mask
            if inside and inside != part:
                cut.append(inside)
                cut.append(part ^ inside)
            else:
                cut.append(part)
        parts = cut
    return parts


class _Subsets:
    """States are sets of terms."""

    def __init__(self, terms: Terms, max_states: int) -> None:
        self._terms = terms
        self._max_states = max_states
        self._work = max_states * WORK_PER_STATE
        self._counts: dict[int, RepetitionItem | None] = {}
        self._full = (1 << terms.partition.count) - 1

    def start(self) -> object:
        return frozenset((self._terms.root,))

    def accepts(self, state: object) -> bool:
        assert isinstance(state, frozenset)
        return any(self._terms.empty(term) == TRUE for term in state)

    def moves(self, state: object) -> list[tuple[int, object]]:
        assert isinstance(state, frozenset)
        targets: dict[int, int] = {}
        for term in state:
            for _, mask, rest in self._terms.head(term):
                targets[rest] = targets.get(rest, 0) | mask
        if len(targets) == 1:
            ((rest, mask),) = targets.items()
            self._work -= 1
            return [(mask, frozenset((rest,)))]
        moves: list[tuple[int, object]] = []
        for part in _split(set(targets.values()), self._full):
            reached = [rest for rest, mask in targets.items() if mask & part]
            if reached:
                moves.append((part, self._merged(reached)))
                self._work -= len(reached)
        if self._work < 0:
            raise too_many_states(self._max_states)
        return moves

    def _count_of(self, term: int) -> RepetitionItem | None:
        """The counted repetition that ``term`` begins with."""
        if term in self._counts:
            return self._counts[term]
        item, _ = self._terms.first(term)
        found = item if type(item) is RepetitionItem and (item.minimum or item.maximum) else None
        self._counts[term] = found
        return found

    def _merged(self, reached: list[int]) -> frozenset[int]:
        """The set, with repetitions of one body before one rest whose counts overlap made one."""
        if len(reached) < 2:
            return frozenset(reached)
        families: dict[tuple[int, int], list[tuple[int, int | None]]] = {}
        plain: list[int] = []
        for term in reached:
            count = self._count_of(term)
            if count is None:
                plain.append(term)
            else:
                families.setdefault((count.body, self._terms.first(term)[1]), []).append(
                    (count.minimum, count.maximum)
                )
        if len(families) + len(plain) == len(reached):
            return frozenset(reached)
        for (body, rest), counts in families.items():
            counts.sort(key=lambda count: count[0])
            low, high = counts[0]
            for minimum, maximum in counts[1:]:
                if high is not None and minimum > high + 1:
                    plain.append(self._terms.repeated(body, low, high, rest))
                    low, high = minimum, maximum
                elif high is not None:
                    high = None if maximum is None else max(high, maximum)
            plain.append(self._terms.repeated(body, low, high, rest))
        return frozenset(plain)


class _Functions:
    """States are boolean functions of terms, beside the running lookbehinds."""

    def __init__(self, terms: Terms, max_states: int) -> None:
        self._terms = terms
        self._full = (1 << terms.partition.count) - 1
        self._functions = Diagrams(max_states * 20)
        self._behinds = [number for number, (_, behind) in enumerate(terms.looks) if behind]
        self._slot = {number: slot for slot, number in enumerate(self._behinds)}
        self._needs: dict[int, int] = {EMPTY_TERM: 0}
        self._term_masks: dict[int, frozenset[int]] = {}

    def start(self) -> object:
        roots = [frozenset(((self._terms.looks[number][0], TRUE),)) for number in self._behinds]
        return self._state(self._holds(self._terms.root), list(roots))

    def _holds(self, term: int) -> int:
        """The function "the rest of the text is in the language of ``term``"."""
        return TRUE if term == self._terms.everything else self._functions.variable(term)

    def _state(self, main: int, behinds: list[Behind]) -> State:
        needed = 0
        for term in self._functions.support(main):
            needed |= self._needed(term)
        return main, tuple(alive if needed >> slot & 1 else None for slot, alive in enumerate(behinds))

    def _needed(self, term: int) -> int:
        """The lookbehinds (a bit for each slot) that ``term`` or its lookarounds may ask for, ever."""
        found = self._needs.get(term)
        if found is None:
            found = 0
            for number in self._terms.looks_within(term):
                if number in self._slot:
                    found |= 1 << self._slot[number]
            self._needs[term] = found
        return found

    def _values(self, behinds: tuple[Behind | None, ...]) -> list[int]:
        """For each lookbehind, the function under which it holds here."""
        values: list[int] = []
        for alive in behinds:
            value = FALSE
            for term, function in alive or ():
                here = self._guard_here(self._terms.empty(term), values)
                value = self._functions.either(value, self._functions.both(function, here))
            values.append(value)
        return values

    def _guard_here(self, guard: int, values: list[int]) -> int:
        def value(number: int) -> int:
            slot = self._slot.get(number)
            return values[slot] if slot is not None else self._holds(self._terms.looks[number][0])

        return self._terms.guards.substituted(guard, value, self._functions)

    def accepts(self, state: object) -> bool:
        assert isinstance(state, tuple)
        main, behinds = state
        finals: dict[int, int] = {}
        values: list[int] = []

        def at_end(number: int) -> int:
            slot = self._slot.get(number)
            return values[slot] if slot is not None else final(self._terms.looks[number][0])

        def final(term: int) -> int:
            found = finals.get(term)
            if found is None:
                guard = self._terms.empty(term)
                found = finals[term] = self._terms.guards.substituted(guard, at_end, self._functions)
            return found

        for value in self._values(behinds):
            values.append(self._functions.substituted(value, final, self._functions))
        return self._functions.substituted(main, final, self._functions) == TRUE

    def moves(self, state: object) -> list[tuple[int, object]]:
        assert isinstance(state, tuple)
        main, behinds = state
        values = self._values(behinds)
        masks: set[int] = set()
        for term in self._functions.support(main):
            masks |= self._masks(term)
        for value in values:
            for term in self._functions.support(value):
                masks |= self._masks(term)
        for alive in behinds:
            for term, function in alive or ():
                masks |= self._masks(term)
                for inner in self._functions.support(function):
                    masks |= self._masks(inner)
        moves: list[tuple[int, object]] = []
        for part in _split(masks, self._full):
            target = _Step(self._terms, self._functions, self._slot, values, part)
            stepped = target.function(main)
            if stepped != FALSE:
                following = [self._stepped(slot, alive, target) for slot, alive in enumerate(behinds)]
                moves.append((part, self._state(stepped, following)))
        return moves

    def _masks(self, term: int) -> frozenset[int]:
        """The class masks that decide where ``term`` goes, those of its lookaheads included."""
        found = self._term_masks.get(term)
        if found is None:
            masks: set[int] = set()
            for guard, mask, _ in self._terms.head(term):
                masks.add(mask)
                for number in self._terms.guards.support(guard):
                    if number not in self._slot:
                        masks |= self._masks(self._terms.looks[number][0])
            found = self._term_masks[term] = frozenset(masks)
        return found

    def _stepped(self, slot: int, alive: Behind | None, step: _Step) -> Behind:
        """A lookbehind's terms one character on, and its beginning anew."""
        if alive is None:
            return frozenset()
        functions = self._functions
        after: dict[int, int] = {self._terms.looks[self._behinds[slot]][0]: TRUE}
        for term, function in alive:
            lived = step.function(function)
            for guard, mask, rest in self._terms.head(term):
                if mask & step.part and after.get(rest) != TRUE:
                    held = functions.both(lived, step.guard(guard))
                    after[rest] = functions.either(after.get(rest, FALSE), held)
        return frozenset((term, function) for term, function in after.items() if function != FALSE)


class _Step:
    """One character of ``part`` read at one place: what every function of that place becomes."""

    def __init__(
        self, terms: Terms, functions: Diagrams, slot: dict[int, int], values: list[int], part: int
    ) -> None:
        self._terms = terms
        self._functions = functions
        self._slot = slot
        self._values = values
        self.part = part
        self._done: dict[int, int] = {}
        self._done_functions: dict[int, int] = {}

    def function(self, function: int) -> int:
        found = self._done_functions.get(function)
        if found is None:
            found = self._functions.substituted(function, self.term, self._functions)
            self._done_functions[function] = found
        return found

    def guard(self, guard: int) -> int:
        return self._terms.guards.substituted(guard, self._look, self._functions)

    def _look(self, number: int) -> int:
        slot = self._slot.get(number)
        if slot is not None:
            return self.function(self._values[slot])
        return self.term(self._terms.looks[number][0])

    def term(self, term: int) -> int:
        found = self._done.get(term)
        if found is None:
            found = FALSE
            everything = self._terms.everything
            for guard, mask, rest in sorted(self._terms.head(term), key=lambda entry: -entry[2]):
                if mask & self.part:
                    after = TRUE if rest == everything else self._functions.variable(rest)
                    if guard != TRUE:
                        after = self._functions.both(self.guard(guard), after)
                    found = self._functions.either(found, after)
            self._done[term] = found
        return found
