"""JSON Schema, drafts 4 to 2020-12, to the grammar IR.

    json_schema_grammar({"type": "object", "properties": {"a": {"type": "integer"}}})
    json_schema_grammar('{"type": "string", "maxLength": 3}', any_whitespace=False)
    json_object_grammar()

The way: text and references (:mod:`.documents`), each place to a normal form (:mod:`.keywords`, by the
set algebra of :mod:`.algebra`), normal forms to rules (:mod:`.emitter`). A language is never wider than the
schema's; where it is narrower on purpose (order of properties, spelling of names and constants, digits,
white space), the module that narrows says so.
"""

from __future__ import annotations

from typing import Any

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.json_schema.algebra import Algebra
from vllm_guided.frontends.json_schema.documents import Document, parse
from vllm_guided.frontends.json_schema.emitter import Emitter
from vllm_guided.frontends.json_schema.generic import add_generic
from vllm_guided.frontends.json_schema.keywords import read
from vllm_guided.frontends.json_schema.layout import Layout
from vllm_guided.grammar import ir

__all__ = ["json_object_grammar", "json_schema_grammar"]


def json_schema_grammar(
    schema: dict[str, Any] | bool | str,
    *,
    any_whitespace: bool = True,
    additional_properties: bool | None = None,
    whitespace_pattern: str | None = None,
) -> ir.Grammar:
    """The grammar of the JSON texts that are valid under ``schema``.

    Args:
        schema: the schema, or its JSON text.
        any_whitespace: blanks (at most 32 in a run) may stand between tokens; otherwise none does.
        additional_properties: ``False``: objects with ``properties`` or ``patternProperties`` that
            say nothing of additional ones allow none.
        whitespace_pattern: a Python pattern for what stands between tokens, instead of blanks.

    Returns:
        The grammar; its start rule derives the whole text, without blanks around it.

    Raises:
        InvalidConstraint: not a schema, or one that nothing satisfies (with the JSON pointer).
        UnsupportedConstraint: a keyword that cannot be honoured exactly, or a remote reference.
        ConstraintTooComplex: a budget ran out.
    """
    root: Any = parse(schema) if isinstance(schema, str) else schema
    try:
        document = Document(root)
        algebra = Algebra(read, closed_objects=additional_properties is False)
        emitter = Emitter(algebra, Layout(any_whitespace, whitespace_pattern))
        return emitter.grammar(algebra.terms.place(document.place()))
    except RecursionError:
        raise ConstraintTooComplex("the schema is nested too deeply at one place") from None


def json_object_grammar(*, any_whitespace: bool = True) -> ir.Grammar:
    """The grammar of every JSON object."""
    layout = Layout(any_whitespace, None)
    rules: dict[str, ir.Rule] = dict(layout.rules)
    add_generic(rules, layout, "object")
    rules["start"] = ir.Rule(ir.Ref("object"))
    return ir.Grammar(rules, "start")
