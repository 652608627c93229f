"""The only door from the plugin to the engine: compile a constraint, check one, fill many rows.

Everything else in ``vllm_guided/vllm`` speaks of :class:`Constraint` and :class:`Engine`; tests put another
engine behind the same functions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_guided.compile_service.protocol import Job
from vllm_guided.errors import InvalidConstraint
from vllm_guided.vllm import compiled

PROPERTY_ORDER = "VLLM_GUIDED_PROPERTY_ORDER"


def property_order() -> str:
    """The order of an object's members that this server asks for, from its environment.

    By default as declared: a schema's author who puts ``reasoning`` before ``answer`` relies on it.

    Raises:
        InvalidConstraint: the variable holds neither "schema" nor "any".
    """
    order = os.environ.get(PROPERTY_ORDER) or "schema"
    if order not in ("schema", "any"):
        raise InvalidConstraint(f'{PROPERTY_ORDER} is "schema" or "any", not {order!r}.')
    return order


@dataclass(frozen=True)
class Constraint:
    """What one request asks for.

    Args:
        kind: ``json_schema``, ``json_object``, ``regex``, ``choice``, ``grammar`` or ``structural_tag``.
        text: the constraint; a choice as a JSON array, a schema or a tag as JSON text.
        any_whitespace: blanks between the tokens of JSON are allowed (in bounds).
        additional_properties: what an object schema that does not say allows; ``None``: the standard.
        whitespace_pattern: the blanks between the tokens of JSON, as a regular expression.
        property_order: "schema": an object's members in the order of ``properties``; "any": in any.
    """

    kind: str
    text: str = ""
    any_whitespace: bool = True
    additional_properties: bool | None = None
    whitespace_pattern: str | None = None
    property_order: str = field(default_factory=property_order)

    @property
    def options(self) -> dict[str, Any]:
        """The options that this kind has."""
        options: dict[str, Any] = {}
        if self.kind in ("json_schema", "json_object", "structural_tag"):
            options["any_whitespace"] = self.any_whitespace
        if self.kind in ("json_schema", "structural_tag"):
            options["additional_properties"] = self.additional_properties
            options["property_order"] = self.property_order
        if self.kind == "json_schema":
            options["whitespace_pattern"] = self.whitespace_pattern
        return options

    @property
    def spec(self) -> Any:
        """The constraint as the engine's compile functions take it."""
        if self.kind == "json_object":
            return None
        if self.kind == "choice":
            return parse_choice(self.text)
        return self.text

    @property
    def job(self) -> Job:
        """The constraint as a compile service takes it."""
        return Job(self.kind, self.text, tuple(sorted(self.options.items())))


def constraint_from(params: Any, config: Any) -> Constraint:
    """The constraint of vLLM's ``StructuredOutputsParams`` under its ``StructuredOutputsConfig``.

    A request may narrow what the configuration allows (compact JSON, closed objects), not widen it.

    Raises:
        InvalidConstraint: there is none, or its value is of the wrong kind.
    """
    compact = bool(params.disable_any_whitespace or getattr(config, "disable_any_whitespace", False))
    closed = bool(
        params.disable_additional_properties or getattr(config, "disable_additional_properties", False)
    )
    kind, text = _kind_and_text(params)
    pattern = params.whitespace_pattern
    if pattern is not None and kind not in ("json_schema", "json_object"):
        raise InvalidConstraint(f"whitespace_pattern goes with a JSON constraint, not with {kind}.")
    if compact and not pattern:
        pattern = None  # an empty one says the same
    if pattern is not None and kind == "json_object":
        kind, text = "json_schema", '{"type": "object"}'
    if pattern is not None and params.disable_any_whitespace:
        raise InvalidConstraint("whitespace_pattern and disable_any_whitespace exclude each other.")
    if pattern is not None and compact:
        raise InvalidConstraint(
            "this server's JSON has no blanks (disable_any_whitespace); leave whitespace_pattern out."
        )
    return Constraint(
        kind,
        text,
        any_whitespace=not compact,
        additional_properties=False if closed else None,
        whitespace_pattern=pattern,
    )


