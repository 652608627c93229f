"""One constraint: found where it was left, or compiled and left there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm_guided import constraints, handoff, store
from vllm_guided.automaton.automaton import Automaton
from vllm_guided.compile_service.protocol import Job
from vllm_guided.constraints import too_large
from vllm_guided.packing import pack


@dataclass(frozen=True)
class Found:
    """An automaton.

    Args:
        source: "compiled", or where it was found: "handoff" or "disk".
        seconds: processor time of this thread that it took.
        content: the automaton packed, where that was needed.
        later: what is to be done when nobody waits: the copy on disk, the bounds of the folders.
    """

    automaton: Automaton
    source: str
    seconds: float
    content: list[bytes] | None = None
    later: tuple[Callable[[], object], ...] = ()


def find_or_compile(job: Job, *, keep_all: bool = True, hand_over: bool = True) -> Found:
    """The automaton of a constraint, handed over to the processes that will ask for it.

    Args:
        keep_all: quickly compiled ones are kept on disk, too.
        hand_over: other processes will ask for it; False where this one is the last to need it.

    Raises:
        GrammarError: it is refused.
    """
    begin = time.thread_time()
    found = handoff.load(job.key)
    if found is not None:
        return Found(found, "handoff", time.thread_time() - begin)
    spec = spec_of(job.kind, job.text)
    key, read, given = constraints.identify(job.kind, spec, dict(job.options))
    automaton, source = store.load(key), "disk"
    if automaton is None:
        automaton, source = constraints.build(job.kind, spec, given, read), "compiled"
    try:
        content = pack(automaton)
    except MemoryError:
        raise too_large(job.kind) from None
    later: list[Callable[[], object]] = []
    if hand_over:
        handoff.save(job.key, content)
        later.append(handoff.prune)
    seconds = time.thread_time() - begin
    if source == "compiled" and (keep_all or seconds > store.WORTH_SECONDS):
        later.append(lambda: store.save_packed(key, content))
    return Found(automaton, source, seconds, content, tuple(later))


def spec_of(kind: str, text: str) -> Any:
    """A constraint's text as its frontend takes it."""
    if kind == "json_object":
        return None
    return json.loads(text) if kind == "choice" else text
