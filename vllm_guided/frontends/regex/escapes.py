"""Escapes and bracketed classes of both dialects: the lower half of the pattern parser."""

from __future__ import annotations

import sys
import unicodedata
from typing import NoReturn

from vllm_guided.automaton.char_expression import (
    ANY,
    END,
    START,
    Chars,
    Expression,
    Look,
    alternation,
    concat,
)
from vllm_guided.automaton.char_sets import NONE, Ranges, complement, normalised
from vllm_guided.errors import InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends.regex import unicode_sets

CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "a": 7, "e": 27}
HEX = frozenset("0123456789abcdefABCDEF")
OCTAL = frozenset("01234567")


class Escapes:
    """A cursor over the pattern that reads escapes and classes.

    Attributes:
        text: the pattern.
        position: index of the next character.
        flags: the flags in force.
        flags_until: where a global ``(?flags)`` may still stand.
    """

    def __init__(self, text: str, dialect: str, flags: frozenset[str]) -> None:
        self.text = text
        self.dialect = dialect
        self.ecma = dialect == "ecma"
        self.flags = flags - {"u"}
        self.position = 0
        self.flags_until = 0

    def peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def where(self, position: int) -> str:
        return f"position {position + 1} of the pattern"

    def invalid(self, message: str, position: int) -> NoReturn:
        raise InvalidConstraint(message, where=self.where(position))

    def cased(self, ranges: Ranges) -> Ranges:
        """``ranges``, closed under case where flag i is on."""
        if "i" not in self.flags:
            return ranges
        return unicode_sets.case_closure(ranges, ecma=self.ecma, ascii_only="a" in self.flags)

    def single(self, code_point: int) -> Ranges:
        """One character (none if it is a surrogate), with its other cases where flag i is on."""
        if 0xD800 <= code_point <= 0xDFFF:
            return NONE
        return self.cased(((code_point, code_point),))

    def class_escape(self, letter: str) -> Ranges | None:
        r"""The set of ``\d \D \w \W \s \S``; None for another letter."""
        kind = letter.lower()
        if kind not in ("d", "w", "s"):
            return None
        if self.ecma:
            ranges = {
                "d": unicode_sets.DIGIT_ASCII,
                "w": self.cased(unicode_sets.WORD_ASCII),
                "s": unicode_sets.SPACE_ECMA,
            }[kind]
        elif "a" in self.flags:
            ranges = {
                "d": unicode_sets.DIGIT_ASCII,
                "w": unicode_sets.WORD_ASCII,
                "s": unicode_sets.SPACE_ASCII,
            }[kind]
        else:
            ranges = {"d": unicode_sets.digits, "w": unicode_sets.word, "s": unicode_sets.space}[kind]()
        return complement(ranges) if letter.isupper() else ranges

    def escape_atom(self, start: int) -> tuple[Expression, bool]:
        """The escape whose backslash is at ``start`` (just read), and whether it can be repeated."""
        letter = self.peek()
        match letter:
            case "b" | "B":
                self.position += 1
                return self.word_boundary(negated=letter == "B"), False
            case "A":
                self.position += 1
                return START, False
            case "Z" | "z":
                self.position += 1
                return END, False
            case "k":
                self.unsupported_reference("named back-reference", start)
        if letter.isascii() and letter.isdigit() and letter != "0" and not self.octal_ahead():
            self.unsupported_reference(rf"back-reference '\{letter}'", start)
        return Chars(self.escape_set(start, in_class=False)), True

    def unsupported_reference(self, what: str, start: int) -> NoReturn:
        raise UnsupportedConstraint(
            f"{what} is no regular language: write out what the group may match", where=self.where(start)
        )

    def octal_ahead(self) -> bool:
        """Python: three octal digits are a character, not a reference."""
        digits = self.text[self.position : self.position + 3]
        return not self.ecma and len(digits) == 3 and set(digits) <= OCTAL

    def word_boundary(self, negated: bool) -> Expression:
        word = Chars(self.class_escape("w") or ())
        before, after = Look(word, behind=True), Look(word)
        not_before, not_after = Look(word, behind=True, negated=True), Look(word, negated=True)
        if negated:
            neither: list[Expression] = [not_before, not_after]
            if not self.ecma and sys.version_info < (3, 14):  # where \B of re does not match the empty text
                neither.append(alternation([Look(ANY, behind=True), Look(ANY)]))
            return alternation([concat([before, after]), concat(neither)])
        return alternation([concat([before, not_after]), concat([not_before, after])])

    def escape_set(self, start: int, in_class: bool) -> Ranges:
        """The set that an escape stands for; ``position`` is at the character after the backslash."""
        letter = self.peek()
        if not letter:
            self.invalid(r"a backslash at the end: write '\\' for the character itself", start)
        self.position += 1
        ranges = self.class_escape(letter)
        if ranges is not None:
            return ranges
        if letter in "pP":
            ranges = self.property_escape(start, negated=letter == "P")
            return ranges if in_class else self.cased(ranges)
        code_point = self.escape_character(letter, start, in_class)
        return ((code_point, code_point),) if in_class else self.single(code_point)

    def escape_character(self, letter: str, start: int, in_class: bool) -> int:
        """The code point of a character escape whose letter was just read."""
        if letter in CONTROLS:
            return CONTROLS[letter]
        match letter:
            case "b" if in_class:
                return 8
            case "x":
                return self.hexadecimal(2, start)
            case "u":
                return self.unicode_escape(start)
            case "U" if not self.ecma:
                value = self.hexadecimal(8, start)
                if value > 0x10FFFF:
                    self.invalid(r"'\U' names no character above 0010FFFF", start)
                return value
            case "c":
                control = self.peek()
                if not (control.isascii() and control.isalpha()):
                    self.invalid(r"'\c' needs a letter, as in '\cJ'", start)
                self.position += 1
                return ord(control) & 31
            case "N" if not self.ecma:
                return self.named_character(start)
        if letter.isascii() and letter.isdigit():
            return self.octal(letter, start, in_class)
        if letter.isascii() and letter.isalpha():
            self.invalid(rf"'\{letter}' is not an escape: write '{letter}' for the letter itself", start)
        return ord(letter)

    def octal(self, first: str, start: int, in_class: bool) -> int:
        if self.ecma:
            if first == "0" and not (self.peek().isascii() and self.peek().isdigit()):
                return 0
            self.invalid(r"octal escapes are not ECMA-262: write '\xHH'", start)
        digits = first
        while len(digits) < 3 and self.peek() and self.peek() in OCTAL:
            digits += self.peek()
            self.position += 1
        if not set(digits) <= OCTAL:
            self.invalid(r"a back-reference in a class: write '\xHH' for a character", start)
        value = int(digits, 8)
        if value > 0o377:
            self.invalid(r"octal escape above \377: write '\xHH' or '\uHHHH'", start)
        return value

    def hexadecimal(self, count: int, start: int) -> int:
        digits = self.text[self.position : self.position + count]
        if len(digits) != count or not set(digits) <= HEX:
            escape = self.text[start : start + 2]
            self.invalid(f"'{escape}' needs {count} hexadecimal digits", start)
        self.position += count
        return int(digits, 16)

    def unicode_escape(self, start: int) -> int:
        r"""``\uHHHH``, ``\u{...}``, or a surrogate pair written as two escapes."""
        if self.peek() == "{":
            end = self.text.find("}", self.position)
            digits = self.text[self.position + 1 : end] if end >= 0 else ""
            if not digits or not set(digits) <= HEX or len(digits) > 8 or int(digits, 16) > 0x10FFFF:
                self.invalid(r"'\u{...}' needs 1 to 6 hexadecimal digits, at most 10FFFF", start)
            self.position = end + 1
            return int(digits, 16)
        value = self.hexadecimal(4, start)
        if 0xD800 <= value <= 0xDBFF and self.text.startswith("\\u", self.position):
            low = self.text[self.position + 2 : self.position + 6]
            if len(low) == 4 and set(low) <= HEX and 0xDC00 <= int(low, 16) <= 0xDFFF:
                self.position += 6
                return 0x10000 + ((value - 0xD800) << 10) + (int(low, 16) - 0xDC00)
        return value

    def named_character(self, start: int) -> int:
        end = self.text.find("}", self.position)
        if self.peek() == "{" and end >= 0:
            name = self.text[self.position + 1 : end]
            self.position = end + 1
            try:
                return ord(unicodedata.lookup(name))
            except (KeyError, TypeError):
                self.invalid(f"no character is named {name!r}", start)
        self.invalid(r"'\N' needs a name, as in '\N{EM DASH}'", start)

    def property_escape(self, start: int, negated: bool) -> Ranges:
        if self.peek() == "{":
            end = self.text.find("}", self.position)
            name = self.text[self.position + 1 : end] if end >= 0 else ""
            self.position = end + 1
        else:
            end, name = self.position, self.peek()
            self.position += 1
        if end < 0 or not name:
            self.invalid(r"'\p' needs a property, as in '\p{L}'", start)
        if name.startswith("^"):
            negated, name = not negated, name[1:]
        ranges = unicode_sets.property_set(name)
        if ranges is None:
            raise UnsupportedConstraint(
                rf"Unicode property '\p{{{name}}}' is not known: use a general category as \p{{Lu}},"
                r" a script as \p{sc=Greek}, a binary property as \p{Alphabetic}, or code point ranges",
                where=self.where(start),
            )
        return complement(ranges) if negated else ranges

    def group_name(self, start: int, close: str) -> None:
        """A group's name up to ``close``, which is read too."""
        end = self.text.find(close, self.position)
        name = self.text[self.position : end] if end >= 0 else ""
        if not name.replace("$", "_").isidentifier():
            self.invalid(
                f"a group's name must be an identifier followed by {close!r}, as in (?<name>...)", start
            )
        self.position = end + 1

    def character_class(self) -> Ranges:
        """``[...]``, the position at its bracket."""
        start = self.position
        self.position += 1
        negated = self.peek() == "^"
        if negated:
            self.position += 1
        ranges: list[tuple[int, int]] = []
        first = True
        while True:
            if self.position >= len(self.text):
                self.invalid(r"unclosed class: add ']', or write '\[' for a bracket as text", start)
            if self.text[self.position] == "]" and not (first and not self.ecma):
                break
            first = False
            self.class_item(ranges)
        self.position += 1
        found = self.cased(normalised(ranges))
        return complement(found) if negated else found

    def class_item(self, ranges: list[tuple[int, int]]) -> None:
        """One character, range or escape of a class, added to ``ranges``."""
        start = self.position
        low = self.class_atom()
        following = self.text[self.position : self.position + 2]
        if len(following) < 2 or following[0] != "-" or following[1] == "]":
            ranges.extend(low)
            return
        self.position += 1
        high = self.class_atom()
        if len(low) != 1 or low[0][0] != low[0][1] or len(high) != 1 or high[0][0] != high[0][1]:
            if not self.ecma:
                self.invalid(r"a range needs a character at each end: write '\-' for a minus", start)
            ranges.extend((*low, (45, 45), *high))
            return
        if low[0][0] > high[0][0]:
            self.invalid(f"range out of order: write {chr(high[0][0])}-{chr(low[0][0])}", start)
        ranges.append((low[0][0], high[0][0]))

    def class_atom(self) -> Ranges:
        start = self.position
        character = self.text[start]
        self.position += 1
        if character == "\\":
            return self.escape_set(start, in_class=True)
        return ((ord(character), ord(character)),)
