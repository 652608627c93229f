"""``x-guidance`` in a ``%json`` schema: llguidance's options for how the JSON is written.

In: the schema. Out: the grammar. Blanks and separators are carried out; options that loosen or tighten
anything else are refused by name, and so is what does not go together. As in every engine that has ``%json``,
members stand in the schema's order, and integers are written as digits: never as ``1.0``, which JSON Schema
would take.
"""

from __future__ import annotations

from typing import Any

from vllm_guided.errors import InvalidConstraint, UnsupportedConstraint
from vllm_guided.grammar import ir

_STRINGS = ("item_separator", "key_separator", "whitespace_pattern")
_BOOLEANS = ("whitespace_flexible", "lenient", "json_allow_general_unicode_escapes")


def json_grammar(schema: Any) -> ir.Grammar:
    """The grammar of the JSON texts of ``schema``, written as its ``x-guidance`` says.

    Raises:
        InvalidConstraint, UnsupportedConstraint: an option that is malformed, or not known.
    """
    from vllm_guided.frontends.json_schema import json_schema_grammar

    options = schema.get("x-guidance") if isinstance(schema, dict) else None
    if options is None:
        return json_schema_grammar(schema, property_order="schema", whole_as_digits=True)
    if isinstance(options, dict) and isinstance(options.get("json_allowed_escapes"), str):
        from vllm_guided.frontends.tags.excluded import with_escapes

        rest = {key: value for key, value in options.items() if key != "json_allowed_escapes"}
        return with_escapes(json_grammar({**schema, "x-guidance": rest}), options["json_allowed_escapes"])
    if not isinstance(options, dict):
        raise InvalidConstraint("x-guidance is an object; write {...}")
    for key, value in options.items():
        if key in _STRINGS and not isinstance(value, str):
            raise InvalidConstraint(f"{key} in x-guidance is a string")
        if key in _BOOLEANS and not isinstance(value, bool):
            raise InvalidConstraint(f"{key} in x-guidance is true or false")
        if key not in _STRINGS + _BOOLEANS or (key == "json_allow_general_unicode_escapes" and not value):
            raise UnsupportedConstraint(f"the option {key} of x-guidance is not supported; leave it out")
    schema = {key: value for key, value in schema.items() if key != "x-guidance"}
    flexible = options.get("whitespace_flexible", True)
    items, keys = options.get("item_separator", ","), options.get("key_separator", ":")
    pattern = options.get("whitespace_pattern")
    if (items, keys) == (",", ":"):
        blanks = None if pattern is None else f"(?:{pattern})?"  # blanks are never required
        flexible = flexible or blanks is not None
        return json_schema_grammar(
            schema,
            any_whitespace=flexible,
            whitespace_pattern=blanks,
            property_order="schema",
            whole_as_digits=True,
        )
    if pattern is not None:
        raise UnsupportedConstraint(
            "whitespace_pattern beside other separators is not supported; put the blanks into the separators"
        )
    return _separated(schema, items, keys, flexible)


def _separated(schema: Any, items: str, keys: str, flexible: bool) -> ir.Grammar:
    """The grammar with other separators, which are patterns, than a comma and a colon."""
    from vllm_guided.frontends.json_schema.algebra import Algebra
    from vllm_guided.frontends.json_schema.documents import Document
    from vllm_guided.frontends.json_schema.emitter import Emitter
    from vllm_guided.frontends.json_schema.keywords import read
    from vllm_guided.frontends.json_schema.layout import Layout
    from vllm_guided.frontends.regex import regex_node

    layout = Layout(flexible, None)
    layout.compact = False
    layout.comma = ir.sequence(layout.blank, regex_node(items, dialect="ecma"), layout.blank)
    layout.colon = ir.sequence(layout.blank, regex_node(keys, dialect="ecma"), layout.blank)
    document = Document(schema)
    algebra = Algebra(read)
    return Emitter(algebra, layout, whole_as_digits=True).grammar(document.place())
