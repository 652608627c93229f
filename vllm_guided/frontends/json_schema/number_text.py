"""The JSON texts of a set of numbers.

In: one :class:`~.numbers.Numbers`. Out: an IR node that matches its members as JSON writes them: plain
decimals (:mod:`.plain_text`), and the scientific form (:mod:`.scientific_text`) where no multiple but 1 has
to be kept. Digits are bounded (:mod:`.limits`).
"""

from __future__ import annotations

from vllm_guided.bounded import bounded_cache
from vllm_guided.frontends.json_schema import double_bounds, limits
from vllm_guided.frontends.json_schema.decimals import DIGIT, NONZERO, Bound, decimal
from vllm_guided.frontends.json_schema.numbers import ANY_FORM, DIGITS, NOT_DIGITS, Exact, Numbers
from vllm_guided.frontends.json_schema.plain_text import plain_node
from vllm_guided.frontends.json_schema.scientific_text import scientific_node
from vllm_guided.grammar import ir


def _signed(
    numbers: Numbers, low: Exact | None, low_closed: bool, high: Exact | None, high_closed: bool, one: bool
) -> ir.Node:
    """Magnitudes from ``low`` (``None``: 0) to ``high`` (``None``: no end); ``one`` spelling of each."""
    digits = _bounds(low, low_closed, high, high_closed, written=False)
    written = _bounds(low, low_closed, high, high_closed, written=True)
    options: list[ir.Node] = []
    if digits == written:
        forms = [numbers.form]
    else:
        forms = [form for form in (DIGITS, NOT_DIGITS) if numbers.form in (ANY_FORM, form)]
    for form in forms:
        bounds = digits if form == DIGITS else written
        if bounds is not None:
            options.append(plain_node(*bounds, numbers._replace(form=form), one))
    scientific = not one and numbers.form != DIGITS and not numbers.excluded
    if scientific and numbers.multiple in (None, 1) and written is not None:
        options.append(scientific_node(*written, whole=numbers.multiple == 1))
    return ir.choice(*(option for option in options if option != ir.NOTHING))


def _bounds(
    low: Exact | None, low_closed: bool, high: Exact | None, high_closed: bool, written: bool
) -> tuple[Bound, Bound | None] | None:
    """The bounds to write by (:mod:`.double_bounds`); ``None`` if nothing is between them."""
    least = double_bounds.least(low, low_closed, written) if low is not None else (0, True)
    most = double_bounds.most(high, high_closed, written) if high is not None else None
    if least is None:
        return None
    if most is None:
        return decimal(*least), None
    if least[0] > most[0] or (least[0] == most[0] and not (least[1] and most[1])):
        return None
    return decimal(*least), decimal(*most)


@bounded_cache(2048, 8 << 20)
def number_node(numbers: Numbers, canonical: bool = False) -> ir.Node:
    """The JSON texts of the numbers in the set (``canonical``: one each); ``ir.NOTHING`` if there are none.

    Raises:
        ConstraintTooComplex: the bounds and multiples need more than the budget of states.
    """
    options: list[ir.Node] = []
    low, high = numbers.low, numbers.high
    if not canonical and (low, numbers.low_open) == (None if high is None else -high, numbers.high_open):
        both = _signed(numbers, None, True, high, not numbers.high_open, False)
        return ir.sequence(ir.optional(ir.text("-")), both)
    if high is None or high >= 0:
        floor = low if low is not None and low > 0 else None
        if low is not None and low == 0 and numbers.low_open:
            positive: ir.Node = _signed(numbers, 0, False, high, not numbers.high_open, canonical)
        elif high is not None and high == 0 and numbers.high_open:
            positive = ir.NOTHING
        else:
            positive = _signed(numbers, floor, not numbers.low_open, high, not numbers.high_open, canonical)
        options.append(positive)
    if low is None or low <= 0:
        least = -high if high is not None and high < 0 else None
        most = -low if low is not None else None
        if low is not None and low == 0 and (numbers.low_open or canonical):
            negative: ir.Node = ir.NOTHING
        elif least is None and (canonical or (high is not None and high == 0 and numbers.high_open)):
            negative = _signed(numbers, 0, False, most, not numbers.low_open, canonical)
        else:
            negative = _signed(numbers, least, not numbers.high_open, most, not numbers.low_open, canonical)
        if negative != ir.NOTHING:
            options.append(ir.sequence(ir.text("-"), negative))
    return ir.choice(*(option for option in options if option != ir.NOTHING))


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
