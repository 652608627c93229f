"""Hypothesis strategies: bags that keep their builder's promises, grammars around them, vocabularies.

A bag keeps its promises if looking ahead at flags, counts and positions, and at the texts of the next item,
is enough never to come to a dead end (:func:`is_kept`); :func:`settled` lowers a bag's limits until it does.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from bags import Ends, Taken, Text, sets, text_of
from grammar_samples import Sampler
from hypothesis import strategies as st
from strategies import Words, literals_in

from vllm_guided.grammar import ir

COMMA = ir.Literal(b",")
SITUATIONS = 400


@dataclass(frozen=True)
class Item:
    """A node for items, and all its texts as distinct items are compared; None: any number of them."""

    node: ir.Node
    texts: frozenset[Text] | None


def few(*words: bytes) -> Item:
    """An item that is one of these words."""
    node = ir.Choice(tuple(map(ir.Literal, words))) if len(words) > 1 else ir.Literal(words[0])
    return Item(node, frozenset(map(text_of, words)))


BLANKS = ir.star(ir.byte_set(b" \n"))
STRING = ir.sequence(
    ir.Literal(b'"'),
    ir.star(ir.choice(ir.byte_set(b"ab ,"), ir.sequence(ir.Literal(b"\\"), ir.byte_set(b'"\\n')))),
    ir.Literal(b'"'),
)
MANY = [
    Item(ir.plus(ir.byte_set(b"12")), None),
    Item(STRING, None),
    Item(ir.sequence(ir.byte_set(b"ab"), BLANKS, ir.star(ir.byte_set(b"ab"))), None),
    Item(ir.Repeat(ir.char_set([(0x61, 0x62), (0xE9, 0xE9), (0x20AC, 0x20AC)]), 3), None),
    Item(ir.Ref("words"), None),
    Item(ir.Ref("value"), None),
]
FEW_WORDS = [b"1", b"12", b"2", b"a", b"ab", b"a b", b'"a"', b'"a "', b'"\\""', b'"\\" "', b"b"]


@st.composite
def items(draw: st.DrawFn) -> Item:
    """Items with few texts, with blanks around them, or with many."""
    if draw(st.integers(0, 2)) == 0:
        return draw(st.sampled_from(MANY))
    item = few(*draw(st.lists(st.sampled_from(FEW_WORDS), min_size=1, max_size=4, unique=True)))
    if draw(st.integers(0, 4)) == 0:
        return Item(ir.sequence(item.node, BLANKS), item.texts)
    return item


def rests() -> st.SearchStrategy[ir.Node]:
    """What follows an item in its member."""
    values = st.sampled_from([ir.Literal(b"1"), ir.Literal(b'"b"'), ir.Ref("value"), ir.Ref("words"), BLANKS])
    return values.map(lambda value: ir.sequence(ir.Literal(b":"), value))


AS_IN_JSON = [COMMA, ir.sequence(COMMA, BLANKS), ir.sequence(BLANKS, COMMA, BLANKS), ir.Literal(b", ")]
SEPARATORS = [COMMA, COMMA, COMMA, AS_IN_JSON[1], ir.Literal(b",1"), ir.EMPTY, ir.star(COMMA)]


def is_kept(bag: ir.Bag, texts: dict[int, frozenset[Text]]) -> bool:
    """Whether what is possible next by flags, counts and positions is possible for every text not used yet.

    ``texts``: of the distinct entries with few.
    """
    every = range(len(bag.entries))
    exact, blind = Ends(bag, every, True, texts), Ends(bag, every, True)
    if not exact.can_end(Taken()):
        return False
    shared = frozenset[Text]().union(*texts.values())
    seen, todo = {Taken()}, [Taken()]
    for taken in todo:
        for index in blind.nexts(taken):
            entry = bag.entries[index]
            if not entry.distinct:
                afters = [taken.plus(entry, None)]
            elif index not in texts:  # it may take what others have few of, too
                afters = [taken.plus(entry, text) for text in (None, *(shared - taken.texts))]
            else:
                afters = [taken.plus(entry, text) for text in texts[index] - taken.texts]
            if not all(map(exact.can_end, afters)):
                return False
            if len(seen) < SITUATIONS and taken.count < 8:
                todo.extend(after for after in afters if after not in seen)
                seen.update(afters)
        if bool(blind.nexts(taken)) != bool(exact.nexts(taken)):
            return False
    return True


def settled(bag: ir.Bag, texts: dict[int, frozenset[Text]]) -> ir.Bag:
    """The bag with a lower maximum or minimum, and at last with no flags required, so that it is kept."""
    highest = 6 if bag.maximum is None else bag.maximum
    maxima = [bag.maximum, *range(highest - 1, -1, -1)]
    for required in (bag.required, frozenset[int]()):
        for maximum in maxima:
            for minimum in range(bag.minimum if maximum is None else min(bag.minimum, maximum), -1, -1):
                tried = replace(bag, required=required, minimum=minimum, maximum=maximum)
                if is_kept(tried, texts):
                    return tried
    raise AssertionError("the empty bag is always kept")


def texts_of(entries: list[ir.Entry], found: list[Item]) -> dict[int, frozenset[Text]]:
    """The texts of the distinct entries' items with few."""
    pairs = zip(entries, found, strict=True)
    return {
        index: item.texts
        for index, (entry, item) in enumerate(pairs)
        if entry.distinct and item.texts is not None
    }


