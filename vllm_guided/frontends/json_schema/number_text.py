"""The JSON texts of a set of numbers.

In: one :class:`~.numbers.Numbers`. Out: an IR node that matches its members as JSON writes them: plain
decimals (:mod:`.plain_text`), and the scientific form (:mod:`.scientific_text`) where no multiple but 1 has
to be kept. Digits are bounded (:mod:`.limits`).
"""

from __future__ import annotations

from typing import NamedTuple

from vllm_guided.bounded import bounded_cache
from vllm_guided.frontends.json_schema import double_bounds, limits
from vllm_guided.frontends.json_schema.decimals import DIGIT, NONZERO, Bound, decimal
from vllm_guided.frontends.json_schema.number_moves import EITHER, NEGATIVE, POSITIVE, Part, moves_node
from vllm_guided.frontends.json_schema.numbers import ANY_FORM, DIGITS, NOT_DIGITS, Exact, Numbers
from vllm_guided.frontends.json_schema.plain_text import plain_node
from vllm_guided.frontends.json_schema.scientific_text import scientific_node
from vllm_guided.grammar import ir


class _Magnitudes(NamedTuple):
    """From ``low`` to ``high`` (``None``: no end), with ``sign`` (as of :class:`~.number_moves.Part`)."""

    sign: int
    low: Exact
    low_closed: bool
    high: Exact | None
    high_closed: bool


def _part(numbers: Numbers, magnitudes: _Magnitudes, canonical: bool) -> Part:
    """What is to be written of the magnitudes, and between which bounds; ``canonical``: one text of each."""
    ends, ends_written = _ends(magnitudes, False), _ends(magnitudes, True)
    digits = written = _bounds(ends)
    if ends == ends_written:
        forms = [numbers.form]
    else:
        written = _bounds(ends_written)
        forms = [form for form in (DIGITS, NOT_DIGITS) if numbers.form in (ANY_FORM, form)]
    plain: list[tuple[int, Bound, Bound | None]] = []
    for form in forms:
        bounds = digits if form == DIGITS else written
        if bounds is not None:
            plain.append((form, *bounds))
    scientific = not canonical and numbers.form != DIGITS and not numbers.excluded
    return Part(magnitudes.sign, plain, written if scientific and numbers.multiple in (None, 1) else None)


def _part_node(numbers: Numbers, part: Part, canonical: bool) -> ir.Node:
    options = [
        plain_node(low, high, numbers._replace(form=form), canonical) for form, low, high in part.plain
    ]
    if part.scientific is not None:
        options.append(scientific_node(*part.scientific, whole=numbers.multiple == 1))
    node = ir.choice(*(option for option in options if not ir.is_nothing(option)))
    if part.sign == POSITIVE or ir.is_nothing(node):
        return node
    return ir.sequence(ir.text("-") if part.sign == NEGATIVE else ir.optional(ir.text("-")), node)


_Ends = tuple[tuple[Exact, bool], tuple[Exact, bool] | None]


def _ends(magnitudes: _Magnitudes, written: bool) -> _Ends | None:
    """The bounds to write by (:mod:`.double_bounds`); ``None`` if nothing is between them."""
    _, low, low_closed, high, high_closed = magnitudes
    least = double_bounds.least(low, low_closed, written)
    most = None if high is None else double_bounds.most(high, high_closed, written)
    if least is None:
        return None
    if most is not None and (least[0] > most[0] or (least[0] == most[0] and not (least[1] and most[1]))):
        return None
    return least, most


def _bounds(ends: _Ends | None) -> tuple[Bound, Bound | None] | None:
    """The same, in digits."""
    if ends is None:
        return None
    least, most = ends
    return decimal(*least), None if most is None else decimal(*most)


