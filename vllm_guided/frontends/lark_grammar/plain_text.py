"""A grammar's text as Lark's loader reads it, and the way back to the text that the user wrote.

Every addition of llguidance's was taken out of it (:mod:`dialect`); texts that a request imports are attached
with offsets of their own, so that a token of Lark's names its place wherever it comes from.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from vllm_guided.frontends.positions import line_and_column


@dataclass(frozen=True, slots=True)
class Extension:
    """One addition: ``kind`` is json, lark, regex, special, call, condition, and, or not."""

    kind: str
    value: Any
    offset: int


@dataclass(frozen=True, slots=True)
class Attribute:
    """``key`` or ``key=value`` behind a rule's name; ``kind`` is flag, string, regexp, name or number."""

    kind: str
    value: str
    offset: int


@dataclass(slots=True)
class PlainText:
    """What :func:`plain` gives: the text for Lark's loader, and what was taken out of it."""

    source: str
    text: str = ""
    extensions: list[Extension] = field(default_factory=list)
    attributes: dict[str, dict[str, Attribute]] = field(default_factory=dict)
    parametric: set[str] = field(default_factory=set)
    names: dict[str, list[int]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    sentinel: str = "\ue000"
    _moves: list[tuple[int, int]] = field(default_factory=list)
    _attached: dict[int, tuple[str, PlainText]] = field(default_factory=dict)

    def source_offset(self, offset: int) -> int:
        """Where the character at ``offset`` of ``text`` comes from in ``source``."""
        place = bisect_right(self._moves, (offset, len(self.source))) - 1
        if place < 0:
            return offset
        new, old = self._moves[place]
        limit = self._moves[place + 1][1] if place + 1 < len(self._moves) else len(self.source)
        return min(old + offset - new, limit)

    @property
    def additions(self) -> list[int]:
        """The offsets in the source of what plain Lark does not have."""
        return [old for _, old in self._moves[::2]]

    def where(self, source_offset: int) -> str:
        """The place of an offset of the source, in words."""
        return line_and_column(self.source, source_offset)

    def attach(self, name: str, imported: PlainText) -> int:
        """Give an imported text offsets of its own; the first of them."""
        base = max([len(self.text), len(self.source), *self._attached]) + 1
        if self._attached:
            base += len(self._attached[max(self._attached)][1].text)
        self._attached[base] = (name, imported)
        return base

    def token_where(self, offset: int) -> str:
        """The place of a character of ``text``, or of the text of an import, in words."""
        bases = [base for base in self._attached if base <= offset]
        if not bases:
            return self.where(self.source_offset(offset))
        name, imported = self._attached[max(bases)]
        return f"{imported.where(imported.source_offset(offset - max(bases)))} of {name!r}"

    def extension(self, literal: str) -> Extension | None:
        """The addition a string literal of ``text`` stands for, if it stands for one."""
        if not literal.startswith('"' + self.sentinel):
            return None
        return self.extensions[int(literal[2:-1])]
