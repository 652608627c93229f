"""A name for one start of a server, which all its processes inherit by their environment, and a folder."""

from __future__ import annotations

import atexit
import os
import secrets
from pathlib import Path

RUN = "VLLM_GUIDED_RUN"


def name_run() -> None:
    """Give this start a name, unless a parent process did; its folder goes when this process ends."""
    if RUN not in os.environ:
        os.environ[RUN] = f"{os.getpid()}-{secrets.token_hex(8)}"
        atexit.register(_remove_folder)


def run_name() -> str:
    """The name; "" where the plugin was never registered."""
    return os.environ.get(RUN, "")


def run_folder() -> Path | None:
    """Where the processes of this start publish what they have counted; made by the first that does."""
    import tempfile

    run = run_name()
    return Path(tempfile.gettempdir(), f"vllm-guided-{run}") if run else None


def _remove_folder() -> None:
    # A forked child inherits this, too.
    if run_name().startswith(f"{os.getpid()}-") and (folder := run_folder()) is not None:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