LIMITS = [(0, None), (0, None), (0, 2), (1, 2), (1, None), (2, 3), (2, 4), (3, 3), (0, 5), (3, None)]


@st.composite
def objects(draw: st.DrawFn, separators: list[ir.Node] = SEPARATORS) -> ir.Bag:
    """Members with flags of their own, some in variants that set wanted flags, and maybe free ones."""
    entries: list[ir.Entry] = []
    found: list[Item] = []
    for own in range(draw(st.integers(1, 4))):
        for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
            name = draw(st.sampled_from([bytes([b"abcd"[own]]), b"ab"[: 1 + own % 2], b'"a"']))
            flags = draw(st.sampled_from([frozenset(), frozenset(), frozenset({10}), frozenset({10, 11})]))
            entries.append(ir.Entry(ir.Literal(name), draw(rests()), own, flags, False))
            found.append(few(name))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        item = draw(items())
        distinct = draw(st.booleans())
        flags = draw(st.sampled_from([frozenset(), frozenset(), frozenset({10})]))
        entries.append(ir.Entry(item.node, draw(rests()), None, flags, distinct))
        found.append(item)
    settable = sorted(frozenset[int]().union(*map(sets, entries)))
    required = frozenset(draw(st.lists(st.sampled_from(settable), max_size=3)))
    minimum, maximum = draw(st.sampled_from(LIMITS))
    order = draw(st.permutations(range(len(entries))))
    entries, found = [entries[place] for place in order], [found[place] for place in order]
    bag = ir.Bag(tuple(entries), draw(st.sampled_from(separators)), required, minimum, maximum)
    return settled(bag, texts_of(entries, found))


@st.composite
def arrays(draw: st.DrawFn, finite: bool = False, separators: list[ir.Node] = SEPARATORS) -> ir.Bag:
    """Distinct items of a few words or of many, with positions, or with flags that are wanted."""
    some = st.lists(st.sampled_from(FEW_WORDS), min_size=1, max_size=3, unique=True).map(lambda w: few(*w))
    found = draw(st.lists(some if finite else items(), min_size=1, max_size=3))
    tails: list[ir.Node] = [ir.EMPTY, ir.EMPTY, ir.Literal(b":")] if finite else [ir.EMPTY, BLANKS]
    placed = draw(st.booleans())
    entries: list[ir.Entry] = []
    for item in found:
        distinct = draw(st.sampled_from([True, True, True, False]))
        rest = draw(st.sampled_from(tails))
        if placed:
            first, length = draw(st.sampled_from([(0, None), (0, 0), (0, 1), (1, None), (1, 1), (2, None)]))
            last = None if length is None else first + length
            entries.append(ir.Entry(item.node, rest, distinct=distinct, first=first, last=last))
        else:
            flags = draw(st.sampled_from([frozenset(), frozenset({0}), frozenset({0, 1}), frozenset({2})]))
            entries.append(ir.Entry(item.node, rest, None, flags, distinct))
    settable = sorted({flag for entry in entries for flag in entry.flags})
    required = frozenset(draw(st.lists(st.sampled_from(settable), max_size=2)) if settable else [])
    minimum, maximum = draw(st.sampled_from([(0, 2), (1, 2), (2, 3), (3, 3), (0, 3)] if finite else LIMITS))
    bag = ir.Bag(tuple(entries), draw(st.sampled_from(separators)), required, minimum, maximum)
    return settled(bag, texts_of(entries, found))


