"""Hypothesis strategies: small grammars of every awkward sort, vocabularies over their letters, walks.

The letters are few so that random texts meet the grammar's words often: ``a``, ``b``, a quote, and characters
of two, three and four bytes, two of which share their first byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from hypothesis import strategies as st

from vllm_guided.grammar import ir

LETTERS = ["a", "b", '"', "é", "è", "€", "😀"]
WORDS = [letter.encode() for letter in LETTERS]
SPECIAL_NAMES = ["<|x|>", "<|y|>"]
RULE_NAMES = ("start", "p", "q", "r")

BOUNDS = [
    (0, 1),
    (0, None),
    (1, None),
    (3, None),
    (2, 2),
    (0, 3),
    (2, 4),
    (0, 40),
    (20, 25),
    (0, 0),
    (17, None),
]


@dataclass(frozen=True)
class Words:
    """A vocabulary as plain data; :meth:`build` makes the product's."""

    token_bytes: list[bytes | None]
    stop_token_ids: list[int]
    special_tokens: dict[str, int] = field(default_factory=dict)

    def build(self):  # type: ignore[no-untyped-def]
        """The product's vocabulary of these tokens."""
        from vllm_guided import Vocabulary

        return Vocabulary(
            self.token_bytes, stop_token_ids=self.stop_token_ids, special_tokens=self.special_tokens
        )


@cache
def terminals(special: bool) -> st.SearchStrategy[ir.Node]:
    """Nodes without parts."""
    literals = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(
        lambda parts: ir.text(b"".join(parts))
    )
    byte_sets = st.lists(
        st.sampled_from([*b'ab"', 0xC3, 0xA9, 0x80, 0xFF]), min_size=1, max_size=4, unique=True
    ).map(ir.byte_set)
    points = st.sampled_from(
        [*map(ord, LETTERS), 0x61, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10FFFF]
    )
    char_sets = st.lists(st.tuples(points, points).map(sorted).map(tuple), min_size=1, max_size=3).map(
        ir.char_set
    )
    choices = [literals, literals, byte_sets, char_sets, st.just(ir.ANY_CHAR), st.just(ir.EMPTY)]
    if special:
        choices.append(special_tokens())
    return st.one_of(choices)


@cache
def special_tokens() -> st.SearchStrategy[ir.Node]:
    """Special tokens by name, by id, negated."""
    names = st.lists(st.sampled_from(SPECIAL_NAMES), max_size=2).map(frozenset)
    ids = st.sampled_from([(), ((0, 1),), ((2, 2), (4, 7))])
    return st.one_of(
        st.sampled_from(SPECIAL_NAMES).map(lambda name: ir.SpecialToken(frozenset({name}))),
        st.builds(ir.SpecialToken, names, ids, st.booleans()),
    )


def graphs(labels: st.SearchStrategy[ir.Node]) -> st.SearchStrategy[ir.Node]:
    """Small labelled graphs; not every node can be reached, or can reach an end."""
    places = st.integers(0, 3)
    edges = st.lists(st.tuples(places, labels, places), max_size=5).map(tuple)
    return st.builds(
        ir.Graph, edges, st.frozensets(places, min_size=1, max_size=2), st.sampled_from([0, 0, 1])
    )


@cache
def nodes(names: tuple[str, ...], special: bool) -> st.SearchStrategy[ir.Node]:
    """Any node, with references to the rules ``names``."""
    leaves = st.one_of(terminals(special), terminals(special), st.sampled_from(names).map(ir.Ref))

    def larger(parts: st.SearchStrategy[ir.Node]) -> st.SearchStrategy[ir.Node]:
        return st.one_of(
            st.lists(parts, min_size=2, max_size=3).map(lambda items: ir.Sequence(tuple(items))),
            st.lists(parts, min_size=2, max_size=3).map(lambda items: ir.Choice(tuple(items))),
            st.tuples(parts, st.sampled_from(BOUNDS)).map(lambda pair: ir.Repeat(pair[0], *pair[1])),
            graphs(parts),
        )

    return st.recursive(leaves, larger, max_leaves=6)


