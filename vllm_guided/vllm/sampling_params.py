"""``vllm_guided.SamplingParams``: vLLM's own, which also takes the older ``guided_*`` arguments."""

from __future__ import annotations

from typing import Any

from vllm.sampling_params import SamplingParams as VllmSamplingParams
from vllm.sampling_params import StructuredOutputsParams

from vllm_guided.vllm.guided_fields import GuidedFieldError, take_fields, to_structured_outputs


class _Guided(type(VllmSamplingParams)):  # type: ignore[misc]
    """Makes plain ``vllm.SamplingParams``, so that nothing downstream meets another type."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        fields = take_fields(kwargs)
        arguments = to_structured_outputs(fields)
        if arguments is not None:
            if kwargs.get("structured_outputs") is not None:
                raise GuidedFieldError(
                    next(iter(fields)), "give one constraint, either this or structured_outputs."
                )
            kwargs["structured_outputs"] = StructuredOutputsParams(**arguments)
        return VllmSamplingParams(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, VllmSamplingParams)


class SamplingParams(VllmSamplingParams, metaclass=_Guided):  # type: ignore[misc]
    """Sampling parameters with a constraint under its older name.

    Takes everything that ``vllm.SamplingParams`` takes, and ``guided_json`` (a schema as an object, as text
    or as a pydantic model), ``guided_regex``, ``guided_choice``, ``guided_grammar`` and
    ``guided_whitespace_pattern``. The result is a ``vllm.SamplingParams``.

    Raises:
        ValueError: two constraints, or one of the wrong type.

    Example:
        >>> SamplingParams(max_tokens=64, guided_regex=r"[0-9]{4}")
    """
