"""All texts of a node where they are few."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vllm_guided.frontends.json_schema.few_texts import FewTexts
from vllm_guided.frontends.json_schema.layout import BLANKS
from vllm_guided.frontends.json_schema.many_texts import AtLeast
from vllm_guided.grammar import ir

A, B = ir.text("a"), ir.text("b")
RULES: dict[str, ir.Node] = {
    BLANKS: ir.plus(ir.text(" ")),
    "ab": ir.choice(A, B),
    "endless": ir.choice(A, ir.sequence(B, ir.Ref("endless"))),
    "nothing": ir.sequence(A, ir.Ref("nothing")),
}
ONCE = tuple(ir.Entry(node, own=own) for own, node in enumerate((A, B)))
DIFFERENT = (ir.Entry(ir.Ref("ab"), distinct=True),)

TABLE = [
    (ir.sequence(A, ir.Ref(BLANKS), ir.Ref("ab")), {"aa", "ab"}),
    (ir.byte_range(0x61, 0x63), {"a", "b", "c"}),
    (ir.char_set([(0xD7FF, 0xE000)]), None),
    (ir.CharSet(((0xDFFF, 0xE000),)), {"\ue000"}),
    (ir.ANY_CHAR, None),
    (ir.Repeat(ir.Ref("ab"), 0, 2), {"", "a", "b", "aa", "ab", "ba", "bb"}),
    (ir.Repeat(A, 2, None), None),
    (ir.Repeat(ir.Ref("ab"), 6, 6), None),
    (ir.Repeat(ir.EMPTY, 0, None), {""}),
    (ir.Graph(((0, A, 1), (0, ir.EMPTY, 1), (1, B, 2)), frozenset({1, 2})), {"a", "", "ab", "b"}),
    (ir.Graph(((0, A, 0),), frozenset({0})), None),
    (ir.Ref("endless"), None),
    (ir.Ref("nothing"), set()),
    (ir.choice(A, ir.Ref("nothing")), {"a"}),
    (ir.Bag(ONCE, ir.text(",")), {"", "a", "b", "a,b", "b,a"}),
    (ir.Bag(DIFFERENT, ir.text(","), minimum=2, maximum=2), {"a,b", "b,a"}),
    (ir.Bag((ir.Entry(A),), ir.text(",")), None),
]  # fmt: skip


@pytest.mark.parametrize(("node", "texts"), TABLE, ids=lambda value: str(value)[:60])
def test_texts(node, texts):
    found = FewTexts(RULES.__getitem__, 20).of(node)
    assert found == (None if texts is None else frozenset(text.encode() for text in texts))


AT_LEAST = [
    (ir.Repeat(ir.byte_range(0x30, 0x39), 3, 3), 1000),
    (ir.Repeat(ir.byte_range(0x30, 0x39), 0, 2), 111),
    (ir.Repeat(ir.byte_range(0x30, 0x39), 0, 64), 5000),
    (ir.sequence(A, ir.optional(ir.Ref(BLANKS)), ir.Repeat(ir.byte_range(0x30, 0x39), 1, 2), B), 110),
    (ir.Graph(((0, ir.ANY_CHAR, 1), (0, A, 2), (2, ir.ANY_CHAR, 1)), frozenset({1})), 5000),
    (ir.sequence(ir.Ref("nothing"), ir.ANY_CHAR), 0),
    (ir.choice(A, B), 2),
    (ir.CharSet(((0xD7FF, 0xE000),)), 2),
]  # fmt: skip


@pytest.mark.parametrize(("node", "number"), AT_LEAST, ids=lambda value: str(value)[:60])
def test_at_least(node, number):
    assert AtLeast(RULES.__getitem__, (), 5000).of(node) == number


def graphs(labels):
    edge = st.tuples(st.integers(0, 2), labels, st.integers(1, 3)).filter(lambda edge: edge[0] < edge[2])
    accepting = st.frozensets(st.integers(0, 3), max_size=2)
    return st.builds(ir.Graph, st.lists(edge, max_size=5).map(tuple), accepting)


LEAVES = [A, B, ir.text("ab"), ir.EMPTY, ir.byte_range(0x61, 0x63), ir.char_set([(0xE9, 0xEA)])]
nodes = st.recursive(
    st.sampled_from([*LEAVES, *map(ir.Ref, RULES)]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: ir.Sequence(tuple(items)))
        | st.lists(inner, max_size=3).map(lambda items: ir.Choice(tuple(items)))
        | st.builds(ir.Repeat, inner, st.integers(0, 2), st.integers(0, 3))
        | graphs(inner)
    ),
    max_leaves=6,
)


@example(ir.Repeat(ir.Literal(b"a"), 1, 0), 1)
@given(nodes, st.integers(1, 300))
def test_at_least_is_not_too_much(node, cap):
    """What is said to be many is many: as the texts themselves say, where they can be listed."""
    texts = FewTexts(RULES.__getitem__, 3000)._listed(node)
    least = AtLeast(RULES.__getitem__, (), cap).of(node)
    assert 0 <= least <= cap
    assert texts is None or least <= len(texts)
