"""A name for one start of a server, which all its processes inherit by their environment."""

from __future__ import annotations

import os
import secrets

RUN = "VLLM_GUIDED_RUN"


def name_run() -> None:
    """Give this start a name, unless a parent process did."""
    os.environ.setdefault(RUN, f"{os.getpid()}-{secrets.token_hex(8)}")


def run_name() -> str:
    """The name; "" where the plugin was never registered."""
    return os.environ.get(RUN, "")


def named_here() -> bool:
    """Did this process name the run?"""
    return run_name().startswith(f"{os.getpid()}-")
