"""A team of threads for a C function: the threads that torch already keeps.

In: the address of a C function of one pointer, and that pointer. Out: the function was run by every thread of
the team at the same time, and the interpreter's lock was free meanwhile.

Why not numba's ``parallel=True``: its work queue ends the process when two threads enter it at once, its
OpenMP layer ends a forked child, and either brings a second pool of threads. Why not a
``ThreadPoolExecutor``: vLLM's CPU worker binds its main thread to one core, new threads inherit that, and so
a pool of ours would run on a single core; besides, each thread would need the interpreter's lock to start.
Torch's OpenMP threads are there, bound to the cores the worker may use, and idle between two operators.
``GOMP_parallel`` is what GNU's compiler calls for ``#pragma omp parallel``; LLVM's and Intel's OpenMP
offer it too. Each calling thread gets a team of its own, so that several may call at once.

A team ends when its last thread does, and where other processes hold the cores that one may wait a time
slice, many times what the job is worth. So after a team that was slower than one thread would have been,
none is asked for a while (:class:`Worth`).

Nothing is loaded here: only a runtime that torch has already loaded is used. Without one (macOS), or in
a child that was forked, where the team's threads do not exist, the calling thread works alone.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _parallel_region() -> Callable[[int, int, int, int], None] | None:
    """``GOMP_parallel(function, data, threads, flags)`` of the OpenMP runtime that torch runs on, if any."""
    if not sys.platform.startswith("linux"):
        return None
    libraries = [str(path) for path in sorted((Path(torch.__file__).parent / "lib").glob("lib[gi]*omp*.so*"))]
    for name in (None, *libraries):  # None: what was preloaded, then what torch made global
        try:
            library = ctypes.CDLL(
                name, mode=ctypes.RTLD_GLOBAL if name is None else os.RTLD_NOLOAD | os.RTLD_NOW
            )
            region = library.GOMP_parallel
        except (OSError, AttributeError):
            continue
        region.restype = None
        region.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        return region  # type: ignore[no-any-return]
    return None


def team_size() -> int:
    """How many threads :func:`run` would use: torch's number, or 1 where there is no team."""
    return 1 if _forked or _parallel_region() is None else torch.get_num_threads()


def run(function: int, data: int) -> None:
    """Call the C function at address ``function`` with ``data`` in every thread of the team."""
    region = None if _forked else _parallel_region()
    if region is None:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(data)
    else:
        # 0 threads: as many as torch uses. Another number would make the runtime end and restart threads.
        region(function, data, 0, 0)


class Worth:
    """Whether a team is worth waiting for, learned from how the last ones did.

    After each failure in a row, twice as many jobs are done alone before the next is tried. Several threads
    may use one: what they mix up costs a try more or less.
    """

    LONGEST = 256

    def __init__(self) -> None:
        self.failures = 0
        self.alone = 0

    def try_team(self) -> bool:
        """Should the next job be shared?"""
        if self.alone > 0:
            self.alone -= 1
            return False
        return True

    def learn(self, alone: float, team: float) -> None:
        """A job took a team the time ``team``; one thread would have taken about ``alone``."""
        if team < alone:
            self.failures = 0
        else:
            self.failures += 1
            self.alone = min(1 << self.failures, self.LONGEST)
