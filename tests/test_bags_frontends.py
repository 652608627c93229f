"""What frontends do with grammars that have bags in them: look through, rename, filter, or refuse."""

from __future__ import annotations

import naive
import pytest
from test_bags import A, B, bag, entry, grammar

from vllm_guided import UnsupportedConstraint
from vllm_guided.frontends import embedding, first, regular, wide
from vllm_guided.frontends.json_schema import productivity
from vllm_guided.frontends.tags import excluded
from vllm_guided.grammar import ir

LETTERS = ir.char_set([(0x61, 0x7A), (0x3C, 0x3E)])


def string(node: ir.Node) -> ir.Node:
    return ir.sequence(ir.text('"'), node, ir.text('"'))


def test_looked_through() -> None:
    some = bag(ir.Entry(ir.Ref("x"), ir.Ref("y"), own=0), entry(b"b", b"cd", first=1), entry(b"e"))
    rules = {"x": ir.Rule(ir.text("a")), "y": ir.Rule(ir.plus(LETTERS))}
    assert embedding.references(some) == {"x", "y"} == set(productivity.references(some))
    moved = embedding.renamed(some, {"x": "p.x", "y": "p.y"})
    assert set(embedding.references(moved)) == {"p.x", "p.y"} and moved.entries[0].own == 0
    assert first.first_of(some, rules) == (True, ir.byte_set(b"ae").mask)
    assert first.first_of(bag(A, required=(0,)), {}) == (False, ir.byte_set(b"a").mask)
    assert first.first_of(bag(A, minimum=1, maximum=0), {}) == (False, 0)
    assert not regular.is_regular(some)
    assert wide.is_wide(bag(ir.Entry(ir.plus(LETTERS)))) and not wide.is_wide(bag(A))


DEAD = ir.sequence(ir.text("x"), ir.Ref("dead"))


@pytest.mark.parametrize(
    "some,has_text",
    [
        (bag(A, B, required=(0, 1)), True),
        (bag(A, ir.Entry(ir.text("b"), ir.Ref("dead"), own=1)), True),
        (bag(A, ir.Entry(ir.text("b"), ir.Ref("dead"), own=1), required=(1,)), False),
        (bag(A, B, required=(0, 1), maximum=1), False),
        (bag(A, B, minimum=3), False),
        (bag(A, B, entry(b"c"), minimum=300), True),
        (bag(entry(b"a", last=4), entry(b"b", first=5), minimum=300), True),
        (bag(entry(b"a", last=4), entry(b"b", first=6), minimum=300), False),
        (bag(*(entry(bytes([65 + own]), own=own) for own in range(40)), required=tuple(range(40))), True),
    ],
)
def test_productive(some: ir.Bag, has_text: bool) -> None:
    rules = {"start": ir.Rule(some), "dead": ir.Rule(DEAD)}
    assert productivity.unproductive(rules) == ({"dead"} if has_text else {"start", "dead"})


# Without any string that holds "<": (grammar, accepted, refused).
FILTERED = {
    "names and values": (
        grammar(
            bag(
                ir.Entry(string(ir.text("a<")), ir.text(":1"), own=0),
                ir.Entry(string(ir.text("b")), ir.sequence(ir.text(":"), ir.Ref("s")), own=1),
            ),
            s=string(ir.star(LETTERS)),
        ),
        [b"", b'"b":"x"'],
        [b'"a<":1', b'"b":"<"', b'"b":"x",'],
    ),
    "required": (
        grammar(
            ir.choice(ir.text("1"), bag(ir.Entry(string(ir.text("a<")), ir.text(":1"), own=0), required=(0,)))
        ),
        [b"1"],
        [b'"a<":1', b'"'],
    ),
    "endless": (
        grammar(bag(ir.Entry(ir.Ref("s"), distinct=True), maximum=3), s=string(ir.plus(LETTERS))),
        [b'"a","b"', b'"aa",">"'],
        [b'"a","a"', b'"<"'],
    ),
    "few, but the same": (
        grammar(bag(entry(b'"a"', b'"b"', distinct=True), maximum=2)),
        [b'"a","b"'],
        [b'"a","a'],
    ),
}


@pytest.mark.parametrize("name", FILTERED)
def test_strings_taken_out(name: str) -> None:
    language, accepted, refused = FILTERED[name]
    filtered = excluded.without(language, ["<"])
    for text in accepted:
        assert naive.accepts(filtered, text), text
    for text in refused:
        assert not naive.is_prefix(filtered, text) or not naive.accepts(filtered, text), text


def test_too_few_left() -> None:
    some = bag(entry(b'"a"', b'"<"', distinct=True), maximum=2)
    with pytest.raises(UnsupportedConstraint, match="uniqueItems"):
        excluded.without(grammar(some), ["<"])
