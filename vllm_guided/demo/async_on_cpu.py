"""Async scheduling on CPU: vLLM's CPU platform switches it off; the plugin that is made here, on again.

In: a folder. Out: a ``vllm.general_plugins`` entry point in it, and the folder on ``PYTHONPATH``, for servers
that are started from here on. Async scheduling does the same work in another order (a step is scheduled
before the tokens of the one before are known), which GPUs do by default.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import ModuleType
from typing import Any

SIGN = "the async scheduler is in use"


def install(folder: Path) -> None:
    """Make the plugin and let the processes to come find it."""
    entry = folder / "async_on_cpu-0.dist-info"
    entry.mkdir(parents=True)
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: async-on-cpu\nVersion: 0\n")
    (entry / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nasync_on_cpu = vllm_guided.demo.async_on_cpu:start\n"
    )
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def start() -> None:
    """The plugin: called in each of vLLM's processes."""
    from vllm_guided.vllm import imports

    imports.when_imported("vllm.platforms.cpu", keep_async)
    imports.when_imported("vllm.v1.core.sched.async_scheduler", say_so)


def keep_async(module: ModuleType) -> None:
    """Put back what the platform has switched off."""
    original = module.CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        original(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    module.CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def say_so(module: ModuleType) -> None:
    """Write to the log when an engine makes the async scheduler."""
    original = module.AsyncScheduler.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        logging.getLogger("vllm.async_on_cpu").info(SIGN)

    module.AsyncScheduler.__init__ = __init__
