"""Structural tags: what vLLM makes of strict tool calling, to the grammar IR.

    structural_tag_grammar({"type": "structural_tag", "format": {"type": "any_text"}})

Taken are the present form (``format``) and the older one (``structures`` and ``triggers``), as an object or
as its JSON text. The steps are the modules of :mod:`vllm_guided.frontends.tags`.
"""

from __future__ import annotations

import json
from typing import Any

from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint
from vllm_guided.frontends.json_text import members
from vllm_guided.frontends.positions import half_a_pair
from vllm_guided.frontends.tags.fields import Fields, pointer
from vllm_guided.frontends.tags.formats import Formats
from vllm_guided.grammar import ir


def structural_tag_grammar(
    obj: dict[str, Any] | str,
    *,
    any_whitespace: bool = True,
    additional_properties: bool | None = None,
    property_order: str = "schema",
    json_rules: bool = False,
) -> ir.Grammar:
    """The grammar of a structural tag.

    Args:
        obj: the tag, or its JSON text.
        any_whitespace: False: JSON in it is compact, where a format does not say how many blanks it takes.
        additional_properties: False: JSON objects in it that declare properties and do not say whether they
            are open are closed, as in :func:`json_schema_grammar`.
        property_order: "any" or "schema", as there, where a format does not ask for any order.
        json_rules: plain schemas become rules of their own kind (``grammar.json_rules``), quickly.

    Raises:
        InvalidConstraint: not a structural tag; with a JSON pointer to the place.
        UnsupportedConstraint: a format, a style or a field this package does not have, by name.
        ConstraintTooComplex: larger or deeper than the limits.
    """
    if isinstance(obj, str):
        try:
            obj = json.loads(obj, object_pairs_hook=members)
        except InvalidConstraint:
            raise
        except ValueError as error:
            raise InvalidConstraint(
                f"the structural tag is not JSON: {error}; write one JSON object"
            ) from None
        except RecursionError:
            raise ConstraintTooComplex("the structural tag is nested too deeply; flatten it") from None
    try:
        return _convert(obj, Formats(any_whitespace, additional_properties, property_order, json_rules))
    except UnicodeEncodeError:
        raise half_a_pair("") from None
    except RecursionError:
        raise ConstraintTooComplex("the structural tag is nested too deeply; flatten it") from None


def _convert(obj: Any, formats: Formats) -> ir.Grammar:
    fields = Fields(obj, "#", "a structural tag")
    if fields.get("type", "structural_tag") != "structural_tag":
        raise fields.fail('the type is "structural_tag"', "type")
    if "structures" in fields.value and "format" not in fields.value:
        node = _older_form(formats, fields)
    else:
        node = formats.convert(fields.get("format"), "#/format")
    fields.close()
    formats.rules["%start"] = ir.Rule(node)
    return ir.Grammar(formats.rules, "%start")


def _older_form(formats: Formats, fields: Fields) -> ir.Node:
    """What the older form means; its errors name the places of the older form."""
    present = _present_form(fields)
    try:
        return formats.convert(present, "#")
    except GrammarError as error:
        where = error.where.replace("#/tags/", "#/structures/", 1).replace(
            "/content/json_schema", "/schema", 1
        )
        raise type(error)(error.message, where=where) from None


def _present_form(fields: Fields) -> dict[str, Any]:
    """The older form, written as the present one."""
    tags = []
    for place, value in enumerate(fields.array("structures")):
        structure = Fields(value, pointer("#/structures", place), "a structure")
        schema = structure.get("schema")
        if isinstance(schema, str):
            try:
                schema = json.loads(schema, object_pairs_hook=members)
            except RecursionError:
                raise ConstraintTooComplex(
                    "the schema is nested too deeply; flatten it", where=structure.where
                ) from None
            except ValueError as error:
                raise structure.fail(
                    f"the schema is not JSON: {error}; give an object, or its JSON text", "schema"
                ) from None
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({"begin": structure.string("begin"), "content": content, "end": structure.string("end")})
        structure.close()
    return {"type": "triggered_tags", "triggers": fields.get("triggers"), "tags": tags}
