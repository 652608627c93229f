"""Make ``vllm_guided`` a name that vLLM's configuration accepts.

``StructuredOutputsConfig.backend`` is a ``Literal`` of the names vLLM knows, checked by a pydantic
dataclass; ``VllmConfig`` carries a copy of that schema, whose after-validator is run a second time. The
literal is widened and the schema built anew before any copy is made; the validator is one function object
that all copies share, so its code is replaced and the original kept for every other backend.
"""

from __future__ import annotations

import typing
from types import FunctionType, ModuleType
from typing import Any

from vllm_guided.vllm import engine, selection
from vllm_guided.vllm.selection import NAME, UnexpectedVllm, expect

_original_check: FunctionType | None = None


def allow_backend_name(module: ModuleType) -> None:
    """Let ``StructuredOutputsConfig(backend="vllm_guided")`` pass, with any of the other options."""
    config = expect(module, "StructuredOutputsConfig")
    annotation = config.__annotations__.get("backend")
    names = typing.get_args(annotation)
    if typing.get_origin(annotation) is not typing.Literal or "auto" not in names:
        raise UnexpectedVllm(
            f"vllm_guided does not fit vLLM {selection.vllm_version()}: StructuredOutputsConfig.backend is "
            f"no Literal of names, but {annotation!r}."
        )
    expect(config, "_validate_structured_output_config", parameters=("self",))
    _replace_check(config.__dict__["_validate_structured_output_config"])
    if NAME not in names:
        _widen(config, typing.Literal[(*names, NAME)])


def refresh_embedded_schema(module: ModuleType) -> None:
    """Where ``VllmConfig`` was built before the name was known, build its schema again."""
    config = expect(module, "VllmConfig")
    if f"'{NAME}'" in repr(config.__pydantic_core_schema__):
        return
    from pydantic.dataclasses import rebuild_dataclass

    rebuild_dataclass(config, force=True)


def check(config: Any) -> Any:
    """The after-validator: our own backend takes every option, the others are vLLM's affair."""
    if selection.is_selected(config):
        engine.property_order()  # a wrong value ends the start, not every request
        selection.activate()
        return config
    assert _original_check is not None
    return _original_check(config)


def _replace_check(function: FunctionType) -> None:
    global _original_check
    if _original_check is not None:
        return
    if function.__code__.co_freevars:
        raise UnexpectedVllm(
            f"vllm_guided does not fit vLLM {selection.vllm_version()}: "
            "StructuredOutputsConfig._validate_structured_output_config is a closure."
        )
    original = FunctionType(function.__code__, function.__globals__, function.__name__)

    def replacement(self: Any) -> Any:
        from vllm_guided.vllm.config import check

        return check(self)

    function.__code__ = replacement.__code__
    _original_check = original


def _widen(config: Any, annotation: Any) -> None:
    from pydantic.dataclasses import rebuild_dataclass

    config.__annotations__["backend"] = annotation
    config.__dataclass_fields__["backend"].type = annotation
    rebuild_dataclass(config, force=True)
