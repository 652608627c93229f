"""The compile service when something dies: a worker, its zygote, the client; and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from compile_services import LIMIT, SLOW, Running, alive, children, until

from vllm_guided import handoff
from vllm_guided.compile_service import processes
from vllm_guided.compile_service.client import Unavailable
from vllm_guided.compile_service.protocol import Job, Outcome
from vllm_guided.compile_service.settings import Settings
from vllm_guided.errors import ConstraintTooComplex

pytestmark = pytest.mark.usefixtures("service_folder")


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


def test_processes_that_do_not_come(loop: asyncio.AbstractEventLoop) -> None:
    running = Running(loop, Settings(start_seconds=0.01))
    try:
        for _ in range(2):
            with pytest.raises(Unavailable):
                running.compile(Job("regex", "a", ()))
        assert running.events["started"] == 1
    finally:
        running.service.close()


def test_a_worker_whose_socket_cannot_be_received(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this process has no file descriptor left, the packet comes without it."""
    real = socket.recv_fds
    lost: list[int] = []

    def recv_fds(*args: Any) -> Any:
        packet, descriptors, *rest = real(*args)
        if descriptors and not lost:
            lost.extend(descriptors)
            descriptors = []
        return packet, descriptors, *rest

    monkeypatch.setattr(processes.socket, "recv_fds", recv_fds)
    assert running.compile(Job("regex", "a", ())).error is None
    assert lost and running.events["started"] == 2
    os.close(lost[0])


@pytest.mark.parametrize("end", ["exit", "exception", "kill", "fork"])
def test_nothing_outlives_the_client(service_folder: Path, end: str) -> None:
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
    place = handoff.memory_folder(service_folder)
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
