"""Refuse a bad constraint before generation, where the answer is still a 400 with a reason.

vLLM checks the parameters of a request in the API server. With our backend the constraint is compiled by
then as far as that needs no vocabulary (:mod:`vllm_guided.vllm.precheck`), and the verdict is found here.
Whatever is found later, in the engine, would be a bare 500.
"""

from __future__ import annotations

import functools
import json
from types import ModuleType
from typing import Any

from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint, UnsupportedConstraint
from vllm_guided.vllm import compiled, counters, engine, selection
from vllm_guided.vllm.engine import constraint_from
from vllm_guided.vllm.guided_fields import GuidedFieldError, take_fields, to_structured_outputs
from vllm_guided.vllm.selection import NAME, expect, is_selected

_REASONS: dict[type, str] = {
    InvalidConstraint: "invalid",
    GuidedFieldError: "invalid",
    UnsupportedConstraint: "unsupported",
    ConstraintTooComplex: "too_complex",
}


def check_constraints(module: ModuleType) -> None:
    """Let ``SamplingParams`` check its constraint with our compiler if our backend is configured."""
    params_class = expect(module, "SamplingParams")
    original = expect(
        params_class,
        "_validate_structured_outputs",
        parameters=("self", "model_config", "structured_outputs_config", "tokenizer"),
    )

    @functools.wraps(original)
    def _validate_structured_outputs(
        self: Any, model_config: Any, structured_outputs_config: Any, tokenizer: Any
    ) -> None:
        if not is_selected(structured_outputs_config):
            original(self, model_config, structured_outputs_config, tokenizer)
            return
        try:
            take_extra_args(self, module.StructuredOutputsParams)
            if self.structured_outputs is not None:
                _check(self.structured_outputs, model_config, structured_outputs_config, tokenizer)
        except (GrammarError, GuidedFieldError) as fault:
            counters.add("refusals", reason=_REASONS.get(type(fault), "other"))
            parameter = fault.field if isinstance(fault, GuidedFieldError) else "structured_outputs"
            raise module.VLLMValidationError(str(fault), parameter=parameter) from fault

    params_class._validate_structured_outputs = _validate_structured_outputs


def take_extra_args(params: Any, params_class: Any) -> None:
    """Turn ``extra_args={"guided_json": ...}`` into ``params.structured_outputs``.

    Raises:
        GuidedFieldError: the fields are wrong, or there is a constraint already.
    """
    if not params.extra_args or not any(name.startswith("guided_") for name in params.extra_args):
        return
    rest = dict(params.extra_args)
    fields = take_fields(rest)
    arguments = to_structured_outputs(fields)
    if arguments is not None:
        if params.structured_outputs is not None:
            raise GuidedFieldError(
                next(iter(fields)), "a request takes one constraint, and structured_outputs is one already."
            )
        params.structured_outputs = params_class(**arguments)
    params.extra_args = rest or None


def _check(params: Any, model_config: Any, config: Any, tokenizer: Any) -> None:
    """Raises GrammarError where this constraint cannot be used on this server."""
    if model_config.is_diffusion:
        raise GrammarError(
            "a diffusion model does not generate from left to right, as a grammar needs it to."
        )
    if tokenizer is None:
        raise GrammarError("structured outputs need the tokenizer, which skip_tokenizer_init leaves out.")
    if params._backend not in (None, NAME) and not params._backend_was_auto:
        raise GrammarError(
            f"this server's backend is {NAME!r} for every request, not {params._backend!r}; leave it out."
        )
    constraint = constraint_from(params, config)
    engine.check(constraint, tokenizer, model_config.get_vocab_size())
    if isinstance(params.json, dict):
        # As text, which is ASCII: half a surrogate pair could not be sent to the engine, and it is read once.
        params.json = constraint.text
    params._backend = NAME
    params._backend_was_auto = False


def skip_xgrammar_tag_check(module: ModuleType) -> None:
    """Leave structural tags to :func:`check_constraints`; vLLM shows each to xgrammar first."""
    original = expect(module, "validate_structural_tag_payload", parameters=("payload", "parameter"))

    @functools.wraps(original)
    def validate_structural_tag_payload(payload: Any, *, parameter: str) -> None:
        if selection.is_active() and payload:
            return
        original(payload, parameter=parameter)

    module.validate_structural_tag_payload = validate_structural_tag_payload  # type: ignore[attr-defined]


def _is_known_to_be_bad(structured_outputs: Any) -> bool:
    try:
        constraint = constraint_from(structured_outputs, None)
        if constraint.kind in ("json_schema", "structural_tag"):
            json.loads(constraint.text)
    except (GrammarError, ValueError, RecursionError):
        return True
    return isinstance(compiled.verdicts.get(constraint.job.key), GrammarError)


def judge_tool_constraints(module: ModuleType) -> None:
    """Whether a constraint goes together with tool calls is what we can do, not what xgrammar can.

    Asked on the event loop, long before the check: nothing is compiled for it. One that is bad and goes
    together with tools is refused with them.
    """
    original = getattr(module, "_xgrammar_supports", None)
    if original is None:
        return
    expect(module, "_xgrammar_supports", parameters=("structured_outputs",))

    @functools.wraps(original)
    def _xgrammar_supports(structured_outputs: Any) -> bool:
        if not selection.is_active():
            return bool(original(structured_outputs))
        return not _is_known_to_be_bad(structured_outputs)

    module._xgrammar_supports = _xgrammar_supports  # type: ignore[attr-defined]


def refuse_beside_forced_calls(module: ModuleType) -> None:
    """A constraint beside a tool call that must come: vLLM leaves it out, and only its log says so.

    ``response_format`` is let through: it speaks of the text of a message, and there is none then. Where a
    call may come, vLLM makes a new constraint of both, without the options of the first; they are kept.
    """
    parser = getattr(module, "DelegatingParser", None)
    if parser is None or not hasattr(parser, "_apply_structural_tag"):
        return
    original = expect(parser, "_apply_structural_tag", parameters=("self", "request"))
    # Parsers with one of their own (gpt-oss, Mistral, Cohere) put constraints there that no client sent.
    adjust_request = expect(parser, "adjust_request", parameters=("self", "request"))

    @functools.wraps(original)
    def _apply_structural_tag(self: Any, request: Any) -> Any:
        if not (request.tools and selection.is_active() and type(self).adjust_request is adjust_request):
            return original(self, request)
        request.extract_structured_outputs()  # moves the older fields
        given = request.structured_outputs
        if given is not None and request.tool_choice not in (None, "auto", "none"):
            raise _refusal(
                "a request takes one constraint, and tool_choice forces a call, which is one already."
            )
        adjusted = original(self, request)
        made = getattr(adjusted, "structured_outputs", None)
        if given is not None and made is not None and made is not given:
            _keep_options(given, made)
        return adjusted

    parser._apply_structural_tag = _apply_structural_tag


def _keep_options(given: Any, made: Any) -> None:
    """Give the options of a client's constraint to the one that was made of it and of tools."""
    if given.whitespace_pattern:
        raise _refusal(
            "whitespace_pattern does not go together with tools; leave it out, or set disable_any_whitespace."
        )
    made.disable_any_whitespace |= given.disable_any_whitespace or given.whitespace_pattern == ""
    made.disable_additional_properties |= given.disable_additional_properties


def _refusal(message: str) -> Exception:
    from vllm.exceptions import VLLMValidationError

    return VLLMValidationError(message, parameter="structured_outputs")
