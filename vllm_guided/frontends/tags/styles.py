"""Tool-call arguments as the models write them: JSON, or one tag a parameter.

A style says how a parameter's tag looks; a string is written as it is, up to the closing tag, everything
else as JSON (:mod:`nested` has the styles that write objects and arrays as tags too). Parameters come in
the order of ``properties``. Where ``properties`` are declared and ``additionalProperties`` is not, no other
parameter is allowed: nobody could say what its text means. Blanks between tags are bounded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends import free_text, regular
from vllm_guided.frontends.tags.fields import Fields
from vllm_guided.frontends.tags.kinds import Schemas, is_free, kind_of
from vllm_guided.grammar import ir

if TYPE_CHECKING:
    from vllm_guided.frontends.tags.formats import Formats

MAX_BLANKS = 32
MAX_ANY_ORDER = 8
MAX_SHORT = 64

_DSML = "｜DSML｜"


@dataclass(frozen=True, slots=True)
class Style:
    """``before`` name ``after`` value ``close``; ``{kind}`` in ``after`` stands for the value's kind.

    ``kinds`` are the words for string, number, boolean, null, array, object, if the style tells them apart.
    ``blanks`` says whether blanks may stand around a string that is not free text.
    """

    before: str
    after: str
    close: str
    kinds: tuple[str, ...] = ()
    blanks: bool = True


STYLES = {
    "qwen_xml": Style("<parameter=", ">", "</parameter>"),
    "minimax_xml": Style('<parameter name="', '">', "</parameter>"),
    "glm_xml": Style("<arg_key>", "</arg_key>{blank}<arg_value>", "</arg_value>"),
    "deepseek_xml": Style(
        f'<{_DSML}parameter name="',
        '" string="{kind}">',
        f"</{_DSML}parameter>",
        ("true", "false", "false", "false", "false", "false"),
        blanks=False,
    ),
    "deepseek_v4_1_xml": Style(
        f'<{_DSML} parameter name="',
        '" string="{kind}">',
        f"</{_DSML} parameter>",
        ("true", "false", "false", "false", "false", "false"),
        blanks=False,
    ),
    "kimi_k3_xml": Style(
        '<|open|>argument key="',
        '" type="{kind}"<|sep|>',
        "<|close|>argument<|sep|>",
        ("string", "number", "boolean", "null", "array", "object"),
    ),
}
_ORDER = ("string", "number", "boolean", "null", "array", "object")
_OBJECT_KEYWORDS = frozenset({
    "type", "properties", "required", "additionalProperties", "patternProperties", "title", "description",
    "default", "examples", "$schema", "$id", "$defs", "definitions", "$comment", "deprecated", "strict", "nullable",
})  # fmt: skip
_NAME = ir.sequence(
    ir.byte_set(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"),
    ir.star(ir.byte_set(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789")),
)
_KEY_CHAR = ir.char_set([(0x20, 0x21), (0x23, 0x25), (0x27, 0x3B), (0x3D, 0x3D), (0x3F, 0xD7FF), (0xE000, 0x10FFFF)])


def schema_node(formats: Formats, fields: Fields, style: str) -> ir.Node:
    """The node of a ``json_schema`` format in the given style."""
    schema = fields.get("json_schema")
    if not isinstance(schema, bool | dict):
        raise fields.fail("a schema is an object, true or false", "json_schema")
    any_order = fields.boolean("any_order", False)
    blanks = fields.limit("max_whitespace_cnt")
    excludes = fields.strings("excludes", [], empty=True)
    values = Values(formats, Schemas(schema), any_order, blanks, excludes)
    if style == "json":
        return values.json(schema)
    if style in STYLES:
        return Parameters(values, STYLES[style]).object(schema)
    from vllm_guided.frontends.tags import nested

    if style in nested.STYLES:
        return nested.object_node(values, style, schema)
    known = ", ".join(["json", *STYLES, *nested.STYLES])
    raise UnsupportedConstraint(f"the style {style!r} is not known; known are {known}")


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
        name = "%blank"
        self.formats.rules.setdefault(name, ir.Rule(ir.Repeat(ir.byte_set(b" \n\r\t"), 0, self.limit)))
        return ir.Ref(name)

    def json(self, schema: Any) -> ir.Node:
        """A JSON value of the schema."""
        from vllm_guided.frontends.json_schema import json_schema_grammar

        if self.excludes:
            raise UnsupportedConstraint(
                "excludes inside JSON strings are not supported; leave them to the strings written as text"
            )
        return self.formats.embed(json_schema_grammar(self.schemas.alone(schema)))

    def raw(self, schema: dict[str, Any], close: str, *, blanks: bool) -> ir.Node:
        """A string written as it is, and the closing tag."""
        if "oneOf" in schema:
            return ir.choice(*(self.raw(option, close, blanks=blanks) for option in schema["oneOf"]))
        if "enum" in schema:
            texts = [text for text in schema["enum"] if not any(word in text for word in [close, *self.excludes])]
            body = ir.choice(*(ir.text(text) for text in texts))
        else:
            unknown = set(schema) & {"allOf", "not", "if", "then", "else"}
            if unknown:
                raise UnsupportedConstraint(f"{min(unknown)} on a string written as text is not supported")
            bounded = self.bounded(schema, close)
            if bounded is None:
                text = free_text.text_until([close], self.excludes)
                return self.formats.rule(text, "string", shared=True)
            body = bounded
            if not {"pattern", "format"} & schema.keys():
                return ir.sequence(self.formats.rule(body, "string", shared=True), ir.text(close))
        if blanks:
            return ir.sequence(self.blank(), body, self.blank(), ir.text(close))
        return ir.sequence(body, ir.text(close))

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
        for value in (low, high):
            if value is not None and (not isinstance(value, int | float) or value < 0 or value != int(value)):
                raise InvalidConstraint("minLength and maxLength are whole numbers")
        if not parts:
            if not low and high is None:
                return None
            if high is not None and high < low:
                return ir.NOTHING
            return self.counted(int(low), None if high is None else int(high), close)
        automaton = regular.dfa(free_text.text_without([close] if "pattern" in schema else [close, *self.excludes]))
        for part in parts:
            automaton = regular.intersection(regular.dfa(part), automaton)
        if low or high is not None:
            if max(low, high or 0) > 4_000:
                raise ConstraintTooComplex("a pattern together with a length above 4000 is too large")
            bound = ir.Repeat(ir.ANY_CHAR, int(low), None if high is None else int(high))
            automaton = regular.intersection(automaton, regular.dfa(bound))
        return regular.node(automaton)

    def counted(self, low: int, high: int | None, close: str) -> ir.Node:
        """Text of a bounded length without the closing tag.

        Exact for short bounds. For longer ones the text does without the characters that the closing tag
        and the excluded strings begin with, so that it can be counted without an automaton.
        """
        words = [close, *self.excludes]
        if max(low, high or 0) <= MAX_SHORT:
            bound = regular.dfa(ir.Repeat(ir.ANY_CHAR, low, high))
            return regular.node(regular.intersection(regular.dfa(free_text.text_without(words)), bound))
        others = regular_complement({ord(word[0]) for word in words})
        return ir.Repeat(others, low, high)


def regular_complement(codes: set[int]) -> ir.Node:
    """Any character but those."""
    ranges, low = [], 0
    for code in sorted(codes):
        ranges.append((low, code - 1))
        low = code + 1
    ranges.append((low, ir.MAX_CODE_POINT))
    kept = [(max(a, lo), min(b, hi)) for lo, hi in ranges for a, b in ((0, 0xD7FF), (0xE000, ir.MAX_CODE_POINT))]
    return ir.char_set(kept)


def format_node(name: Any) -> ir.Node | None:
    """The texts of a JSON Schema ``format``; None for one that nobody knows, which is an annotation."""
    raise UnsupportedConstraint(f"the format {name!r} on a string written as text is not supported")


class Members:
    """The order of an object's members, for any way of writing one: subclasses say how."""

    def __init__(self, values: Values) -> None:
        self.values = values

    def member(self, name: ir.Node, schema: Any) -> ir.Node:
        """One member: its name is a node, as it may be any of many."""
        raise NotImplementedError

    def name(self, text: str) -> str:
        """A declared name as it is written."""
        return text

    def other_names(self) -> ir.Node:
        """Names nobody declared."""
        return _NAME

    def object(self, schema: Any) -> ir.Node:
        """The members of an object of ``schema``, one behind another."""
        cases = [inner for kind, inner in self.values.schemas.cases(schema) if kind == "object"]
        if not cases:
            raise InvalidConstraint("arguments are an object; the schema allows none")
        return ir.choice(*(self.members(case) for case in cases))

    def members(self, schema: dict[str, Any]) -> ir.Node:
        if "enum" in schema or "oneOf" in schema:
            raise UnsupportedConstraint("enum, const and oneOf of objects are not supported as tags")
        properties, required = self.checked(schema)
        declared = {
            name: self.member(ir.text(self.name(name)), inner) for name, inner in properties.items()
        }
        if self.values.any_order and 1 < len(declared) <= MAX_ANY_ORDER:
            node = _permutations(declared, required)
        else:
            node = ir.sequence(
                *(part if name in required else ir.optional(part) for name, part in declared.items())
            )
        return ir.sequence(node, *self.others(schema, list(properties)), self.values.blank())

    def checked(self, schema: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
        """The properties and the names of the required ones; refuses keywords that tags cannot honour."""
        unknown = set(schema) - _OBJECT_KEYWORDS
        if unknown:
            raise UnsupportedConstraint(f"{min(unknown)} is not supported where arguments are written as tags")
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise InvalidConstraint("properties is an object, required an array")
        missing = [name for name in required if name not in properties]
        if missing:
            if schema.get("additionalProperties") is False and "patternProperties" not in schema:
                raise InvalidConstraint(f"the required property {missing[0]!r} is not declared")
            inner = schema.get("additionalProperties", True)
            properties = {**properties, **{name: inner for name in missing}}
        return properties, set(required)

    def others(self, schema: dict[str, Any], declared: list[str]) -> list[ir.Node]:
        """Members nobody declared, if the schema allows them."""
        patterns = schema.get("patternProperties", {})
        additional = schema.get("additionalProperties", not declared and not patterns and "properties" not in schema)
        if additional is False and not patterns:
            return []
        known = regular.dfa(ir.choice(*(ir.text(self.name(name)) for name in declared)))
        options: list[ir.Node] = []
        for pattern, inner in patterns.items():
            from vllm_guided.frontends.regex import regex_node

            matching = regular.dfa(regex_node(pattern, dialect="ecma", search=True))
            names = regular.intersection(regular.dfa(ir.plus(_KEY_CHAR)), matching)
            options.append(self.member(regular.node(regular.difference(names, known)), inner))
            if len(patterns) > 1:
                known = regular.dfa(ir.choice(regular.node(known), regular.node(names)))
        if additional is not False:
            if patterns:
                raise UnsupportedConstraint("patternProperties beside additionalProperties is not supported as tags")
            names = regular.difference(regular.dfa(self.other_names()), known)
            options.append(self.member(regular.node(names), additional))
        return [ir.star(ir.choice(*options))]


def _permutations(members: dict[str, ir.Node], required: set[str]) -> ir.Node:
    """Every member at most once, the required ones once, in any order: a node a set of those behind us."""
    names = list(members)
    whole = 1 << len(names)
    edges = [
        (done, members[name], done | 1 << place)
        for done in range(whole)
        for place, name in enumerate(names)
        if not done >> place & 1
    ]
    needed = sum(1 << place for place, name in enumerate(names) if name in required)
    return ir.Graph(tuple(edges), frozenset(done for done in range(whole) if done & needed == needed))


class Parameters(Members):
    """One tag a parameter, values flat."""

    def __init__(self, values: Values, style: Style) -> None:
        super().__init__(values)
        self.style = style

    def member(self, name: ir.Node, schema: Any) -> ir.Node:
        style, values = self.style, self.values
        options: list[ir.Node] = []
        cases = values.schemas.cases(schema)
        kinds = {kind for kind, _ in cases}
        for kind, inner in cases:
            if kind == "string":
                value = values.raw(inner, style.close, blanks=style.blanks)
            elif not style.kinds and any(k == "string" and is_free_string(s) for k, s in cases):
                continue  # free text says it already
            else:
                if is_free(schema) and style.kinds:
                    inner = {"type": kind}
                value = ir.sequence(values.blank(), values.json(inner), values.blank(), ir.text(style.close))
            options.append(ir.sequence(self.after(kind), value))
        del kinds
        body = self.values.formats.rule(ir.choice(*options), "value")
        return ir.sequence(values.blank(), ir.text(style.before), name, body)

    def after(self, kind: str) -> ir.Node:
        word = self.style.kinds[_ORDER.index(kind)] if self.style.kinds else ""
        before, blank, behind = self.style.after.replace("{kind}", word).partition("{blank}")
        return ir.sequence(ir.text(before), self.values.blank(), ir.text(behind)) if blank else ir.text(before)


def is_free_string(schema: dict[str, Any]) -> bool:
    """Whether every text is a value of this string schema."""
    return not {"enum", "pattern", "format", "minLength", "maxLength", "oneOf"} & schema.keys()


def json_text(value: Any) -> str:
    """A JSON value as models write it."""
    return value if kind_of(value) == "string" else json.dumps(value, ensure_ascii=False)
