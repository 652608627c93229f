"""Work for the time in which the engine core waits for the model: masks that are likely to be needed next.

A thread that sleeps while a step is prepared. Once a step's masks are on their way it makes, in small pieces
of compiled code without the interpreter's lock, the masks of the states that may follow
(:mod:`vllm_guided.runtime.lookahead`), and stops at the next piece when the sampled tokens are there.

It needs a core of its own: where the process has fewer than four, it stays off unless it is asked for.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from vllm_guided.vllm import counters
from vllm_guided.vllm.selection import logger

ENVIRONMENT = "VLLM_GUIDED_LOOKAHEAD"
"""1: always, 0: never; by default where there are cores enough."""

CORES_ENOUGH = 4


def is_wanted() -> bool:
    """Should masks be made ahead in this process?"""
    asked = os.environ.get(ENVIRONMENT, "").strip()
    if asked in ("0", "1"):
        return asked == "1"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores >= CORES_ENOUGH


class IdleWork(threading.Thread):
    """Makes masks ahead between :meth:`begin` and :meth:`pause`; a daemon.

    Args:
        compiler: a ``vllm_guided.GrammarCompiler``: its vocabulary, and the memory its tables may take.
    """

    def __init__(self, compiler: Any) -> None:
        super().__init__(name="vllm-guided-lookahead", daemon=True)
        self._compiler = compiler
        self._ahead: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._wake = threading.Event()
        self._given: tuple[Sequence[Any], Any] | None = None
        """Matchers and the state of each: one attribute, as another thread takes both."""
        self._is_over = True

    def begin(self, matchers: Sequence[Any], states: Any) -> None:
        """A step's masks are filled.

        Args:
            matchers: whose state each is.
            states: int32 [matchers]; negative ones are nobody's.
        """
        self._given = matchers, states
        self._is_over = False
        self._wake.set()

    def pause(self) -> None:
        """A step is prepared; whoever wants a lock waits for one small piece of work at most."""
        self._is_over = True

    def run(self) -> None:
        """Work until the process ends."""
        from vllm_guided.runtime.lookahead import common_tokens

        try:
            self._common = common_tokens(self._compiler.vocabulary)
            while True:
                self._wake.wait()
                self._wake.clear()
                self._work()
        except Exception:
            logger.exception("vllm_guided makes no masks ahead any more.")

    def _work(self) -> None:
        from vllm_guided.runtime.lookahead import Lookahead
        from vllm_guided.runtime.steps import groups

        given, self._given = self._given, None
        if given is None:
            return
        matchers, states = given
        for runtime, chosen in groups(matchers):
            # What requests need themselves comes first.
            if self._is_over or runtime.nbytes > self._compiler.max_bytes // 2:
                return
            ahead = self._ahead.get(runtime)
            if ahead is None:
                ahead = self._ahead[runtime] = Lookahead(runtime, self._common)
            before = ahead.made
            ahead.work(states[chosen], lambda: self._is_over)
            if ahead.made > before:
                counters.add("masks_ahead", ahead.made - before)
