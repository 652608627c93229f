"""The compile service: the same verdicts as in the process, within budgets, whatever dies.

The twin of everything is ``compile_constraint`` in this process. Waits are polls with a limit of many
seconds; no test depends on how fast something is.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import corpora
import error_cases
import pytest
import random_schemas

from vllm_guided import cachedir, constraints, handoff, packing, store
from vllm_guided.automaton.automaton import Automaton
from vllm_guided.compile_service import client, processes
from vllm_guided.compile_service.blocking import BlockingCompileService
from vllm_guided.compile_service.client import CompileService, Overloaded, Unavailable
from vllm_guided.compile_service.find import spec_of
from vllm_guided.compile_service.protocol import Job, Outcome, dump_job, dump_outcome, load_job, load_outcome
from vllm_guided.compile_service.settings import Settings, from_environment
from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint

LIMIT = 60.0
"""Seconds that something may take before a test says that it does not come."""

SLOW = Job("choice", json.dumps([f"{number * 7919 % 1000003}" for number in range(300_000)]), ())
"""Takes seconds, and hundreds of megabytes."""
QUICK = Settings(cpu_seconds=0.3, slice_seconds=0.05)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
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


def in_process(job: Job) -> Automaton | GrammarError:
    try:
        return constraints.compile_constraint(job.kind, spec_of(job.kind, job.text), **dict(job.options))
    except GrammarError as error:
        return error


def described(error: GrammarError) -> tuple[type, str, str, str]:
    return type(error), error.message, error.where, str(error)


# -- the same verdicts -----------------------------------------------------------------------------


def jobs_of_the_catalogues() -> Iterator[Job]:
    """Every error that a text can meet."""
    for kind in error_cases.KINDS:
        for row in error_cases.rows(kind):
            text = error_cases.constraint(row)
            options = row.get("options", {})
            if row.get("limits") or not all(isinstance(v, str | bool) for v in options.values()):
                continue
            if kind in ("choice", "json_schema", "structural_tag") and not isinstance(text, str):
                text = json.dumps(text)
            if isinstance(text, str) and len(text) < 20_000 and kind != "choice":
                yield Job(kind, text, tuple(sorted(options.items())))


def jobs_of_the_corpora() -> Iterator[Job]:
    if corpora.DATA.exists():
        for name, count in (("maskbench", 120), ("suite", 120), ("peers", 120), ("peer_errors", 100)):
            for case in corpora.sample(corpora.CORPORA[name](), count):
                text = case.constraint
                if case.kind in ("choice", "json_schema", "structural_tag") and not isinstance(text, str):
                    text = json.dumps(text)
                if isinstance(text, str) and not case.options and case.kind in constraints.FRONTENDS:
                    yield Job(case.kind, text, ())


def jobs_at_random() -> Iterator[Job]:
    for seed in range(100):
        yield Job("json_schema", json.dumps(random_schemas.document(random.Random(seed), 2020)), ())


def test_verdicts_and_automata_are_those_of_the_process(running: Running) -> None:
    jobs = [*jobs_of_the_catalogues(), *jobs_of_the_corpora(), *jobs_at_random()]
    assert len(jobs) > 200

    async def all_at_once() -> list[Outcome | BaseException]:
        asked = (running.service.compile(replace(job, wants_content=True)) for job in jobs)
        return await asyncio.gather(*asked, return_exceptions=True)

    outcomes = running.run(all_at_once())
    refused = 0
    for job, outcome in zip(jobs, outcomes, strict=True):
        assert isinstance(outcome, Outcome) and outcome.fault is None, (job, outcome)
        expected = in_process(job)
        if isinstance(expected, GrammarError):
            assert outcome.error is not None, (job, expected)
            assert described(outcome.error) == described(expected), job
            refused += 1
            continue
        assert outcome.error is None and outcome.content is not None, (job, outcome.error)
        assert outcome.symbols == expected.symbols
        assert outcome.content == b"".join(packing.pack(expected)), job
        found = handoff.load(job.key)
        assert found is not None and b"".join(packing.pack(found)) == outcome.content, job
    assert 50 < refused < len(jobs) - 50


def test_a_fault_of_the_compiler_is_neither_verdict(running: Running) -> None:
    outcome = running.compile(Job("choice", "not JSON", ()))
    assert outcome.error is None and "JSONDecodeError" in (outcome.fault or "")
    assert running.compile(Job("regex", "a", ())).fault is None


def test_messages_come_back() -> None:
    job = Job("grammar", "root ::= \ud800", (("a", None), ("b", True)), True)
    assert load_job(dump_job(job)) == job
    error = InvalidConstraint("no \ud800", where="#/a")
    back = load_outcome(dump_outcome(Outcome(error, seconds=0.5, last=True)))
    assert back.error is not None and described(back.error) == described(error)
    assert (back.seconds, back.last) == (0.5, True)

    class OfAFrontend(InvalidConstraint):
        pass

    back = load_outcome(dump_outcome(Outcome(OfAFrontend("x"))))
    assert type(back.error) is InvalidConstraint


def test_keys_tell_constraints_apart() -> None:
    jobs = [
        Job(kind, text, options)
        for kind in ("regex", "grammar")
        for text in ("a", "b", "", "a\ud800")
        for options in ((), (("x", True),), (("x", None),), (("x", False),))
    ]
    assert len({job.key for job in jobs}) == len(jobs)
    assert len({replace(job, wants_content=True).key for job in jobs} - {job.key for job in jobs}) == 0


# -- one at a time, found again --------------------------------------------------------------------


def test_equal_jobs_under_way_are_one(running: Running) -> None:
    async def many() -> list[Outcome]:
        return await asyncio.gather(
            *(running.service.compile(Job("regex", "[ab]{3}", ())) for _ in range(50))
        )

    outcomes = running.run(many())
    assert len({id(outcome) for outcome in outcomes}) == 1
    assert running.compile(Job("regex", "[ab]{3}", ())).source == "handoff"


def test_what_a_service_compiled_is_on_disk_for_the_next(running: Running, folder: Path) -> None:
    assert running.compile(Job("regex", "[ab]{3}", ())).source == "compiled"
    until(lambda: list(folder.glob(f"{store.KIND}-*.bin")), "no copy on disk")
    assert constraints.identify("regex", "[ab]{3}", {})[0]
    running.service.close()
    until(lambda: not processes._open, "not closed")
    # The memory folder went with the last that held it.
    until(lambda: handoff.load(Job("regex", "[ab]{3}", ()).key) is None, "still handed over")
    with pytest.raises(Unavailable):
        running.compile(Job("regex", "[ab]{3}", ()))
    second = Running(running.loop, Settings())
    try:
        assert second.compile(Job("regex", "[ab]{3}", ())).source == "disk"
        # White space of JSON is no other constraint on disk.
        assert second.compile(Job("json_schema", '{"type": "null"}', ())).source == "compiled"
        until(lambda: len(list(folder.glob(f"{store.KIND}-*.bin"))) == 2, "no copy on disk")
        assert second.compile(Job("json_schema", '{"type":"null"}', ())).source == "disk"
    finally:
        second.service.close()


@pytest.mark.parametrize("damage", [b"", b"x" * 100])
def test_damaged_files_are_compiled_again(running: Running, folder: Path, damage: bytes) -> None:
    job = Job("regex", "[ab]{3}", ())
    assert running.compile(job).source == "compiled"
    until(lambda: list(folder.glob(f"{store.KIND}-*.bin")), "no copy on disk")
    place = handoff.memory_folder(folder)
    files = list(folder.glob("*.bin")) + (list(place[0].glob("*.bin")) if place else [])
    assert len(files) == 2
    for file in files:
        file.write_bytes(damage)
    assert handoff.load(job.key) is None
    assert running.compile(job).source == "compiled"
    assert handoff.load(job.key) is not None


def test_without_any_place_for_files(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The automaton then comes with the answer."""
    monkeypatch.setenv(store.ENVIRONMENT, "0")
    running = Running(loop, Settings())
    try:
        outcome = running.compile(Job("regex", "ab", (), True))
        assert outcome.content is not None
        assert packing.unpack(bytearray(outcome.content)) is not None
    finally:
        running.service.close()


