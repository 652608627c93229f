"""Regular expressions over code points, with lookaround: what a pattern's parser makes of its text.

Both dialects of ``frontends/regex`` and the automata of ``characters`` share this tree. Everything that
asserts without consuming is a :class:`Look`: ``^`` is "nothing before" (a negative lookbehind of any
character), ``$`` "nothing after", ``\\b`` a choice of two pairs of lookarounds of one word character.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_guided.automaton.char_sets import ALL, NONE, Ranges, union


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of the set; an empty set matches nothing at all."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Concat:
    """Each item in turn; no items: the empty string."""

    items: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternation:
    """Any of the options (their order matters only inside an atomic group)."""

    options: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    """``item``, ``minimum`` to ``maximum`` times (``None``: without a limit).

    ``lazy`` changes no language; an atomic group around it needs to know.
    """

    item: Expression
    minimum: int
    maximum: int | None
    lazy: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """The empty string where ``item`` matches from here on (or, ``behind``, up to here); or does not."""

    item: Expression
    behind: bool = False
    negated: bool = False


Expression = Chars | Concat | Alternation | Repetition | Look

EMPTY = Concat(())
NOTHING = Chars(NONE)
ANY = Chars(ALL)
ANYTHING = Repetition(ANY, 0, None)
START = Look(ANY, behind=True, negated=True)
END = Look(ANY, behind=False, negated=True)


def concat(items: Sequence[Expression]) -> Expression:
    """The items in turn, nested sequences flattened."""
    flat: list[Expression] = []
    for item in items:
        if type(item) is Concat:
            flat.extend(item.items)
        elif item == NOTHING:
            return NOTHING
        else:
            flat.append(item)
    return flat[0] if len(flat) == 1 else Concat(tuple(flat))


def alternation(options: Sequence[Expression]) -> Expression:
    """Any of the options; neighbours of one character each become one set."""
    flat: list[Expression] = []
    for option in options:
        for part in option.options if type(option) is Alternation else (option,):
            last = flat[-1] if flat else None
            if type(part) is Chars and type(last) is Chars:
                flat[-1] = Chars(union(last.ranges, part.ranges))
            elif part != NOTHING:
                flat.append(part)
    if not flat:
        return NOTHING
    return flat[0] if len(flat) == 1 else Alternation(tuple(flat))


def repetition(item: Expression, minimum: int, maximum: int | None, lazy: bool = False) -> Expression:
    """``item`` repeated, the trivial cases made plain."""
    if maximum == 0 or item == EMPTY:
        return EMPTY
    if minimum == 1 and maximum == 1:
        return item
    if item == NOTHING:
        return NOTHING if minimum else EMPTY
    if type(item) is Look:  # once is as often as you like
        return item if minimum else EMPTY
    return Repetition(item, minimum, maximum, lazy)


def has_look(expression: Expression) -> bool:
    """Whether anything in the expression asserts without consuming."""
    match expression:
        case Look():
            return True
        case Concat(items):
            return any(has_look(item) for item in items)
        case Alternation(options):
            return any(has_look(option) for option in options)
        case Repetition(item):
            return has_look(item)
        case _:
            return False


def largest_count(expression: Expression) -> int:
    """The largest number of times that anything in the expression is repeated, lookarounds included."""
    match expression:
        case Look(item):
            return largest_count(item)
        case Concat(parts) | Alternation(parts):
            return max(map(largest_count, parts), default=0)
        case Repetition(item, minimum, maximum):
            return max(minimum, maximum or 0, largest_count(item))
        case _:
            return 0


def has_look_behind(expression: Expression) -> bool:
    """Whether a lookbehind is anywhere in the expression, bodies of lookarounds included."""
    return _has_direction(expression, behind=True)


def has_look_ahead(expression: Expression) -> bool:
    """Whether a lookahead is anywhere in the expression, bodies of lookarounds included."""
    return _has_direction(expression, behind=False)


def _has_direction(expression: Expression, behind: bool) -> bool:
    match expression:
        case Look(item):
            return expression.behind == behind or _has_direction(item, behind)
        case Concat(parts) | Alternation(parts):
            return any(_has_direction(part, behind) for part in parts)
        case Repetition(item):
            return _has_direction(item, behind)
        case _:
            return False


def length_bounds(expression: Expression) -> tuple[int, int | None]:
    """Bounds on the length of a match in characters, right but not tight where it holds lookaround."""
    match expression:
        case Chars():
            return 1, 1
        case Concat(items):
            low, high = 0, 0
            unbounded = False
            for item in items:
                item_low, item_high = length_bounds(item)
                low += item_low
                if item_high is None:
                    unbounded = True
                else:
                    high += item_high
            return low, None if unbounded else high
        case Alternation(options):
            bounds = [length_bounds(option) for option in options]
            highs = [high for _, high in bounds if high is not None]
            return min(low for low, _ in bounds), max(highs) if len(highs) == len(bounds) else None
        case Repetition(item, minimum, maximum):
            item_low, item_high = length_bounds(item)
            if item_high == 0:
                return 0, 0
            if item_high is None or maximum is None:
                return item_low * minimum, None
            return item_low * minimum, item_high * maximum
        case _:
            return 0, 0
