"""Tool-call arguments as the models write them: JSON, or one tag a parameter.

A style says how a parameter's tag looks; a string is written as it is, up to the closing tag, everything
else as JSON (:mod:`nested` has the styles that write objects and arrays as tags too). Parameters come in
the order of ``properties``. Where ``properties`` are declared and ``additionalProperties`` is not, no other
parameter is allowed: nobody could say what its text means. Blanks between tags are bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_guided.errors import UnsupportedConstraint
from vllm_guided.frontends.spelled import spelled
from vllm_guided.frontends.tags.checked import check
from vllm_guided.frontends.tags.fields import Fields, pointer
from vllm_guided.frontends.tags.kinds import KINDS, Schemas, is_free
from vllm_guided.frontends.tags.members import Members
from vllm_guided.frontends.tags.values import Values
from vllm_guided.grammar import ir

if TYPE_CHECKING:
    from vllm_guided.frontends.tags.formats import Formats

_DSML = "｜DSML｜"


@dataclass(frozen=True, slots=True)
class Style:
    """``before`` name ``after`` value ``close``; ``{kind}`` in ``after`` stands for the value's kind.

    ``kinds`` are the words for string, number, boolean, null, array, object, if the style tells them apart.
    ``names_integers``: where nothing is known of a number, the style may also call it ``integer``.
    ``blanks`` says whether blanks may stand around a string that is not free text.
    """

    before: str
    after: str
    close: str
    kinds: tuple[str, ...] = ()
    blanks: bool = True
    names_integers: bool = False


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
        names_integers=True,
    ),
}


def schema_node(formats: Formats, fields: Fields, style: str) -> ir.Node:
    """The node of a ``json_schema`` format in the given style."""
    schema = fields.get("json_schema")
    if not isinstance(schema, bool | dict):
        raise fields.fail("a schema is an object, true or false", "json_schema")
    any_order = fields.boolean("any_order", False)
    blanks = fields.limit("max_whitespace_cnt")
    if blanks is None and not formats.any_whitespace:
        blanks = 0
    excludes = fields.strings("excludes", [], empty=True)
    values = Values(formats, Schemas(schema), any_order, blanks, excludes)
    if style == "json":
        return values.json(schema)
    check(values.schemas, schema, pointer(fields.where, "json_schema"))
    if style in STYLES:
        return Parameters(values, STYLES[style]).object(schema)
    from vllm_guided.frontends.tags import nested

    if style in nested.STYLES:
        return nested.object_node(values, style, schema)
    known = ", ".join(["json", *STYLES, *nested.STYLES])
    raise UnsupportedConstraint(f"the style {style!r} is not known; known are {known}")


class Parameters(Members):
    """One tag a parameter, values flat."""

    def __init__(self, values: Values, style: Style) -> None:
        super().__init__(values)
        self.style = style

    def member(self, name: ir.Node, schema: Any) -> ir.Node:
        style, values = self.style, self.values
        options: list[ir.Node] = []
        cases = values.schemas.cases(schema)
        for kind, inner in cases:
            if kind == "string":
                value = values.raw(inner, style.close, blanks=style.blanks)
            elif not style.kinds and any(k == "string" and is_free_string(s) for k, s in cases):
                continue  # free text says it already
            else:
                if is_free(schema) and style.kinds:
                    inner = {"type": kind}
                value = ir.sequence(values.blank(), values.json(inner), values.blank(), spelled(style.close))
            options.append(ir.sequence(self.after(kind), value))
            if kind == "number" and style.names_integers and is_free(schema):
                options.append(ir.sequence(self.after("integer"), value))
        body = self.values.formats.rule(ir.choice(*options), "value")
        return ir.sequence(values.blank(), spelled(style.before), name, body)

    def after(self, kind: str) -> ir.Node:
        word = dict(zip(KINDS, self.style.kinds, strict=True)).get(kind, kind) if self.style.kinds else ""
        before, blank, behind = self.style.after.replace("{kind}", word).partition("{blank}")
        return (
            ir.sequence(spelled(before), self.values.blank(), spelled(behind)) if blank else spelled(before)
        )


def is_free_string(schema: dict[str, Any]) -> bool:
    """Whether every text is a value of this string schema."""
    return not {"enum", "pattern", "format", "minLength", "maxLength", "oneOf"} & schema.keys()