# -- who waits, and who does not any more ----------------------------------------------------------


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


# -- budgets ---------------------------------------------------------------------------------------


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

    long, longer = flight("a" * (client.LONG_TEXT + 1)), flight("a" * (client.LONG_TEXT + 2))
    middle, short = flight("a" * 100), flight("a")
    service._quick.extend([longer, long, middle, short])
    assert service._next_quick(with_long=False) is short
    assert service._next_quick(with_long=True) is middle
    assert service._next_quick(with_long=False) is None
    assert service._next_quick(with_long=True) is long
    late = flight("a" * (client.LONG_TEXT + 9), now - client.PATIENCE_SECONDS - 1)
    service._quick.extend([short])
    service._quick.appendleft(late)
    assert service._next_quick(with_long=True) is late
    assert service._next_quick(with_long=False) is short
    assert list(service._quick) == [longer]


def test_many_long_ones_hold_up_no_short_one(running: Running) -> None:
    """By order, not by time: while long ones are queued, short ones are through before most of them."""
    words = json.dumps([f"word {number * 7919}" for number in range(6_000)])
    long = [Job("choice", words.replace("word", f"w{n}"), ()) for n in range(12)]
    assert len(long[0].text) > client.LONG_TEXT

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


# -- deaths ----------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_is_replaced(running: Running) -> None:
    running.compile(Job("regex", "a", ()))
    for process in children(running.process()):
        os.kill(process, signal.SIGKILL)
    assert running.compile(Job("regex", "b", ())).error is None

    async def while_it_works() -> Outcome:
        task = asyncio.ensure_future(running.service.compile(SLOW))
        while not any(worker.flight for worker in running.service._workers.values()):
            await asyncio.sleep(0.01)
        running.kill_busy()
        return await task

    assert running.run(while_it_works()).error is None  # tried again
    assert running.events["crashed"] >= 1


