"""Rules that say a JSON object, array or value at once (``json_rules.py``), as numbers (``ready.py``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING

from vllm_guided.automaton.bag_rules import PlainBag
from vllm_guided.automaton.ready import ANY_NAME, CLOSE, LIST, MEMBER, OBJECT, OPEN, ORDERED, OTHER, VALUE
from vllm_guided.grammar.json_rules import (
    BLANKS,
    NAME_BEYOND,
    NAME_REST,
    SEPARATOR,
    STRING,
    JsonArray,
    JsonObject,
    JsonRule,
)

if TYPE_CHECKING:
    from vllm_guided.automaton.program import Program

Numbers = Callable[[Sequence[str]], list[int]]

_BRACKETS = 0x5B, 0x5D


def write_json_rule(program: Program, rule: int, body: JsonRule, numbers: Numbers) -> None:
    """Describe ``rule`` and the rules that only it has; ``numbers`` says the numbers of rules by name."""
    if isinstance(body, JsonObject):
        _object(program, rule, body, numbers)
    elif isinstance(body, JsonArray):
        needed = numbers((body.item,) if body.compact else (body.item, BLANKS))
        item, blanks = needed[0], -1 if body.compact else needed[1]
        program.needed += needed
        _describe(program, rule, (LIST, *_BRACKETS, item, blanks, body.least))
    else:
        rules = numbers(body.rules)
        program.needed += rules
        _describe(program, rule, (VALUE, len(body.texts), len(rules), *_texts(program, body.texts), *rules))


def _describe(program: Program, rule: int, numbers: Sequence[int]) -> None:
    program.ready[rule] = len(program.ready_ops)
    program.ready_ops += numbers
    # It is no fragment, and has no program that could be written in place of a call.
    program.plain[rule], program.shared[rule] = False, True


def _new_rule(program: Program, name: str) -> int:
    rule = len(program.names)
    _new_rules(program, [rule], name)
    return rule


def _new_rules(program: Program, rules: list[int], name: str = "member") -> None:
    count = len(rules)
    program.names += [name] * count
    program.begins += [-1] * count
    program.shared += [True] * count
    program.plain += [False] * count
    program.needed += rules


def _texts(program: Program, texts: tuple[bytes, ...]) -> list[int]:
    """Put texts into the blob: where each begins, and its length."""
    blob = program.blob
    numbers: list[int] = []
    for text in texts:
        numbers += (len(blob), len(text))
        blob += text
    return numbers


def _object(program: Program, rule: int, body: JsonObject, numbers: Numbers) -> None:
    needed, ready, ready_ops, blob = program.needed, program.ready, program.ready_ops, program.blob
    blanks = -1
    if not body.compact:
        (blanks,) = numbers((BLANKS,))
        needed.append(blanks)
    other = -1
    if body.other is not None:
        (value,) = numbers((body.other,))
        needed.append(value)
        other = _new_rule(program, "member")
        if body.names:
            beyond, rest = numbers((NAME_BEYOND, NAME_REST))
            needed += (beyond, rest)
            names = _texts(program, tuple(sorted([name[1:-1] for name in body.names])))
            _describe(program, other, (OTHER, len(body.names), blanks, value, rest, beyond, *names))
        else:
            (string,) = numbers((STRING,))
            needed.append(string)
            _describe(program, other, (ANY_NAME, blanks, value, string))
    if not body.names:
        _describe(program, rule, (LIST, OPEN, CLOSE, other, blanks, body.least))
        return
    values = numbers(body.values)
    needed += values
    lengths = list(map(len, body.names))
    places = accumulate(lengths[:-1], initial=len(blob))
    blob += b"".join(body.names)
    if body.ordered:
        required = body.required
        needs = [int(place in required) for place in range(len(values))]
        head = (ORDERED, blanks, int(not required and not body.least), other, len(values))
        members_of = zip(places, lengths, values, needs, strict=True)
        _describe(program, rule, (*head, *chain.from_iterable(members_of)))
        return
    first, at = len(program.names), len(ready_ops)
    members = list(range(first, first + len(values)))
    ready_ops += chain.from_iterable(
        zip(repeat(MEMBER), places, lengths, repeat(blanks), values, strict=False)
    )
    _new_rules(program, members)
    ready.update(zip(members, range(at, len(ready_ops), 5), strict=True))
    (separator,) = numbers((SEPARATOR,))
    needed.append(separator)
    bag = _new_rule(program, "members")
    ready[bag] = -1
    program.bags.append(PlainBag(bag, separator, members, other, body.required))
    _describe(program, rule, (OBJECT, bag, blanks, int(not body.required and not body.least)))
