"""JSON without some strings, or some escapes, in it: ``excludes`` of a ``json_schema`` format.

In: the grammar of JSON texts and the excluded strings. Out: the grammar of those texts in which no string
contains one, as it is written. The excluded strings hold a character that JSON has inside strings only, and
no quote, so that none can cross the end of a string: every regular part is filtered by itself, once it is
certain that none of its texts ends inside an excluded string.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from vllm_guided.errors import ConstraintTooComplex, UnsupportedConstraint
from vllm_guided.frontends import free_text, regular
from vllm_guided.frontends.json_schema.names import RULES
from vllm_guided.frontends.tags import excluded_bags
from vllm_guided.frontends.utf8 import utf8_sequences
from vllm_guided.grammar import ir

_OUTSIDE = frozenset(" \t\n\r{}[]:,0123456789+-.eEtrufalsn")


@dataclass(frozen=True, slots=True)
class _Filter:
    """What stays of a regular part: its texts in ``keep``.

    Parts with no byte of ``bytes`` stay as they are. A text of ``cut`` at a part's end would make the filter
    unsound. What is too large for an automaton goes without the characters ``codes``.
    """

    keep: ir.Node
    bytes: int
    codes: frozenset[int]
    cut: ir.Node = ir.NOTHING


def without(grammar: ir.Grammar, words: list[str]) -> ir.Grammar:
    """``grammar``, JSON texts, without those in which one of ``words`` occurs.

    Raises:
        UnsupportedConstraint: a word that could stand outside of strings, or that holds a quote.
    """
    first = 0
    for word in words:
        if set(word) <= _OUTSIDE or set(word) & set('"\\') or min(word) < " ":
            raise UnsupportedConstraint(
                f"excluding {word!r} from JSON is not supported: exclude what can stand"
                " in strings only, without quotes"
            )
        first |= 1 << word.encode()[0]
    beginnings = ir.choice(*(ir.text(word[:size]) for word in words for size in range(1, len(word))))
    keep = free_text.text_without(words)
    return _applied(grammar, _Filter(keep, first, frozenset(ord(word[0]) for word in words), beginnings))


def with_escapes(grammar: ir.Grammar, letters: str) -> ir.Grammar:
    """``grammar``, JSON texts, with no escapes in strings but those whose letter is in ``letters``."""
    plain = ir.char_set([(0, 0x5B), (0x5D, 0xD7FF), (0xE000, ir.MAX_CODE_POINT)])
    escape = ir.sequence(ir.text("\\"), ir.char_set((ord(letter), ord(letter)) for letter in letters))
    keep = ir.star(ir.choice(plain, escape))
    return _applied(grammar, _Filter(keep, 1 << 0x5C, frozenset([0x5C])))


def _applied(grammar: ir.Grammar, filter_: _Filter) -> ir.Grammar:
    whole = _with_whole_names(grammar)
    rules = {name: ir.Rule(_filtered(rule.body, filter_), rule.shared) for name, rule in whole.rules.items()}
    return excluded_bags.settled(whole, ir.Grammar(rules, grammar.start))


def _with_whole_names(grammar: ir.Grammar) -> ir.Grammar:
    """The grammar with every member name in one regular part: the rules that several names end in put in."""
    ends = {name: rule.body for rules in RULES.values() for name, rule in rules.items()}

    def whole(node: ir.Node) -> ir.Node:
        return ends.get(node.name, node) if isinstance(node, ir.Ref) else ir.mapped(node, whole)

    if ends.keys().isdisjoint(grammar.rules):
        return grammar
    kept = {name: rule for name, rule in grammar.rules.items() if name not in ends}
    return ir.Grammar(
        {name: ir.Rule(whole(rule.body), rule.shared) for name, rule in kept.items()}, grammar.start
    )


@lru_cache(maxsize=64)
def _filtered(node: ir.Node, filter_: _Filter) -> ir.Node:
    if regular.is_regular(node):
        return _regular(node, filter_)
    match node:
        case ir.Sequence(items):
            out: list[ir.Node] = []
            run: list[ir.Node] = []
            for item in items:
                if regular.is_regular(item):
                    run.append(item)
                    continue
                if run:
                    out.append(_regular(ir.sequence(*run), filter_))
                    run = []
                out.append(_filtered(item, filter_))
            if run:
                out.append(_regular(ir.sequence(*run), filter_))
            return ir.sequence(*out)
        case _:
            return ir.mapped(node, lambda part: _filtered(part, filter_))


def _regular(node: ir.Node, filter_: _Filter) -> ir.Node:
    if not _bytes(node) & filter_.bytes:
        return node
    try:
        automaton = regular.dfa(node)
    except ConstraintTooComplex:
        return _without_chars(node, set(filter_.codes))
    if filter_.cut != ir.NOTHING:
        cut = regular.dfa(ir.sequence(regular.TEXT_NODE, filter_.cut))
        if not regular.is_empty(regular.intersection(automaton, cut)):
            raise UnsupportedConstraint("excludes cannot be honoured for this schema; leave them out")
    return regular.node(regular.intersection(automaton, regular.dfa(filter_.keep)))


def _bytes(node: ir.Node) -> int:
    """The bytes that occur in a regular node's texts, as a mask (those of characters: the first ones)."""
    match node:
        case ir.Literal(data):
            mask = 0
            for byte in data:
                mask |= 1 << byte
            return mask
        case ir.ByteSet(mask):
            return mask
        case ir.CharSet(ranges):
            mask = 0
            for low, high in ranges:
                for sequence in utf8_sequences(low, high):
                    mask |= (2 << sequence[0][1]) - (1 << sequence[0][0])
            return mask
        case ir.Sequence(items) | ir.Choice(items):
            mask = 0
            for item in items:
                mask |= _bytes(item)
            return mask
        case ir.Repeat(item):
            return _bytes(item)
        case ir.Graph(edges):
            mask = 0
            for _, label, _ in edges:
                mask |= _bytes(label)
            return mask
        case _:
            return 0


def _without_chars(node: ir.Node, codes: set[int]) -> ir.Node:
    """A smaller language for what is too large to count in an automaton: without those characters."""
    match node:
        case ir.CharSet(ranges):
            kept: list[tuple[int, int]] = []
            for low, high in ranges:
                for code in sorted(code for code in codes if low <= code <= high):
                    kept.append((low, code - 1))
                    low = code + 1
                kept.append((low, high))
            return ir.char_set(kept)
        case ir.ByteSet(mask):
            for code in codes:
                if code < 0x80:
                    mask &= ~(1 << code)
            return ir.ByteSet(mask)
        case ir.Literal(data):
            text = data.decode("utf-8", "replace")
            return ir.NOTHING if any(ord(char) in codes for char in text) else node
        case _:
            return ir.mapped(node, lambda part: _without_chars(part, codes))
