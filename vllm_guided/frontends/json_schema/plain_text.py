"""The plain decimals of a set of numbers between two magnitudes.

In: bounds and a :class:`~.numbers.Numbers`. Out: an IR node. The graphs are those of :mod:`.decimal_text`:
one on the grid of the multiples' decimals, one beside it. With too many states they are made for fewer
digits, until they fit.
"""

from __future__ import annotations

from math import lcm

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.json_schema import limits
from vllm_guided.frontends.json_schema.decimal_text import FREE, OFF_GRID, ON_GRID, Magnitude, TooManyStates
from vllm_guided.frontends.json_schema.decimals import Bound
from vllm_guided.frontends.json_schema.numbers import DIGITS, NOT_DIGITS, Numbers
from vllm_guided.frontends.json_schema.remainders import Remainder, remainder
from vllm_guided.grammar import ir


def plain_node(low: Bound, high: Bound | None, numbers: Numbers, canonical: bool = False) -> ir.Node:
    """The plain decimals of a set whose magnitudes are between two bounds.

    Where multiples need too many states, the largest are left out.

    Raises:
        ConstraintTooComplex: none is left.
    """
    multiple, excluded = numbers.multiple, numbers.excluded
    if multiple is None and not excluded:
        return _built(low, high, (), numbers.form, FREE, canonical, 0)
    kept = [] if multiple in (None, 1) else [remainder(multiple or 1, True)]
    remainders = (*kept, *(remainder(other, False) for other in excluded))
    of_multiple = remainder(multiple, True).scale if multiple is not None else None
    grid = max(item.scale for item in remainders) if of_multiple is None else of_multiple
    on_grid = _built(low, high, remainders, numbers.form, ON_GRID, canonical, grid)
    if multiple is not None or numbers.form == DIGITS:
        return on_grid
    off_grid = _built(low, high, (), numbers.form, OFF_GRID, canonical, grid)
    return ir.choice(*(node for node in (on_grid, off_grid) if node != ir.NOTHING))


def _built(
    low: Bound,
    high: Bound | None,
    remainders: tuple[Remainder, ...],
    form: int,
    fractions: int,
    canonical: bool,
    grid: int,
) -> ir.Node:
    modulus = lcm(*(item.modulus for item in remainders))
    coprime = modulus
    while coprime % 2 == 0 or coprime % 5 == 0:
        coprime //= 2 if coprime % 2 == 0 else 5
    uncounted = high is None and grid == 0 and fractions == ON_GRID and form != NOT_DIGITS
    longest: int | None = None
    endless = uncounted and coprime > limits.COUNTED_REMAINDERS
    while longest is None or longest >= max(len(low.whole), 1):
        magnitude = Magnitude(low, high, remainders, form, fractions, canonical, grid, longest, endless)
        try:
            node = magnitude.build()
        except TooManyStates:
            if uncounted and not endless and longest is None:
                endless = True
                continue
            # Shorter numbers need fewer states: about as many as there are multiples.
            few = len(str(modulus * limits.COUNTED_NUMBER_STATES // 10 ** (grid + 1))) - 1
            shorter = max(magnitude.deepest - 1, few)
            longest = min(shorter, magnitude.longest if endless else magnitude.longest - 1)
            high, endless = None, False
        else:
            if node != ir.NOTHING or longest is None:
                return node
            break
    raise ConstraintTooComplex(
        "the number's bounds and multipleOf need too large an automaton; use a smaller multipleOf"
    )
