"""Values of tool-call arguments: strings as they are, up to a closing tag, and JSON.

In: a schema for one kind of value. Out: the node of its texts. A raw string never holds the closing tag.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from vllm_guided.errors import ConstraintTooComplex, UnsupportedConstraint
from vllm_guided.frontends import free_text, regular
from vllm_guided.frontends.spelled import spelled
from vllm_guided.frontends.tags.kinds import Schemas
from vllm_guided.grammar import ir

if TYPE_CHECKING:
    from vllm_guided.frontends.tags.formats import Formats

MAX_BLANKS = 32
MAX_SHORT = 64


_write_key = json.JSONEncoder(ensure_ascii=False, default=str).encode


class Values:
    """Values of one format: raw strings up to a closing tag, and JSON."""

    def __init__(
        self, formats: Formats, schemas: Schemas, any_order: bool, blanks: int | None, excludes: list[str]
    ) -> None:
        self.formats = formats
        self.schemas = schemas
        self.any_order = any_order
        self.excludes = excludes
        self.limit = MAX_BLANKS if blanks is None else min(blanks, MAX_BLANKS)

    def blank(self) -> ir.Node:
        """A bounded run of blanks between tags."""
        name = f"%blank{self.limit}"
        self.formats.rules.setdefault(name, ir.Rule(ir.Repeat(ir.byte_set(b" \n\r\t"), 0, self.limit)))
        return ir.Ref(name)

    def json(self, schema: Any) -> ir.Node:
        """A JSON value of the schema."""
        from vllm_guided.frontends.json_schema import json_schema_grammar
        from vllm_guided.frontends.tags.excluded import without

        document = self.schemas.alone(schema)
        key = _write_key([document, self.limit, self.excludes, self.any_order])
        if key in self.formats.embedded:
            return self.formats.embedded[key]
        bounded = 0 < self.limit < MAX_BLANKS
        grammar = json_schema_grammar(
            document,
            any_whitespace=self.limit > 0,
            additional_properties=self.formats.additional_properties,
            whitespace_pattern=f"[ \\n\\r\\t]{{0,{self.limit}}}" if bounded else None,
            property_order="any" if self.any_order else self.formats.property_order,
            prefix=self.formats.prefix(),
            leaves=self.formats.leaves,
            json_rules=self.formats.json_rules and not self.excludes,
        )
        if self.excludes:
            node = self.formats.embed(without(grammar, self.excludes))
        else:
            node = self.formats.add(grammar)
        self.formats.embedded[key] = node
        return node

    def raw(self, schema: dict[str, Any], close: str, *, blanks: bool) -> ir.Node:
        """A string written as it is, and the closing tag."""
        if schema.keys() == {"oneOf"}:
            return ir.choice(*(self.raw(option, close, blanks=blanks) for option in schema["oneOf"]))
        unknown = set(schema) & {"allOf", "anyOf", "oneOf", "not", "if", "then", "else"}
        if unknown:
            raise UnsupportedConstraint(
                f"{min(unknown)} on a string written as text is not supported; use pattern or enum"
            )
        bounded = self.bounded(schema, close)
        if "enum" in schema:
            texts = [
                text for text in schema["enum"] if not any(word in text for word in [close, *self.excludes])
            ]
            if bounded is not None:
                automaton = regular.dfa(bounded)
                texts = [text for text in texts if regular.accepts(automaton, text.encode())]
            body = ir.choice(*(ir.text(text) for text in texts))
        else:
            if bounded is None:
                text = free_text.text_until([close], self.excludes, tokens=True)
                return self.formats.rule(text, "string", shared=True)
            body = bounded
            if not {"pattern", "format"} & schema.keys():
                return ir.sequence(self.formats.rule(body, "string", shared=True), spelled(close))
        if blanks:
            return ir.sequence(self.blank(), body, self.blank(), spelled(close))
        return ir.sequence(body, spelled(close))

    def bounded(self, schema: dict[str, Any], close: str) -> ir.Node | None:
        """The texts that ``pattern``, ``format`` and the lengths allow; None if all are."""
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        parts: list[ir.Node] = []
        if "pattern" in schema:
            from vllm_guided.frontends.regex import regex_node

            parts.append(regex_node(schema["pattern"], dialect="ecma", search=True))
        if "format" in schema:
            node = format_node(schema["format"])
            if node is not None:
                parts.append(node)
        if not parts:
            if not low and high is None:
                return None
            if high is not None and high < low:
                return ir.NOTHING
            return self.counted(int(low), None if high is None else int(high), close)
        automaton = regular.dfa(free_text.text_without([close] if close else []))
        for part in parts:
            automaton = regular.intersection(regular.dfa(part), automaton)
        if low or high is not None:
            if max(low, high or 0) > 4_000:
                raise ConstraintTooComplex(
                    "a pattern together with a length above 4000 is too large; lower the length"
                )
            bound = ir.Repeat(ir.ANY_CHAR, int(low), None if high is None else int(high))
            automaton = regular.intersection(automaton, regular.dfa(bound))
        return regular.node(automaton)

    def counted(self, low: int, high: int | None, close: str) -> ir.Node:
        """Text of a bounded length without the closing tag.

        Exact for short bounds. For longer ones the text does without the characters that the closing tag
        and the excluded strings begin with, so that it can be counted without an automaton.
        """
        words = [word for word in (close, *self.excludes) if word]
        if max(low, high or 0) <= MAX_SHORT:
            bound = regular.dfa(ir.Repeat(ir.ANY_CHAR, low, high))
            return regular.node(regular.intersection(regular.dfa(free_text.text_without(words)), bound))
        others = any_char_but({ord(word[0]) for word in words})
        return ir.Repeat(others, low, high)


def any_char_but(codes: set[int]) -> ir.Node:
    """Any character but those."""
    ranges, low = [], 0
    for code in sorted(codes):
        ranges.append((low, code - 1))
        low = code + 1
    ranges.append((low, ir.MAX_CODE_POINT))
    kept = [
        (max(a, lo), min(b, hi)) for lo, hi in ranges for a, b in ((0, 0xD7FF), (0xE000, ir.MAX_CODE_POINT))
    ]
    return ir.char_set(kept)


def format_node(name: Any) -> ir.Node | None:
    """The texts of a JSON Schema ``format``; None for one that nobody knows, which is an annotation."""
    from vllm_guided.frontends.json_schema import formats
    from vllm_guided.frontends.regex import regex_node

    if not isinstance(name, str) or not formats.known(name):
        return None
    return regex_node(formats.pattern(name), dialect="ecma", search=True)
