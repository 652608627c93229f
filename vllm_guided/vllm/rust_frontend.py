"""vLLM's optional frontend in Rust cannot serve a backend that it has not been built with."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from vllm_guided.vllm.selection import NAME, expect, is_selected, vllm_version


def refuse(module: ModuleType) -> None:
    """Fail with a plain message before the Rust process fails with one about unknown variants."""
    manager = getattr(module, "RustFrontendProcessManager", None)
    if manager is None:
        return
    original = expect(manager, "__init__")

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        for value in (*args, *kwargs.values()):
            if is_selected(getattr(value, "structured_outputs_config", None)):
                raise ValueError(
                    f"The Rust frontend of vLLM {vllm_version()} (VLLM_USE_RUST_FRONTEND=1) accepts only the "
                    f"structured-output backends it was built with, and {NAME} is not one of them. "
                    "Unset VLLM_USE_RUST_FRONTEND to serve with vLLM's Python frontend."
                )
        original(self, *args, **kwargs)

    manager.__init__ = __init__
