"""Address space for arrays that may become large: memory is taken page by page, as it is used.

``np.empty`` of a large array takes none at once either, but the system counts all of it as promised. Linux
lets no process fork whose promises in one piece of address space go beyond the machine's memory, and puts
neighbouring pieces together, so the tables of a few vocabularies could keep a process from starting others.
Here nothing is promised (MAP_NORESERVE).
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import mmap
import platform
import sys

import numpy as np
import numpy.typing as npt
from numba import objmode, types

from vllm_guided.numba_setup import jit

#: Smaller arrays are taken from numba's allocator.
LARGE = 1 << 16

#: Python 3.11 does not name the flag yet.
_NO_PROMISE: int = getattr(
    mmap,
    "MAP_NORESERVE",
    0 if not sys.platform.startswith("linux") else 0x40 if platform.machine().startswith("ppc") else 0x4000,
)


def pages(nbytes: int) -> npt.NDArray[np.uint8]:
    """Pages of zeros for ``nbytes``, given back with the array; an empty array where the system refuses."""
    try:
        space = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_PROMISE)
    except (OSError, OverflowError):
        return np.empty(0, np.uint8)
    return np.frombuffer(space, np.uint8)


@jit(types.uint8[::1](types.int64), nogil=False)
def _pages(nbytes):
    with objmode(space="uint8[::1]"):
        space = pages(nbytes)
    return space


@jit()
def spacious(count, dtype):
    """``np.empty(count, dtype)`` that promises nothing.

    Raises:
        MemoryError: the process may not have so much address space.
    """
    nbytes = count * np.empty(0, dtype).itemsize
    if nbytes < LARGE:
        return np.empty(count, dtype)
    space = _pages(nbytes)
    if space.size == 0:
        raise MemoryError("no address space")
    return space.view(dtype)
