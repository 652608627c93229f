"""llguidance's parametric rules: a 64-bit number goes down with the rule, conditions look at its bits.

``parse`` reads an argument (``_``, a number, ``incr([0:2])``, ``set_bit(3)``) or a condition
(``and(bit_clear(0), lt(_, 3))``); ``value`` and ``holds`` evaluate them for a given number. A rule is then
expanded once per number that can reach it, so it stays context-free.
"""

from __future__ import annotations

import re
from typing import Any

from vllm_guided.errors import InvalidConstraint
from vllm_guided.frontends.positions import line_and_column

Expression = tuple[Any, ...]

_WORD = re.compile(r"\s*([A-Za-z_][A-Za-z_0-9]*|0x[0-9a-fA-F]+|\d+|[\[\](),:])")
_BITS = 64
_MASK = (1 << _BITS) - 1
_COMPARE = {
    "eq": int.__eq__,
    "ne": int.__ne__,
    "lt": int.__lt__,
    "le": int.__le__,
    "gt": int.__gt__,
    "ge": int.__ge__,
}
_VALUE_ARITY = {"set_bit": 1, "clear_bit": 1, "bit_and": 1, "bit_or": 1, "incr": 1, "decr": 1}
_CONDITION_ARITY = {
    **dict.fromkeys(_COMPARE, 2),
    **dict.fromkeys((f"bit_count_{name}" for name in _COMPARE), 2),
    **dict.fromkeys(("is_ones", "is_zeros", "bit_clear", "bit_set", "not"), 1),
    **dict.fromkeys(("and", "or"), 2),
}
_ON_RANGE = frozenset(
    {"incr", "decr", "is_ones", "is_zeros", *_COMPARE, *(f"bit_count_{n}" for n in _COMPARE)}
)


class _Reader:
    def __init__(self, source: str, offset: int) -> None:
        self.source = source
        self.offset = offset

    def fail(self, message: str) -> InvalidConstraint:
        return InvalidConstraint(message, where=line_and_column(self.source, self.offset))

    def peek(self) -> str:
        match = _WORD.match(self.source, self.offset)
        return match[1] if match else ""

    def take(self, expected: str = "") -> str:
        match = _WORD.match(self.source, self.offset)
        if not match or (expected and match[1] != expected):
            raise self.fail(
                f"expected {expected!r} here"
                if expected
                else "this parameter is not complete; it is _, a number or as in incr(_)"
            )
        self.offset = match.end()
        return match[1]

    def number(self, limit: int) -> int:
        word = self.take()
        try:
            number = int(word, 0)
        except ValueError:
            raise self.fail(f"expected a number here, not {word!r}") from None
        if number > limit:
            raise self.fail(f"the number {number} is too large; the limit is {limit}")
        return number

    def bit_range(self) -> Expression:
        if self.peek() == "_":
            self.take()
            return ("range", 0, _BITS)
        if self.peek() != "[":
            raise self.fail("expected _ or [first_bit:end_bit]")
        self.take("[")
        first = self.number(_BITS - 1)
        self.take(":")
        end = self.number(_BITS)
        if end <= first:
            raise self.fail(f"the end bit {end} must be greater than the first bit {first}")
        self.take("]")
        return ("range", first, end)

    def expression(self, known: dict[str, int], depth: int = 0) -> Expression:
        if depth > 50:
            raise self.fail("the condition is nested too deeply; spread it over rules")
        word = self.take()
        if word == "true" and "and" in known:
            return ("true",)
        if word not in known:
            raise self.fail(f"{word!r} is not known here; known are {', '.join(sorted(known))}")
        self.take("(")
        arguments: list[Any] = []
        if word in ("and", "or", "not"):
            arguments.append(self.expression(known, depth + 1))
            while word != "not" and self.peek() == ",":
                self.take(",")
                arguments.append(self.expression(known, depth + 1))
        elif word in _ON_RANGE:
            arguments.append(self.bit_range())
            if known[word] == 2:
                self.take(",")
                arguments.append(self.number(_MASK))
        else:
            arguments.append(self.number(_MASK if word in ("bit_and", "bit_or") else _BITS - 1))
        self.take(")")
        return (word, *arguments)


def parse(source: str, offset: int, *, condition: bool) -> tuple[Expression, int]:
    """The argument or condition at ``offset``, and the offset behind it."""
    reader = _Reader(source, offset)
    word = reader.peek()
    if condition:
        return reader.expression(_CONDITION_ARITY), reader.offset
    if word == "_":
        reader.take()
        return ("same",), reader.offset
    if word[:1].isdigit():
        return ("number", reader.number(_MASK)), reader.offset
    return reader.expression(_VALUE_ARITY), reader.offset


def _bits(number: int, span: Expression) -> int:
    first, end = int(span[1]), int(span[2])
    return number >> first & ((1 << end - first) - 1)


def needs_parameter(expression: Expression) -> bool:
    """Whether an argument speaks of the rule's own number."""
    return str(expression[0]) != "number"


def value(expression: Expression, number: int) -> int:
    """The number an argument passes on, in a rule whose own number is ``number``."""
    match expression:
        case ("same",):
            return int(number)
        case ("number", int(constant)):
            return constant
        case ("set_bit", int(bit)):
            return number | 1 << bit
        case ("clear_bit", int(bit)):
            return number & ~(1 << bit)
        case ("bit_and", int(mask)):
            return number & mask
        case ("bit_or", int(mask)):
            return number | mask
        case ("incr" | "decr" as word, (_, int(first), int(end))):
            top = (1 << end - first) - 1
            part = number >> first & top
            part = min(part + 1, top) if word == "incr" else max(part - 1, 0)
            return number & ~(top << first) | part << first
    raise AssertionError(expression)


def holds(expression: Expression, number: int) -> bool:
    """Whether a condition is true of ``number``."""
    match expression:
        case ("true",):
            return True
        case ("and", *parts):
            return all(holds(part, number) for part in parts)
        case ("or", *parts):
            return any(holds(part, number) for part in parts)
        case ("not", part):
            return not holds(part, number)
        case ("bit_clear", bit):
            return not number >> int(bit) & 1
        case ("bit_set", bit):
            return bool(number >> int(bit) & 1)
        case ("is_ones", span):
            return _bits(number, span) == (1 << int(span[2]) - int(span[1])) - 1
        case ("is_zeros", span):
            return _bits(number, span) == 0
        case (str(word), span, constant) if word in _COMPARE:
            return bool(_COMPARE[word](_bits(number, span), int(constant)))
        case (str(word), span, constant) if word.startswith("bit_count_"):
            return bool(_COMPARE[word[10:]](_bits(number, span).bit_count(), int(constant)))
    raise AssertionError(expression)
