"""Where a process of vLLM's has its compiled constraints from.

The API server needs a verdict: is the constraint accepted, which special tokens does it name. It asks its
compile service, on its event loop (:func:`judge`), and remembers the answer, so that vLLM's own check, which
may not wait, finds it (:func:`symbols_of`). The engine core needs the automaton (:func:`automaton_of`): from
memory, else from where the API server's service left it, else from a service of its own, which is started
when it is first needed: it never is where the two share a machine.

Where no service can run, and in the offline ``LLM``, constraints are compiled in the process itself.
Everything here is keyed by the constraint as it is spelt, so that nothing is parsed to find it.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from vllm_guided.automaton_cache import CACHE_BYTES, AutomatonCache
from vllm_guided.compile_service import settings
from vllm_guided.compile_service.client import CompileService, Overloaded, Unavailable
from vllm_guided.compile_service.protocol import Job, Outcome
from vllm_guided.errors import GrammarError
from vllm_guided.grammar.ir import SpecialToken
from vllm_guided.vllm import counters
from vllm_guided.vllm.selection import logger

if TYPE_CHECKING:
    from vllm_guided.automaton.automaton import Automaton
    from vllm_guided.compile_service.blocking import BlockingCompileService

VERDICT_BYTES = 16 << 20
"""Bytes of verdicts that a process remembers, 30,000 or more."""
VERDICT_SIZE = 400
"""About what an entry takes besides its message."""
PASSING_SECONDS = 300.0
"""How long a refusal is remembered that is due to this machine's time or memory."""

AT_HAND_BYTES = 256 << 10
"""Automata of up to so many bytes are read and bound within a millisecond."""

Verdict = tuple[SpecialToken, ...] | GrammarError


class Verdicts:
    """Verdicts by key, least recently used dropped beyond a number of bytes; the last is always kept.

    The check that comes after it would compile the constraint on the event loop.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._entries: OrderedDict[bytes, tuple[Verdict, float]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes) -> Verdict | None:
        with self._lock:
            verdict, until = self._entries.get(key, (None, 0.0))
            if verdict is None or time.monotonic() > until:
                return None
            self._entries.move_to_end(key)
            return verdict

    def put(self, key: bytes, verdict: Verdict, seconds: float = math.inf) -> None:
        with self._lock:
            before = self._entries.pop(key, None)
            self.held += _size(verdict) - (0 if before is None else _size(before[0]))
            self._entries[key] = verdict, time.monotonic() + seconds
            while self.held > self.limit and len(self._entries) > 1:
                self.held -= _size(self._entries.popitem(last=False)[1][0])

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self.held = 0


def _size(verdict: Verdict) -> int:
    if isinstance(verdict, GrammarError):
        return VERDICT_SIZE + len(verdict.message) + len(verdict.where)
    return VERDICT_SIZE + sum(VERDICT_SIZE * (1 + len(s.names) + len(s.ids)) for s in verdict)


verdicts = Verdicts(VERDICT_BYTES)
automata = AutomatonCache(CACHE_BYTES)


class CompilerFault(RuntimeError):
    """The compiler itself failed; its traceback is in the log."""


# -- the API server --------------------------------------------------------------------------------


async def judge(job: Job, service: CompileService | None) -> None:
    """See to it that :func:`symbols_of` knows the verdict on ``job``, without holding up the event loop.

    Args:
        service: this process's; None: it has none.

    Raises:
        Overloaded: too many constraints wait to be compiled.
        CompilerFault: it could neither be accepted nor refused.
    """
    key = job.key
    if verdicts.get(key) is not None:
        counters.add("cache_hits", level="memory")
        return
    if service is not None:
        try:
            outcome = await service.compile(job)
        except Unavailable as reason:
            _warn_once(str(reason))
        else:
            _note(job, outcome)
            return
    await _wait_for_thread(job)


async def _wait_for_thread(job: Job) -> None:
    """Let this process's thread judge ``job``; as many may wait for it as for a service."""
    global _waiting
    if _waiting >= settings.Settings.quick_queue:
        raise Overloaded
    _waiting += 1
    try:
        await asyncio.get_running_loop().run_in_executor(_thread(), _verdict_in_process, job)
    finally:
        _waiting -= 1


def symbols_of(job: Job) -> tuple[SpecialToken, ...]:
    """The special tokens that a constraint names; compiled now, in this process, if nobody has asked before.

    Raises:
        GrammarError: it is refused.
    """
    verdict = verdicts.get(job.key)
    if verdict is None:
        verdict = _verdict_in_process(job)
    if isinstance(verdict, GrammarError):
        raise type(verdict)(verdict.message, where=verdict.where)
    return verdict


def _note(job: Job, outcome: Outcome) -> None:
    """Count an outcome and remember its verdict."""
    if outcome.fault is not None:
        logger.error("vllm_guided could not compile a constraint:\n%s", outcome.fault)
        raise CompilerFault("the constraint could not be compiled; the server's log says why")
    if outcome.source == "compiled":
        counters.add("compiles", kind=job.kind, where="service")
        counters.add("compile_seconds", outcome.seconds, kind=job.kind, where="service")
    else:
        counters.add("cache_hits", level=outcome.source)
    verdict = outcome.symbols if outcome.error is None else outcome.error
    if outcome.error is not None:
        outcome.error.passing = outcome.passing
    _remember(job, verdict)


