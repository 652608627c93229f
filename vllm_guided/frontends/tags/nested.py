"""Styles that write objects and arrays as tags too: Cohere's and MiniMax M3's.

<cofl:value name="a" type="list"><cofl:value type="raw">text</cofl:value></cofl:value>
]<]minimax[>[<a>]<]minimax[>[<item>text]<]minimax[>[</item>]<]minimax[>[</a>
"""

from __future__ import annotations

from typing import Any

from vllm_guided.errors import UnsupportedConstraint
from vllm_guided.frontends.spelled import spelled
from vllm_guided.frontends.tags.kinds import KINDS, is_free
from vllm_guided.frontends.tags.members import Members
from vllm_guided.frontends.tags.values import Values, any_char_but
from vllm_guided.grammar import ir

STYLES = ("cohere_xml", "minimax_m3_xml")

_ARRAY_KEYWORDS = frozenset({
    "type", "items", "prefixItems", "minItems", "maxItems", "title", "description", "default", "examples",
    "$schema", "$id", "$defs", "definitions", "$comment", "deprecated", "nullable",
})  # fmt: skip
_M3 = "]<]minimax[>["


def object_node(values: Values, style: str, schema: Any) -> ir.Node:
    """The arguments, an object of ``schema``."""
    if values.excludes:
        raise UnsupportedConstraint(f"the style {style} takes no excludes; leave them out")
    return (_Cohere(values) if style == "cohere_xml" else _MiniMax(values)).object(schema)


class _Nested(Members):
    """Values by recursion; a schema met again (through ``$ref``) is the rule it already has."""

    def __init__(self, values: Values) -> None:
        super().__init__(values)
        self.known: dict[tuple[str, int], ir.Ref] = {}
        self.kept: list[Any] = []

    def value(self, kind: str, schema: Any, free: bool) -> ir.Node:
        """A value without its own tag: objects and arrays as their members'."""
        target = {"type": kind} if free else schema
        key = (kind, -1 if free else id(target))
        if kind == "object":
            return self.once(key, target, lambda: self.members(target))
        return self.once(key, target, lambda: self.items(target))

    def once(self, key: tuple[str, int], schema: Any, build: Any) -> ir.Node:
        if key not in self.known:
            self.kept.append(schema)  # ids stay unique while this lives
            formats = self.values.formats
            found = self.known[key] = formats.reserved(key[0])
            formats.rules[found.name] = ir.Rule(build())
        return self.known[key]

    def item(self, schema: Any) -> ir.Node:
        """One element of an array."""
        raise NotImplementedError

    def items(self, schema: dict[str, Any]) -> ir.Node:
        """The elements of an array."""
        unknown = set(schema) - _ARRAY_KEYWORDS
        if unknown:
            raise UnsupportedConstraint(
                f"{min(unknown)} is not supported where arrays are written as tags; leave it out"
            )
        low, high = int(schema.get("minItems", 0)), schema.get("maxItems")
        high = None if high is None else int(high)
        if high is not None and high < low:
            return ir.NOTHING
        prefix = schema.get("prefixItems", [])
        rest = schema.get("items", True)
        if prefix:
            if low < len(prefix) or (high is not None and high < len(prefix)):
                raise UnsupportedConstraint(
                    "prefixItems that may be left out are not supported as tags; raise minItems"
                )
            low, high = low - len(prefix), None if high is None else high - len(prefix)
        many = ir.EMPTY if rest is False else ir.Repeat(self.item(rest), low, high)
        return ir.sequence(*(self.item(inner) for inner in prefix), many)


class _Cohere(_Nested):
    words = ("raw", "json", "json", "json", "list", "dict")

    def name(self, text: str) -> str:
        for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
            text = text.replace(char, entity)
        return text

    def other_names(self) -> ir.Node:
        codes = {0, *map(ord, '"&<>')}
        entities = [ir.text(entity) for entity in ("&amp;", "&lt;", "&gt;", "&quot;")]
        return ir.plus(ir.choice(any_char_but(codes), *entities))

    def member(self, name: ir.Node, schema: Any) -> ir.Node:
        return ir.sequence(
            self.values.blank(), self.tag(ir.sequence(ir.text(' name="'), name, ir.text('"')), schema)
        )

    def item(self, schema: Any) -> ir.Node:
        return self.tag(ir.EMPTY, schema)

    def tag(self, name: ir.Node, schema: Any) -> ir.Node:
        options: list[ir.Node] = []
        free = is_free(self.values.schemas.resolve(schema))
        blank = self.values.blank()
        for kind, inner in self.values.schemas.cases(schema):
            close = "</cofl:value>"
            head = spelled(f' type="{self.words[KINDS.index(kind)]}">')
            if kind == "string":
                options.append(ir.sequence(head, self.values.raw(inner, close, blanks=True)))
                continue
            if kind in ("array", "object"):
                source = self.values.schemas.resolve(schema)
                same = isinstance(source, dict) and source.get("type") == kind
                value = self.value(kind, source if same else inner, free)
            else:
                value = self.values.json(inner)
            options.append(ir.sequence(head, blank, value, blank, spelled(close)))
        return ir.sequence(spelled("<cofl:value"), name, ir.choice(*options))


class _MiniMax(_Nested):
    def member(self, name: ir.Node, schema: Any) -> ir.Node:
        if not isinstance(name, ir.Literal):
            raise UnsupportedConstraint(
                "the style minimax_m3_xml needs every parameter declared; write additionalProperties: false"
            )
        return ir.sequence(self.values.blank(), self.tag(name.data.decode(), schema))

    def item(self, schema: Any) -> ir.Node:
        return ir.sequence(self.values.blank(), self.tag("item", schema))

    def tag(self, name: str, schema: Any) -> ir.Node:
        close = f"{_M3}</{name}>"
        options: list[ir.Node] = []
        free = is_free(self.values.schemas.resolve(schema))
        for kind, inner in self.values.schemas.cases(schema):
            if kind == "string":
                options.append(self.values.raw(inner, close, blanks=False))
            elif kind in ("array", "object"):
                source = self.values.schemas.resolve(schema)
                same = isinstance(source, dict) and source.get("type") == kind
                body = self.value(kind, source if same else inner, free)
                options.append(ir.sequence(body, self.values.blank(), spelled(close)))
            else:
                options.append(ir.sequence(self.values.json(inner), spelled(close)))
        return ir.sequence(spelled(f"{_M3}<{name}>"), ir.choice(*options))
