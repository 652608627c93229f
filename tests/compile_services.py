"""A compile service on an event loop of its own, in a folder of its own, for the tests that need one.

Waits are polls with a limit of many seconds; no test depends on how fast something is.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from vllm_guided import cachedir, constraints, handoff, store
from vllm_guided.compile_service.client import CompileService
from vllm_guided.compile_service.protocol import Job, Outcome
from vllm_guided.compile_service.settings import Settings

LIMIT = 60.0
"""Seconds that something may take before a test says that it does not come."""

SLOW = Job("choice", json.dumps([f"{number * 7919 % 1000003}" for number in range(300_000)]), ())
"""Takes seconds, and hundreds of megabytes."""
QUICK = Settings(cpu_seconds=0.3, slice_seconds=0.05)


@pytest.fixture
def service_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache directory of the test's own, with this machine's compiled functions in it."""
    compiled = cachedir.cache_directory()
    monkeypatch.setenv(cachedir.ENVIRONMENT, str(tmp_path))
    for path in compiled.glob("numba-*") if compiled else ():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.setattr(store, "_written_since_pruning", None)
    constraints.clear_cache()
    yield tmp_path
    place = handoff.memory_folder(tmp_path)
    if place is not None:
        handoff.hold().close()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.run_until_complete(asyncio.sleep(0))
    made.close()


class Running:
    """A service on a loop, and what it told."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: Settings) -> None:
        self.loop = loop
        self.events: Counter[str] = Counter()
        self.service = CompileService(settings, lambda event: self.events.update([event]))
        self.service.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, LIMIT))

    def compile(self, job: Job) -> Outcome:
        outcome: Outcome = self.run(self.service.compile(job))
        return outcome

    def kill_busy(self) -> None:
        """Kill the workers that have a job, as the system would for want of memory."""
        for worker in self.service._workers.values():
            if worker.flight is not None and self.service._zygote is not None:
                self.service._zygote.kill(worker.number)

    def process(self) -> int:
        assert self.service._zygote is not None
        return self.service._zygote.process.pid


@pytest.fixture
def running(loop: asyncio.AbstractEventLoop, request: pytest.FixtureRequest) -> Iterator[Running]:
    made = Running(loop, getattr(request, "param", Settings()))
    yield made
    made.service.close()


def children(process: int) -> set[int]:
    """The processes that ``process`` has started and not waited for, zombies too."""
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return {int(word) for word in text.split()}


def alive(process: int) -> bool:
    """Whether it runs (a zombie does not)."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(true: Any, what: str) -> None:
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.02)
