"""Compiled constraints on disk: a later process, another replica or a restart need not compile them again.

In: the key of a constraint (a hash of its canonical text and options) and its :class:`Automaton`. Out: the
same automaton in another process, or None. The file's name hashes the key together with all that decides
what is compiled from it: this package's sources and the versions of what it reads constraints with. So a
file that another version wrote is never read; it is the first to go when the budget is used up.

The content is what :mod:`vllm_guided.packing` makes; :mod:`vllm_guided.cachedir` puts a checksum before it
and replaces files as wholes.
"""

from __future__ import annotations

import functools
import logging
import secrets
import sys
import threading
import unicodedata
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import xxhash

from vllm_guided.automaton.automaton import Automaton
from vllm_guided.cachedir import prune_entries, read_entry, write_entry
from vllm_guided.environment import number
from vllm_guided.packing import pack, unpack

logger = logging.getLogger(__name__)

KIND = "constraint-v2"
"""Change the number when the layout of the file changes."""

ENVIRONMENT = "VLLM_GUIDED_DISK_CACHE_MB"
DEFAULT_MEGABYTES = 1024
"""Megabytes of compiled constraints on disk; 0 turns the store off."""
MOST_MEGABYTES = float(1 << 30)

WORTH_SECONDS = 0.004
"""What compiles quicker than this is not stored where its caller waits for that: reading it back would save
next to nothing."""

#: Where the sources lie that decide what a constraint compiles to.
SOURCES = ("automaton", "frontends", "grammar")

_lock = threading.Lock()
_written_since_pruning: int | None = None


def budget_bytes() -> int:
    """Bytes that the stored constraints may take, from ``$VLLM_GUIDED_DISK_CACHE_MB``."""
    return int(number(ENVIRONMENT, DEFAULT_MEGABYTES, least=0, most=MOST_MEGABYTES) * (1 << 20))


def load(key: bytes) -> Automaton | None:
    """The automaton stored under ``key``; None where there is none that can be read."""
    if not budget_bytes():
        return None
    content = read_entry(KIND, file_name(key))
    return None if content is None else unpack(content)


def save(key: bytes, automaton: Automaton) -> bool:
    """Store an automaton; whether it was. Drops the least recently used files beyond the budget."""
    if not budget_bytes():
        return False
    try:
        content = pack(automaton)
    except TypeError as error:
        logger.warning("compiled constraints are not stored: %s", error)
        return False
    return save_packed(key, content)


def save_packed(key: bytes, content: Sequence[bytes | bytearray]) -> bool:
    """Store what :func:`pack` made of an automaton; as :func:`save`."""
    budget = budget_bytes()
    size = sum(len(part) for part in content)
    if size > budget // 4:
        return False
    stored = write_entry(KIND, file_name(key), content)
    if stored:
        _prune(size, budget)
    return stored


def prune() -> None:
    """Look at the whole folder now; the next look is due when something was written."""
    global _written_since_pruning
    budget = budget_bytes()
    if not budget:
        return
    with _lock:
        _written_since_pruning = 0
    prune_entries(KIND, max_bytes=budget - budget // 16)


def _prune(size: int, budget: int) -> None:
    """Look at the whole folder only at first and each time that a sixteenth of the budget was written.

    On average so often for all processes together, too, of which each may write a little.
    """
    global _written_since_pruning
    with _lock:
        written = None if _written_since_pruning is None else _written_since_pruning + size
        due = written is None or written > budget // 16 or secrets.randbelow(budget // 16 + 1) < size
        _written_since_pruning = 0 if due else written
    if due:
        prune_entries(KIND, max_bytes=budget - budget // 16)


def file_name(key: bytes) -> str:
    """The name of what this version compiles from the constraint with this key."""
    return xxhash.xxh3_128(key + compiler_version()).hexdigest()


@functools.cache
def compiler_version() -> bytes:
    """A hash of all that decides what a constraint compiles to, the constraint aside."""
    digest = xxhash.xxh3_128(f"{sys.version_info[:3]} {unicodedata.unidata_version} {sys.byteorder}".encode())
    for package in ("vllm-guided", "lark", "referencing"):
        try:
            digest.update(f" {package} {version(package)}".encode())
        except PackageNotFoundError:
            digest.update(f" {package}".encode())
    here = Path(__file__).resolve().parent
    files = [here / "constraints.py", here / "packing.py", Path(__file__)]
    for folder in SOURCES:
        files += sorted((here / folder).rglob("*.py"))
    for file in files:
        digest.update(str(file.relative_to(here)).encode())
        digest.update(file.read_bytes())
    return digest.digest()
