"""Where an output leaves a constraint's language, and what could have stood there.

The output is fed byte by byte to a matcher over single bytes, whose mask names the bytes that may follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import vllm_guided as vg

CONTEXT = 40  # bytes of the output shown before the place
FORCED = 60  # bytes of a forced continuation shown


@dataclass(frozen=True)
class Explanation:
    """What became of an output.

    Attributes:
        complete: all of it is a finished output.
        position: how many bytes of it are a prefix of some output.
        expected: the bytes that may follow there, as a person writes them; empty where nothing may.
        may_end: whether the output may end there.
        forced: the text that must follow there, as far as only one can.
    """

    complete: bool
    position: int
    expected: str
    may_end: bool
    forced: str


def explain(grammar: vg.CompiledGrammar, output: bytes) -> Explanation:
    """Follow ``output`` as far as it goes; ``grammar`` must be compiled for the byte vocabulary."""
    import vllm_guided as vg

    matcher = grammar.matcher()
    position = 0
    while position < len(output) and matcher.accept_tokens([output[position]]):
        position += 1
    if position < len(output):  # a refused token may leave a matcher unusable
        matcher = grammar.matcher()
        matcher.accept_tokens(list(output[:position]))
    complete = position == len(output) and matcher.is_accepting()
    bitmask = vg.allocate_token_bitmask(1, 257)
    if not matcher.is_terminated():
        matcher.fill_bitmask(bitmask, 0)
    forced = bytes(token for token in matcher.forced_tokens() if token < 256)
    return Explanation(
        complete=complete,
        position=position,
        expected=describe_bytes(allowed_bytes(bitmask[0])),
        may_end=matcher.is_accepting(),
        forced=shown(forced[:FORCED]) + ("…" if len(forced) > FORCED else ""),
    )


def allowed_bytes(row: np.ndarray) -> list[int]:
    """The bytes whose bits are set in a bitmask row of the byte vocabulary."""
    bits = np.unpackbits(np.ascontiguousarray(row).view(np.uint8), bitorder="little")
    return [int(byte) for byte in np.flatnonzero(bits[:256])]


def describe_bytes(members: list[int]) -> str:
    """A byte set as a person writes it: ``a-z`` ``0-9`` ``"``; what is not ASCII by kind."""
    runs: list[tuple[int, int]] = []
    for byte in members:
        if runs and byte == runs[-1][1] + 1 and _family(byte) == _family(runs[-1][1]):
            runs[-1] = (runs[-1][0], byte)
        else:
            runs.append((byte, byte))
    parts: list[str] = []
    for first, last in runs:
        family = _family(first)
        if family == "letter" or family == "digit":
            part = chr(first) if first == last else f"{chr(first)}-{chr(last)}"
        elif family in ("other", "control"):
            part = " ".join(_name(byte) for byte in range(first, last + 1))
        else:
            part = family
        if part not in parts:
            parts.append(part)
    return " ".join(parts)


def _family(byte: int) -> str:
    if byte >= 0xC0:
        return "(other characters)"
    if byte >= 0x80:
        return "(the rest of a character)"
    character = chr(byte)
    if character.isalpha():
        return "letter"
    if character.isdigit():
        return "digit"
    return "control" if byte < 0x20 or byte == 0x7F else "other"


_NAMES = {0x09: "TAB", 0x0A: "LF", 0x0D: "CR", 0x20: "SPACE", 0x7F: "DEL"}


def _name(byte: int) -> str:
    return _NAMES.get(byte) or (chr(byte) if byte > 0x20 else f"\\x{byte:02x}")


def shown(data: bytes) -> str:
    """Bytes as text on one line: control characters and broken UTF-8 escaped."""
    text = data.decode("utf-8", errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def place(output: bytes, position: int) -> str:
    """``line 2, column 5`` of a byte position; columns count characters."""
    before = output[:position]
    line_start = before.rfind(b"\n") + 1
    column = len(before[line_start:].decode("utf-8", errors="replace")) + 1
    return f"line {before.count(10) + 1}, column {column}"


def pointed_at(output: bytes, position: int) -> tuple[str, str]:
    """The output around a position on one line, and a line with a caret under it."""
    start = max(0, position - CONTEXT)
    before = ("…" if start else "") + shown(output[start:position])
    after = shown(output[position : position + CONTEXT])
    return before + after, " " * len(before) + "^"
