"""Grammars put into others: references renamed, everything else the same objects."""

from __future__ import annotations

import pytest

from vllm_guided.bounded import EDGE_BYTES, Meter
from vllm_guided.frontends import embedding
from vllm_guided.frontends.embedding import embed, references, renamed
from vllm_guided.grammar import ir

A, B, X = ir.Ref("a"), ir.Ref("b"), ir.Literal(b"x")
FREE = ir.Sequence((X, ir.Choice((X, ir.Repeat(X, 0, 3))), ir.Graph(((0, X, 1),), frozenset([1]), 0)))

NODES: list[tuple[ir.Node, set[str]]] = [
    (X, set()),
    (A, {"a"}),
    (FREE, set()),
    (ir.Sequence((FREE, A)), {"a"}),
    (ir.Choice((A, ir.Repeat(B, 1, None))), {"a", "b"}),
    (ir.Graph(((0, A, 1), (1, FREE, 0), (1, ir.Sequence((X, B)), 1)), frozenset([1]), 0), {"a", "b"}),
]


@pytest.mark.parametrize(("node", "names"), NODES)
def test_references_are_found_and_renamed(node: ir.Node, names: set[str]) -> None:
    for _ in range(2):  # the second time, what refers to nothing is known
        assert references(node) == names
        moved = renamed(node, {name: f"p/{name}" for name in names})
        assert references(moved) == {f"p/{name}" for name in names}
        back = renamed(moved, {f"p/{name}": name for name in names})
        assert back == node
        assert (moved is node) == (not names)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "_meter", Meter(10_000))
    for number in range(50):
        assert references(ir.Sequence((X, ir.Literal(bytes([number]))))) == set()
    assert 0 < len(embedding._free) <= 10_000 // EDGE_BYTES
    for size in (100, 20_000):  # literals inside are counted, too
        assert references(ir.Sequence((X, ir.Literal(b"x" * size)))) == set()
    assert len(embedding._free) == 1


def test_shared_rules_are_put_in_once() -> None:
    rules: dict[str, ir.Rule] = {}
    text = ir.Rule(FREE, shared=True)
    for number in range(3):
        grammar = ir.Grammar({"s": ir.Rule(ir.Sequence((A, ir.Literal(bytes([number]))))), "a": text}, "s")
        assert embed(rules, grammar, f"g{number}/") == ir.Ref(f"g{number}/s")
    assert set(rules) == {"shared/a", "g0/s", "g1/s", "g2/s"}
    assert rules["shared/a"].body is FREE
