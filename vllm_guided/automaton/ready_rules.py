"""Rules that say a JSON object, array or value at once (``json_rules.py``), as numbers (``ready.py``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

_BRACKETS = 0x5B, 0x5D


def write_json_rule(program: Program, rule: int, body: JsonRule, number: Callable[[str], int]) -> None:
    """Describe ``rule`` and the rules that only it has; ``number`` says the number of a rule's name."""
    if isinstance(body, JsonObject):
        _object(program, rule, body, number)
    elif isinstance(body, JsonArray):
        item = number(body.item)
        blanks = -1 if body.compact else number(BLANKS)
        program.needed += (item,) if body.compact else (item, blanks)
        _describe(program, rule, (LIST, *_BRACKETS, item, blanks, body.least))
    else:
        rules = [number(name) for name in body.rules]
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


def _object(program: Program, rule: int, body: JsonObject, number: Callable[[str], int]) -> None:
    needed, ready, ready_ops, blob = program.needed, program.ready, program.ready_ops, program.blob
    blanks = -1 if body.compact else number(BLANKS)
    if blanks >= 0:
        needed.append(blanks)
    other = -1
    if body.other is not None:
        value = number(body.other)
        needed.append(value)
        other = _new_rule(program, "member")
        if body.names:
            beyond, rest = number(NAME_BEYOND), number(NAME_REST)
            needed += (beyond, rest)
            names = _texts(program, tuple(sorted([name[1:-1] for name in body.names])))
            _describe(program, other, (OTHER, len(body.names), blanks, value, rest, beyond, *names))
        else:
            string = number(STRING)
            needed.append(string)
            _describe(program, other, (ANY_NAME, blanks, value, string))
    if not body.names:
        _describe(program, rule, (LIST, OPEN, CLOSE, other, blanks, body.least))
        return
    if body.ordered:
        numbers = [ORDERED, blanks, int(not body.required and not body.least), other, len(body.names)]
        values = [number(value) for value in body.values]
        needed += values
        for place, (name, value) in enumerate(zip(body.names, values, strict=True)):
            numbers += (len(blob), len(name), value, int(place in body.required))
            blob += name
        _describe(program, rule, numbers)
        return
    values = [number(value) for value in body.values]
    needed += values
    first, at = len(program.names), len(ready_ops)
    members = list(range(first, first + len(values)))
    for name, value in zip(body.names, values, strict=True):
        ready_ops += (MEMBER, len(blob), len(name), blanks, value)
        blob += name
    _new_rules(program, members)
    ready.update(zip(members, range(at, len(ready_ops), 5), strict=True))
    separator = number(SEPARATOR)
    needed.append(separator)
    bag = _new_rule(program, "members")
    ready[bag] = -1
    program.bags.append(PlainBag(bag, separator, members, other, body.required))
    _describe(program, rule, (OBJECT, bag, blanks, int(not body.required and not body.least)))
