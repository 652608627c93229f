"""An automaton as bytes, and back: what lies in the store and travels between processes.

In: an :class:`Automaton`. Out: a JSON header (plain values, and a description of each array) and the arrays
behind it, each at a multiple of 8 bytes, so that they are used where they lie. Nothing in it can be executed.
It is generic over the fields of the dataclass. Whoever reads it does so between two steps of an engine, so
what is many (rules' keys, names) is not read one by one.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from vllm_guided.automaton.automaton import Automaton
from vllm_guided.grammar import ir

#: Dataclasses that may stand among an automaton's values; nothing else is ever made from bytes.
CLASSES: dict[str, type] = {"SpecialToken": ir.SpecialToken}

_FIELDS = tuple(field.name for field in fields(Automaton))


def pack(automaton: Automaton) -> list[bytes]:
    """The parts of the file's content."""
    arrays: list[np.ndarray[Any, Any]] = []
    values = {name: _plain(getattr(automaton, name), arrays) for name in _FIELDS}
    described = [[array.dtype.str, *array.shape] for array in arrays]
    header = json.dumps({"values": values, "arrays": described}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    parts = [len(header).to_bytes(8, "little"), header]
    for array in arrays:
        parts.append(array.tobytes())
        if array.nbytes % 8:
            parts.append(bytes(-array.nbytes % 8))
    return parts


def unpack(content: bytearray) -> Automaton | None:
    """The automaton of a file's content; None if it is not one of this version."""
    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(bytes(content[8 : 8 + length]))
        position = 8 + length
        arrays: list[np.ndarray[Any, Any]] = []
        for name, *shape in header["arrays"]:
            kind = _array_kind(name)
            count = shape[0] if len(shape) == 1 else math.prod(shape)
            array = np.frombuffer(content, kind, count, position)
            arrays.append(array if len(shape) == 1 else array.reshape(shape))
            size = count * kind.itemsize
            position += size + -size % 8
        values = {name: _value(value, arrays) for name, value in header["values"].items()}
        if position != len(content) or values.keys() != set(_FIELDS):
            return None
        return Automaton(**values)
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError):
        return None


@functools.lru_cache(maxsize=32)
def _array_kind(name: str) -> np.dtype[Any]:
    kind = np.dtype(name)
    if kind.kind not in "biuf":
        raise ValueError(f"no plain numbers: {name!r}")
    return kind


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
            arrays.append(np.frombuffer(b"".join(value), np.uint8))
            return ["keys", len(value[0]), len(arrays) - 1]
        if value and all(isinstance(item, str) for item in value):
            return ["texts", list(value)]
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
    raise TypeError(f"an automaton holds a {name}, which cannot be packed")


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
        size, joined = rest[0], arrays[rest[1]].tobytes()
        return tuple(joined[i : i + size] for i in range(0, len(joined), size))
    if kind == "texts":
        return tuple(rest[0])
    if kind == "tuple":
        return tuple(_value(item, arrays) for item in rest)
    if kind == "set":
        return frozenset(_value(item, arrays) for item in rest)
    if kind == "dict":
        return {_value(key, arrays): _value(item, arrays) for key, item in rest}
    if kind == "object":
        return CLASSES[rest[0]](**{name: _value(item, arrays) for name, item in rest[1].items()})
    raise ValueError(f"unknown kind {kind!r}")
