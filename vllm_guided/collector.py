"""The garbage collector waits while a constraint is compiled.

A compile makes very many small objects that live to its end and refer to each other. Each young collection
meets them all, frees none and hands them to the older generations, and soon the whole heap is looked through:
with a large heap around it, that costs more than the compile itself. Nearly all of it is freed by its
reference counts when the compile is over.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_one = threading.Lock()


@contextmanager
def paused() -> Iterator[None]:
    """No collection inside; nothing happens within another pause, or where the collector is off.

    One thread pauses at a time, so that compiles in turn cannot keep the collector off for ever.
    """
    if not gc.isenabled() or not _one.acquire(blocking=False):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _one.release()
