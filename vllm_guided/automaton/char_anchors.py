"""Anchors, word boundaries and other one-character lookaround decided on the tree, before any automaton.

``L (?<=s) R`` is "L with a last character in s, then R"; ``L (?!s) R`` is "L, then R empty or with a first
character outside s". So ``^``, ``$``, ``\\b`` and their like vanish by cutting the sets at the edges of
what stands beside them, and counted repetition stays counted.

Comes in: an expression for whole texts. Goes out: alternatives, each a sequence of items; lookaround that
cannot be decided so (longer bodies, inside repetition) is left in place. Nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_guided.automaton.char_expression import (
    EMPTY,
    END,
    NOTHING,
    Alternation,
    Chars,
    Concat,
    Expression,
    Look,
    Repetition,
    alternation,
    concat,
    has_look,
    repetition,
)
from vllm_guided.automaton.char_sets import Ranges, complement, contains, intersection

Items = tuple[Expression, ...]
MAX_ALTERNATIVES = 200


def resolved(expression: Expression) -> list[Items]:
    """``expression`` as alternatives without the lookaround that can be decided beside it."""
    done: list[Items] = []
    todo = [_flat([expression])]
    steps = 0
    while todo:
        items = todo.pop()
        steps += 1
        following = None if steps > MAX_ALTERNATIVES else _step(items)
        if following is None:
            done.append(items)
        else:
            todo.extend(reversed(following))
    return list(dict.fromkeys(done))


def _flat(items: Sequence[Expression]) -> Items:
    joined = concat(items)
    return joined.items if type(joined) is Concat else (joined,)


def _step(items: Items) -> list[Items] | None:
    """The alternatives after one lookaround is decided; None if none can be."""
    for index, item in enumerate(items):
        if type(item) is Chars or not has_look(item):
            continue
        before, after = items[:index], items[index + 1 :]
        options: Sequence[Expression] | None = None
        if type(item) is Alternation:
            options = _grouped(item.options)
        elif type(item) is Repetition and (item.minimum, item.maximum) == (0, 1):
            options = [EMPTY, item.item]
        elif type(item) is Look:
            decided = _decided(before, item, after)
            if decided is not None:
                return decided
        if options is not None:
            found = [_flat([*before, option, *after]) for option in options]
            return [option for option in found if option != (NOTHING,)]
    return None


def _grouped(options: Sequence[Expression]) -> list[Expression]:
    """The options, those without lookaround kept together."""
    plain = [option for option in options if not has_look(option)]
    rest = [option for option in options if has_look(option)]
    return [alternation(plain), *rest] if plain else rest


def _decided(before: Items, look: Look, after: Items) -> list[Items] | None:
    """``before look after`` without the look; None if it has to stay."""
    if type(look.item) is Chars:
        ranges = look.item.ranges
        if look.negated:
            ranges = complement(ranges)
        side = before if look.behind else after
        sides = _cut(side, ranges, last=look.behind)
        if sides is None:
            return None
        if look.negated:
            nothing = _only_looks(side)
            if nothing is not None:
                sides.append(nothing)
        pairs = [(found, after) if look.behind else (before, found) for found in sides]
        found = [_flat([*left, *right]) for left, right in pairs]
        return [items for items in found if items != (NOTHING,)]
    if not look.behind and type(look.item) is Concat and look.item.items[-1:] == (END,):
        text = _literal(look.item.items[:-1])
        if text is not None and not any(has_look(item) for item in after):
            return _ending(before, text, after, look.negated)
    return None


def _ending(before: Items, text: str, after: Items, negated: bool) -> list[Items] | None:
    """``before (?=text\\Z) after``, as in the second half of Python's ``$``."""
    if negated:
        return None
    if not _matches(concat(after), text):
        return []
    return [_flat([*before, *(Chars(((ord(letter), ord(letter)),)) for letter in text)])]


def _literal(items: Items) -> str | None:
    """The only text that ``items`` match; None if there are others."""
    text = ""
    for item in items:
        if type(item) is not Chars or len(item.ranges) != 1 or item.ranges[0][0] != item.ranges[0][1]:
            return None
        text += chr(item.ranges[0][0])
    return text


def _matches(expression: Expression, text: str) -> bool:
    """Whether ``expression``, without lookaround, matches ``text`` of one character whole."""
    return len(text) == 1 and _matches_character(expression, ord(text))


def _matches_character(expression: Expression, point: int) -> bool:
    match expression:
        case Chars(ranges):
            return contains(ranges, point)
        case Concat(items):
            return any(
                _matches_character(item, point)
                and all(nullable(other) for place, other in enumerate(items) if place != index)
                for index, item in enumerate(items)
            )
        case Alternation(options):
            return any(_matches_character(option, point) for option in options)
        case Repetition(item, minimum):
            return _matches_character(item, point) and (minimum <= 1 or nullable(item))
        case _:
            return False


def nullable(expression: Expression) -> bool:
    """Whether ``expression``, without lookaround, matches the empty text."""
    match expression:
        case Chars():
            return False
        case Concat(items):
            return all(nullable(item) for item in items)
        case Alternation(options):
            return any(nullable(option) for option in options)
        case Repetition(item, minimum):
            return minimum == 0 or nullable(item)
        case _:
            return False


def _only_looks(items: Items) -> Items | None:
    """``items`` where they match the empty text: what they assert; None if they never do."""
    kept: list[Expression] = []
    for item in items:
        if type(item) is Look:
            kept.append(item)
        elif has_look(item) or not nullable(item):
            return None
    return tuple(kept)


def _cut(items: Items, ranges: Ranges, *, last: bool) -> list[Items] | None:
    """``items`` where they match at least a character and the first (``last``: the last) is in the set.

    None if an item that asserts and consumes stands in the way.
    """
    found: list[Items] = []
    order = range(len(items) - 1, -1, -1) if last else range(len(items))
    skipped: list[Expression] = []
    for index in order:
        item = items[index]
        if type(item) is Look:
            skipped.append(item)
            continue
        if has_look(item):
            return None
        part = _edge(item, ranges, last)
        if part != NOTHING:
            if last:
                found.append((*items[:index], part, *reversed(skipped)))
            else:
                found.append((*skipped, part, *items[index + 1 :]))
        if not nullable(item):
            break
    return found


def _edge(expression: Expression, ranges: Ranges, last: bool) -> Expression:
    """What ``expression`` matches that is not empty and begins (``last``: ends) with one of the set."""
    match expression:
        case Chars(own):
            return Chars(intersection(own, ranges))
        case Alternation(options):
            return alternation([_edge(option, ranges, last) for option in options])
        case Repetition(item, minimum, maximum):
            part = _edge(item, ranges, last)
            others = repetition(item, max(minimum - 1, 0), None if maximum is None else maximum - 1)
            return concat([others, part] if last else [part, others])
        case Concat(items):
            cuts = _cut(items, ranges, last=last) or []
            return alternation([concat(cut) for cut in cuts])
        case _:
            return NOTHING
