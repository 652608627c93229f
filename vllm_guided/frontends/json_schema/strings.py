"""Sets of decoded strings: lengths in code points, patterns, formats, finite sets, and what they leave out.

In: the string keywords of a schema (or a class of property names). Out: :class:`Strings`, closed under
intersection, with lists of them for a complement, and the automaton of one. Nothing is built before it is
needed: a set is a conjunction of conditions, and only emptiness and spelling ask for the automaton.
"""

from __future__ import annotations

from typing import NamedTuple

from vllm_guided.bounded import bounded_cache
from vllm_guided.frontends.json_schema import formats, limits, patterns
from vllm_guided.frontends.regex import CharDfa

Atom = tuple[str, str | tuple[str, ...]]
"""``("pattern", text)``, ``("format", name)`` or ``("in", (string, ...))``."""


class Strings(NamedTuple):
    """Strings of a length between two bounds that fulfil every ``positive`` atom and no ``negative`` one.

    Where ``finite`` is given the set is exactly those strings, and nothing else is set.
    """

    minimum: int = 0
    maximum: int | None = None
    positive: tuple[Atom, ...] = ()
    negative: tuple[Atom, ...] = ()
    finite: tuple[str, ...] | None = None


ANY = Strings()


@bounded_cache(4096, 16 << 20)
def atom_automaton(atom: Atom) -> CharDfa:
    """The strings that fulfil one condition."""
    kind, value = atom
    if kind == "pattern":
        return patterns.automaton(str(value))
    if kind == "format":
        return formats.automaton(str(value))
    return CharDfa.literals(list(value))


def _excluded_automaton(atom: Atom) -> CharDfa:
    """The strings that a negative atom takes away: at least those that fulfil it."""
    return formats.wider_automaton(str(atom[1])) if atom[0] == "format" else atom_automaton(atom)


def accepts(strings: Strings, value: str) -> bool:
    """Whether ``value`` is in the set."""
    if strings.finite is not None:
        return value in strings.finite
    if len(value) < strings.minimum or (strings.maximum is not None and len(value) > strings.maximum):
        return False
    for atom in strings.positive:
        if not (value in atom[1] if atom[0] == "in" else atom_automaton(atom).accepts(value)):
            return False
    return not any(
        value in atom[1] if atom[0] == "in" else _excluded_automaton(atom).accepts(value)
        for atom in strings.negative
    )


def intersect(left: Strings, right: Strings) -> Strings | None:
    """The strings in both; ``None`` if that is plainly nothing (:func:`is_empty` looks closer)."""
    if left == right or right == ANY:
        return left
    if left == ANY:
        return right
    if left.finite is None and right.finite is not None:
        left, right = right, left
    if left.finite is not None:
        kept = tuple(value for value in left.finite if accepts(right, value))
        return Strings(finite=kept) if kept else None
    minimum = max(left.minimum, right.minimum)
    maximum = left.maximum if right.maximum is None else right.maximum
    if left.maximum is not None and maximum is not None:
        maximum = min(left.maximum, maximum)
    if maximum is not None and minimum > maximum:
        return None
    positive = tuple(dict.fromkeys(left.positive + right.positive))
    negative = _merged(left.negative, right.negative)
    if any(atom in negative for atom in positive):
        return None
    return Strings(minimum, maximum, positive, negative)


def _merged(left: tuple[Atom, ...], right: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """Both sides' negative atoms, the finite sets as one."""
    if not left or not right or left == right:
        return left or right
    atoms = dict.fromkeys(left + right)
    finite = [atom for atom in atoms if atom[0] == "in"]
    if len(finite) > 1:
        values = dict.fromkeys(value for atom in finite for value in atom[1])
        atoms = dict.fromkeys(atom for atom in atoms if atom[0] != "in")
        atoms[("in", tuple(sorted(values)))] = None
    return tuple(atoms)


def complement(strings: Strings) -> list[Strings]:
    """Sets that together hold every string outside."""
    if strings.finite is not None:
        return [Strings(negative=(("in", strings.finite),))]
    found: list[Strings] = []
    if strings.minimum > 0:
        found.append(Strings(maximum=strings.minimum - 1))
    if strings.maximum is not None:
        found.append(Strings(minimum=strings.maximum + 1))
    found.extend(Strings(negative=(atom,)) for atom in strings.positive)
    for atom in strings.negative:
        if atom[0] == "in":
            found.append(Strings(finite=tuple(atom[1])))
        else:
            found.append(Strings(positive=(atom,)))
    return found


_automata: dict[Strings, CharDfa] = {}
_MOST_AUTOMATA = 4096


def remember(strings: Strings, automaton: CharDfa) -> None:
    """Keep an automaton that was found on another way."""
    if len(_automata) >= _MOST_AUTOMATA:
        _automata.clear()
    _automata[strings] = automaton


def unbounded_automaton(strings: Strings) -> CharDfa:
    """The automaton of every condition but the length."""
    if strings.finite is not None:
        return CharDfa.literals(list(strings.finite))
    found = _automata.get(strings)
    if found is not None:
        return found
    result: CharDfa | None = None
    for atom in strings.positive:
        other = atom_automaton(atom)
        result = other if result is None else result.intersection(other)
    for atom in strings.negative:
        other = _excluded_automaton(atom)
        result = other.complement() if result is None else result.difference(other)
    if result is None:
        result = CharDfa.any_string()
    remember(strings, result)
    return result


def small_automaton(strings: Strings) -> tuple[CharDfa, int | None] | None:
    """A smaller automaton inside :func:`unbounded_automaton`, and up to which length to go by it.

    ``None`` where no format of the set has one.
    """
    limits_of = [formats.small_limit(str(value)) for kind, value in strings.positive if kind == "format"]
    if all(limit == -1 for limit in limits_of):
        return None
    result: CharDfa | None = None
    for atom in strings.positive:
        small = atom[0] == "format" and formats.small_limit(str(atom[1])) != -1
        other = formats.small_automaton(str(atom[1])) if small else atom_automaton(atom)
        result = other if result is None else result.intersection(other)
    assert result is not None
    for atom in strings.negative:
        result = result.difference(_excluded_automaton(atom))
    bounded = [limit for limit in limits_of if limit is not None and limit >= 0]
    return result, min(bounded, default=None)


@bounded_cache(4096, 2 << 20)
def is_empty(strings: Strings) -> bool:
    """Whether no string is in the set."""
    if strings.finite is not None:
        return not strings.finite
    conditions = len(strings.positive) + len(strings.negative)
    bounded = strings.maximum is not None
    if conditions == 0 or (conditions == 1 and not bounded and strings.positive):
        return conditions == 1 and strings.positive[0][0] == "in" and not strings.positive[0][1]
    if not strings.positive and all(kind == "in" for kind, _ in strings.negative):
        return strings.maximum == 0 and any("" in values for _, values in strings.negative)
    automaton = unbounded_automaton(strings)
    if automaton.is_empty():
        return True
    shortest = automaton.minimum_length() or 0
    longest = automaton.maximum_length()
    if bounded and strings.maximum is not None and shortest > strings.maximum:
        return True
    if longest is not None and longest < strings.minimum:
        return True
    if strings.minimum <= shortest or not bounded:
        return False
    states = len(automaton.rows) * (strings.maximum or 1)
    if states > limits.MAX_STRING_STATES:
        return False
    return automaton.with_length(strings.minimum, strings.maximum).is_empty()
