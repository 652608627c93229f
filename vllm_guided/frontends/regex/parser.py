"""Pattern text to an :mod:`~vllm_guided.automaton.char_expression` tree, for two dialects.

``python`` is the syntax of Python's ``re`` on ``str``; ``ecma`` is ECMA-262 (22.2.1) read as with the
``u`` flag, with the leniency of its Annex B that JSON Schema's users rely on (``\\-``, a lone ``{`` or
``]``). Both take the spellings of the other where it has no meaning of its own (``(?<name>...)``,
``\\p{L}``, ``\\e``). What is outside regular languages (back-references) is refused by name.
"""

from __future__ import annotations

from typing import NoReturn

from vllm_guided.automaton.char_expression import (
    EMPTY,
    END,
    START,
    Chars,
    Expression,
    Look,
    alternation,
    concat,
    repetition,
)
from vllm_guided.automaton.char_sets import ALL, Ranges, complement
from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends.regex import unicode_sets
from vllm_guided.frontends.regex.atomic import atomic
from vllm_guided.frontends.regex.escapes import Escapes

MAX_DEPTH = 150
MAX_COUNT = 1_000_000
FLAGS = {"python": "aimsux", "ecma": "imsu"}
_NEWLINE = Chars(unicode_sets.NEWLINE)


def parse(pattern: str, *, dialect: str = "python", flags: str = "") -> Expression:
    """The tree of ``pattern``.

    Raises:
        InvalidConstraint: the text is no pattern of the dialect; names the position.
        UnsupportedConstraint: it asks for what no regular language has, by name and position.
        ConstraintTooComplex: groups nested deeper than ``MAX_DEPTH``.
    """
    if not isinstance(pattern, str):
        raise InvalidConstraint(f"a pattern must be a string, not {type(pattern).__name__}")
    if dialect not in FLAGS:
        raise InvalidConstraint(f"unknown regex dialect {dialect!r}: use 'python' or 'ecma'")
    for flag in flags:
        if flag not in FLAGS[dialect]:
            raise InvalidConstraint(
                f"unknown flag {flag!r} for dialect {dialect!r}: use any of {FLAGS[dialect]}"
            )
    return _Parser(pattern, dialect, frozenset(flags)).parse()


def empty_class(pattern: str, *, dialect: str = "python", flags: str = "") -> str:
    """The place of the first class of the pattern that no character is in; empty if there is none."""
    parser = _Parser(pattern, dialect, frozenset(flags))
    parser.parse()
    return parser.where(parser.empty) if parser.empty >= 0 else ""


