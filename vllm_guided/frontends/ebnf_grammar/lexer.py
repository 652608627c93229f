"""EBNF text to tokens: names, strings, character classes, numbers, operators; comments and blanks drop out.

Strings and classes are read here, escapes and all, so that a token carries what it means.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from vllm_guided.errors import InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends.positions import line_and_column
from vllm_guided.grammar import ir

_BLANK = re.compile(r"(?:\s+|\#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_WORD = re.compile(r"[A-Za-z0-9_-]+")  # a name to llama.cpp, whatever it begins with
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_COUNT = re.compile(r"\{\s*(\d+)?\s*(?:(,)\s*(\d+)?\s*)?\}")
_SPECIAL = re.compile(r"<\[(\d{1,9})\]>|<(?!\[)[^<>\s]+>")
_OPERATORS = ("::=", "(=", "(", ")", "|", "*", "+", "?", ".", ",", "=", "!", "]")
_SIMPLE = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b", "0": "\0",
}  # fmt: skip
_HEX = {"x": (1, 2), "u": (4, 4), "U": (8, 8)}


@dataclass(frozen=True, slots=True)
class Lexeme:
    """One token: ``kind`` is name, string, class, number, count, special, end, or the operator itself."""

    kind: str
    value: Any
    start: int
    end: int


class Lexer:
    """Reads one grammar text."""

    def __init__(self, source: str) -> None:
        self.source = source

    def fail(self, message: str, offset: int) -> InvalidConstraint:
        """An error at ``offset``."""
        return InvalidConstraint(message, where=line_and_column(self.source, offset))

    def tokens(self) -> list[Lexeme]:
        """All tokens, an ``end`` last."""
        tokens: list[Lexeme] = []
        position = self.skip(0)
        while position < len(self.source):
            token = self.token(position)
            tokens.append(token)
            position = self.skip(token.end)
        tokens.append(Lexeme("end", "", position, position))
        return tokens

    def skip(self, position: int) -> int:
        blank = _BLANK.match(self.source, position)
        assert blank is not None
        return blank.end()

    def token(self, position: int) -> Lexeme:
        char = self.source[position : position + 1]
        if not char:
            return Lexeme("end", "", position, position)
        if char == '"':
            return self.string(position)
        if char == "[":
            return self.char_class(position)
        if match := _NAME.match(self.source, position):
            return Lexeme("name", match.group(), position, match.end())
        number, word = _NUMBER.match(self.source, position), _WORD.match(self.source, position)
        if word and (not number or word.end() > number.end()):
            return Lexeme("name", word.group(), position, word.end())
        if number:
            return Lexeme("number", number.group(), position, number.end())
        if char == "{":
            match = _COUNT.match(self.source, position)
            if not match or not (match[1] or match[2]):
                raise self.fail("a repetition is written {2}, {2,} , {,5} or {2,5}", position)
            low = int(match[1] or 0)
            high = (int(match[3]) if match[3] else None) if match[2] else low
            return Lexeme("count", (low, high), position, match.end())
        if match := _SPECIAL.match(self.source, position):
            value = int(match[1]) if match[1] else match.group()
            return Lexeme("special", value, position, match.end())
        for operator in _OPERATORS:
            if self.source.startswith(operator, position):
                return Lexeme(operator, operator, position, position + len(operator))
        if char == "'":
            raise self.fail("a string stands in double quotes, not in single ones", position)
        if self.source.startswith(":=", position) or char == ":":
            raise self.fail("a rule is written name ::= ...; name: ... is Lark's", position)
        hint = "a rule ends without a sign, leave it out" if char == ";" else "text stands in double quotes"
        raise self.fail(f"{char!r} is not expected here; {hint}", position)

    def escape(self, position: int, also: str) -> tuple[str, int]:
        """The character a backslash at ``position`` stands for, and the offset behind it."""
        char = self.source[position + 1 : position + 2]
        if char in _HEX:
            least, most = _HEX[char]
            match = re.compile(rf"[0-9a-fA-F]{{{least},{most}}}").match(self.source, position + 2)
            if not match:
                raise self.fail(f"\\{char} is followed by {most} hexadecimal digits", position)
            code = int(match.group(), 16)
            if code > ir.MAX_CODE_POINT:
                raise self.fail(f"{code:#x} is not a code point; the last one is 10ffff", position)
            if 0xD800 <= code <= 0xDBFF and self.source.startswith("\\u", match.end()):
                low, end = self.escape(match.end(), also)
                if 0xDC00 <= ord(low) <= 0xDFFF:
                    return chr(0x10000 + (code - 0xD800 << 10) + ord(low) - 0xDC00), end
            return chr(code), match.end()
        if char in _SIMPLE and char:
            return _SIMPLE[char], position + 2
        if char and char in also:
            return char, position + 2
        raise self.fail(f"the escape \\{char} is not known; a backslash itself is written \\\\", position)

    def string(self, start: int) -> Lexeme:
        parts: list[str] = []
        position = start + 1
        while True:
            char = self.source[position : position + 1]
            if char in ("", "\n", "\r"):
                raise self.fail(
                    "the string has no closing quote on its line; a line end in it is written \\n", start
                )
            if char == '"':
                break
            if char == "\\":
                char, position = self.escape(position, "\\\"'?/[]")
            else:
                position += 1
            parts.append(char)
        value = "".join(parts)
        if any(0xD800 <= ord(char) <= 0xDFFF for char in value):
            raise self.fail("the string contains half a surrogate pair; write the whole character", start)
        return Lexeme("string", value, start, position + 1)

    def char_class(self, start: int) -> Lexeme:
        position = start + 1
        negated = self.source.startswith("^", position)
        position += negated
        ranges: list[tuple[int, int]] = []
        first = True
        while True:
            char = self.source[position : position + 1]
            if char in ("", "\n", "\r"):
                raise self.fail(
                    'the character class has no closing ] on its line; a [ outside of one is written "["',
                    start,
                )
            if char == "]" and not first:
                break
            if char == "]":
                raise self.fail("the character class is empty; a ] in it is written \\]", start)
            low, position = self.member(position)
            high = low
            if self.source.startswith("-", position) and not self.source.startswith("-]", position):
                high, position = self.member(position + 1)
                if high < low:
                    raise self.fail(
                        f"the range in the class is the wrong way round; write {chr(high)}-{chr(low)}", start
                    )
            ranges.append((low, high))
            first = False
        return Lexeme("class", _negated(ranges) if negated else ir.char_set(ranges), start, position + 1)

    def member(self, position: int) -> tuple[int, int]:
        char = self.source[position : position + 1]
        if char == "\\":
            if self.source[position + 1 : position + 2] in ("d", "w", "s", "D", "W", "S"):
                raise UnsupportedConstraint(
                    f"\\{self.source[position + 1]} has no meaning in this language; list the characters",
                    where=line_and_column(self.source, position),
                )
            char, position = self.escape(position, "\\\"'?/[]-^.*+(){}|$")
            return ord(char), position
        if char in ("", "\n", "\r"):
            raise self.fail(
                'the character class has no closing ] on its line; a [ outside of one is written "["',
                position,
            )
        return ord(char), position + 1


def _negated(ranges: list[tuple[int, int]]) -> ir.Node:
    kept: list[tuple[int, int]] = []
    low = 0
    for first, last in sorted([*ranges, (0xD800, 0xDFFF)]):
        if first > low:
            kept.append((low, first - 1))
        low = max(low, last + 1)
    kept.append((low, ir.MAX_CODE_POINT))
    return ir.char_set(kept)
