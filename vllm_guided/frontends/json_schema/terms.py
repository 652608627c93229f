"""The table of sub-schemas that one compile speaks of, each written once.

An entry is a place in the schema document, a JSON constant, or a conjunction, disjunction or negation of
entries; its number is the *term*. The same combination always has the same number, so what was
normalised or spelt once is found again, and recursive schemas have finitely many terms.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from vllm_guided.frontends.json_schema.contents import Contents
from vllm_guided.frontends.json_schema.documents import Place
from vllm_guided.frontends.json_schema.shapes import EVERYTHING, NOTHING, Norm, Term


class InProgress(Exception):
    """A term was asked for while it is being normalised: it contains itself at the same place."""


class Entry(NamedTuple):
    """``kind`` is ``place``, ``constant``, ``norm``, ``and``, ``or`` or ``not``."""

    kind: str
    place: Place | None = None
    constant: Any = None
    parts: tuple[Term, ...] = ()
    norm: Norm | None = None


class Terms:
    """Interns entries."""

    def __init__(self) -> None:
        self.entries: list[Entry] = [Entry("constant"), Entry("constant")]
        self._known: dict[object, Term] = {}
        self._contents = Contents()

    def _intern(self, key: object, entry: Entry) -> Term:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.entries)
            self.entries.append(entry)
        return found

    def place(self, place: Place) -> Term:
        """The schema at a place of the document."""
        schema = place.schema
        if schema is True:
            return EVERYTHING
        if schema is False:
            return NOTHING
        if not schema:
            return EVERYTHING
        # Equal schemas of one resource mean the same, unless identifiers that its draft does not know tell
        # them apart.
        content = place.path if place.resource.source.mixed else self._contents.key(schema)
        key = ("place", content, place.resource, place.scope)
        return self._intern(key, Entry("place", place=place))

    def child(self, place: Place, *keys: str | int) -> Term:
        """The schema below ``keys`` of a place."""
        source = place.resource.source
        if source.plain and not source.mixed:
            schema = place.schema
            for key in keys:
                schema = schema[key]
            if type(schema) is dict and schema:
                content = ("place", self._contents.key(schema), place.resource, place.scope)
                found = self._known.get(content)
                if found is None:
                    found = self._intern(content, Entry("place", place=place.child(*keys)))
                return found
        return self.place(place.child(*keys))

    def constant(self, key: object, value: Any, place: Place) -> Term:
        """Exactly one JSON value; ``key`` tells different values apart."""
        return self._intern(("constant", key), Entry("constant", place=place, constant=value))

    def norm(self, norm: Norm) -> Term:
        """A set that is normalised already."""
        return self._intern(("norm", norm), Entry("norm", norm=norm))

    def both(self, parts: Iterable[Term]) -> Term:
        """The intersection."""
        flat: dict[Term, None] = {}
        for part in parts:
            if part == NOTHING:
                return NOTHING
            if part == EVERYTHING:
                continue
            entry = self.entries[part]
            if entry.kind == "and":
                flat.update(dict.fromkeys(entry.parts))
            else:
                flat[part] = None
        if not flat:
            return EVERYTHING
        if len(flat) == 1:
            return next(iter(flat))
        key = tuple(flat)
        for part in key:
            entry = self.entries[part]
            if entry.kind == "not" and entry.parts[0] in flat:
                return NOTHING
        return self._intern(("and", frozenset(key)), Entry("and", parts=key))

    def either(self, parts: Iterable[Term]) -> Term:
        """The union."""
        flat: dict[Term, None] = {}
        for part in parts:
            if part == EVERYTHING:
                return EVERYTHING
            if part != NOTHING:
                flat[part] = None
        if not flat:
            return NOTHING
        if len(flat) == 1:
            return next(iter(flat))
        return self._intern(("or", frozenset(flat)), Entry("or", parts=tuple(flat)))

    def negation(self, part: Term) -> Term:
        """The complement."""
        if part == EVERYTHING:
            return NOTHING
        if part == NOTHING:
            return EVERYTHING
        entry = self.entries[part]
        if entry.kind == "not":
            return entry.parts[0]
        return self._intern(("not", part), Entry("not", parts=(part,)))

    def is_constant(self, term: Term) -> bool:
        """Whether the term is a JSON constant, or a schema that lists its values."""
        entry = self.entries[term]
        if entry.kind == "and":
            return any(self.is_constant(part) for part in entry.parts)
        if entry.kind == "constant":
            return entry.place is not None
        schema = entry.place.schema if entry.place is not None else None
        return isinstance(schema, dict) and ("const" in schema or "enum" in schema)

    def pointer(self, term: Term) -> str:
        """Where in the schema the term comes from."""
        while True:
            entry = self.entries[term]
            if entry.place is not None:
                return entry.place.pointer
            if not entry.parts:
                return "#"
            term = entry.parts[0]