def bags(separators: list[ir.Node] = SEPARATORS) -> st.SearchStrategy[ir.Bag]:
    return st.one_of(objects(separators), arrays(False, separators))


def bracketed(node: ir.Node, marks: bytes) -> ir.Node:
    return ir.sequence(ir.Literal(marks[:1]), node, ir.Literal(marks[1:]))


@st.composite
def grammars(draw: st.DrawFn, separators: list[ir.Node] = SEPARATORS) -> ir.Grammar:
    """Bags alone, in choices, repetitions and sequences, inside each other and in recursion."""
    one, other = draw(bags(separators)), draw(bags(separators))
    atoms = draw(st.sampled_from([(ir.Literal(b"1"),), (ir.Literal(b"a"), ir.plus(ir.Literal(b"2")))]))
    # Its texts are endless in any case.
    nested = [*atoms, bracketed(ir.Ref("value"), b"()"), bracketed(ir.Ref("one"), b"[]")]
    start = draw(
        st.sampled_from(
            [
                ir.Ref("one"),
                ir.Ref("value"),
                bracketed(ir.Ref("one"), b"{}"),
                ir.Choice((ir.Ref("one"), ir.Ref("other"))),
                ir.Choice((bracketed(one, b"{}"), bracketed(other, b"{}"))),
                ir.Sequence((ir.Ref("one"), ir.star(ir.Literal(b",1")), ir.optional(ir.Literal(b":")))),
                ir.Sequence((ir.optional(ir.Literal(b"1,")), ir.Ref("one"), ir.Ref("other"))),
                ir.Repeat(bracketed(ir.Ref("one"), b"[]"), 0, 3),
                ir.Repeat(bracketed(one, b"[]"), 2, 30),
                ir.sequence(ir.Repeat(ir.Literal(b"a"), 0, 40), ir.Repeat(ir.Ref("other"), 1, 2)),
            ]
        )
    )
    rules = {
        "start": ir.Rule(start),
        "one": ir.Rule(one, draw(st.booleans())),
        "other": ir.Rule(other),
        "value": ir.Rule(ir.Choice(tuple(nested)), draw(st.booleans())),
        "words": ir.Rule(ir.plus(ir.byte_set(b"ab")), True),
    }
    return ir.Grammar(rules, "start")


PIECES = [b",", b":", b'"', b"\\", b" ", b"1", b"2", b"a", b"b", b"[", b"]", b"{", b"}", b",1", b'",', b'":']


@st.composite
def vocabularies(draw: st.DrawFn, grammar: ir.Grammar) -> Words:
    """Every byte, pieces of the grammar's literals, and cuts of its own texts, over members and items."""
    pieces = st.sampled_from([*PIECES, *literals_in(grammar)])
    longer = draw(st.lists(st.lists(pieces, min_size=1, max_size=5).map(b"".join), max_size=15))
    choices = draw(st.randoms(use_true_random=False))
    for text in texts(grammar, choices, 3):
        for _ in range(6):
            begin = choices.randrange(len(text) + 1)
            longer.append(text[begin : begin + choices.randint(1, 9)])
    tokens: list[bytes | None] = [*(data for data in longer if data), *(bytes([byte]) for byte in range(256))]
    return Words([*tokens, None], [len(tokens)])


def texts(grammar: ir.Grammar, choices: random.Random, count: int) -> list[bytes]:
    """Some texts of the grammar."""
    sampler = Sampler(grammar, choices)
    return [
        sampler.sample(grammar.rules[grammar.start].body, choices.choice([1, 3, 5])) for _ in range(count)
    ]
