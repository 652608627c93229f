"""The compile service's bounds: who waits and for how long, time, memory, lanes and queues."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any

import pytest
from compile_services import QUICK, SLOW, Running, children

from vllm_guided.compile_service import client, find, worker
from vllm_guided.compile_service.client import CompileService, Overloaded
from vllm_guided.compile_service.protocol import Job, Outcome
from vllm_guided.compile_service.settings import Settings
from vllm_guided.errors import ConstraintTooComplex

pytestmark = pytest.mark.usefixtures("service_folder")


def test_the_last_to_go_ends_the_job(running: Running) -> None:
    async def go() -> None:
        await running.service.compile(Job("regex", "a", ()))
        before = children(running.process())
        waiting = [asyncio.ensure_future(running.service.compile(SLOW)) for _ in range(3)]
        while not any(worker.flight for worker in running.service._workers.values()):
            await asyncio.sleep(0.01)
        busy = next(w for w in running.service._workers.values() if w.flight)
        for task in waiting[:2]:
            task.cancel()
        await asyncio.sleep(0.2)
        assert running.events["cancelled"] == 0 and busy.number in running.service._workers
        waiting[2].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert all(task.cancelled() for task in waiting)
        assert running.events["cancelled"] == 1
        while busy.number in running.service._workers:
            await asyncio.sleep(0.01)
        assert (await running.service.compile(Job("regex", "b", ()))).error is None
        while len(children(running.process())) != 2:
            await asyncio.sleep(0.01)
        assert children(running.process()) != before

    running.run(go())
    assert not running.service._flights


@pytest.mark.parametrize("running", [Settings(workers=1, slow_workers=1, slice_seconds=0.2)], indirect=True)
def test_those_who_wait_in_a_queue_can_go(running: Running) -> None:
    async def go() -> None:
        slow = asyncio.ensure_future(running.service.compile(SLOW))
        await asyncio.sleep(0)
        queued = [asyncio.ensure_future(running.service.compile(Job("regex", f"a{n}", ()))) for n in range(5)]
        await asyncio.sleep(0)
        assert len(running.service._quick) >= 5
        for task in queued[1:4]:
            task.cancel()
        assert (await queued[0]).error is None and (await queued[4]).error is None
        assert running.events["cancelled"] == 3
        slow.cancel()

    running.run(go())


def test_the_event_loop_goes_on_while_something_compiles(running: Running) -> None:
    async def go() -> tuple[int, Outcome]:
        ticks = 0
        task = asyncio.ensure_future(running.service.compile(SLOW))
        while not task.done():
            await asyncio.sleep(0.005)
            ticks += 1
        return ticks, task.result()

    ticks, outcome = running.run(go())
    assert outcome.error is None and outcome.seconds > 0.2
    assert ticks > 20  # of 5 ms, in a second or more


@pytest.mark.parametrize("running", [QUICK], indirect=True)
def test_too_much_time_is_a_refusal_and_the_next_compiles(running: Running) -> None:
    for _ in range(2):
        outcome = running.compile(SLOW)
        assert isinstance(outcome.error, ConstraintTooComplex)
        assert "more than 0.3 seconds" in outcome.error.message
        assert running.compile(Job("regex", "a", ())).error is None
    assert running.events["out_of_time"] == 2


@pytest.mark.parametrize("running", [Settings(wall_seconds=0.3, slice_seconds=0.05)], indirect=True)
def test_wall_time_counts_too(running: Running) -> None:
    outcome = running.compile(SLOW)
    assert isinstance(outcome.error, ConstraintTooComplex) and running.events["out_of_time"] == 1
    assert running.compile(Job("regex", "a", ())).error is None


@pytest.mark.parametrize("running", [Settings(memory_bytes=96 << 20)], indirect=True)
def test_too_much_memory_is_a_refusal_and_the_next_compiles(running: Running) -> None:
    outcome = running.compile(SLOW)
    assert isinstance(outcome.error, ConstraintTooComplex) and "memory" in outcome.error.message
    assert running.compile(Job("regex", "a", ())).error is None


def test_short_texts_go_first_and_long_ones_leave_a_worker(loop: asyncio.AbstractEventLoop) -> None:
    service = CompileService(Settings(workers=2))
    service._loop = loop
    now = loop.time()

    def flight(text: str, asked: float = now) -> client._Flight:
        return client._Flight(Job("regex", text, ()), b"", loop.create_future(), asked)

    long, longer = flight("a" * (Settings.long_text + 1)), flight("a" * (Settings.long_text + 2))
    middle, short = flight("a" * 100), flight("a")
    service._quick.extend([longer, long, middle, short])
    assert service._next_quick(with_long=False) is short
    assert service._next_quick(with_long=True) is middle
    assert service._next_quick(with_long=False) is None
    assert service._next_quick(with_long=True) is long
    late = flight("a" * (Settings.long_text + 9), now - Settings.patience_seconds - 1)
    service._quick.extend([short])
    service._quick.appendleft(late)
    assert service._next_quick(with_long=True) is late
    assert service._next_quick(with_long=False) is short
    assert list(service._quick) == [longer]


def test_many_long_ones_hold_up_no_short_one(running: Running) -> None:
    """By order, not by time: while long ones are queued, short ones are through before most of them."""
    words = json.dumps([f"word {number * 7919}" for number in range(6_000)])
    long = [Job("choice", words.replace("word", f"w{n}"), ()) for n in range(12)]
    assert len(long[0].text) > Settings.long_text

    async def go() -> None:
        assert (await running.service.compile(Job("regex", "ready", ()))).error is None
        tasks = [asyncio.ensure_future(running.service.compile(job)) for job in long]
        await asyncio.sleep(0)
        for number in range(6):
            assert (await running.service.compile(Job("regex", f"a{number}", ()))).error is None
        left = sum(not task.done() for task in tasks)
        assert all(outcome.error is None for outcome in await asyncio.gather(*tasks))
        assert left >= 4

    running.run(go())


@pytest.mark.parametrize("running", [Settings(workers=1, slow_workers=1, slice_seconds=0.1)], indirect=True)
def test_quick_ones_pass_slow_ones(running: Running) -> None:
    """More slow ones than there are processes: the quick one is done before any of them."""
    slow = [Job("choice", SLOW.text.replace('"0"', f'"x{n}"'), ()) for n in range(3)]

    async def go() -> None:
        tasks = [asyncio.ensure_future(running.service.compile(job)) for job in slow]
        await asyncio.sleep(0)
        for number in range(5):
            assert (await running.service.compile(Job("regex", f"a{number}", ()))).error is None
            assert not any(task.done() for task in tasks[1:])
        outcomes = await asyncio.gather(*tasks)
        assert all(outcome.error is None for outcome in outcomes)

    running.run(go())
    assert running.events["postponed"] >= 1


@pytest.mark.parametrize(
    "running",
    [Settings(workers=1, slow_workers=1, slow_queue=1, quick_queue=4, slice_seconds=0.1)],
    indirect=True,
)
def test_queues_are_bounded(running: Running) -> None:
    async def go() -> None:
        many = [asyncio.ensure_future(running.service.compile(Job("regex", f"a{n}", ()))) for n in range(9)]
        results = await asyncio.gather(*many, return_exceptions=True)
        assert sum(isinstance(result, Overloaded) for result in results) >= 4
        assert any(isinstance(result, Outcome) for result in results)
        slow = [Job("choice", SLOW.text.replace('"0"', f'"x{n}"'), ()) for n in range(4)]
        tasks = [asyncio.ensure_future(running.service.compile(job)) for job in slow]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(result, Overloaded) for result in results) >= 1
        assert sum(isinstance(result, Outcome) for result in results) >= 1
        assert (await running.service.compile(Job("regex", "z", ()))).error is None

    running.run(go())


@pytest.mark.parametrize("place", ["pack", "join"])
def test_no_memory_for_what_was_compiled_is_a_refusal(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Not a fault of the compiler; and it may be another answer the next time."""

    class TooMany(list[bytes]):
        def __iter__(self) -> Any:
            raise MemoryError

    def pack(automaton: Any) -> list[bytes]:
        if place == "pack":
            raise MemoryError
        return TooMany([b""])

    monkeypatch.setattr(find, "pack", pack)
    monkeypatch.setattr(find.handoff, "save", lambda key, content: True)
    outcome = worker.run(Job("regex", "no memory", (), True), deque())
    assert isinstance(outcome.error, ConstraintTooComplex) and "more memory" in outcome.error.message
    assert outcome.passing and outcome.fault is None
