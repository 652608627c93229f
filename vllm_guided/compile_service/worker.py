"""A worker: takes one constraint after another, compiles it, hands it over, answers.

It is forked from a process that has everything loaded and warm. A compile that exceeds its processor time is
ended by the system (``ITIMER_PROF``), whatever code it is in; one that asks for too much memory is refused,
or ends the process. Both cost a fork. What was compiled lies in the handoff folder before the answer goes
out; the copy on disk is made when nobody waits.
"""

from __future__ import annotations

import resource
import select
import signal
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from vllm_guided.compile_service.find import find_or_compile
from vllm_guided.compile_service.protocol import HEADER_BYTES, Job, Outcome, dump_outcome, frame, load_job
from vllm_guided.constraints import too_large
from vllm_guided.errors import GrammarError
from vllm_guided.packing import pack

GROWN_BYTES = 256 << 20
"""A worker that has grown by this much is replaced: what a large compile took does not come back."""


def serve(connection: socket.socket, seconds: float, memory_bytes: int) -> None:
    """Answer jobs until the client closes the connection.

    Args:
        seconds: processor time for each job.
        memory_bytes: address space beyond what the process has now.
    """
    _limit_memory(memory_bytes)
    before = _peak_bytes()
    later: deque[Callable[[], object]] = deque()
    while True:
        while later and not select.select([connection], [], [], 0)[0]:
            later.popleft()()
        payload = _receive(connection)
        if payload is None:
            break
        signal.setitimer(signal.ITIMER_PROF, seconds)
        outcome = run(load_job(payload), later)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if _peak_bytes() - before > GROWN_BYTES:
            outcome = replace(outcome, last=True)
        connection.sendall(frame(dump_outcome(outcome)))
        if outcome.last:
            break
    connection.close()
    for action in later:
        action()


def run(job: Job, later: deque[Callable[[], object]]) -> Outcome:
    """Do one job; what can wait is added to ``later``."""
    begin = time.thread_time()
    try:
        found = find_or_compile(job)
        later.extend(found.later)
        content = b"".join(found.content or pack(found.automaton)) if job.wants_content else None
    except GrammarError as error:
        return Outcome(error, seconds=time.thread_time() - begin, passing=error.passing)
    except MemoryError:
        return Outcome(too_large(job.kind), seconds=time.thread_time() - begin, passing=True)
    except Exception:
        return Outcome(fault=traceback.format_exc())
    return Outcome(
        symbols=found.automaton.symbols, source=found.source, seconds=found.seconds, content=content
    )


def _receive(connection: socket.socket) -> bytes | None:
    header = _receive_exactly(connection, HEADER_BYTES)
    return None if header is None else _receive_exactly(connection, int.from_bytes(header, "little"))


def _receive_exactly(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            part = connection.recv(min(size - len(data), 1 << 20))
        except ConnectionError:
            return None
        if not part:
            return None
        data += part
    return bytes(data)


def _limit_memory(beyond: int) -> None:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = now + beyond if most == resource.RLIM_INFINITY else min(now + beyond, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
