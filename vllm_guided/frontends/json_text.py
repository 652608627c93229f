"""JSON texts as constraints: nothing of them is dropped.

In: what ``json.loads`` hands to its hooks. Out: the object, or an error where a member would be lost; the
number, with the digits that a float would lose.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint


def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these members; an ``object_pairs_hook`` of ``json.loads``.

    Raises:
        InvalidConstraint: a name is there twice, of which JSON readers would keep one or the other.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidConstraint(f"one object of the JSON text names {twice!r} twice; leave one out")
    return found


_MAX_DECIMALS = 1_100


class ExactFloat(float):
    """A float of which the text says more than the shortest decimal form does; ``exact`` is what it says."""

    __slots__ = ("exact", "text")
    exact: Fraction
    text: str

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return self.exact == (other.exact if isinstance(other, ExactFloat) else other)

    def __hash__(self) -> int:
        return hash(self.exact)


def number(text: str) -> float:
    """The number of a JSON text with a point or an exponent; a ``parse_float`` of ``json.loads``.

    Raises:
        ConstraintTooComplex: it is beyond all doubles.
    """
    value = float(text)
    if len(text) <= 16 and 1e-290 < abs(value) < 1e290:
        return value  # at most 15 digits, which every double keeps
    exponent = text.lower().partition("e")[2]
    if abs(value) == float("inf") or (exponent and abs(int(exponent)) > _MAX_DECIMALS):
        raise ConstraintTooComplex(f"{text} is not among the numbers that readers of JSON know (doubles)")
    exact = Fraction(text)
    if exact == Fraction(repr(value)):
        return value
    found = ExactFloat(value)
    found.exact, found.text = exact, text
    return found


def _no_number(word: str) -> Any:
    raise InvalidConstraint(f"{word} is not JSON")


#: Raises ValueError (of which ``GrammarError`` is one) and RecursionError.
DECODER = json.JSONDecoder(object_pairs_hook=members, parse_constant=_no_number, parse_float=number)


@dataclass(frozen=True, slots=True)
class JsonText:
    """A JSON text and the value that ``DECODER`` reads from it, so that it is read once."""

    text: str
    value: Any