def test_a_job_that_ends_its_workers_is_refused(running: Running) -> None:
    running.compile(Job("regex", "a", ()))

    async def kill_all() -> Outcome:
        task = asyncio.ensure_future(running.service.compile(SLOW))
        while not task.done():
            running.kill_busy()
            await asyncio.sleep(0.05)
        return task.result()

    outcome = running.run(kill_all())
    assert isinstance(outcome.error, ConstraintTooComplex) and "ended twice" in outcome.error.message
    assert running.compile(Job("regex", "b", ())).error is None


def test_a_zygote_that_is_killed_is_replaced_and_its_workers_go(running: Running) -> None:
    for number in range(3):
        assert running.compile(Job("regex", f"a{number}", ())).error is None
        assert running.events["started"] == number + 1
        workers = children(running.process())
        os.kill(running.process(), signal.SIGKILL)
        until(lambda: not any(map(alive, workers)), "workers outlive their zygote")  # noqa: B023
        running.run(asyncio.sleep(0.05))
    with pytest.raises(Unavailable):  # three deaths within a minute
        running.compile(Job("regex", "b", ()))


def test_where_no_process_can_be_started(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "get_executable", lambda: "/nowhere/python")
    running = Running(loop, Settings())
    with pytest.raises(Unavailable):
        running.compile(Job("regex", "a", ()))
    monkeypatch.setattr(processes, "get_executable", lambda: None)
    with pytest.raises(Unavailable):
        running.compile(Job("regex", "a", ()))
    monkeypatch.setattr(processes, "get_executable", lambda: "/bin/false")
    with pytest.raises(Unavailable):
        running.compile(Job("regex", "a", ()))


