"""Atomic groups and possessive quantifiers, rewritten exactly with lookahead where that can be done.

An atomic group keeps the first match that backtracking would find. Where the matches of a part at one
position all have one length there is nothing to give back; an ordered choice is "this, or that where this
does not match"; a greedy repetition is "all of them, or as many and no more after".
"""

from __future__ import annotations

from vllm_guided.automaton.char_expression import (
    Alternation,
    Concat,
    Expression,
    Look,
    Repetition,
    alternation,
    concat,
    length_bounds,
    repetition,
)
from vllm_guided.errors import UnsupportedConstraint


def atomic(expression: Expression, where: str, what: str) -> Expression:
    """The language of ``(?>expression)``.

    Raises:
        UnsupportedConstraint: its first match cannot be told by lookahead; ``what`` and ``where`` name it.
    """
    low, high = length_bounds(expression)
    if low == high:
        return expression
    match expression:
        case Alternation(options):
            rewritten: list[Expression] = []
            failed: list[Expression] = []
            for option in options:
                rewritten.append(concat([*failed, atomic(option, where, what)]))
                failed.append(Look(option, negated=True))
            return alternation(rewritten)
        case Concat((first, *rest)):
            low, high = length_bounds(first)
            if low == high:
                return concat([first, atomic(concat(rest), where, what)])
        case Repetition(item, minimum, maximum, lazy):
            if lazy:
                return atomic(repetition(item, minimum, minimum), where, what)
            low, high = length_bounds(item)
            if low == high:
                ended = Look(item, negated=True)
                if maximum is None:
                    return concat([expression, ended])
                fewer = repetition(item, minimum, maximum - 1)
                return alternation([repetition(item, maximum, maximum), concat([fewer, ended])])
    raise UnsupportedConstraint(
        f"{what} around a part whose matches differ in length: use an ordinary group or quantifier",
        where=where,
    )
