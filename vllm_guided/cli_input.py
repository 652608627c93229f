"""What the command line works on: constraints from files, vocabularies from tokenizers.

A constraint's kind is given, or told by the file's suffix, or guessed from its text. A vocabulary is one
of single bytes by default, so that nothing needs a tokenizer unless tokens are asked for.
"""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import vllm_guided as vg


class Kind(StrEnum):
    """The kinds of constraint, named as the compiler's methods are."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "lark"
    EBNF = "ebnf"
    STRUCTURAL_TAG = "structural_tag"


_SUFFIXES = {
    ".lark": Kind.LARK,
    ".ebnf": Kind.EBNF,
    ".gbnf": Kind.EBNF,
    ".regex": Kind.REGEX,
    ".regexp": Kind.REGEX,
}
_LARK_RULE = re.compile(r"^[?!]?[A-Za-z_][A-Za-z0-9_]*(\.-?\d+)?(\{[^}]*\})?\s*:", re.MULTILINE)


class Order(StrEnum):
    """The order of an object's members."""

    ANY = "any"
    SCHEMA = "schema"


class BadInputError(Exception):
    """A file, a tokenizer or a combination of options that cannot be used; the message is for a person."""


@dataclass(frozen=True)
class Constraint:
    """A constraint's text, its kind, the name of where it came from, and the order of members in its JSON."""

    text: str
    kind: Kind
    source: str
    order: Order | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given, as the frontend of this kind takes them."""
        if self.order is None or self.kind not in (Kind.JSON_SCHEMA, Kind.STRUCTURAL_TAG):
            return {}
        return {"property_order": self.order.value}

    def compile_seconds(self) -> float:
        """The processor time of a compile in seconds, imports left out: compile once before."""
        from vllm_guided.automaton.build import build_automaton
        from vllm_guided.constraints import FRONTENDS

        spec: Any = {Kind.CHOICE: _choices, Kind.JSON_OBJECT: lambda text: None}.get(self.kind, str)(
            self.text
        )
        start = time.process_time()
        build_automaton(FRONTENDS[self.kind.value](spec, **self.options))
        return time.process_time() - start

    def compile(self, compiler: vg.GrammarCompiler) -> vg.CompiledGrammar:
        """Compile for the compiler's vocabulary; GrammarError where the constraint is refused."""
        match self.kind:
            case Kind.JSON_SCHEMA:
                return compiler.compile_json_schema(self.text, **self.options)
            case Kind.JSON_OBJECT:
                return compiler.compile_json_object()
            case Kind.REGEX:
                return compiler.compile_regex(self.text)
            case Kind.CHOICE:
                return compiler.compile_choice(_choices(self.text))
            case Kind.LARK:
                return compiler.compile_lark(self.text)
            case Kind.EBNF:
                return compiler.compile_ebnf(self.text)
            case Kind.STRUCTURAL_TAG:
                return compiler.compile_structural_tag(self.text, **self.options)


def read_constraint(
    file: str | None, text: str | None, kind: Kind | None, order: Order | None = None
) -> Constraint:
    """The constraint in ``text``, or in the file (``-``: standard input); exactly one must be given."""
    if (file is None) == (text is None):
        raise BadInputError("give a FILE (- for standard input), or the constraint itself with -e")
    if text is None:
        text = read_text(str(file))
    source = "the constraint" if file is None else "standard input" if file == "-" else file
    suffix = Path(file).suffix.lower() if file else ""
    if suffix in (".regex", ".regexp") or file == "-":
        text = text.removesuffix("\n")  # the editor's, not the author's
    return Constraint(text, kind or _SUFFIXES.get(suffix) or guess_kind(text), source, order)


def read_text(file: str) -> str:
    """A UTF-8 file's text, or standard input's for ``-``."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise BadInputError(f"{file} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadInputError(
            f"{file} is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}"
        ) from error


def guess_kind(text: str) -> Kind:
    """The kind that a constraint's text looks like; a regex where it looks like nothing else."""
    try:
        value = json.loads(text)
    except RecursionError:
        return Kind.JSON_SCHEMA if text.lstrip().startswith("{") else Kind.REGEX
    except ValueError:
        pass
    else:
        if isinstance(value, dict):
            tagged = value.get("type") == "structural_tag" or "structures" in value
            return Kind.STRUCTURAL_TAG if tagged else Kind.JSON_SCHEMA
        if isinstance(value, bool):
            return Kind.JSON_SCHEMA
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return Kind.CHOICE
    if "::=" in text:
        return Kind.EBNF
    return Kind.LARK if _LARK_RULE.search(text) else Kind.REGEX


def _choices(text: str) -> list[str]:
    """A JSON array of strings, or else one choice a line."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text.splitlines()
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise BadInputError("choices are a JSON array of strings, or one a line")


_PLACE = re.compile(r"line (\d+)(?:, column (\d+))?")
_POSITION = re.compile(r"position (\d+)")
SOURCE_WIDTH = 100


def source_line(text: str, where: str) -> list[str]:
    """The line of a constraint's text that an error's place names, and a caret under its column.

    Places are ``line 3, column 7`` (from 1) or ``position 4`` (characters from 0); for others, like JSON
    pointers, there is nothing to show.
    """
    if found := _PLACE.search(where):
        line, column = int(found[1]), int(found[2] or 1)
    elif found := _POSITION.search(where):
        before = text[: int(found[1])]
        line, column = before.count("\n") + 1, int(found[1]) - before.rfind("\n")
    else:
        return []
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return []
    start = max(0, column - SOURCE_WIDTH + 20)
    shown = lines[line - 1][start : start + SOURCE_WIDTH].replace("\t", " ")
    return [shown, " " * (column - 1 - start) + "^"]