def _kind_and_text(params: Any) -> tuple[str, str]:
    if params.json is not None:
        return "json_schema", params.json if isinstance(params.json, str) else json.dumps(params.json)
    if params.json_object is not None:
        if not params.json_object:
            raise InvalidConstraint("json_object must be true; leave it out for free text.")
        return "json_object", ""
    if params.regex is not None:
        return "regex", params.regex
    if params.choice is not None:
        return "choice", json.dumps(list(params.choice))
    if params.grammar is not None:
        return "grammar", params.grammar
    if params.structural_tag is not None:
        tag = params.structural_tag
        return "structural_tag", tag if isinstance(tag, str) else json.dumps(tag)
    raise InvalidConstraint(
        "a structured output needs one of json, json_object, regex, choice, grammar and structural_tag."
    )


def parse_choice(text: str) -> list[str]:
    """The options of a choice from their JSON array."""
    options = json.loads(text)
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise InvalidConstraint("choice must be a list of strings.")
    return options


def check(constraint: Constraint, tokenizer: Any = None, vocabulary_size: int | None = None) -> None:
    """Compile ``constraint`` as far as that needs no vocabulary; the verdict is remembered by its content.

    Args:
        tokenizer: the model's, to look up the special tokens that a grammar names; ``None``: not looked up.
        vocabulary_size: the model's, to check token ids against; ``None``: not checked.

    Raises:
        GrammarError: it cannot be used; the message is for the client.
    """
    for symbol in compiled.symbols_of(constraint.job):
        _check_special_token(symbol, tokenizer, vocabulary_size)


def _check_special_token(symbol: Any, tokenizer: Any, vocabulary_size: int | None) -> None:
    """Refuse names and ids that the engine would refuse later, where the client is told no reason."""
    if vocabulary_size is not None:
        for low, high in symbol.ids:
            if not 0 <= low <= high < vocabulary_size:
                raise InvalidConstraint(f"token ids {low} to {high} are not all below {vocabulary_size}.")
    if symbol.optional or not symbol.names or not hasattr(tokenizer, "get_added_vocab"):
        return
    known = {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}
    for name in sorted(symbol.names - known):
        raise InvalidConstraint(
            f"this model has no special token {name!r}; it has {', '.join(map(repr, sorted(known)[:8]))}."
        )


@dataclass
class Engine:
    """Compiles constraints for one tokenizer.

    Args:
        compiler: a ``vllm_guided.GrammarCompiler``.
        stop_token_ids: the tokens that end every request; a request may add its own.
    """

    compiler: Any
    stop_token_ids: frozenset[int]

    def compile(self, constraint: Constraint) -> Any:
        """The ``CompiledGrammar`` of a constraint (cached by the compiler).

        Raises:
            GrammarError: it cannot be used.
        """
        return self.compiler.bind(compiled.automaton_of(constraint.job))

    def at_hand(self, constraint: Constraint) -> Any:
        """The ``CompiledGrammar`` of a constraint, if that is a matter of a millisecond; else None."""
        automaton = compiled.automaton_at_hand(constraint.job)
        return None if automaton is None else self.compiler.bind(automaton)


def make_engine(tokenizer: Any, vocabulary_size: int, stop_token_ids: Sequence[int]) -> Engine:
    """An engine for a tokenizer, warmed up.

    Args:
        tokenizer: what vLLM uses: a Hugging Face, tiktoken or mistral-common tokenizer (or vLLM's wrapper).
        vocabulary_size: the model's, which may be padded beyond the tokenizer's.
        stop_token_ids: ids that end an output besides the tokenizer's own end-of-sequence.

    Raises:
        ValueError: the tokenizer is of a kind that is not known.
    """
    import vllm_guided as vg
    from vllm_guided.vllm.warmup import fill_samples

    stops = sorted({int(stop) for stop in stop_token_ids if 0 <= int(stop) < vocabulary_size})
    vocabulary = vg.Vocabulary.from_tokenizer(tokenizer, vocab_size=vocabulary_size, stop_token_ids=stops)
    made = Engine(vg.GrammarCompiler(vocabulary), frozenset(vocabulary.stop_token_ids))
    fill_samples(made, vocabulary_size)
    return made


def fill_rows(matchers: Sequence[Any], bitmask: Any, rows: Sequence[int]) -> list[int]:
    """Fill ``bitmask[rows[i]]`` for ``matchers[i]``, all in one call.

    Returns:
        The positions whose row has no bit: the engine could not follow that output any further.
    """
    import vllm_guided as vg

    return vg.fill_bitmask_batch(matchers, bitmask, rows)