def _magnitudes(numbers: Numbers, canonical: bool) -> list[_Magnitudes]:
    """The set's magnitudes, by their signs."""
    low, low_open, high, high_open = numbers[:4]
    if not canonical and (low, low_open) == (None if high is None else -high, high_open):
        return [_Magnitudes(EITHER, 0, True, high, not high_open)]
    found: list[_Magnitudes] = []
    least: tuple[Exact, bool]
    if high is None or high > 0 or (high == 0 and not high_open):
        least = (0, True)
        if low is not None and (low > 0 or (low == 0 and low_open)):
            least = low, not low_open
        found.append(_Magnitudes(POSITIVE, *least, high, not high_open))
    if low is None or low < 0 or (low == 0 and not low_open and not canonical):
        most = None if low is None else -low
        least = (0, not canonical)
        if high is not None and (high < 0 or (high == 0 and high_open)):
            least = -high, not high_open
        found.append(_Magnitudes(NEGATIVE, *least, most, not low_open))
    return found


@bounded_cache(2048, 8 << 20)
def number_node(numbers: Numbers, canonical: bool = False) -> ir.Node:
    """The JSON texts of the numbers in the set (``canonical``: one each); ``ir.NOTHING`` if there are none.

    Raises:
        ConstraintTooComplex: the bounds and multiples need more than the budget of states.
    """
    parts = [_part(numbers, magnitudes, canonical) for magnitudes in _magnitudes(numbers, canonical)]
    if not canonical and not numbers.excluded and numbers.multiple in (None, 1):
        node = moves_node(parts, numbers.multiple == 1)
        if node is not None:
            return node
    return parts_node(numbers, parts, canonical)


def parts_node(numbers: Numbers, parts: list[Part], canonical: bool) -> ir.Node:
    """The texts of all parts, in general nodes."""
    options = [_part_node(numbers, part, canonical) for part in parts]
    return ir.choice(*(option for option in options if not ir.is_nothing(option)))


_EXPONENT_OF_ANY = limits.MAX_EXPONENT - limits.MAX_INTEGER_DIGITS + 1
"""With this exponent even the longest integer part stays below the largest double."""


def _up_to(most: int) -> ir.Node:
    """One to three digits, at most ``most`` (which has three)."""
    hundreds, tens, ones = (int(digit) for digit in str(most))
    zero = ord("0")
    return ir.choice(
        ir.Repeat(DIGIT, 1, 2),
        ir.sequence(ir.byte_range(zero, zero + hundreds - 1), DIGIT, DIGIT),
        *(
            ir.sequence(
                ir.text(f"{hundreds}{ten}"), DIGIT if ten < tens else ir.byte_range(zero, zero + ones)
            )
            for ten in range(tens + 1)
        ),
    )


def _any_number() -> ir.Node:
    """Every form, but no value that a double cannot hold: 1e999 is read as infinity by most readers."""
    fraction = ir.optional(ir.sequence(ir.text("."), ir.Repeat(DIGIT, 1, limits.MAX_FRACTION_DIGITS)))
    zeros = ir.Repeat(ir.text("0"), 0, 8)
    mark = ir.byte_set(b"eE")
    small = ir.sequence(mark, ir.text("-"), zeros, ir.Repeat(DIGIT, 1, 3))
    whole = ir.choice(ir.text("0"), ir.sequence(NONZERO, ir.Repeat(DIGIT, 0, limits.MAX_INTEGER_DIGITS - 1)))

    begins_low = ir.optional(
        ir.sequence(ir.text("."), ir.byte_range(0x30, 0x36), ir.Repeat(DIGIT, 0, limits.MAX_FRACTION_DIGITS))
    )

    def large(most: int) -> ir.Node:
        return ir.sequence(mark, ir.optional(ir.text("+")), zeros, _up_to(most))

    return ir.sequence(
        ir.optional(ir.text("-")),
        ir.choice(
            ir.sequence(whole, fraction, ir.optional(ir.choice(small, large(_EXPONENT_OF_ANY)))),
            ir.sequence(DIGIT, fraction, large(limits.MAX_EXPONENT)),
            # The last decade below the largest double, 1.797...e308.
            ir.sequence(ir.text("1"), begins_low, mark, ir.optional(ir.text("+")), zeros, ir.text("308")),
        ),
    )


ANY_NUMBER = _any_number()
"""Every JSON number of bounded length."""
