"""Caches of functions with a bound in bytes.

``functools.lru_cache`` answers in no time, but counts entries, however large. What clients choose (patterns,
names, lists of values) is of any size, so these caches also add up what they take in, roughly, and forget all
when it is too much. A call that finds its answer costs what it does with ``lru_cache``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import _lru_cache_wrapper, lru_cache, wraps
from typing import Any, TypeVar

import numpy as np

from vllm_guided.grammar import ir

T = TypeVar("T")

OBJECT_BYTES = 64
"""About what an object takes besides what it holds, and the entry of a cache."""
EDGE_BYTES = 256
"""About what an edge of a graph takes with a label of its own: graphs are not looked through."""


class Meter:
    """Adds up sizes until they are more than ``max_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held = 0
        self._lock = threading.Lock()

    def takes(self, size: int) -> bool:
        """Add ``size`` bytes; False if what was added before is to be forgotten for it."""
        with self._lock:
            self.held += size
            if self.held <= self.max_bytes:
                return True
            self.held = size
            return False


def bounded_cache(entries: int, max_bytes: int) -> Callable[[Callable[..., T]], _lru_cache_wrapper[T]]:
    """As ``lru_cache(maxsize=entries)``, which forgets all when it has taken in more than ``max_bytes``."""

    def decorate(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
        meter = Meter(max_bytes)

        @lru_cache(maxsize=entries)
        @wraps(function)
        def remembered(*args: Any, **kwargs: Any) -> T:
            answer = function(*args, **kwargs)
            if not meter.takes(rough_size((args, kwargs, answer))):
                remembered.cache_clear()
            return answer

        return remembered

    return decorate


def rough_size(value: Any) -> int:
    """About how many bytes a value holds; what stands in it twice counts once."""
    total = 0
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if item is None or id(item) in seen:
            continue
        total += OBJECT_BYTES
        kind = type(item)
        if kind is int or kind is bool:
            continue
        seen.add(id(item))
        if isinstance(item, (str, bytes)):
            total += len(item)
        elif isinstance(item, (tuple, list, frozenset, set)):
            total += 8 * len(item)
            waiting.extend(item)
        elif isinstance(item, dict):
            total += 32 * len(item)
            waiting.extend(item)
            waiting.extend(item.values())
        elif kind is ir.Graph:
            total += EDGE_BYTES * len(item.edges)
        elif isinstance(item, np.ndarray):
            total += item.nbytes
        elif is_dataclass(kind):
            waiting.extend([getattr(item, field.name) for field in fields(item)])
        else:
            for owner in kind.__mro__:
                slots = owner.__dict__.get("__slots__", ())
                waiting.extend(getattr(item, name, None) for name in slots)
            waiting.extend(getattr(item, "__dict__", {}).values())
    return total
