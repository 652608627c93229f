"""Freshly compiled constraints on their way to the engine: one process compiles, another maps.

In: the key of a constraint as a request spells it, and what :func:`vllm_guided.packing.pack` made of its
automaton. Out: the same in another process of this user on this machine, moments later.

They lie in the memory file system (``/dev/shm``), where a file costs some ten microseconds whatever the disk
does, in a folder of this user's own for each cache directory. It is small: a file is needed for as long as a
request takes from the API server to the engine core, and the store keeps a copy. What does not fit there, or
everything where there is no such file system, goes into the cache directory instead. Processes that use the
folder hold a lock on it (:func:`hold`); the last one empties it.
"""

from __future__ import annotations

import fcntl
import functools
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import xxhash

from vllm_guided.automaton.automaton import Automaton
from vllm_guided.cachedir import (
    cache_directory,
    is_private,
    is_usable,
    prune_entries,
    read_entry,
    write_entry,
)
from vllm_guided.packing import unpack
from vllm_guided.store import file_name

KIND = "handoff-v1"
"""Change the number when the layout of the file changes."""

MEMORY_FOLDER = Path("/dev/shm")
MEMORY_BYTES = 64 << 20
"""Most bytes in the memory file system, and what the folder in the cache directory takes."""
MEMORY_SHARE = 16
"""At most one part in so many of the memory file system: containers often have 64 MiB, which vLLM needs."""

_written: dict[Path, int] = {}


def load(key: bytes, *, at_most: int | None = None) -> Automaton | None:
    """The automaton that was handed over under ``key``.

    None where there is none that can be read, or where its file has more than ``at_most`` bytes.
    """
    for place, _ in _places():
        content = read_entry(KIND, file_name(key), directory=place, at_most=at_most)
        if content is not None:
            return unpack(content)
    return None


def save(key: bytes, content: Sequence[bytes | bytearray]) -> bool:
    """Hand over what ``pack`` made of an automaton; whether that could be done."""
    size = sum(len(part) for part in content)
    for place, budget in _places():
        if size <= budget // 4 and write_entry(KIND, file_name(key), content, directory=place):
            _written[place] = _written.get(place, 0) + size
            # Processes that write a little each and end must look now and then, too.
            if secrets.randbelow(budget // 16) < size:
                _written[place] = budget
            return True
    return False


def prune() -> None:
    """Drop the least recently used beyond the budgets. Call it when nobody waits."""
    for place, budget in _places():
        if _written.get(place, 0) > budget // 16:
            _written[place] = 0
            prune_entries(KIND, max_bytes=budget - budget // 16 - budget // 4, directory=place)


def _places() -> list[tuple[Path, int]]:
    """Folders and their budgets in bytes, the first that takes a file gets it."""
    cache = cache_directory()
    places = [] if cache is None else [(cache, MEMORY_BYTES)]
    memory = memory_folder(cache)
    return places if memory is None else [memory, *places]


@functools.lru_cache(maxsize=8)
def memory_folder(cache: Path | None) -> tuple[Path, int] | None:
    """This user's folder in the memory file system for a cache directory, made if need be, and its budget."""
    if not hasattr(os, "getuid"):
        return None
    path = MEMORY_FOLDER / f"vllm_guided-{os.getuid()}-{xxhash.xxh32_hexdigest(str(cache).encode())}"
    try:
        whole = os.statvfs(MEMORY_FOLDER)
    except OSError:
        return None
    budget = min(MEMORY_BYTES, whole.f_frsize * whole.f_blocks // MEMORY_SHARE)
    if budget < 1 << 20 or not is_usable(path) or not is_private(path):
        return None
    return path, budget


class hold:  # noqa: N801 - used as a function
    """Keep the memory folder while this is open; the last holder on the machine empties it.

    Whoever writes there must hold it. What a holder that was killed left is emptied by the next to come, if
    that is alone; so one that is often killed, as engine cores are, had better not write.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        place = memory_folder(cache_directory())
        if place is None:
            return
        self._folder = place[0]
        with suppress(OSError):
            self._file = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._empty_if_alone()
            fcntl.flock(self._file, fcntl.LOCK_SH)

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                if self._empty_if_alone():
                    (self._folder / ".lock").unlink()
                    self._folder.rmdir()  # whoever writes there later makes it anew
            os.close(self._file)
            self._file = None

    def _empty_if_alone(self) -> bool:
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        for path in self._folder.iterdir():
            if path.name != ".lock":  # what writers that were killed have begun, too
                path.unlink()
        return True
