"""The compile service for threads: its event loop runs in a thread of its own, started at first need."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from vllm_guided.compile_service.client import CompileService
from vllm_guided.compile_service.protocol import Job, Outcome
from vllm_guided.compile_service.settings import Settings


class BlockingCompileService:
    """As :class:`CompileService`; every method may be called from any thread but waits for the answer."""

    def __init__(self, settings: Settings, on_event: Callable[[str], None] = lambda event: None) -> None:
        self.service = CompileService(settings, on_event)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def compile(self, job: Job) -> Outcome:
        """What becomes of ``job``; an outcome with an error is a refusal.

        Raises:
            Overloaded: too many wait.
            Unavailable: there is no service.
        """
        return asyncio.run_coroutine_threadsafe(self.service.compile(job), self._running()).result()

    def close(self) -> None:
        """End the processes and the thread; whoever waits gets ``Unavailable``."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(loop), loop)

    async def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        self.service.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others)  # they have their answer, and take it
        loop.stop()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run, args=(self._loop,), name="vllm_guided compile service", daemon=True
                ).start()
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()