def _remember(job: Job, verdict: Verdict) -> None:
    passing = isinstance(verdict, GrammarError) and verdict.passing
    verdicts.put(job.key, verdict, PASSING_SECONDS if passing else math.inf)


def _verdict_in_process(job: Job) -> Verdict:
    try:
        verdict: Verdict = automaton_in_process(job).symbols
    except GrammarError as error:
        verdict = error.with_traceback(None)
    _remember(job, verdict)
    return verdict


# -- the engine core -------------------------------------------------------------------------------


def automaton_of(job: Job) -> Automaton:
    """The automaton of a constraint, for a thread that may wait but must not hold the GIL for long.

    Raises:
        GrammarError: it is refused.
        CompilerFault: it could neither be accepted nor refused.
    """
    from vllm_guided import handoff

    def make() -> Automaton:
        found = handoff.load(job.key)
        if found is not None:
            counters.add("cache_hits", level="handoff")
            return found
        service = own_service()
        if service is not None:
            try:
                return _automaton_from(service, job)
            except Unavailable as reason:
                _warn_once(str(reason))
        with _turns:
            return _compile_in_process(job, hand_over=False)

    return automata.get(job.key, make)


def automaton_at_hand(job: Job) -> Automaton | None:
    """The automaton of a constraint where that takes a fraction of a millisecond, else None.

    It is in memory, or was handed over and is small; nothing is compiled and nobody is waited for.
    """
    from vllm_guided import handoff

    found = automata.at_hand(job.key)
    if found is None:
        found = handoff.load(job.key, at_most=AT_HAND_BYTES)
        if found is not None:
            counters.add("cache_hits", level="handoff")
            automata.put(job.key, found)
    return None if isinstance(found, GrammarError) else found


def _automaton_from(service: BlockingCompileService, job: Job) -> Automaton:
    from vllm_guided.packing import unpack

    outcome = service.compile(replace(job, wants_content=True))
    _note(job, outcome)
    if outcome.error is not None:
        raise outcome.error
    automaton = unpack(bytearray(outcome.content or b""))
    if automaton is None:
        raise Unavailable("the compile service is of another version")
    return automaton


# -- in the process itself -------------------------------------------------------------------------


def automaton_in_process(job: Job, *, hand_over: bool = True) -> Automaton:
    """The automaton of a constraint from memory, or compiled by this thread.

    Args:
        hand_over: other processes will ask for it; False in an engine core.

    Raises:
        GrammarError: it is refused.
    """
    return automata.get(job.key, lambda: _compile_in_process(job, hand_over=hand_over))


def _compile_in_process(job: Job, *, hand_over: bool) -> Automaton:
    from vllm_guided.compile_service.find import find_or_compile

    if hand_over:
        _hold_handoff()
    found = find_or_compile(job, keep_all=False, hand_over=hand_over)
    if found.source == "compiled":
        counters.add("compiles", kind=job.kind, where="process")
        counters.add("compile_seconds", found.seconds, kind=job.kind, where="process")
    else:
        counters.add("cache_hits", level=found.source)
    for action in found.later:
        action()
    return found.automaton


# -- what is made once -----------------------------------------------------------------------------

_lock = threading.Lock()
_turns = threading.Lock()
"""Held by the one of an engine core's threads that compiles for want of a service."""
_service: BlockingCompileService | None = None
_threads: ThreadPoolExecutor | None = None
_waiting = 0
"""Requests that wait for that thread."""
_held = False
_warned = False


def new_service() -> CompileService | None:
    """A service for an event loop of this process; None where it is switched off."""
    chosen = settings.from_environment()
    if chosen is None:
        _warn_once(f"{settings.WORKERS} is 0")
        return None
    return CompileService(chosen, _count)


def own_service() -> BlockingCompileService | None:
    """The one service of a process whose threads ask; None where it is switched off."""
    from vllm_guided.compile_service.blocking import BlockingCompileService

    global _service
    with _lock:
        if _service is None:
            chosen = settings.from_environment()
            if chosen is not None:
                _service = BlockingCompileService(chosen, _count)
        return _service


def _count(event: str) -> None:
    counters.add("compile_service_events", event=event)


def _hold_handoff() -> None:
    """Let what this process hands over be emptied when it ends."""
    import atexit

    from vllm_guided import handoff

    global _held
    with _lock:
        if not _held:
            _held = True
            atexit.register(handoff.hold().close)


def _thread() -> ThreadPoolExecutor:
    """One thread, so that what is compiled in this process for want of a service takes turns."""
    global _threads
    with _lock:
        if _threads is None:
            _threads = ThreadPoolExecutor(1, "vllm_guided compile")
        return _threads


def _after_fork() -> None:
    """Threads stay with the parent."""
    global _lock, _turns, _service, _threads
    _lock, _turns, _service, _threads = threading.Lock(), threading.Lock(), None, None


os.register_at_fork(after_in_child=_after_fork)


def _warn_once(reason: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        logger.warning(
            "vllm_guided compiles constraints in the server's own processes: %s. One that takes long holds "
            "up others; nothing but the front ends' own limits ends it.",
            reason,
        )