class _Parser(Escapes):
    """Recursive descent; one method per production."""

    empty = -1
    """Where the first class without a character begins."""

    def parse(self) -> Expression:
        tree = self.disjunction(0)
        if self.position < len(self.text):
            self.invalid(r"unmatched ')': write '\)' for a parenthesis as text", self.position)
        return tree

    def disjunction(self, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise ConstraintTooComplex(
                f"groups nested deeper than {MAX_DEPTH}: flatten the pattern", where=self.where(self.position)
            )
        options = [self.alternative(depth)]
        while self.peek() == "|":
            self.position += 1
            options.append(self.alternative(depth))
        return options[0] if len(options) == 1 else alternation(options)

    def alternative(self, depth: int) -> Expression:
        items: list[Expression] = []
        while self.position < len(self.text):
            character = self.text[self.position]
            if character in "|)":
                break
            if "x" in self.flags and (character.isspace() or character == "#"):
                self.skip_blank()
                continue
            start = self.position
            item, repeatable = self.atom(depth)
            items.append(self.quantified(item, start, repeatable))
        return concat(items)

    def skip_blank(self) -> None:
        """Verbose mode: white space and comments."""
        if self.text[self.position] == "#":
            end = self.text.find("\n", self.position)
            self.position = len(self.text) if end < 0 else end + 1
        else:
            self.position += 1

    def atom(self, depth: int) -> tuple[Expression, bool]:
        """One atom, and whether a quantifier may follow it."""
        character = self.text[self.position]
        start = self.position
        if character == "(":
            return self.group(depth)
        if character == "[":
            found = self.character_class()
            if not found and self.empty < 0:
                self.empty = start
            return Chars(found), True
        self.position += 1
        match character:
            case ".":
                return Chars(self.dot()), True
            case "^":
                return self.line_start(), False
            case "$":
                return self.line_end(), False
            case "\\":
                return self.escape_atom(start)
            case "*" | "+" | "?":
                self.invalid(rf"nothing to repeat: write '\{character}' for the character itself", start)
            case "{":
                self.position = start
                if self.braces() is not None:
                    self.invalid(r"nothing to repeat: write '\{' for a brace as text", start)
                self.position = start + 1
        return Chars(self.single(ord(character))), True

    def dot(self) -> Ranges:
        if "s" in self.flags:
            return ALL
        return complement(unicode_sets.LINE_ENDS_ECMA if self.ecma else unicode_sets.NEWLINE)

    def line_start(self) -> Expression:
        if "m" not in self.flags:
            return START
        return Look(Chars(self.not_line_end()), behind=True, negated=True)

    def line_end(self) -> Expression:
        if "m" in self.flags:
            return Look(Chars(self.not_line_end()), negated=True)
        if self.ecma:
            return END
        return alternation([END, Look(concat([_NEWLINE, END]))])

    def not_line_end(self) -> Ranges:
        return complement(unicode_sets.LINE_ENDS_ECMA if self.ecma else unicode_sets.NEWLINE)

    def quantified(self, item: Expression, start: int, repeatable: bool) -> Expression:
        """``item`` with the quantifier that follows it, if one does."""
        if "x" in self.flags:
            while self.peek() and (self.peek().isspace() or self.peek() == "#"):
                self.skip_blank()
        at = self.position
        bounds = self.quantifier()
        if bounds is None:
            return item
        if not repeatable:
            self.invalid(f"nothing to repeat: {self.text[start:at]!r} matches no character", at)
        minimum, maximum = bounds
        lazy = possessive = False
        if self.peek() == "?":
            lazy = True
            self.position += 1
        elif self.peek() == "+" and not self.ecma:
            possessive = True
            self.position += 1
        again = self.position
        if self.quantifier() is not None:
            self.invalid("two quantifiers in a row: put the first and what it repeats in (?:...)", again)
        result = repetition(item, minimum, maximum, lazy)
        if possessive:
            return atomic(result, self.where(at), "possessive quantifier")
        return result

    def quantifier(self) -> tuple[int, int | None] | None:
        """The bounds of a quantifier at the position, which moves behind it; None if there is none."""
        match self.peek():
            case "*":
                bounds: tuple[int, int | None] = (0, None)
            case "+":
                bounds = (1, None)
            case "?":
                bounds = (0, 1)
            case "{":
                return self.braces()
            case _:
                return None
        self.position += 1
        return bounds

    def braces(self) -> tuple[int, int | None] | None:
        """``{m}``, ``{m,}``, ``{m,n}``, in Python ``{,n}`` too; None where the brace is text."""
        start = self.position
        end = self.text.find("}", start)
        if end < 0:
            return None
        low, comma, high = self.text[start + 1 : end].partition(",")
        if not _is_count(low) or not _is_count(high) or (not low and (self.ecma or not comma)):
            return None
        if len(low) > 9 or len(high) > 9 or int(low or 0) > MAX_COUNT or int(high or 0) > MAX_COUNT:
            raise ConstraintTooComplex(
                f"a repetition count above {MAX_COUNT}: use an open end, as in '{{0,}}'",
                where=self.where(start),
            )
        minimum = int(low or 0)
        maximum = (int(high) if high else None) if comma else minimum
        if maximum is not None and maximum < minimum:
            self.invalid(f"counts out of order: write {{{maximum},{minimum}}}", start)
        self.position = end + 1
        return minimum, maximum

    def group(self, depth: int) -> tuple[Expression, bool]:
        """A parenthesis and everything to its end."""
        start = self.position
        self.position += 1
        outer = self.flags
        wrap: str = ""
        if self.peek() == "?":
            self.position += 1
            kind = self.group_kind(start)
            if kind is None:
                return EMPTY, False
            wrap = kind
        body = self.disjunction(depth + 1)
        self.flags = outer
        if self.peek() != ")":
            self.invalid("unclosed group: add ')'", start)
        self.position += 1
        match wrap:
            case "=":
                return Look(body), True
            case "!":
                return Look(body, negated=True), True
            case "<=":
                return Look(body, behind=True), True
            case "<!":
                return Look(body, behind=True, negated=True), True
            case ">":
                return atomic(body, self.where(start), "atomic group"), True
        return body, True

    def group_kind(self, start: int) -> str | None:
        """What ``(?`` opens; the position moves to its body. None if all is read (flags, a comment)."""
        rest = self.text[self.position : self.position + 2]
        for opening in ("<=", "<!", "=", "!", ">", ":"):
            if rest.startswith(opening):
                self.position += len(opening)
                return opening
        if rest[:1] == "<" or rest == "P<":
            self.position += len(rest) if rest == "P<" else 1
            self.group_name(start, ">")
            return ":"
        if rest in ("P=", "P>"):
            what = "back-reference (?P=name)" if rest == "P=" else "recursion (?P>name)"
            self.unsupported(f"{what} is no regular language: write out what the group may match", start)
        if rest[:1] == "#":
            end = self.text.find(")", self.position)
            if end < 0:
                self.invalid("unclosed comment: add ')'", start)
            self.position = end + 1
            return None
        if rest[:1] == "(":
            self.unsupported("conditional (?(1)...) is no regular language: write both cases with '|'", start)
        return self.inline_flags(start)

    def inline_flags(self, start: int) -> str | None:
        """``(?i)`` at the start of the pattern, or ``(?i-s:`` around a group."""
        on, off, sign = "", "", False
        while self.position < len(self.text):
            character = self.text[self.position]
            self.position += 1
            if character in ":)":
                break
            if character == "-" and not sign:
                sign = True
            elif character in FLAGS[self.dialect]:
                on, off = (on, off + character) if sign else (on + character, off)
            else:
                self.invalid(
                    f"unknown group '{self.text[start : self.position]}': use (?:...), (?=...), (?!...), "
                    "(?<=...), (?<!...), (?<name>...) or flags as in (?i:...)",
                    start,
                )
        else:
            self.invalid("unclosed group: add ')'", start)
        if "u" in on:
            on = on.replace("u", "")
            if "a" in on:
                self.invalid("flags a and u exclude one another: keep one", start)
            off += "a"
        if set(on) & set(off):
            self.invalid("a flag both on and off: keep one", start)
        if character == ":":
            self.flags = (self.flags | frozenset(on)) - frozenset(off)
            return ":"
        if sign or start != self.flags_until:
            self.invalid(
                "flags for the whole pattern must be at its start: write (?i:...) around a part", start
            )
        self.flags = (self.flags | frozenset(on)) - frozenset(off)
        self.flags_until = self.position
        return None

    def unsupported(self, message: str, position: int) -> NoReturn:
        raise UnsupportedConstraint(message, where=self.where(position))


def _is_count(text: str) -> bool:
    return not text or (text.isascii() and text.isdigit())
