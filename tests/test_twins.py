"""Counted repetitions near and far from their limits, with tokens about as long as these, by the reference.

The masks of a count are found by way of its twins, its slack and ready rows of so many characters
(``runtime/twins.py``, ``walk_chain``); what they must be is tried token by token with ``naive.py``.
"""

from __future__ import annotations

import random
from functools import cache

import naive
import numpy as np
import pytest
from strategies import Words
from test_engine_properties import mask_of

import vllm_guided as vg
from vllm_guided.grammar import ir
from vllm_guided.runtime import entry

LONGEST = 20
#: Never in a token: it only makes an item so large that its repetition is counted, not written out.
LARGE = ir.Literal(b"\x01" * 200)
HEX = ir.byte_set(b"0123456789abcdef")
NEAR = (1, 3, LONGEST - 1, LONGEST, LONGEST + 1, LONGEST + 4)


def class_item() -> ir.Node:
    return ir.Choice((ir.byte_set(b"ab01"), LARGE))


def character_item() -> ir.Node:
    """A character of a JSON string: itself, or an escape of two or six bytes."""
    plain = ir.char_set([(0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF)])
    escape = ir.Choice((ir.byte_set(b'"\\nt'), ir.Sequence((ir.text("u"), HEX, HEX, HEX, HEX))))
    return ir.Choice((plain, ir.Sequence((ir.text("\\"), escape)), LARGE))


def pair_item() -> ir.Node:
    """A letter, and after a dash more of them: some bytes of an item end it, and some do not."""
    letters = ir.byte_set(b"ab01")
    return ir.Choice((letters, ir.Sequence((ir.text("-"), letters, ir.star(letters), ir.text(";"))), LARGE))


def goes_on(item: ir.Node, least: int, most: int | None) -> ir.Grammar:
    """A repetition that text of the same bytes follows in its own frame: any number, a few, or one."""
    letters = ir.byte_set(b"ab01")
    after = ir.Choice((ir.star(letters), ir.Sequence((ir.text("-"), letters, letters)), ir.text("b-")))
    text = ir.Sequence((ir.text('"'), ir.Repeat(item, least, most), after, ir.text('"')))
    two = ir.Sequence((ir.text("["), ir.Ref("text"), ir.text(","), ir.Ref("text"), ir.text("]")))
    return ir.Grammar({"start": ir.Rule(two), "text": ir.Rule(text, shared=True)})


ITEMS = {"class": class_item, "characters": character_item, "pairs": pair_item}


def counted(item: ir.Node, least: int, most: int | None) -> ir.Grammar:
    """A repetition in quotes, as in a list of two, so that it stands in a frame of its own."""
    text = ir.Sequence((ir.text('"'), ir.Repeat(item, least, most), ir.text('"')))
    two = ir.Sequence((ir.text("["), ir.Ref("text"), ir.text(","), ir.Ref("text"), ir.text("]")))
    return ir.Grammar({"start": ir.Rule(two), "text": ir.Rule(text, shared=True)})


@cache
def words() -> Words:
    """Bytes; runs of each length up to LONGEST, some with an escape, a quote or a piece of a character."""
    choices = random.Random(7)
    tokens = [bytes([byte]) for byte in b'ab01",[]\\u-;' + "é€😀".encode()]
    for length in range(2, LONGEST + 1):
        tokens.append(b"a" * length)
        tokens.append(bytes(choices.choices(b"ab01", k=length)))
        tokens.append(
            bytes(choices.choices(b'ab01-;"\\u,', weights=[6, 6, 3, 3, 1, 1, 1, 1, 1, 1], k=length))
        )
        tokens.append(("aé" * LONGEST).encode()[:length])
        tokens.append(("€b" * LONGEST).encode()[: length - 1] + b'"')
    tokens += [b"a" * length + b'","' for length in (0, 3, 9, LONGEST - 3)]
    tokens += [b"a" * length + b'"' + b"b" * 3 for length in (2, 8)]
    tokens += [
        b"\\u00",
        b"\\u0061",
        b"00",
        b"0061",
        b"00" + b"a" * 9,
        b"1" * 11,
        b"0" * 17,
        b"\\",
        b'\\"',
        b'\\"a',
    ]
    tokens += ["😀".encode() * 4, b"\x98\x80aaa", b"\xa9" + b"b" * 7, "é".encode() * 9]
    listed = sorted(set(tokens), key=lambda data: (len(data), data))
    assert max(map(len, listed)) == LONGEST
    return Words([*listed, None], [len(listed)])


def texts(name: str, least: int, most: int | None) -> list[bytes]:
    """Items to go through one by one, up to the limits and a little beyond."""
    count = (most if most is not None else max(least, 2) + LONGEST) + 1
    choices = random.Random(count)
    if name == "class":
        return [b"a"] * count
    if name == "pairs":
        return choices.choices([b"a", b"b", b"-a;", b"-01ab;"], k=count)
    mixed = [b"a", "é".encode(), "😀".encode(), b"\\n", b"\\u0061", "€".encode()]
    return choices.choices(mixed, k=count)


