"""Bags after some texts were taken out of a grammar: they must keep the promises of whoever built them.

In: a grammar, and the same grammar filtered. Out: the filtered one, in which entries without a text are
dropped and bags that cannot be filled any more derive nothing. Where entries are distinct there must be as
many different items as before: their texts are endless, or nothing was taken out of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from vllm_guided.errors import ConstraintTooComplex, UnsupportedConstraint
from vllm_guided.frontends import bags, embedding, regular
from vllm_guided.frontends.json_schema import productivity
from vllm_guided.grammar import ir

_BLANKS = 1 << 0x20 | 1 << 0x09 | 1 << 0x0A | 1 << 0x0D


def settled(before: ir.Grammar, after: ir.Grammar) -> ir.Grammar:
    """``after``, the filtered ``before``, with bags that can be filled.

    Raises:
        UnsupportedConstraint: items that must differ, of which some were taken out and only some are left.
    """
    if not any(bag for rule in after.rules.values() for bag in _bags_in(rule.body)):
        return after
    changed = _changed(before.rules, after.rules)
    same = {
        entry.item
        for rule in before.rules.values()
        for bag in _bags_in(rule.body)
        for entry in bag.entries
        if entry.distinct and embedding.references(entry.item).isdisjoint(changed)
    }
    productive = after.rules.keys() - productivity.unproductive(after.rules)
    rules = {}
    for name, rule in after.rules.items():
        for bag in _bags_in(rule.body):
            for entry in bag.entries:
                if (
                    entry.distinct
                    and entry.item not in same
                    and not _is_endless(entry.item, after.rules, productive)
                ):
                    raise UnsupportedConstraint(
                        "excluding strings is not supported where items must differ and only some of them "
                        "are left; leave out the exclusion or uniqueItems"
                    )
        rules[name] = ir.Rule(_filled(rule.body, productive), rule.shared)
    return ir.Grammar(rules, after.start)


def _bags_in(node: ir.Node) -> Iterator[ir.Bag]:
    if isinstance(node, ir.Bag):
        yield node
    for part in ir.parts(node):
        yield from _bags_in(part)


def _changed(before: Mapping[str, ir.Rule], after: Mapping[str, ir.Rule]) -> set[str]:
    """The rules that are not what they were, by themselves or by what they refer to."""
    changed = {name for name, rule in before.items() if after[name] != rule}
    references = {name: embedding.references(rule.body) for name, rule in before.items()}
    while more := {name for name, used in references.items() if used & changed} - changed:
        changed |= more
    return changed


def _filled(node: ir.Node, productive: set[str]) -> ir.Node:
    """The node without entries, and without bags, that have no text."""

    def derives(part: ir.Node) -> bool:
        return productivity.derives(part, productive)

    if isinstance(node, ir.Bag):
        kept = tuple(entry for entry in node.entries if derives(entry.item) and derives(entry.rest))
        node = replace(node, entries=kept)
        if not bags.can_be_filled(node, derives):
            return ir.NOTHING
    return ir.mapped(node, lambda part: _filled(part, productive))


def _is_endless(node: ir.Node, rules: Mapping[str, ir.Rule], productive: set[str]) -> bool:
    """Whether the node has texts without end, blanks left out, as far as can be seen: False is no proof."""
    if not productivity.derives(node, productive):
        return False
    if regular.is_regular(node):
        return _has_loop(node)
    match node:
        case ir.Ref(name):
            return _is_endless(rules[name].body, rules, productive - {name})
        case ir.Choice(items) | ir.Sequence(items):
            return any(_is_endless(item, rules, productive) for item in items)
        case ir.Repeat(item, _, maximum):
            return maximum != 0 and _is_endless(item, rules, productive)
        case _:
            return False


def _has_loop(node: ir.Node) -> bool:
    """Whether the trimmed automaton has a cycle over more than blanks."""
    try:
        automaton = regular.dfa(node)
    except ConstraintTooComplex:
        return False
    # States that cannot lie on such a cycle are taken away until none can be.
    left = set(range(len(automaton.edges)))
    reach: dict[int, set[int]] = {
        state: {target for mask, target in edges if mask & ~_BLANKS}
        for state, edges in enumerate(automaton.edges)
    }
    while done := {state for state in left if not reach[state] & left}:
        left -= done
    return bool(left)
