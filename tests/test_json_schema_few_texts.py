"""All texts of a node where they are few."""

from __future__ import annotations

import pytest

from vllm_guided.frontends.json_schema.few_texts import FewTexts
from vllm_guided.frontends.json_schema.layout import BLANKS
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
