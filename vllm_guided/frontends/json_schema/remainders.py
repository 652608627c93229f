"""Remainders of a number that is read digit by digit, as few of them as can be told apart.

In: a multiple. Out: a :class:`Remainder`. Of the remainder so far only those differences count that further
digits can bring to light (Myhill and Nerode): of multiples of 1,000,000, how many zeros come last.
After r, the n digits x end in a multiple of m where ``r * 10**n + x`` is one: for each n, x is one number
modulo m, which may have too many digits.
"""

from __future__ import annotations

from fractions import Fraction

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.json_schema import limits
from vllm_guided.frontends.json_schema.numbers import Exact

NEVER = -1
"""In place of a remainder: whatever follows, no multiple."""


class Remainder:
    """Multiples of ``modulus / 10**scale``; ``wanted`` says whether to keep them or leave them out."""

    __slots__ = ("_found", "_known", "modulus", "scale", "wanted", "width")

    def __init__(self, modulus: int, scale: int, wanted: bool) -> None:
        self.modulus = modulus
        self.scale = scale
        self.wanted = wanted
        self.width = len(str(modulus - 1)) if modulus > 1 else 0
        self._known: dict[tuple[int, ...], int] = {}
        self._found: dict[tuple[int, int, int], int | None] = {}

    def representative(self, rest: int, least: int, most: int | None) -> int | None:
        """One of the remainders that are like ``rest`` if ``least`` to ``most`` digits follow.

        ``None`` if nothing that follows makes the number one of the set.
        """
        if rest == NEVER:
            return rest
        key = (rest, least, self.width if most is None or most > self.width else most)
        found = self._found.get(key, NEVER - 1)
        if found == NEVER - 1:
            found = self._found[key] = self._representative(*key)
        return found

    def onwards(self, rest: int, digit: int) -> int:
        """The remainder after one more integer digit, where any number of them may follow."""
        if rest == NEVER:
            return rest
        found = self.representative((rest * 10 + digit) % self.modulus, self.scale, None)
        return NEVER if found is None else found

    def _representative(self, rest: int, least: int, last: int) -> int | None:
        power = 10**least
        signature = [least, last]
        live = False
        for _ in range(max(last - least, 0) + 1):
            wanted = -rest * power % self.modulus
            if wanted < power:
                live = True
                signature.append(wanted)
            else:
                signature.append(-1)
            power *= 10
        if not live:
            return None if self.wanted else NEVER
        return self._known.setdefault(tuple(signature), rest)

    def after(self, rest: int, digit: int, count: int) -> int | None:
        """The remainder after one more digit behind ``count`` digits behind the point; ``None`` as above."""
        if rest == NEVER:
            return rest
        if count < self.scale:
            left = self.scale - count - 1
            return self.representative((rest * 10 + digit) % self.modulus, left, left)
        if digit == 0:
            return rest
        return None if self.wanted else NEVER

    def divides(self, rest: int, count: int) -> bool:
        """Whether the number is a multiple if it ends after ``count`` digits behind the point."""
        return rest != NEVER and rest * 10 ** max(self.scale - count, 0) % self.modulus == 0


def remainder(multiple: Exact, wanted: bool) -> Remainder:
    """The remainders of a multiple."""
    fraction = Fraction(multiple)
    scale = 0
    while (fraction * 10**scale).denominator != 1:
        scale += 1
        if scale > limits.MAX_DECIMALS:
            raise ConstraintTooComplex(f"multipleOf has more than {limits.MAX_DECIMALS:,} decimals")
    return Remainder(int(fraction * 10**scale), scale, wanted)
