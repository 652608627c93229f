"""Places in a text: offsets as lines and columns, the way every grammar error names them."""

from __future__ import annotations

from vllm_guided.errors import InvalidConstraint


def line_and_column(text: str, offset: int) -> str:
    """``line 3, column 7`` for an offset into ``text`` (both count from 1)."""
    offset = max(0, min(offset, len(text)))
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return f"line {line}, column {column}"


def offset_of(text: str, line: int, column: int) -> int:
    """The offset of a line and column, both counted from 1."""
    start = 0
    for _ in range(line - 1):
        found = text.find("\n", start)
        if found < 0:
            return len(text)
        start = found + 1
    return min(start + column - 1, len(text))


def half_a_pair(text: str) -> InvalidConstraint:
    """The error for a lone surrogate, placed at the first one in ``text`` if it stands there as it is."""
    offset = next((place for place, char in enumerate(text) if 0xD800 <= ord(char) <= 0xDFFF), 0)
    message = "the constraint contains half a surrogate pair, which no output can; write the whole character"
    return InvalidConstraint(message, where=line_and_column(text, offset) if text else "")