@cache
def shapes(names: tuple[str, ...], special: bool) -> st.SearchStrategy[ir.Node]:
    """Bodies that are recursive in one of the ways that are hard: left, hidden left, right, in the middle."""
    some = nodes(names, special)
    base = terminals(special)

    @st.composite
    def build(draw: st.DrawFn) -> ir.Node:
        this, other = ir.Ref(draw(st.sampled_from(names))), ir.Ref(draw(st.sampled_from(names)))
        part, end, around = draw(some), draw(base), draw(base)
        return draw(
            st.sampled_from(
                [
                    ir.Choice((ir.Sequence((this, part)), end)),
                    ir.Choice((ir.Sequence((ir.optional(around), this, part)), end)),
                    ir.Choice((ir.Sequence((part, this)), end)),
                    ir.Choice((ir.Sequence((around, this, part)), end)),
                    ir.Choice((ir.Sequence((this, other)), end)),
                    ir.Choice((ir.Sequence((this, around, other)), end, ir.EMPTY)),
                    ir.Sequence((around, ir.Repeat(ir.Sequence((this, part)), 0, 3), end)),
                    ir.Sequence((part, this)),
                    ir.Repeat(ir.Choice((ir.Sequence((around, this, end)), part)), 0, 30),
                ]
            )
        )

    return build()


@st.composite
def grammars(draw: st.DrawFn, special: bool = False) -> ir.Grammar:
    """A grammar of one to four rules; its language may be empty."""
    names = RULE_NAMES[: draw(st.integers(1, 4))]
    rules = {}
    for name in names:
        body = draw(st.one_of(nodes(names, special), shapes(names, special)))
        rules[name] = ir.Rule(body, shared=draw(st.booleans()))
    return ir.Grammar(rules, draw(st.sampled_from([names[0], names[0], names[-1]])))


def literals_in(grammar: ir.Grammar) -> list[bytes]:
    """The texts of a grammar's literals, to cut tokens from."""
    found, todo = [], [rule.body for rule in grammar.rules.values()]
    while todo:
        match todo.pop():
            case ir.Literal(data):
                found.append(data)
            case ir.Sequence(items) | ir.Choice(items):
                todo.extend(items)
            case ir.Repeat(item):
                todo.append(item)
            case ir.Graph(edges):
                todo.extend(label for _, label, _ in edges)
            case ir.Bag(entries, separator):
                todo += [part for entry in entries for part in (entry.item, entry.rest)]
                todo.append(separator)
            case _:
                pass
    return found


@st.composite
def vocabularies(draw: st.DrawFn, grammar: ir.Grammar | None = None, complete: bool = False) -> Words:
    """Tokens over the letters: single bytes (all of them if ``complete``), longer ones and doubles.

    One or two stop tokens, maybe with bytes of their own; both special names; padding at the end.
    """
    single: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    if not complete and draw(st.booleans()):
        used = draw(st.lists(st.sampled_from(sorted(b"".join(WORDS))), max_size=8))
        single = [bytes([byte]) for byte in used]
    pieces = st.sampled_from(
        [*WORDS, *(literals_in(grammar) if grammar else []), b"\xc3", b"\xa9", b"\xf0\x9f"]
    )
    longer = draw(st.lists(st.lists(pieces, min_size=1, max_size=5).map(b"".join), max_size=25))
    if grammar and draw(st.booleans()):
        longer += [word * 7 for word in WORDS[:3]] + [word * 23 for word in WORDS[:2]]
    tokens: list[bytes | None] = [*longer, *single, None, None, None, None]
    if not complete and draw(st.booleans()):
        tokens[0] = b""
    size = len(tokens)
    special = {name: size - 4 + i for i, name in enumerate(SPECIAL_NAMES)}
    stops = [size - 2]
    if size > 4 and not complete and draw(st.booleans()):
        stops.append(draw(st.integers(0, size - 5)))
    # Room for the ids that special tokens may name.
    tokens += [None] * max(8 - size, draw(st.sampled_from([0, 1, 31, 40])))
    return Words(tokens, sorted(set(stops)), special)
