"""Compiled constraints on disk: a later process, another replica or a restart need not compile them again.

In: the key of a constraint (a hash of its canonical text and options) and its :class:`Automaton`. Out: the
same automaton in another process, or None. The file's name hashes the key together with all that decides
what is compiled from it: this package's sources and the versions of what it reads constraints with. So a
file that another version wrote is never read; it is the first to go when the budget is used up.

The format is a JSON header (plain values, and a description of each array) and the arrays behind it, each
at a multiple of 8 bytes; :mod:`vllm_guided.cachedir` puts a checksum before it and replaces files as
wholes. Nothing in it can be executed. It is generic over the fields of the dataclass.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import threading
import unicodedata
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from vllm_guided.automaton.automaton import Automaton
from vllm_guided.cachedir import prune_entries, read_entry, write_entry
from vllm_guided.grammar import ir

logger = logging.getLogger(__name__)

KIND = "constraint-v1"
"""Change the number when the layout of the file changes."""

ENVIRONMENT = "VLLM_GUIDED_DISK_CACHE_MB"
DEFAULT_MEGABYTES = 1024
"""Megabytes of compiled constraints on disk; 0 turns the store off."""

WORTH_SECONDS = 0.004
"""What compiles quicker than this is not stored: reading it back would save next to nothing."""

#: Dataclasses that may stand among an automaton's values; nothing else is ever made from a file.
CLASSES: dict[str, type] = {"SpecialToken": ir.SpecialToken}
#: Where the sources lie that decide what a constraint compiles to.
SOURCES = ("automaton", "frontends", "grammar")

_lock = threading.Lock()
_written_since_pruning: int | None = None


def budget_bytes() -> int:
    """Bytes that the stored constraints may take, from ``$VLLM_GUIDED_DISK_CACHE_MB``."""
    try:
        megabytes = float(os.environ.get(ENVIRONMENT, DEFAULT_MEGABYTES))
    except ValueError:
        megabytes = DEFAULT_MEGABYTES
    return max(0, int(megabytes * (1 << 20)))


def load(key: bytes) -> Automaton | None:
    """The automaton stored under ``key``; None where there is none that can be read."""
    if not budget_bytes():
        return None
    content = read_entry(KIND, _name(key))
    return None if content is None else unpack(content)


def save(key: bytes, automaton: Automaton) -> bool:
    """Store an automaton; whether it was. Drops the least recently used files beyond the budget."""
    budget = budget_bytes()
    if not budget:
        return False
    try:
        content = pack(automaton)
    except TypeError as error:
        logger.warning("compiled constraints are not stored: %s", error)
        return False
    size = sum(len(part) for part in content)
    if size > budget // 4:
        return False
    stored = write_entry(KIND, _name(key), content)
    if stored:
        _prune(size, budget)
    return stored


def _prune(size: int, budget: int) -> None:
    """Look at the whole folder only at first and each time that a sixteenth of the budget was written."""
    global _written_since_pruning
    with _lock:
        written = None if _written_since_pruning is None else _written_since_pruning + size
        due = written is None or written > budget // 16
        _written_since_pruning = 0 if due else written
    if due:
        prune_entries(KIND, max_bytes=budget - budget // 16)


def _name(key: bytes) -> str:
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
    files = [here / "constraints.py", Path(__file__)]
    for folder in SOURCES:
        files += sorted((here / folder).rglob("*.py"))
    for file in files:
        digest.update(str(file.relative_to(here)).encode())
        digest.update(file.read_bytes())
    return digest.digest()


# -- the format ------------------------------------------------------------------------------------


def pack(automaton: Automaton) -> list[bytes]:
    """The parts of the file's content."""
    arrays: list[np.ndarray[Any, Any]] = []
    values = {field.name: _plain(getattr(automaton, field.name), arrays) for field in fields(automaton)}
    described = [[array.dtype.str, list(array.shape)] for array in arrays]
    header = json.dumps({"values": values, "arrays": described}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    parts = [len(header).to_bytes(8, "little"), header]
    for array in arrays:
        data = array.tobytes()
        parts.append(data + bytes(-len(data) % 8))
    return parts


def unpack(content: bytearray) -> Automaton | None:
    """The automaton of a file's content; None if it is not one of this version."""
    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(bytes(content[8 : 8 + length]))
        position = 8 + length
        arrays: list[np.ndarray[Any, Any]] = []
        for text, shape in header["arrays"]:
            kind = np.dtype(text)
            if kind.kind not in "biuf":
                return None
            count = int(np.prod(shape, dtype=np.int64))
            array = np.frombuffer(content, kind, count, offset=position).reshape(shape)
            arrays.append(array)
            position += array.nbytes + -array.nbytes % 8
        values = {name: _value(value, arrays) for name, value in header["values"].items()}
        if position != len(content) or values.keys() != {field.name for field in fields(Automaton)}:
            return None
        return Automaton(**values)
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None


def _plain(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """A value as JSON: itself, or a list that begins with its kind. Arrays are put aside, by number."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return ["array", len(arrays) - 1]
    if isinstance(value, tuple):
        if value and all(isinstance(item, bytes) and len(item) == len(value[0]) > 0 for item in value):
            return ["keys", len(value[0]), b"".join(value).hex()]
        return ["tuple", *(_plain(item, arrays) for item in value)]
    if isinstance(value, frozenset):
        return ["set", *(_plain(item, arrays) for item in sorted(value))]
    if isinstance(value, dict):
        pairs = [[_plain(key, arrays), _plain(item, arrays)] for key, item in value.items()]
        return ["dict", *pairs]
    name = type(value).__name__
    if is_dataclass(value) and CLASSES.get(name) is type(value):
        members = {field.name: _plain(getattr(value, field.name), arrays) for field in fields(value)}
        return ["object", name, members]
    raise TypeError(f"an automaton holds a {name}, which the store does not know")


def _value(plain: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """What ``_plain`` was given."""
    if not isinstance(plain, list):
        return plain
    kind, *rest = plain
    if kind == "bytes":
        return bytes.fromhex(rest[0])
    if kind == "array":
        return arrays[rest[0]]
    if kind == "keys":
        size, joined = rest[0], bytes.fromhex(rest[1])
        return tuple(joined[i : i + size] for i in range(0, len(joined), size))
    if kind == "tuple":
        return tuple(_value(item, arrays) for item in rest)
    if kind == "set":
        return frozenset(_value(item, arrays) for item in rest)
    if kind == "dict":
        return {_value(key, arrays): _value(item, arrays) for key, item in rest}
    if kind == "object":
        return CLASSES[rest[0]](**{name: _value(item, arrays) for name, item in rest[1].items()})
    raise ValueError(f"unknown kind {kind!r}")
