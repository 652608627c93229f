"""A vLLM plugin that stamps the parts of a step, in whichever of vLLM's processes they run.

``overlap.py`` installs it for the servers it starts, by an entry point that lies in a temporary folder; the
product knows nothing of it. Every process appends its stamps to a file of its own in ``$OVERLAP_FOLDER``:
the part's number in :data:`PARTS`, begin and end on the monotonic clock, which all processes share, the
thread's processor time in between, and a figure, as :data:`STAMP` packs them. Where a part is a sum of many
calls, which would be too many stamps, it is one that begins with the first of them and is as long as all.
"""

from __future__ import annotations

import functools
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

#: part, begin, end, processor time (nanoseconds), figure
STAMP = struct.Struct("<Bqqqq")
PARTS = (
    "schedule", "fill", "send", "ship", "wait", "update", "accept", "forward", "receive", "apply", "sample",
    "worker sample_tokens", "outputs", "reply",
)  # fmt: skip
ASYNC = "OVERLAP_ASYNC"
EVERY = 0.2  # seconds between writes

_now, _spent = time.monotonic_ns, time.thread_time_ns
_lock = threading.Lock()
_buffer = bytearray()
_written = time.monotonic()


def stamp(part: str, begin: int, end: int, spent: int, figure: int = 0) -> None:
    """Keep one; write now and then."""
    global _written
    with _lock:
        _buffer.extend(STAMP.pack(PARTS.index(part), begin, end, spent, figure))
        if time.monotonic() - _written > EVERY:
            with open(Path(os.environ["OVERLAP_FOLDER"], f"{os.getpid()}.stamps"), "ab") as file:
                file.write(_buffer)
            _buffer.clear()
            _written = time.monotonic()


def timed(function: Any, part: str, figure: Callable[..., int] | None = None) -> Any:
    """``function``, with a stamp for each call."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        begin, spent = _now(), _spent()
        result = function(*args, **kwargs)
        end, after = _now(), _spent()
        stamp(part, begin, end, after - spent, figure(result, *args) if figure else 0)
        return result

    return call


def wrap(owner: Any, name: str, part: str, figure: Callable[..., int] | None = None) -> None:
    """Replace a method or a function of a module by its timed twin."""
    setattr(owner, name, timed(getattr(owner, name), part, figure))


class Sum:
    """Calls that are added up until :meth:`flush`."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.begin = self.length = self.calls = 0

    def timed(self, function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = _now()
            result = function(*args, **kwargs)
            self.length += _now() - begin
            self.begin = self.begin or begin
            self.calls += 1
            return result

        return call

    def flush(self) -> None:
        if self.calls:
            stamp(self.part, self.begin, self.begin + self.length, self.length, self.calls)
        self.begin = self.length = self.calls = 0


def scheduler(module: ModuleType) -> None:
    """Schedule, fill, update; accept is inside the last."""
    wrap(module.Scheduler, "schedule", "schedule", lambda output, *_: len(output.num_scheduled_tokens)
         if output.total_num_scheduled_tokens == len(output.num_scheduled_tokens) else -1)  # fmt: skip
    wrap(module.Scheduler, "get_grammar_bitmask", "fill")
    original = module.Scheduler.update_from_output

    def update_from_output(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _accepts.flush()
        return result

    module.Scheduler.update_from_output = timed(functools.wraps(original)(update_from_output), "update")


_accepts = Sum("accept")


def manager(module: ModuleType) -> None:
    """Accept, in all its calls."""
    owner = module.StructuredOutputManager
    for name in ("accept_tokens", "vllm_guided_advance"):
        if hasattr(owner, name):
            setattr(owner, name, _accepts.timed(getattr(owner, name)))


def executor(module: ModuleType) -> None:
    """The messages to the worker; inside those, ship is the one that brings the masks."""
    owner = module.MultiprocExecutor
    wrap(owner, "execute_model", "send")
    original = owner.sample_tokens

    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        _shipping.on = True
        try:
            return original(self, *args, **kwargs)
        finally:
            _shipping.on = False

    owner.sample_tokens = functools.wraps(original)(sample_tokens)


_shipping = threading.local()


def queue(module: ModuleType) -> None:
    """Ship and wait, where messages go between processes."""
    enqueue = module.MessageQueue.enqueue
    ship, reply = timed(enqueue, "ship"), timed(enqueue, "reply")

    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (ship if getattr(_shipping, "on", False) else reply)(self, *args, **kwargs)

    module.MessageQueue.enqueue = functools.wraps(enqueue)(traced)
    wrap(module.MessageQueue, "dequeue", "wait")


def runner(module: ModuleType) -> None:
    """The worker's parts."""
    wrap(module.GPUModelRunner, "execute_model", "forward")
    wrap(module.GPUModelRunner, "_sample", "sample")
    wrap(module.GPUModelRunner, "sample_tokens", "worker sample_tokens")
    wrap(module, "apply_grammar_bitmask", "apply")


def outputs(module: ModuleType) -> None:
    """The API server's part of a step."""
    wrap(module.OutputProcessor, "process_outputs", "outputs")


POINTS: dict[str, Callable[[ModuleType], None]] = {
    "vllm.v1.core.sched.scheduler": scheduler,
    "vllm.v1.structured_output": manager,
    "vllm.v1.executor.multiproc_executor": executor,
    "vllm.distributed.device_communicators.shm_broadcast": queue,
    "vllm.v1.worker.gpu_model_runner": runner,
    "vllm.v1.engine.output_processor": outputs,
}


def start() -> None:
    """The entry point: in each of vLLM's processes, before it imports what is wrapped."""
    from vllm_guided.demo.async_on_cpu import keep_async
    from vllm_guided.vllm import imports, plugin

    plugin.register()  # first, so that its functions are among those that are timed
    if os.environ.get(ASYNC):
        imports.when_imported("vllm.platforms.cpu", keep_async)
    if os.environ.get("OVERLAP_FOLDER"):
        for name, function in POINTS.items():
            imports.when_imported(name, function)
