"""Caches of functions with a bound in bytes.

``functools.lru_cache`` answers in no time, but counts entries, however large. What clients choose (patterns,
names, lists of values) is of any size, so these caches also add up what they take in, roughly, and forget all
when it is too much. A call that finds its answer costs what it does with ``lru_cache``, and one that does not
little more.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache, wraps
from typing import Any, TypeVar

import numpy as np

from vllm_guided.grammar import ir

T = TypeVar("T")

OBJECT_BYTES = 64
"""About what an object takes besides what it holds, and the entry of a cache."""
CONTAINER_BYTES = 160
"""About what a container takes with the small things in it."""
MOST_PARTS = 16
"""Longer tuples are counted by their length."""
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


def bounded_cache(
    entries: int, max_bytes: int, size: Callable[[Any], int] | None = None
) -> Callable[[Callable[..., T]], _lru_cache_wrapper[T]]:
    """As ``lru_cache(maxsize=entries)``, which forgets all when it has taken in more than ``max_bytes``.

    Args:
        size: the bytes of an answer; without it, about what was made while it was found.
    """

    def decorate(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
        meter = Meter(max_bytes)

        @lru_cache(maxsize=entries)
        @wraps(function)
        def remembered(*args: Any, **kwargs: Any) -> T:
            before = gc.get_count()[0]
            answer = function(*args, **kwargs)
            if not meter.takes(size(answer) if size else size_made(before, args, kwargs, answer)):
                remembered.cache_clear()
            return answer

        return remembered

    return decorate


def size_made(before: int, *values: Any) -> int:
    """About how many bytes were taken since ``gc.get_count()[0]`` was ``before``, and ``values`` at a glance.

    The collector counts the containers that there are more than then. To look through all that was made may
    take as long as to make it; that is done only where a collection came between.
    """
    made = gc.get_count()[0] - before
    if made < 0:
        return rough_size(values)
    return CONTAINER_BYTES * made + _at_a_glance(values, 4)


def _at_a_glance(value: Any, depth: int) -> int:
    """The size of a value, as far as it is texts, arrays and short tuples of them."""
    if isinstance(value, (str, bytes)):
        return OBJECT_BYTES + len(value)
    if isinstance(value, np.ndarray):
        return OBJECT_BYTES + int(value.nbytes)
    if isinstance(value, ir.ByteGraph):
        return OBJECT_BYTES + len(value.moves)
    if isinstance(value, ir.Rule):
        return OBJECT_BYTES + _at_a_glance(value.body, depth)
    if isinstance(value, tuple):
        size = OBJECT_BYTES * (1 + len(value))
        if depth and len(value) <= MOST_PARTS:
            for part in value:
                kind = type(part)
                if kind is str:
                    size += len(part)
                elif part is not None and kind not in _SMALL:
                    size += _at_a_glance(part, depth - 1) - OBJECT_BYTES
        return size
    return OBJECT_BYTES


def rough_size(value: Any) -> int:
    """About how many bytes a value holds; what stands in it twice counts once."""
    total = 0
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        kind = type(item)
        if kind in _SMALL:
            total += OBJECT_BYTES
            continue
        if item is None or id(item) in seen:
            continue
        seen.add(id(item))
        total += OBJECT_BYTES
        if kind is str or kind is bytes:
            total += len(item)
        elif kind is tuple or isinstance(item, (tuple, list, frozenset, set)):
            inner = [part for part in item if type(part) not in _SMALL]
            total += (8 + OBJECT_BYTES) * len(item) - OBJECT_BYTES * len(inner)
            waiting += inner
        elif kind is ir.Graph:
            total += EDGE_BYTES * len(item.edges)
        elif kind is ir.ByteGraph:
            total += len(item.moves)
        elif isinstance(item, dict):
            total += 32 * len(item)
            waiting += item
            waiting += item.values()
        elif isinstance(item, np.ndarray):
            total += item.nbytes
        else:
            waiting += [getattr(item, name, None) for name in _attributes(kind)]
            waiting += getattr(item, "__dict__", {}).values()
    return total


_SMALL = frozenset((int, bool, float, ir.Ref, ir.ByteSet))
"""What takes about as much as an object, and is not looked into."""


def _attributes(kind: type) -> tuple[str, ...]:
    """The slots of a class."""
    found = _slots.get(kind)
    if found is None:
        names: list[str] = []
        for owner in kind.__mro__:
            slots = owner.__dict__.get("__slots__", ())
            names += [slots] if isinstance(slots, str) else slots
        found = _slots[kind] = tuple(names)
    return found


_slots: dict[type, tuple[str, ...]] = {}
