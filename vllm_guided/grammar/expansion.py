"""The general nodes that :mod:`.json_rules` stand for: their definition, and the twin of compiled code."""

from __future__ import annotations

from vllm_guided.grammar import ir
from vllm_guided.grammar.json_rules import (
    BLANKS,
    JSON_RULES,
    NAME_BEYOND,
    NAME_REST,
    SEPARATOR,
    STRING,
    JsonArray,
    JsonObject,
    JsonValue,
)

_ASCII = frozenset(range(0x20, 0x80)) - frozenset(b'"\\')


def expanded(grammar: ir.Grammar) -> ir.Grammar:
    """``grammar`` in general nodes; itself if it is."""
    if not any(type(rule.body) in JSON_RULES for rule in grammar.rules.values()):
        return grammar
    rules = {
        name: ir.Rule(expanded_rule(rule.body), rule.shared) if type(rule.body) in JSON_RULES else rule
        for name, rule in grammar.rules.items()
    }
    return ir.Grammar(rules, grammar.start)


def expanded_rule(rule: ir.Node) -> ir.Node:
    """The general node of one rule's body; itself if it is one."""
    match rule:
        case JsonObject():
            return _object(rule)
        case JsonArray(item, least, compact):
            return _list("[", ir.Ref(item), "]", least, compact)
        case JsonValue(texts, rules):
            return ir.choice(*map(ir.text, texts), *map(ir.Ref, rules))
        case _:
            return rule


def _blank(compact: bool) -> ir.Node:
    return ir.EMPTY if compact else ir.optional(ir.Ref(BLANKS))


def _member(name: ir.Node, value: str, compact: bool) -> ir.Node:
    return ir.sequence(name, _blank(compact), ir.text(":"), _blank(compact), ir.Ref(value))


def _list(opening: str, item: ir.Node, closing: str, least: int, compact: bool) -> ir.Node:
    blank = _blank(compact)
    more = ir.star(ir.sequence(blank, ir.text(","), blank, item))
    some = ir.sequence(ir.text(opening), blank, item, more, blank, ir.text(closing))
    none = ir.sequence(ir.text(opening), blank, ir.text(closing))
    return some if least else ir.choice(some, none)


def _object(rule: JsonObject) -> ir.Node:
    compact, blank = rule.compact, _blank(rule.compact)
    other = None if rule.other is None else _member(_other_name(rule.names), rule.other, compact)
    none = ir.sequence(ir.text("{"), blank, ir.text("}"))
    if not rule.names:
        return none if other is None else _list("{", other, "}", rule.least, compact)
    if rule.ordered:
        some = ir.sequence(ir.text("{"), blank, _in_order(rule, other), blank, ir.text("}"))
        return some if rule.required or rule.least else ir.choice(some, none)
    entries = [
        ir.Entry(_member(ir.text(name), value, compact), own=place)
        for place, (name, value) in enumerate(zip(rule.names, rule.values, strict=True))
    ]
    if other is not None:
        entries.append(ir.Entry(other))
    most = None if other is not None else len(entries)
    bag = ir.Bag(tuple(entries), ir.Ref(SEPARATOR), rule.required, 1, most)
    some = ir.sequence(ir.text("{"), blank, bag, blank, ir.text("}"))
    return some if rule.required or rule.least else ir.choice(some, none)


def _in_order(rule: JsonObject, other: ir.Node | None) -> ir.Node:
    """At least one member; vertices are twice the names that are passed, and one more behind a member."""
    comma = ir.Ref(SEPARATOR)
    end = 2 * len(rule.names)
    edges: list[tuple[int, ir.Node, int]] = []
    for place, (name, value) in enumerate(zip(rule.names, rule.values, strict=True)):
        member = _member(ir.text(name), value, rule.compact)
        edges.append((2 * place, member, 2 * place + 3))
        edges.append((2 * place + 1, ir.sequence(comma, member), 2 * place + 3))
        if place not in rule.required:
            edges += [(2 * place + written, ir.EMPTY, 2 * place + 2 + written) for written in (0, 1)]
    if other is not None:
        edges += [(end, other, end + 1), (end + 1, ir.sequence(comma, other), end + 1)]
    return ir.Graph(tuple(edges), frozenset([end + 1]), 0)


def _other_name(names: tuple[bytes, ...]) -> ir.Node:
    """Any name in quotes but ``names``: their trie, left at the first other character."""
    if not names:
        return ir.Ref(STRING)
    inner = [name[1:-1] for name in names]
    prefixes = sorted({name[:length] for name in inner for length in range(len(name) + 1)})
    number = {prefix: place for place, prefix in enumerate(prefixes)}
    free, end = len(number), len(number) + 1
    edges: list[tuple[int, ir.Node, int]] = [(free, ir.Ref(NAME_REST), end)]
    for prefix, here in number.items():
        children = {byte for byte in _ASCII if prefix + bytes([byte]) in number}
        edges += [(here, ir.byte_set([byte]), number[prefix + bytes([byte])]) for byte in children]
        edges.append((here, ir.byte_set(_ASCII - children), free))
        edges.append((here, ir.Ref(NAME_BEYOND), end))
        if prefix not in inner:
            edges.append((here, ir.text('"'), end))
    return ir.sequence(ir.text('"'), ir.Graph(tuple(edges), frozenset([end]), number[b""]))
