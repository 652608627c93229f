"""A client that costs next to nothing: streamed completions over plain asyncio, counted, not parsed.

The client runs on the server's own cores, so what it does is taken from the server. It looks for the marks
between the events of a stream, notes when they came, and reads the usage out of the last one.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

#: Every event is a chunk of its own, and JSON has no bare line ends: this stands nowhere else.
EVENT = b"\r\ndata: {"
END = b"data: [DONE]\n\n\r\n0\r\n\r\n"
#: How much of a stream's end is kept; the usage lies in it.
TAIL = 4096
PATIENCE = 120.0
_USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')
_ERROR = re.compile(rb'"error":\s*\{.*?"message":\s*"((?:[^"\\]|\\.)*)"')
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)


@dataclass
class Reply:
    """What came back for one request.

    Args:
        sent: when it was sent, in seconds.
        times: when each event with a token came; several may have come at once.
        tokens: of the output, by the server's count.
        error: the server's message where it refused, or what went wrong.
        end: when all of it was there.
    """

    sent: float = 0.0
    times: list[float] = field(default_factory=list)
    tokens: int = 0
    error: str | None = None
    end: float = 0.0

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.times[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Seconds between tokens; those that came together have 0."""
        return [later - sooner for sooner, later in zip(self.times, self.times[1:], strict=False)]


class Connection(asyncio.Protocol):
    """One connection, which is used for one request after the other."""

    def __init__(self) -> None:
        self.transport: Any = None
        self._reply = Reply()
        self.has_ended = False
        self._buffer = b""
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    async def ask(self, head: bytes, body: bytes, reply: Reply) -> Reply:
        """Send a request and wait for the end of its stream; ``reply`` grows meanwhile."""
        self._buffer = b""
        self._waiter = asyncio.get_running_loop().create_future()
        self._reply = reply
        reply.sent = time.perf_counter()
        self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        try:
            await asyncio.wait_for(self._waiter, PATIENCE)
        except TimeoutError:
            reply.error = f"no end after {PATIENCE:.0f} seconds"
            self.transport.abort()
        except asyncio.CancelledError:  # the server ends the request, too
            self.transport.abort()
            raise
        return reply

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        reply, before = self._reply, self._buffer
        overlap = before[-len(EVENT) + 1 :]
        reply.times.extend([now] * (overlap + data).count(EVENT))
        self._buffer = (before + data)[-TAIL:]
        if self._buffer.endswith(END):
            self._finish(now)
        elif not reply.times and b"\r\n\r\n" in self._buffer and not self._buffer.startswith(b"HTTP/1.1 200"):
            top, _, body = self._buffer.partition(b"\r\n\r\n")
            length = _LENGTH.search(top)
            if length and len(body) >= int(length[1]):
                self._finish(now)

    def connection_lost(self, error: Exception | None) -> None:
        self.has_ended = True
        if self._waiter is not None and not self._waiter.done():
            self._reply.error = f"the connection ended: {error}"
            self._waiter.set_result(None)

    def _finish(self, now: float) -> None:
        reply, usage = self._reply, _USAGE.search(self._buffer)
        if usage is None:
            message = _ERROR.search(self._buffer)
            reply.error = message[1].decode() if message else self._buffer[-200:].decode(errors="replace")
            reply.times.clear()
        else:
            reply.tokens = int(usage[1])
            reply.times.pop()  # the event with the usage brings no token
        reply.end = now
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def be_punctual() -> None:
    """Let this thread run whenever it is ready, if the system permits that; processes it starts are as ever.

    vLLM's processes wait by ``sched_yield`` in a loop. Where they are as many as the cores, Linux (6.18 here)
    sometimes lets a client that shares the cores wait for seconds, and then all tokens come at once.
    """
    if hasattr(os, "sched_setscheduler"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
            return
    print("no leave to run before the server's processes: some gaps are the client's", file=sys.stderr)


class Client:
    """Connections to one server.

    Args:
        port: on 127.0.0.1.
        model: its name there.
    """

    def __init__(self, port: int, model: str) -> None:
        self.port, self.model = port, model
        self._head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        ).encode()
        self._idle: list[Connection] = []

    def body(self, prompt: list[int], max_tokens: int, **fields: Any) -> bytes:
        """A request for ``max_tokens`` tokens, greedy, streamed, that does not stop before."""
        return json.dumps(
            {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
             "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}} | fields
        ).encode()  # fmt: skip

    async def ask(self, body: bytes, reply: Reply | None = None) -> Reply:
        """One request, on a connection that is free; ``reply``, if given, is filled."""
        reply = reply or Reply()
        while self._idle:
            connection = self._idle.pop()
            if connection.transport.is_closing():
                continue
            await connection.ask(self._head, body, reply)
            if reply.error is None or reply.times or not connection.has_ended:
                break
            reply.error = None  # the server keeps none for longer than some seconds, and closed it just now
        else:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(Connection, "127.0.0.1", self.port)
            await connection.ask(self._head, body, reply)
        if not connection.transport.is_closing():
            self._idle.append(connection)
        return reply

    async def ask_all(self, bodies: Iterable[bytes], concurrency: int) -> list[Reply]:
        """All of them, ``concurrency`` at a time."""
        replies: list[Reply] = []
        left: Iterator[bytes] = iter(bodies)

        async def work() -> None:
            for body in left:
                replies.append(await self.ask(body))

        await asyncio.gather(*(work() for _ in range(concurrency)))
        return replies

    def close(self) -> None:
        """End all connections."""
        for connection in self._idle:
            connection.transport.close()
        self._idle.clear()
