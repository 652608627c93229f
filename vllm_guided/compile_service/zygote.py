"""The process that forks workers: loaded and warm, one thread, nothing of the server's in it.

    python -c "...; zygote.main(descriptor of the packet socket, seconds, bytes)"

It forks when told to, passes the new worker's socket to the client, kills and lowers the priority of workers
when told to, and reports deaths. It ends when its client closes the socket or is no longer its parent; its
workers end with it (``PR_SET_PDEATHSIG``), and it waits for each, so nothing is left behind.
"""

from __future__ import annotations

import ctypes
import gc
import json
import marshal
import os
import select
import signal
import socket
import sys
from contextlib import suppress

from vllm_guided.compile_service import worker
from vllm_guided.compile_service.protocol import DIED, FORK, KILL, READY, WORKER, YIELD, Job
from vllm_guided.frontends.json_schema.common import common_schema
from vllm_guided.handoff import hold

NICENESS = 2
"""Priority of the zygote and of workers: a bit behind a server's own processes, for what is soon done."""
YIELDING_NICENESS = 19
"""Priority of a worker whose job turned out to take long."""
PARENT_SECONDS = 5.0
"""How often it looks whether its parent is still there, which the closed socket says sooner."""

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_LIBC = ctypes.CDLL(None)

#: One of each kind, so that every worker starts with what they load and compile.
SAMPLES = (
    Job(
        "json_schema",
        '{"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 9}, '
        '"b": {"type": "array", "items": {"$ref": "#/$defs/c"}}}, "required": ["a"], '
        '"$defs": {"c": {"anyOf": [{"type": "integer", "maximum": 99}, {"enum": ["x", 1, null]}]}}}',
        (("any_whitespace", True), ("property_order", "schema")),
    ),
    Job("json_schema", json.dumps(common_schema()), (("any_whitespace", True), ("property_order", "any"))),
    Job("json_object", "", ()),
    Job("regex", r"\d{1,3}(\.\d+)?", ()),
    Job("choice", '["yes", "no"]', ()),
    Job("grammar", 'start: "a" start | WORD\nWORD: /[a-z]+/', ()),
    Job("grammar", 'root ::= "a" root | [0-9]+', ()),
    Job(
        "structural_tag",
        '{"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<t"], "tags": '
        '[{"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}]}}',
        (),
    ),
)


def main(descriptor: int, parent: int, seconds: float, memory_bytes: int) -> None:
    """Serve the client at the other end of a packet socket until it goes.

    Args:
        descriptor: of the socket.
        parent: the process id of the client.
        seconds, memory_bytes: budgets of one job, see :func:`worker.serve`.
    """
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    _set_signals(control, parent)
    _name("guided-zygote")
    with suppress(OSError):
        os.nice(NICENESS)
    held = hold()
    try:
        warm_up()
        signal.setitimer(signal.ITIMER_REAL, 0)
        Zygote(control, parent, seconds, memory_bytes).run()
    finally:
        held.close()


def _set_signals(control: socket.socket, parent: int) -> None:
    """Those the server's process had are inherited. Until the loop runs, an alarm looks for the client."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGPROF, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGPIPE else signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the server

    def look(*_: object) -> None:
        with suppress(BlockingIOError):
            if os.getppid() != parent or not control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                os._exit(0)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)


def warm_up() -> None:
    """Load and run everything once, past the caches, so that forks find it done."""
    from vllm_guided import constraints, store
    from vllm_guided.compile_service.find import spec_of
    from vllm_guided.packing import pack

    store.compiler_version()
    store.prune()
    for job in SAMPLES:
        spec = spec_of(job.kind, job.text)
        _, read, given = constraints.identify(job.kind, spec, dict(job.options))
        pack(constraints.build(job.kind, spec, given, read))
    constraints.clear_cache()


class Zygote:
    """The loop."""

    def __init__(self, control: socket.socket, parent: int, seconds: float, memory_bytes: int) -> None:
        self.control = control
        self.parent = parent
        self.process = os.getpid()
        self.budget = seconds, memory_bytes
        self.workers: dict[int, int] = {}
        """Process ids by number."""
        self.next_number = 1

    def run(self) -> None:
        wakeup, signalled = os.pipe()
        for end in (wakeup, signalled):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(signalled)
        gc.collect()
        gc.freeze()  # what is here now stays: collections in workers need not touch, and so copy, it
        with suppress(OSError):  # the client has gone
            self._send(READY, 0)
            while os.getppid() == self.parent:
                ready = select.select([self.control.fileno(), wakeup], [], [], PARENT_SECONDS)[0]
                if wakeup in ready:
                    os.read(wakeup, 4096)
                    self._bury()
                if self.control.fileno() in ready:
                    packet = self.control.recv(1024)
                    if not packet:
                        break
                    self._obey(*marshal.loads(packet))
        for process in self.workers.values():
            os.kill(process, signal.SIGKILL)
        for process in self.workers.values():
            os.waitpid(process, 0)

    def _obey(self, command: str, number: int) -> None:
        if command == FORK:
            self._fork()
            return
        process = self.workers.get(number)
        if process is None:  # it has died in the meantime
            return
        if command == KILL:
            os.kill(process, signal.SIGKILL)
        elif command == YIELD:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process, YIELDING_NICENESS)

    def _fork(self) -> None:
        number = self.next_number
        self.next_number += 1
        ours, theirs = socket.socketpair()
        try:
            process = os.fork()
        except OSError as error:  # no memory or no process left: as one that died at once
            print(f"vllm_guided: no process to compile constraints in: {error}", file=sys.stderr)
            ours.close()
            theirs.close()
            self._send(DIED, 0, 0)
            return
        if process == 0:
            self._be_worker(ours, theirs)
        self.workers[number] = process
        ours.close()
        socket.send_fds(self.control, [marshal.dumps((WORKER, number, process))], [theirs.fileno()])
        theirs.close()

    def _be_worker(self, connection: socket.socket, other: socket.socket) -> None:
        """In the fork; does not return."""
        status = 1
        try:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.control.close()
            other.close()
            if os.getppid() != self.process:  # the zygote died before the first line took effect
                os._exit(1)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            _name("guided-compile")
            with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")  # rather this than the server
            worker.serve(connection, *self.budget)
            status = 0
        finally:
            os._exit(status)

    def _bury(self) -> None:
        numbers = {process: number for number, process in self.workers.items()}
        with suppress(ChildProcessError):
            while True:
                process, status = os.waitpid(-1, os.WNOHANG)
                if process == 0:
                    break
                number = numbers.get(process, 0)
                self.workers.pop(number, None)
                self._send(DIED, number, status)

    def _send(self, *packet: str | int) -> None:
        self.control.send(marshal.dumps(packet))


def _name(text: str) -> None:
    _LIBC.prctl(_PR_SET_NAME, text.encode())
