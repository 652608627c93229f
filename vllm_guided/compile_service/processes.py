"""The client's ends: of the zygote, which is started and told what to do, and of a worker."""

from __future__ import annotations

import asyncio
import atexit
import json
import marshal
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.spawn import get_executable

from vllm_guided.compile_service.protocol import (
    DIED,
    FORK,
    HEADER_BYTES,
    KILL,
    WORKER,
    YIELD,
    Outcome,
    frame,
    load_outcome,
)
from vllm_guided.compile_service.settings import Settings

PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from vllm_guided.compile_service.zygote import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))"
)
#: One thread: a process that forks must have no other.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
END_SECONDS = 5.0
"""How long a zygote may take to end before it is killed."""

_open: weakref.WeakSet[Zygote | Connection] = weakref.WeakSet()


class Zygote:
    """A zygote of this process.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, settings: Settings) -> None:
        executable = get_executable()
        if not executable:
            raise FileNotFoundError("this Python does not know its executable")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.socket = ours
        self.listening = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # The path of this process, so that the same package is found whatever the working directory is.
        path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
        budgets = [str(settings.cpu_seconds), str(settings.memory_bytes)]
        command = [os.fsdecode(executable), "-P", "-c", PROGRAM, path, str(theirs.fileno())]
        try:
            self.process = subprocess.Popen(
                [*command, str(os.getpid()), *budgets],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **ENVIRONMENT},
                process_group=0,  # a terminal's signals are for the server, which ends it
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        _open.add(self)

    def listen(
        self,
        loop: asyncio.AbstractEventLoop,
        on_worker: Callable[[int, int, Connection], None],
        on_death: Callable[[int, int], None],
        on_gone: Callable[[], None],
    ) -> None:
        """Report on ``loop`` new workers (number, process id), deaths (number, wait status), its own end."""

        def read() -> None:
            while True:
                try:
                    packet, descriptors, _, _ = socket.recv_fds(self.socket, 1024, 1)
                except BlockingIOError:
                    return
                except OSError:
                    packet, descriptors = b"", []
                if not packet:
                    on_gone()
                    return
                name, *rest = marshal.loads(packet)
                if name == WORKER and not descriptors:
                    # This process has no file descriptor left: there is a worker that nobody can reach.
                    on_gone()
                    return
                if name == WORKER:
                    connection = Connection(socket.socket(fileno=descriptors[0]), loop)
                    on_worker(rest[0], rest[1], connection)
                elif name == DIED:
                    on_death(rest[0], rest[1])
                if not self.listening:  # it was closed by what was called
                    return

        self.listening = True
        self._loop = loop
        loop.add_reader(self.socket.fileno(), read)

    def fork(self) -> None:
        self._tell(FORK, 0)

    def kill(self, number: int) -> None:
        self._tell(KILL, number)

    def lower_priority(self, number: int) -> None:
        self._tell(YIELD, number)

    def _tell(self, command: str, number: int) -> None:
        # A zygote that is gone is reported by the reader; one that does not read is as good as gone.
        try:
            self.socket.send(marshal.dumps((command, number)))
        except BlockingIOError:
            self.process.kill()
        except OSError:
            pass

    def close(self) -> None:
        """Let it end, and its workers; it is waited for in the background."""
        if self.let_end():
            thread = threading.Thread(target=self.wait, name="vllm_guided: a zygote's end")
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending
                self.wait()

    def abandon(self) -> None:
        """Close this process's copy of the socket: the zygote is another process's."""
        self.listening = False
        self.socket.close()

    def let_end(self) -> bool:
        """Close the socket, upon which it ends; whether it was open."""
        if self not in _open:
            return False
        _open.discard(self)
        if self.listening and self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed
                self._loop.remove_reader(self.socket.fileno())
        self.listening = False
        self.socket.close()
        return True

    def wait(self) -> None:
        """Wait for its end, for not too long."""
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def cpu_seconds(process: int) -> float:
    """Processor time that a process has used; 0 where it is gone."""
    with suppress(OSError):
        return time.clock_gettime(
            ~process << 3 | 2
        )  # its CLOCK_PROCESS_CPUTIME_ID, see clock_getcpuclockid(3)
    return 0.0


class Connection:
    """The client's end of one worker's socket, on an event loop."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._loop = loop
        self._received = bytearray()
        self._unsent = bytearray()
        self._ended = False
        self._on_outcome: Callable[[Outcome], None] | None = None
        _open.add(self)

    def listen(self, on_outcome: Callable[[Outcome], None]) -> None:
        self._on_outcome = on_outcome
        self._loop.add_reader(self._socket.fileno(), self.drain)

    def send(self, payload: bytes) -> None:
        data = frame(payload)
        sent = 0
        with suppress(BlockingIOError, OSError):  # the death of the worker is reported by the zygote
            sent = self._socket.send(data)
        if sent < len(data):
            self._unsent += data[sent:]
            self._loop.add_writer(self._socket.fileno(), self._send_more)

    def _send_more(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())

    def has_ended(self) -> bool:
        """Whether the other end is closed: its process has ended, reported yet or not."""
        self.drain()
        return self._ended

    def drain(self) -> None:
        """Read what is there and report a whole outcome."""
        while self._socket.fileno() >= 0:
            try:
                part = self._socket.recv(1 << 18)
            except BlockingIOError:
                break
            except OSError:
                part = b""
            if not part:  # the zygote reports the death, and how it came
                self._ended = True
                self._loop.remove_reader(self._socket.fileno())
                break
            self._received += part
            size = HEADER_BYTES + int.from_bytes(self._received[:HEADER_BYTES], "little")
            if len(self._received) >= max(size, HEADER_BYTES + 1):
                payload = bytes(self._received[HEADER_BYTES:size])
                self._received.clear()
                assert self._on_outcome is not None
                self._on_outcome(load_outcome(payload))

    def close(self) -> None:
        _open.discard(self)
        if self._socket.fileno() >= 0:
            with suppress(RuntimeError):
                self._loop.remove_reader(self._socket.fileno())
                self._loop.remove_writer(self._socket.fileno())
            self._socket.close()

    def abandon(self) -> None:
        """Close this process's copy, without a word to the loop, which is another process's."""
        self._socket.close()


def _after_fork() -> None:
    """A forked child must not keep its parent's zygotes and workers alive, nor command them."""
    for end in list(_open):
        end.abandon()
    _open.clear()


def _at_exit() -> None:
    zygotes = [end for end in list(_open) if isinstance(end, Zygote)]
    for zygote in [zygote for zygote in zygotes if zygote.let_end()]:
        zygote.wait()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
