"""A process for each engine, so that a schema that an engine cannot finish costs its limit and no more.

In: an engine whose vocabulary is loaded, and a function of this engine. Out: what the function returns, or
a :class:`Failure`. The processes are forked from one that has everything loaded; the caller waits for each
answer, so that one engine works at a time. A process that exceeds its time is killed and a new one takes
its place: it then has forgotten what it compiled before, whichever engine it is.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from _engines import ENGINES, Engine, Tokens

#: No engine may take more memory than this: some indices of outlines-core would take all there is.
MEMORY_BYTES = 12 << 30


@dataclass
class Failure:
    """Why there is no answer: ``refused`` (the engine raised), ``time`` or ``died``."""

    kind: str
    message: str = ""


class Worker:
    """One engine in a process of its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._process: Any = None
        self._pipe: Any = None

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.engine.name

    def call(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        """``function(engine, *arguments)`` in the worker's process; a Failure where it does not answer."""
        if self._process is None:
            context = multiprocessing.get_context("fork")
            self._pipe, other = context.Pipe()
            self._process = context.Process(target=_serve, args=(self.engine, other), daemon=True)
            self._process.start()
            other.close()
        try:
            self._pipe.send((function, arguments))
            if self._pipe.poll(seconds):
                return self._pipe.recv()
        except (EOFError, OSError):
            self.close()
            return Failure("died")
        self.close()
        return Failure("time", f"more than {seconds:g} s")

    def close(self) -> None:
        """End the process; the next call starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


def _serve(engine: Engine, pipe: Any) -> None:
    _be_quiet()
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    engine.start()
    # What was loaded before is no garbage: vLLM freezes it, too, before it serves.
    gc.collect()
    gc.freeze()
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = function(engine, *arguments)
        except Exception as error:
            answer = Failure("refused", f"{type(error).__name__}: {error}"[:300])
        except BaseException as error:  # pyo3's panics are no Exceptions
            answer = Failure("died", f"{type(error).__name__}: {error}"[:300])
        pipe.send(answer)


def _be_quiet() -> None:
    """Engines' warnings and panics go nowhere: they are counted, not read."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)


@contextlib.contextmanager
def workers(names: Sequence[str], tokens: Tokens) -> Iterator[list[Worker]]:
    """A worker for each engine that is installed; others are named and left out."""
    made: list[Worker] = []
    for name in names:
        try:
            made.append(Worker(ENGINES[name](tokens)))
        except ImportError as error:
            print(f"{name} is left out: {error}")
    try:
        yield made
    finally:
        for worker in made:
            worker.close()


def in_turn(made: list[Worker], number: int) -> list[Worker]:
    """The workers in another order each time, so that none is always first."""
    order = list(made)
    random.Random(number).shuffle(order)
    return order
