"""JSON Schema, drafts 4 to 2020-12, to the grammar IR.

    json_schema_grammar({"type": "object", "properties": {"a": {"type": "integer"}}})
    json_schema_grammar('{"type": "string", "maxLength": 3}', any_whitespace=False)
    json_object_grammar()

The way: text and references (:mod:`.documents`), each place to a normal form (:mod:`.keywords`, by the
set algebra of :mod:`.algebra`), normal forms to rules (:mod:`.emitter`).

A language is never wider than the schema's. Where it is narrower, it is on purpose:

================ ======================================================================================
order            any; with ``property_order="schema"`` the properties of one ``properties`` keyword in its
                 order, then pattern and additional ones
spelling         declared names, ``enum`` and ``const`` as ``json.dumps(x, ensure_ascii=False)`` spells them,
                 with any white space inside; names beside declared ones: printable ASCII without needless
                 escapes as far as they begin like one; formats without needless escapes; patterns with very
                 many transitions likewise
white space      at most 32 blanks between two tokens; none before and after the text
numbers          at most 64 digits before and after the point and 3 in the exponent; no scientific form
                 with ``multipleOf`` (but 1); integers in scientific form as floats are written; nothing
                 that a double does not tell from what is excluded; with ``multipleOf`` a fraction only up
                 to 15 digits in all; where it needs very many states, the largest multiples are left out
formats          no A-labels in host names, international ones of common scripts and short labels; leap
                 seconds only at 23:59:60 UTC; ``regex`` without look-around, back-references and deep groups
lengths          a ``pattern`` that needs many states with ``maxLength``: the longest strings are left out
distinct items   beyond short lists of values in one spelling; objects among them with their members in one
                 order and at most one undeclared name (:mod:`.array_unique`, :mod:`.canonical_emitter`)
members          names that are not declared differ where their number or one of them matters
older drafts     keywords of later drafts are annotations, as the standard has it (draft 4: no ``const``)
contents         ``contentEncoding`` base64 holds in draft 7 and without ``$schema``, else annotates
================ ======================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from vllm_guided.collector import paused
from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint
from vllm_guided.frontends.json_schema.algebra import Algebra
from vllm_guided.frontends.json_schema.documents import Document, parse
from vllm_guided.frontends.json_schema.emitter import Emitter, Leaves
from vllm_guided.frontends.json_schema.generic import add_generic
from vllm_guided.frontends.json_schema.keywords import read
from vllm_guided.frontends.json_schema.layout import layout_of
from vllm_guided.frontends.json_schema.plain import NotPlain, Plain
from vllm_guided.frontends.json_text import JsonText
from vllm_guided.grammar import ir

__all__ = ["json_object_grammar", "json_schema_grammar"]


PROPERTY_ORDERS = ("any", "schema")
"""Whether members of objects stand in any order, or declared ones first and in their order."""


def json_schema_grammar(
    schema: dict[str, Any] | bool | str | JsonText,
    *,
    any_whitespace: bool = True,
    additional_properties: bool | None = None,
    whitespace_pattern: str | None = None,
    property_order: str = "any",
    whole_as_digits: bool = False,
    documents: Mapping[str, Any] | None = None,
    prefix: str = "",
    leaves: Leaves | None = None,
    json_rules: bool = False,
) -> ir.Grammar:
    """The grammar of the JSON texts that are valid under ``schema``.

    Args:
        schema: the schema, its JSON text, or both.
        any_whitespace: blanks (at most 32 in a run) may stand between tokens; otherwise none does.
        additional_properties: ``False``: objects with ``properties`` or ``patternProperties`` that
            say nothing of additional ones allow none.
        whitespace_pattern: a Python pattern for what stands between tokens, instead of blanks.
        property_order: "any": the members of an object stand in any order; "schema": declared ones come
            first, in the order of ``properties``.
        whole_as_digits: integers are written as digits, never as ``1.0``.
        documents: schemas that may be referred to, by their absolute URIs; nothing is fetched.
        prefix: of the names of its own rules, where it becomes part of another grammar; the rules of JSON
            itself keep their names.
        leaves: what several grammars with different prefixes share beside those; it is added to.
        json_rules: plain schemas become rules of their own kind (``grammar.json_rules``), quickly.

    Returns:
        The grammar; its start rule derives the whole text, without blanks around it.

    Raises:
        InvalidConstraint: not a schema, or one that nothing satisfies (with the JSON pointer).
        UnsupportedConstraint: a keyword that cannot be honoured exactly, or a remote reference.
        ConstraintTooComplex: a budget ran out.
    """
    if not (isinstance(any_whitespace, bool) and isinstance(additional_properties, bool | None)):
        raise InvalidConstraint("any_whitespace and additional_properties are True or False")
    if whitespace_pattern and not any_whitespace:
        raise InvalidConstraint("whitespace_pattern and any_whitespace=False exclude each other")
    if property_order not in PROPERTY_ORDERS:
        raise InvalidConstraint(f'property_order is "any" or "schema", not {property_order!r}')

    def write(plain: bool) -> ir.Grammar:
        root: Any = schema
        text: str | None = None
        if isinstance(schema, str):
            root, text = parse(schema), schema
        elif isinstance(schema, JsonText):
            root, text = schema.value, schema.text
        with closing(Document(root, documents, text)) as document:
            algebra = Algebra(read, closed_objects=additional_properties is False)
            layout = layout_of(any_whitespace, whitespace_pattern)
            emitter = Emitter(algebra, layout, property_order == "any", whole_as_digits, prefix, leaves)
            with closing(emitter):
                if plain:
                    emitter.plain = Plain(emitter, document)
                return emitter.grammar(document.place())

    try:
        with paused():
            try:
                return write(json_rules and not whitespace_pattern)
            except NotPlain:
                return write(False)
    except RecursionError:
        raise ConstraintTooComplex("the schema is nested too deeply at one place") from None


def json_object_grammar(*, any_whitespace: bool = True) -> ir.Grammar:
    """The grammar of every JSON object."""
    if not isinstance(any_whitespace, bool):
        raise InvalidConstraint("any_whitespace is True or False")
    layout = layout_of(any_whitespace, None)
    rules: dict[str, ir.Rule] = dict(layout.rules)
    add_generic(rules, layout, "object")
    rules["start"] = ir.Rule(ir.Ref("object"))
    return ir.Grammar(rules, "start")