def check(grammar: ir.Grammar, compiler: vg.GrammarCompiler, items: list[bytes], every: int) -> None:
    """Go through the items; compare masks at the first ``every`` and the last counts, and inside of items."""
    vocabulary = words()
    bound = compiler.compile_grammar_ir(grammar)
    assert (bound.automaton.counter_body >= 0).any(), "nothing is counted"
    matcher, reference = bound.matcher(), naive.Recogniser(grammar)
    single = {data: id for id, data in enumerate(vocabulary.token_bytes) if data and len(data) == 1}
    stops = set(vocabulary.stop_token_ids)

    def compare() -> None:
        expected = set(stops) if reference.accepting() else set()
        for id, data in enumerate(vocabulary.token_bytes):
            if data and reference.push_all(data):
                expected.add(id)
                reference.pop(len(data))
        got = mask_of(matcher, vocabulary)
        extra = [vocabulary.token_bytes[id] for id in sorted(got - expected)]
        missing = [vocabulary.token_bytes[id] for id in sorted(expected - got)]
        assert got == expected, (len(reference), extra, missing)
        tried = np.zeros(len(vocabulary.token_bytes), np.int32)
        states, ids = np.full_like(tried, matcher.state), np.arange(len(tried), dtype=np.int32)
        entry.advance_batch(matcher._runtime.address, states, ids, tried)
        assert set(np.flatnonzero(tried).tolist()) == expected

    def accept(data: bytes) -> bool:
        if not reference.push_all(data):
            assert not matcher.accept_bytes(data)
            return False
        if all(bytes([byte]) in single for byte in data):
            assert matcher.accept_tokens([single[bytes([byte])] for byte in data])
        else:
            assert matcher.accept_bytes(data)
        return True

    assert accept(b'["')
    compare()
    inside = random.Random(every)
    for number, item in enumerate(items):
        looked_at = number < every or len(items) - number <= 3 or inside.random() < 0.3
        cut = inside.randrange(len(item)) if looked_at else 0
        if not accept(item[:cut] or item) or (cut and (compare() or not accept(item[cut:]))):
            break
        if looked_at:
            compare()
    if accept(b'","'):
        compare()


LIMITS = [
    *((0, most) for most in NEAR),
    *((least, None) for least in NEAR),
    (2, 5), (3, 3), (LONGEST - 2, LONGEST + 2), (LONGEST, LONGEST), (LONGEST + 1, LONGEST + 1),
    (5, 2 * LONGEST + 3), (LONGEST + 3, 3 * LONGEST), (2 * LONGEST, 2 * LONGEST + 1), (1, 12),
]  # fmt: skip


@pytest.fixture(scope="module")
def shared() -> vg.GrammarCompiler:
    """One for all limits, whose masks share what they can."""
    return vg.GrammarCompiler(words().build())


@pytest.mark.parametrize("name", ITEMS)
@pytest.mark.parametrize("limits", [pair for pair in LIMITS if pair[0] > 1 or (pair[1] or 0) > 2])
def test_masks_at_each_count(name: str, limits: tuple[int, int | None], shared: vg.GrammarCompiler) -> None:
    grammar = counted(ITEMS[name](), *limits)
    check(grammar, shared, texts(name, *limits), 3)


@pytest.mark.parametrize("name", ITEMS)
def test_alone(name: str) -> None:
    """The same in compilers of their own, at every count."""
    for limits in ((0, LONGEST + 2), (LONGEST - 1, LONGEST + 1)):
        compiler = vg.GrammarCompiler(words().build())
        check(counted(ITEMS[name](), *limits), compiler, texts(name, *limits), LONGEST + 3)


@pytest.mark.parametrize("name", ITEMS)
@pytest.mark.parametrize(
    "limits",
    [(LONGEST, LONGEST), (3, 3), (LONGEST + 4, 2 * LONGEST), (2, LONGEST + 2), (LONGEST, None), (4, None)],
)
def test_the_same_bytes_follow(name: str, limits: tuple[int, int | None], shared: vg.GrammarCompiler) -> None:
    check(goes_on(ITEMS[name](), *limits), shared, texts(name, *limits), 2 * LONGEST)


@pytest.mark.parametrize("outer", [(0, 4), (2, 3), (4, None)])
def test_counters_in_counters(outer: tuple[int, int | None], shared: vg.GrammarCompiler) -> None:
    """A counted run of letters, each ended by a comma, so many times."""
    inner = ir.Sequence((ir.Repeat(class_item(), 1, LONGEST + 2), ir.text(",")))
    grammar = counted(inner, *outer)
    run = [b"a", b"b"] * (LONGEST // 2 + 1) + [b","]
    check(grammar, shared, [*run[-2:], *run, b"a", b",", *run, b"b"], 3)
