"""The helpers that frontends build the intermediate representation with."""

from __future__ import annotations

from array import array

import naive
import pytest

from vllm_guided.automaton.build import build_automaton
from vllm_guided.frontends import embedding
from vllm_guided.grammar import ir

A, B = ir.Literal(b"a"), ir.Literal(b"b")


@pytest.mark.parametrize(
    "built,expected",
    [
        (ir.text("é"), ir.Literal(b"\xc3\xa9")),
        (ir.text(b"\xff"), ir.Literal(b"\xff")),
        (ir.text(""), ir.EMPTY),
        (ir.byte_set(b"ab"), ir.ByteSet(3 << 97)),
        (ir.byte_set([]), ir.ByteSet(0)),
        (ir.byte_range(97, 98), ir.ByteSet(3 << 97)),
        (ir.byte_range(0, 255), ir.ANY_BYTE),
        (ir.char_set([(5, 6), (1, 2)]), ir.CharSet(((1, 2), (5, 6)))),
        (ir.char_set([(3, 9), (1, 2)]), ir.CharSet(((1, 9),))),
        (ir.char_set([(1, 9), (2, 3)]), ir.CharSet(((1, 9),))),
        (ir.char_set([(4, 3)]), ir.NOTHING),
        (ir.char_set([]), ir.NOTHING),
        (ir.sequence(), ir.EMPTY),
        (ir.sequence(A), A),
        (ir.sequence(A, ir.sequence(B, A), ir.EMPTY), ir.Sequence((A, B, A))),
        (ir.sequence(A, ir.NOTHING, B), ir.NOTHING),
        (ir.choice(), ir.NOTHING),
        (ir.choice(A), A),
        (ir.choice(A, ir.choice(B, A), ir.NOTHING), ir.Choice((A, B, A))),
        (ir.optional(A), ir.Repeat(A, 0, 1)),
        (ir.star(A), ir.Repeat(A, 0, None)),
        (ir.plus(A), ir.Repeat(A, 1, None)),
    ],
    ids=str,
)
def test_built(built: ir.Node, expected: ir.Node) -> None:
    assert built == expected


def test_mapped_reaches_every_part() -> None:
    def renamed(node: ir.Node) -> ir.Node:
        return ir.Ref("p." + node.name) if isinstance(node, ir.Ref) else ir.mapped(node, renamed)

    def all_nodes(x: str, y: str) -> ir.Node:
        return ir.sequence(
            ir.Ref(x),
            ir.choice(ir.Ref(y), A),
            ir.star(ir.Ref(x)),
            ir.Graph(((0, ir.Ref(y), 1), (1, B, 0)), frozenset({1}), 0),
            ir.Bag((ir.Entry(ir.Ref(x), ir.Ref(y), own=1), ir.Entry(A)), ir.Ref(y), frozenset({1}), 1, 3),
        )

    assert renamed(all_nodes("x", "y")) == all_nodes("p.x", "p.y")
    node = all_nodes("x", "y")
    assert ir.mapped(node, lambda part: part) is node


def test_mapped_leaves_out_what_derives_nothing() -> None:
    def without_b(node: ir.Node) -> ir.Node:
        return ir.NOTHING if node == B else ir.mapped(node, without_b)

    assert without_b(ir.Choice((A, B))) == ir.Choice((A,))
    assert without_b(ir.Choice((A, ir.Sequence((A, B))))) == ir.Choice((A,))
    assert without_b(ir.Sequence((A, ir.Sequence((A, A))))) == ir.Sequence((A, ir.Sequence((A, A))))


def test_embedded_grammars_stay_apart() -> None:
    """Two grammars with rules of the same names, one inside the other."""
    inner = ir.Grammar(
        {"start": ir.Rule(ir.choice(B, ir.Ref("x"))), "x": ir.Rule(ir.Literal(b"c"), shared=True)}
    )
    rules = {"x": ir.Rule(A)}
    rules["start"] = ir.Rule(ir.sequence(ir.Ref("x"), embedding.embed(rules, inner, "inner.")))
    outer = ir.Grammar(rules)
    assert rules[embedding.SHARED + "x"].shared and not rules["inner.start"].shared
    for text, accepted in ((b"ab", True), (b"ac", True), (b"aa", False), (b"cb", False)):
        assert naive.accepts(outer, text) == accepted


def test_nodes_are_values() -> None:
    """Equal nodes are equal keys: frontends and the engine share parts by that."""
    first = ir.sequence(A, ir.star(ir.char_set([(1, 2)])))
    second = ir.sequence(ir.Literal(b"a"), ir.star(ir.char_set([(1, 2)])))
    assert first == second and hash(first) == hash(second) and len({first, second}) == 1
    assert ir.Repeat(A, 0, 2) != ir.Repeat(A, 0, 3)


def test_graphs_with_labels_that_are_one_object_or_equal() -> None:
    """A graph's hash looks through each label once; equal graphs have equal hashes all the same."""
    shared = ir.Sequence((A, B))
    twice = ir.Graph(((0, shared, 1), (1, shared, 2)), frozenset({2}))
    equal = ir.Graph(((0, ir.Sequence((A, B)), 1), (1, ir.Sequence((A, B)), 2)), frozenset({2}))
    assert twice == equal and hash(twice) == hash(equal)
    assert (
        len({twice, equal, ir.Graph(twice.edges, frozenset({1})), ir.Graph(twice.edges[:1], frozenset({1}))})
        == 3
    )


def test_graph_over_bytes_is_a_graph() -> None:
    numbers = (0, 0x39 << 8 | 0x30, 2, 2, -1, 1, 2, 0x2E2E, 3, 3, 0x39 << 8 | 0x30, 2)
    graph, again = (ir.ByteGraph(4, array("i", numbers).tobytes()) for _ in range(2))
    digit = ir.byte_range(0x30, 0x39)
    edges = ((0, digit, 2), (2, ir.EMPTY, 1), (2, ir.byte_set(b"."), 3), (3, digit, 2))
    assert graph.edges == edges and graph.accepting == {1} and graph.start == 0
    assert graph == again and hash(graph) == hash(again) and graph != ir.ByteGraph(5, graph.moves)
    assert ir.parts(graph) == () and ir.mapped(graph, lambda _: ir.NOTHING) is graph
    spelt = ir.Graph(edges, frozenset({1}))
    grammars = [
        ir.Grammar({"start": ir.Rule(ir.sequence(ir.text("<"), node, ir.star(node), ir.text(">")))})
        for node in (graph, spelt)
    ]
    keys = [build_automaton(grammar).rule_keys for grammar in grammars]
    assert keys[0] == keys[1]
    for text, accepted in ((b"<1>", True), (b"<1.2.34>", True), (b"<1.>", False), (b"<>", False)):
        assert naive.accepts(grammars[0], text) == accepted
