"""Older ``guided_*`` fields in the bodies of chat, completion, responses and batch requests.

vLLM keeps unknown fields of a body in ``model_extra`` and ignores them. When our backend is selected, the
first time a request is asked for its constraint, the old fields move to ``structured_outputs``, where
everything else in vLLM (tool calls, reasoning) finds them. A batch request hands its extra fields on to the
chat requests that it is made of.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from vllm_guided.vllm import selection
from vllm_guided.vllm.guided_fields import FIELDS, GuidedFieldError, take_fields, to_structured_outputs
from vllm_guided.vllm.selection import expect


def accept_guided_chat_fields(module: ModuleType) -> None:
    _accept(module, expect(module, "ChatCompletionRequest"))


def accept_guided_completion_fields(module: ModuleType) -> None:
    _accept(module, expect(module, "CompletionRequest"))


def accept_guided_responses_fields(module: ModuleType) -> None:
    _accept(module, expect(module, "ResponsesRequest"))


def _accept(module: ModuleType, request_class: Any) -> None:
    """Move the old fields before ``extract_structured_outputs`` reads the new ones."""
    original = expect(request_class, "extract_structured_outputs", parameters=("self",))
    expect(request_class, "model_extra")
    params_class = expect(module, "StructuredOutputsParams")

    @functools.wraps(original)
    def extract_structured_outputs(self: Any) -> Any:
        if selection.is_active() and self.model_extra:
            move_guided_fields(self, params_class)
        return original(self)

    request_class.extract_structured_outputs = extract_structured_outputs
    if hasattr(request_class, "to_beam_search_params"):
        _refuse_beam_search(request_class)


def _refuse_beam_search(request_class: Any) -> None:
    """A server's beam search knows nothing of constraints: it would leave them out without a word."""
    original = request_class.to_beam_search_params

    @functools.wraps(original)
    def to_beam_search_params(self: Any, *args: Any, **kwargs: Any) -> Any:
        constraint = self.extract_structured_outputs() if selection.is_active() else None
        if constraint is not None and not constraint.all_constraints_none():
            from vllm.exceptions import VLLMValidationError

            raise VLLMValidationError(
                "vLLM's server does not apply constraints in beam search; leave use_beam_search out (n asks "
                "for several outputs), or use LLM.beam_search offline.",
                parameter="use_beam_search",
            )
        return original(self, *args, **kwargs)

    request_class.to_beam_search_params = to_beam_search_params


def move_guided_fields(request: Any, params_class: Any) -> None:
    """Turn the ``guided_*`` fields of a request into its ``structured_outputs``.

    Raises:
        VLLMValidationError: (a 400) they are wrong, or the request has another constraint as well.
    """
    from vllm.exceptions import VLLMValidationError

    try:
        fields = take_fields(request.model_extra)
        if not fields:
            return
        arguments = to_structured_outputs(fields)
        if arguments is None:
            return
        _refuse_second_constraint(request, next(iter(fields)))
    except GuidedFieldError as fault:
        raise VLLMValidationError(str(fault), parameter=fault.field) from fault
    request.structured_outputs = params_class(**arguments)


def _refuse_second_constraint(request: Any, field: str) -> None:
    response_format = getattr(request, "response_format", None)
    text = getattr(request, "text", None)
    others = {
        "structured_outputs": request.structured_outputs is not None,
        "response_format": response_format is not None and response_format.type != "text",
        "text.format": text is not None and text.format is not None and text.format.type != "text",
    }
    for name, given in others.items():
        if given:
            raise GuidedFieldError(field, f"a request takes one constraint, and {name} is one already.")


def drop_removed_field_warning(module: ModuleType) -> None:
    """Silence "these fields are ignored" for the fields that we do honour, once we are selected."""
    removed = expect(module, "_REMOVED_GUIDED_FIELDS")

    def keep_unknown() -> None:
        module._REMOVED_GUIDED_FIELDS = frozenset(removed) - frozenset(FIELDS)  # type: ignore[attr-defined]

    selection.when_active(keep_unknown)
