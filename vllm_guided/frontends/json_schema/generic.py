"""The rules of JSON itself (RFC 8259): any value, array, object, string, number.

In: the layout. Out: rules with fixed names, marked as shared, so that their masks are computed once per
process. Digits of numbers are bounded, strings and nesting are not.
"""

from __future__ import annotations

from vllm_guided.frontends.json_schema.layout import Layout
from vllm_guided.frontends.json_schema.number_text import ANY_NUMBER
from vllm_guided.frontends.json_schema.string_text import string_node
from vllm_guided.frontends.json_schema.strings import Strings
from vllm_guided.grammar import ir


def add_generic(rules: dict[str, ir.Rule], layout: Layout, name: str) -> None:
    """Add the rule ``name`` (value, array, object, string or number) and what it needs."""
    if name not in rules:
        found = layout.generic.get(name)
        if found is None:
            found = layout.generic[name] = _rules(layout, name)
        rules.update(found)


def _rules(layout: Layout, name: str) -> dict[str, ir.Rule]:
    if name == "string":
        return {"string": ir.Rule(string_node(Strings()), shared=True)}
    if name == "number":
        return {"number": ir.Rule(ANY_NUMBER, shared=True)}
    rules: dict[str, ir.Rule] = {}
    add_generic(rules, layout, "string")
    add_generic(rules, layout, "number")
    value, string = ir.Ref("value"), ir.Ref("string")
    member = ir.sequence(string, layout.colon, value)
    scalars = [ir.text(word) for word in ("null", "false", "true")]
    rules["value"] = ir.Rule(
        ir.choice(*scalars, ir.Ref("number"), string, ir.Ref("array"), ir.Ref("object")), shared=True
    )
    rules["array"] = ir.Rule(_list(layout, "[", value, "]"), shared=True)
    rules["object"] = ir.Rule(_list(layout, "{", member, "}"), shared=True)
    return rules


def _list(layout: Layout, opening: str, item: ir.Node, closing: str) -> ir.Node:
    items = ir.sequence(item, ir.star(ir.sequence(layout.comma, item)))
    return ir.choice(layout.empty(opening, closing), layout.enclosed(opening, items, closing))