@pytest.mark.parametrize("end", ["exit", "exception", "kill", "fork"])
def test_nothing_outlives_the_client(folder: Path, end: str) -> None:
    """However the process with the service ends, even with a forked child that lives on."""
    program = """
        import asyncio, os, signal, sys, time
        from pathlib import Path
        from vllm_guided.compile_service.client import CompileService
        from vllm_guided.compile_service.protocol import Job

        async def main():
            service = CompileService()
            service.start()
            await service.compile(Job("regex", "a", ()))
            zygote = service._zygote.process.pid
            workers = Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
            child = 0
            if sys.argv[1] == "fork":
                child = os.fork()
                if not child:
                    os.close(1)
                    time.sleep(100)
                    os._exit(0)
            print(zygote, child, *workers, flush=True)
            if sys.argv[1] == "exception":
                raise RuntimeError("x")
            if sys.argv[1] != "exit":
                os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), end],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=LIMIT,
    )
    zygote, child, *workers = map(int, ended.stdout.split())
    assert workers
    until(lambda: not any(map(alive, [zygote, *workers])), "something outlives the client")
    if child:
        assert alive(child)
        os.kill(child, signal.SIGKILL)
    place = handoff.memory_folder(folder)
    if place is not None:
        until(lambda: not list(place[0].glob("*.bin")), "the memory folder was not emptied")


def test_nothing_is_left_by_many_jobs_and_deaths(running: Running) -> None:
    async def go() -> None:
        for number in range(30):
            task = asyncio.ensure_future(running.service.compile(SLOW))
            await running.service.compile(Job("regex", f"a{number}", ()))
            task.cancel()
            await asyncio.sleep(0)

    running.run(go())
    descriptors = len(os.listdir("/proc/self/fd"))
    running.run(go())

    async def settle() -> None:
        while len(children(running.process())) != 2 or len(os.listdir("/proc/self/fd")) > descriptors + 4:
            await asyncio.sleep(0.02)

    running.run(settle())
    zygote = running.process()
    assert len(os.listdir(f"/proc/{zygote}/fd")) < 16
    running.service.close()
    until(lambda: not alive(zygote), "the zygote outlives its service")
    until(lambda: zygote not in children(os.getpid()), "a zombie")


# -- threads, settings -----------------------------------------------------------------------------


def test_from_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    service = BlockingCompileService(Settings())
    try:
        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(lambda n: service.compile(Job("regex", f"a{n % 20}", ())), range(60)))
        assert all(outcome.error is None for outcome in outcomes)
    finally:
        service.close()


def test_the_client_loads_no_compiler() -> None:
    program = """
        import sys
        import vllm_guided.compile_service.blocking, vllm_guided.vllm.compiled
        heavy = {"numba", "llvmlite", "torch", "vllm", "lark"} & set(sys.modules)
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=LIMIT)


def test_the_zygote_loads_neither_vllm_nor_torch() -> None:
    program = """
        import sys
        from vllm_guided.compile_service.zygote import warm_up
        warm_up()
        heavy = {"torch", "vllm", "pydantic", "transformers"} & set(sys.modules)
        assert not heavy, heavy
        import threading, os
        assert threading.active_count() == 1 and len(os.listdir("/proc/self/task")) == 1
    """
    environment = {**os.environ, **processes.ENVIRONMENT}
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=LIMIT, env=environment
    )


def test_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert from_environment() == Settings()
    monkeypatch.setenv("VLLM_GUIDED_COMPILE_SECONDS", "40")
    monkeypatch.setenv("VLLM_GUIDED_COMPILE_MB", "100")
    monkeypatch.setenv("VLLM_GUIDED_COMPILE_WORKERS", "3")
    chosen = from_environment()
    assert chosen is not None
    assert (chosen.cpu_seconds, chosen.memory_bytes, chosen.workers) == (40.0, 100 << 20, 3)
    assert chosen.wall_seconds == 80.0
    monkeypatch.setenv("VLLM_GUIDED_COMPILE_SECONDS", "soon")
    assert (from_environment() or chosen).cpu_seconds == Settings.cpu_seconds
    monkeypatch.setenv("VLLM_GUIDED_COMPILE_WORKERS", "0")
    assert from_environment() is None
