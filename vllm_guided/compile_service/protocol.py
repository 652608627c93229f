"""What travels between a compile service's processes.

A client and a worker share a stream socket: frames of four bytes length (little endian) and a payload. The
client sends a :class:`Job`, the worker answers with an :class:`Outcome`. The client and the zygote share a
packet socket: each packet is one of the tuples below, and a new worker's comes with that worker's socket.

Payloads are ``marshal``: both ends are the same Python of the same user, started from each other.
"""

from __future__ import annotations

import marshal
from dataclasses import dataclass
from typing import Any

import xxhash

from vllm_guided import errors
from vllm_guided.errors import GrammarError
from vllm_guided.grammar.ir import SpecialToken

HEADER_BYTES = 4

# Packets of the client to the zygote: (command, worker's number), the number 0 where none is meant.
FORK, KILL, YIELD = "fork", "kill", "yield"
# Packets of the zygote to the client: (READY, 0); (WORKER, number, process id) with a socket;
# (DIED, number, wait status).
READY, WORKER, DIED = "ready", "worker", "died"


@dataclass(frozen=True)
class Job:
    """A constraint as a request spells it.

    Args:
        kind: a key of ``constraints.FRONTENDS``.
        text: the constraint; a choice as a JSON array; empty for ``json_object``.
        options: the frontend's options, plain values.
        wants_content: the outcome is to carry the packed automaton.
    """

    kind: str
    text: str
    options: tuple[tuple[str, Any], ...]
    wants_content: bool = False

    @property
    def key(self) -> bytes:
        """A hash of the constraint as spelt: nothing is parsed to find it."""
        plain = marshal.dumps((self.kind, self.text, self.options), 2)
        return xxhash.xxh3_128(plain).digest()


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Args:
        error: why the constraint is refused; ``None`` where it is accepted.
        symbols: the special tokens that it names.
        source: "compiled", or where it was found: "handoff" or "disk".
        seconds: processor time of the compile.
        content: the packed automaton, where it was asked for.
        fault: the traceback of a fault of the compiler itself; neither accepted nor refused.
        last: the worker ends after this.
        passing: a refusal for want of time or memory, which may be another when the machine is less busy.
    """

    error: GrammarError | None = None
    symbols: tuple[SpecialToken, ...] = ()
    source: str = "compiled"
    seconds: float = 0.0
    content: bytes | None = None
    fault: str | None = None
    last: bool = False
    passing: bool = False


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(HEADER_BYTES, "little") + payload


def dump_job(job: Job) -> bytes:
    return marshal.dumps((job.kind, job.text, job.options, job.wants_content))


def load_job(payload: bytes) -> Job:
    return Job(*marshal.loads(payload))


def dump_outcome(outcome: Outcome) -> bytes:
    error = outcome.error
    refused = None if error is None else (_public_name(error), error.message, error.where)
    symbols = [(s.names, s.ids, s.negated, s.optional) for s in outcome.symbols]
    rest = (outcome.source, outcome.seconds, outcome.content, outcome.fault, outcome.last, outcome.passing)
    return marshal.dumps((refused, symbols, rest))


def load_outcome(payload: bytes) -> Outcome:
    refused, symbols, rest = marshal.loads(payload)
    error = None if refused is None else getattr(errors, refused[0])(refused[1], where=refused[2])
    return Outcome(error, tuple(SpecialToken(*symbol) for symbol in symbols), *rest)


def _public_name(error: GrammarError) -> str:
    """The error's class, or the nearest above it that both ends know."""
    names = [kind.__name__ for kind in type(error).__mro__]
    return next(name for name in names if name in vars(errors))
