"""Gives out compile jobs on an event loop, within bounds, and gives up those that nobody waits for.

    service = CompileService(); service.start()     # at once, from anywhere; the rest on one event loop
    outcome = await service.compile(job)

Jobs run in two lanes, so that a hostile constraint delays nobody else's. Every job begins in the quick lane,
short texts first, on one of a few workers, for a slice of processor time, the later part of it at the lowest
priority. One that is not done by then moves to the slow lane with its worker, and the quick lane gets a new
one (a fork, milliseconds). Where the slow lane is full, the job is given up for now and begins anew when
there is room. (Multi-level feedback queues: Corbató and others, 1962.) Both queues are bounded; what comes
then is refused.

Equal jobs under way are one. When the last one who waits for it is cancelled, the job leaves its queue, or
its worker is killed. What ends a worker (its processor time, memory, a crash) ends that job alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from vllm_guided.compile_service.processes import Connection, Zygote, cpu_seconds
from vllm_guided.compile_service.protocol import Job, Outcome, dump_job
from vllm_guided.compile_service.settings import Settings
from vllm_guided.errors import ConstraintTooComplex


class Overloaded(Exception):
    """More constraints wait to be compiled than is reasonable; the client may try again later."""

    def __init__(self) -> None:
        super().__init__("Too many constraints are being compiled at the moment; try again later.")


class Unavailable(Exception):
    """The service cannot run here, or failed too often; compile in this process."""


@dataclass(eq=False)
class _Flight:
    """A job under way, and who waits for it."""

    job: Job
    key: bytes
    future: asyncio.Future[Outcome]
    asked: float = 0.0
    waiting: int = 0
    slow: bool = False
    yielded: bool = False
    """Its worker has the lowest priority."""
    begun: float = 0.0
    cpu_before: float = 0.0
    """When it was given to its worker, and the processor time that that had used by then."""
    crashes: int = 0
    worker: _Worker | None = None
    timer: asyncio.TimerHandle | None = None
    gave_up: str = ""
    """Why its worker was told to die: "cancelled", "postponed", "time"."""


@dataclass(eq=False)
class _Worker:
    number: int
    process: int
    connection: Connection
    flight: _Flight | None = None


@dataclass(eq=False)
class CompileService:
    """A client with its processes. All methods but ``start`` and ``close`` belong to one event loop.

    Args:
        settings: budgets and sizes.
        on_event: is told what happens: "started", "cancelled", "postponed", "out_of_time", "crashed".
    """

    settings: Settings = field(default_factory=Settings)
    on_event: Callable[[str], None] = lambda event: None

    def __post_init__(self) -> None:
        self._zygote: Zygote | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flights: dict[bytes, _Flight] = {}
        self._quick: deque[_Flight] = deque()
        self._slow: deque[_Flight] = deque()
        self._workers: dict[int, _Worker] = {}
        self._idle: list[_Worker] = []
        self._forking = 0
        self._ever = False
        """A worker has come from this zygote."""
        self._failures: deque[float] = deque()
        self._closed = False

    # -- its processes -----------------------------------------------------------------------------

    def start(self) -> bool:
        """Start the processes in the background, if that has not been done; whether they may be there."""
        if self._closed or self._zygote is not None:
            return not self._closed
        now = time.monotonic()
        while self._failures and now - self._failures[0] > self.settings.failure_window:
            self._failures.popleft()
        if len(self._failures) >= self.settings.failures:
            return False
        try:
            self._zygote = Zygote(self.settings)
        except OSError:
            self._failures.append(now)
            return False
        self.on_event("started")
        self._ever = False
        for _ in range(self.settings.workers):
            self._forking += 1
            self._zygote.fork()
        return True

    def close(self) -> None:
        """End the processes; whoever waits gets :class:`Unavailable`."""
        self._closed = True
        self._drop_processes()
        for flight in list(self._flights.values()):
            self._finish(flight, Unavailable("the compile service was closed"))

    # -- jobs --------------------------------------------------------------------------------------

    async def compile(self, job: Job) -> Outcome:
        """What becomes of ``job``; an outcome with an error is a refusal.

        Raises:
            Overloaded: too many wait.
            Unavailable: there is no service.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and self._loop.is_running():
                return await self._ask_elsewhere(job, self._loop)
            self._adopt(loop)
        key = job.key + bytes([job.wants_content])
        flight = self._flights.get(key)
        if flight is None:
            if not self.start():
                raise Unavailable("the compile service could not be started")
            self._listen()
            if len(self._quick) >= self.settings.quick_queue:
                raise Overloaded
            flight = self._flights[key] = _Flight(job, key, loop.create_future(), loop.time())
            self._quick.append(flight)
            self._pump()
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.future)
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.future.done():
                self._cancel(flight)

    async def _ask_elsewhere(self, job: Job, owner: asyncio.AbstractEventLoop) -> Outcome:
        """Have ``job`` compiled on the event loop of another thread, which the service belongs to."""
        answer = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.compile(job), owner))
        try:
            await asyncio.wait([answer])
        except asyncio.CancelledError:
            answer.cancel()
            raise
        if answer.cancelled():
            raise Unavailable("the event loop of the compile service has ended")
        return answer.result()

    def _adopt(self, loop: asyncio.AbstractEventLoop) -> None:
        """Belong to ``loop`` from now on; whoever waits on another loop is told so when that runs again."""
        if self._loop is not None:
            self._drop_processes()
            for flight in self._flights.values():
                with suppress(RuntimeError):  # it is closed
                    self._loop.call_soon_threadsafe(_end, flight.future)
            for jobs in (self._flights, self._quick, self._slow):
                jobs.clear()
        self._loop = loop

    def _listen(self) -> None:
        assert self._loop is not None and self._zygote is not None
        if not self._zygote.listening:
            self._zygote.listen(self._loop, self._on_worker, self._on_death, self._on_zygote_gone)
            self._loop.call_later(self.settings.start_seconds, self._on_late, self._zygote)

    def _on_late(self, zygote: Zygote) -> None:
        """The processes take too long to start."""
        if self._zygote is zygote and not self._ever:
            # Not again at once: whoever waits has waited long enough.
            self._failures.extend([time.monotonic()] * self.settings.failures)
            zygote.process.kill()

    def _pump(self) -> None:
        """Give jobs to idle workers, and ask for the workers that are missing."""
        settings = self.settings
        busy = [worker.flight for worker in self._workers.values() if worker.flight is not None]
        slow = sum(flight.slow for flight in busy)
        quick = len(busy) - slow
        for worker in [worker for worker in self._idle if worker.connection.has_ended()]:
            self._forget(worker)
        long = sum(self._is_long(flight) and not flight.slow for flight in busy)
        while self._idle and self._quick and quick < settings.workers:
            chosen = self._next_quick(with_long=long < max(1, settings.workers - 1))
            if chosen is None:
                break
            self._run(self._idle.pop(), chosen)
            quick += 1
            long += self._is_long(chosen)
        while self._idle and self._slow and slow < settings.slow_workers:
            self._run(self._idle.pop(), self._slow.popleft())
            slow += 1
        wanted = settings.workers + slow + min(len(self._slow), settings.slow_workers - slow)
        if self._zygote is not None:
            for _ in range(wanted - len(self._workers) - self._forking):
                self._forking += 1
                self._zygote.fork()

    def _next_quick(self, *, with_long: bool) -> _Flight | None:
        """Take the next job of the quick lane: the shortest text, unless one has waited for too long.

        Long texts leave one worker to the others, so that many of them hold up none that is short.
        """
        assert self._loop is not None
        waiting = [flight for flight in self._quick if with_long or not self._is_long(flight)]
        if not waiting:
            return None
        chosen = waiting[0]
        if self._loop.time() - chosen.asked < self.settings.patience_seconds:
            chosen = min(waiting, key=lambda flight: len(flight.job.text))
        self._quick.remove(chosen)
        return chosen

    def _is_long(self, flight: _Flight) -> bool:
        """Whether it may take more than a moment, by its text."""
        return len(flight.job.text) > self.settings.long_text

    def _run(self, worker: _Worker, flight: _Flight) -> None:
        assert self._loop is not None and self._zygote is not None
        worker.flight, flight.worker = flight, worker
        flight.gave_up = ""
        flight.yielded = False
        flight.begun, flight.cpu_before = self._loop.time(), cpu_seconds(worker.process)
        worker.connection.send(dump_job(flight.job))
        if flight.slow:
            self._yield(flight)
            self._go_slow(flight)
        else:
            self._look_again(flight, self.settings.yield_seconds)

    def _look_again(self, flight: _Flight, seconds: float) -> None:
        assert self._loop is not None
        flight.timer = self._loop.call_later(max(seconds, 0.005), self._on_timer, flight)

    def _on_timer(self, flight: _Flight) -> None:
        """See how much of its slice a job in the quick lane has used."""
        assert self._loop is not None and flight.worker is not None
        settings = self.settings
        used = cpu_seconds(flight.worker.process) - flight.cpu_before
        if self._loop.time() - flight.begun > settings.slice_wall_seconds:
            used = settings.slice_seconds
        if used >= settings.yield_seconds and not flight.yielded:
            self._yield(flight)
        if used >= settings.slice_seconds:
            self._on_slice(flight)
        else:
            self._look_again(
                flight, (settings.slice_seconds if flight.yielded else settings.yield_seconds) - used
            )

    def _yield(self, flight: _Flight) -> None:
        assert self._zygote is not None and flight.worker is not None
        flight.yielded = True
        self._zygote.lower_priority(flight.worker.number)

    def _on_slice(self, flight: _Flight) -> None:
        """A job of the quick lane has used up its slice."""
        slow = sum(w.flight.slow for w in self._workers.values() if w.flight is not None)
        if slow < self.settings.slow_workers:
            flight.slow = True
            self._go_slow(flight)
            self._pump()
        elif len(self._slow) < self.settings.slow_queue:
            self.on_event("postponed")
            self._kill(flight, "postponed")
        else:
            self._kill(flight, "")
            self._finish(flight, Overloaded())

    def _go_slow(self, flight: _Flight) -> None:
        assert self._loop is not None
        wait = self.settings.wall_seconds
        flight.timer = self._loop.call_later(wait, self._kill, flight, "time")

    def _kill(self, flight: _Flight, reason: str) -> None:
        flight.gave_up = reason
        if flight.timer is not None:
            flight.timer.cancel()
        if flight.worker is not None and self._zygote is not None:
            self._zygote.kill(flight.worker.number)

    def _cancel(self, flight: _Flight) -> None:
        self.on_event("cancelled")
        self._flights.pop(flight.key, None)
        if flight.worker is not None:
            self._kill(flight, "cancelled")
        for queue in (self._quick, self._slow):
            if flight in queue:
                queue.remove(flight)
        flight.future.cancel()

    def _finish(self, flight: _Flight, result: Outcome | Exception) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]
        if flight.timer is not None:
            flight.timer.cancel()
        if flight.future.done():
            return
        if isinstance(result, Outcome):
            flight.future.set_result(result)
        else:
            flight.future.set_exception(result)
            flight.future.exception()  # asked for, so that nothing is logged where nobody waits

    # -- what the processes report -----------------------------------------------------------------

    def _on_worker(self, number: int, process: int, connection: Connection) -> None:
        self._forking -= 1
        self._ever = True
        worker = self._workers[number] = _Worker(number, process, connection)
        connection.listen(lambda outcome: self._on_outcome(worker, outcome))
        self._idle.append(worker)
        self._pump()

    def _on_outcome(self, worker: _Worker, outcome: Outcome) -> None:
        flight, worker.flight = worker.flight, None
        if flight is None:
            return
        flight.worker = None
        if flight.yielded or outcome.last or flight.gave_up:
            # Of low priority for good, grown, or about to die: the next job gets a new one.
            self._forget(worker)
        else:
            self._idle.append(worker)
        if flight.gave_up != "cancelled":
            self._finish(flight, outcome)
        self._pump()

    def _on_death(self, number: int, status: int) -> None:
        if number == 0:  # it could not fork
            self._forking -= 1
            self._on_zygote_gone()
            return
        worker = self._workers.get(number)
        if worker is None:
            return
        # The answer may have come before the death and not have been read yet.
        worker.connection.drain()
        if self._workers.get(number) is worker:
            flight, worker.flight = worker.flight, None
            self._forget(worker)
            if flight is not None:
                flight.worker = None
                self._on_job_ended(flight, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
        self._pump()

    def _on_job_ended(self, flight: _Flight, number: int) -> None:
        """Its worker died."""
        if flight.timer is not None:
            flight.timer.cancel()
        if flight.future.done():
            return
        if flight.gave_up == "postponed":
            flight.slow = True
            self._slow.append(flight)
        elif flight.gave_up == "time" or number == signal.SIGPROF:
            self.on_event("out_of_time")
            seconds = self.settings.cpu_seconds
            text = f"it takes more than {seconds:g} seconds to compile; simplify it"
            self._finish(flight, Outcome(ConstraintTooComplex(text), seconds=seconds, passing=True))
        elif flight.crashes == 0:
            self.on_event("crashed")
            flight.crashes += 1
            self._renew_idle()
            (self._slow if flight.slow else self._quick).appendleft(flight)
        else:
            text = "the process that compiled it ended twice, for want of memory perhaps; simplify it"
            self._finish(flight, Outcome(ConstraintTooComplex(text), passing=True))

    def _renew_idle(self) -> None:
        """Let the next jobs have new workers: what ended one may have ended others, and not be seen yet."""
        for worker in list(self._idle):
            if self._zygote is not None:
                self._zygote.kill(worker.number)
            self._forget(worker)

    def _forget(self, worker: _Worker) -> None:
        self._workers.pop(worker.number, None)
        if worker in self._idle:
            self._idle.remove(worker)
        worker.connection.close()

    def _on_zygote_gone(self) -> None:
        """The processes ended by themselves: begin anew, a few times."""
        self._failures.append(time.monotonic())
        self._drop_processes()
        waiting = [flight for flight in self._flights.values() if not flight.future.done()]
        self._quick.clear()
        self._slow.clear()
        if self._flights and self.start():
            self._listen()
            for flight in waiting:
                flight.worker = None
                if flight.timer is not None:
                    flight.timer.cancel()
                (self._slow if flight.slow else self._quick).append(flight)
            self._pump()
            return
        for flight in waiting:
            self._finish(flight, Unavailable("the compile service ended"))

    def _drop_processes(self) -> None:
        for worker in list(self._workers.values()):
            self._forget(worker)
        self._forking = 0
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None


def _end(future: asyncio.Future[Outcome]) -> None:
    if not future.done():
        future.set_exception(Unavailable("the compile service belongs to another event loop now"))
        future.exception()  # asked for, so that nothing is logged where nobody waits
