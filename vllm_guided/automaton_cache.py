"""Compiled constraints and refusals that a process keeps in memory: bounded in bytes, the last used stay."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from vllm_guided.automaton.automaton import Automaton
from vllm_guided.errors import GrammarError

#: Bytes of compiled automata that a process keeps.
CACHE_BYTES = 256 << 20


class AutomatonCache:
    """Least recently used automata and refusals, bounded in bytes; one compile at a time for each key."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.entries: OrderedDict[bytes, Automaton | GrammarError] = OrderedDict()
        self.lock = threading.Lock()
        self.under_way: dict[bytes, threading.Lock] = {}

    def get(self, key: bytes, make: Callable[[], Automaton]) -> Automaton:
        """What is there under ``key``, made if need be; a refusal is raised each time.

        A refusal that is due to this moment (``error.passing``) is not kept.
        """
        entry = self._look_up(key)
        if entry is None:
            with self.lock:
                gate = self.under_way.setdefault(key, threading.Lock())
            with gate:
                entry = self._look_up(key)
                if entry is None:
                    entry = self._make(key, make)
        if isinstance(entry, GrammarError):
            raise type(entry)(entry.message, where=entry.where)
        return entry

    def _make(self, key: bytes, make: Callable[[], Automaton]) -> Automaton | GrammarError:
        entry: Automaton | GrammarError | None = None
        try:
            entry = make()
        except GrammarError as error:
            if error.passing:
                raise
            entry = error.with_traceback(None)
        finally:
            with self.lock:
                self.under_way.pop(key, None)
                if entry is not None:
                    self._enter(key, entry)
        return entry

    def at_hand(self, key: bytes) -> Automaton | GrammarError | None:
        """What is there under ``key``; does not wait for a compile under way."""
        return self._look_up(key)

    def put(self, key: bytes, automaton: Automaton) -> None:
        """Keep an automaton that came from elsewhere."""
        with self.lock:
            if key not in self.entries:
                self._enter(key, automaton)

    def limit_to(self, limit: int) -> None:
        """Hold at most ``limit`` bytes from now on."""
        with self.lock:
            self.limit = limit
            self._drop()

    def clear(self) -> None:
        with self.lock:
            self.entries.clear()
            self.held = 0

    def _look_up(self, key: bytes) -> Automaton | GrammarError | None:
        with self.lock:
            entry = self.entries.get(key)
            if entry is not None:
                self.entries.move_to_end(key)
            return entry

    def _enter(self, key: bytes, entry: Automaton | GrammarError) -> None:
        before = self.entries.pop(key, None)
        self.entries[key] = entry
        self.held += _size(entry) - (0 if before is None else _size(before))
        self._drop()

    def _drop(self) -> None:
        while self.held > self.limit and len(self.entries) > 1:
            _, dropped = self.entries.popitem(last=False)
            self.held -= _size(dropped)


def _size(entry: Automaton | GrammarError) -> int:
    if isinstance(entry, Automaton):
        return entry.nbytes + 2048
    return 512 + len(entry.message) + len(entry.where)
