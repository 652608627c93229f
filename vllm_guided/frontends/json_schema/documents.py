"""A schema document and what its references mean.

In: a schema as a Python value or JSON text, and other documents that it may refer to. Out: a :class:`Place`
for its root, from which sub-schemas and the targets of ``$ref`` and ``$dynamicRef`` are reached. A reference
is resolved against the base URI of its resource (RFC 3986), then by JSON pointer (RFC 6901) or anchor. The
drafts' own schemas are known; nothing is ever fetched.

What ``$dynamicRef`` means depends on how one came to it: among the resources entered on the way, the
outermost that has the dynamic anchor wins. So a place carries its *scope*: for each dynamic anchor that
several resources have, the outermost one so far. A sub-schema in two scopes is two places.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import unquote

from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends.json_schema import limits, uris
from vllm_guided.frontends.json_schema.drafts import LATEST, RECURSIVE, draft_of
from vllm_guided.frontends.json_schema.metaschemas import metaschema
from vllm_guided.frontends.json_schema.resources import (
    Index,
    Path,
    Resource,
    Source,
    pointer,
    value_at,
)
from vllm_guided.frontends.json_text import DECODER

Scope = tuple[tuple[str, Resource], ...]
"""For each contested dynamic anchor met so far, by name: the outermost resource that has it."""


class Place:
    """A sub-schema: where it is, the resource it is in, and the scope it was reached in."""

    __slots__ = ("document", "path", "resource", "schema", "scope")

    def __init__(
        self, schema: Any, resource: Resource, path: Path, document: Document, scope: Scope = ()
    ) -> None:
        self.schema = schema
        self.resource = resource
        self.path = path
        self.document = document
        self.scope = scope

    @property
    def draft(self) -> int:
        """4, 6, 7, 2019 or 2020."""
        return self.resource.draft

    @property
    def annotates_contents(self) -> bool:
        """Whether ``$schema`` names a draft in which ``contentEncoding`` is an annotation and no more."""
        return self.draft != 7 and self.resource.declared

    @property
    def pointer(self) -> str:
        """The JSON pointer from the root of the document, ``#/...``; behind its URI in other documents."""
        return self.resource.source.name + pointer(self.path)

    def child(self, *keys: str | int) -> Place:
        """The sub-schema below ``keys``, in the resource of its own that it may be."""
        schema: Any = self.schema
        for key in keys:
            schema = schema[key]
        path = self.path + keys
        resource, scope = self.resource, self.scope
        if type(schema) is not dict and type(schema) is not bool:
            raise InvalidConstraint(
                "a schema must be an object, true or false", where=resource.source.name + pointer(path)
            )
        if isinstance(schema, dict) and not resource.source.plain:
            inner = _resource_of(schema, path, resource)
            if inner is not resource:
                resource, scope = inner, self.document.entered(scope, inner)
        return Place(schema, resource, path, self.document, scope)

    def invalid(self, keyword: str, message: str) -> InvalidConstraint:
        """The error of a keyword whose value is wrong."""
        return InvalidConstraint(f"{keyword}: {message}", where=f"{self.pointer}/{keyword}")

    def unsupported(self, keyword: str, message: str) -> UnsupportedConstraint:
        """The error of a keyword that cannot be honoured exactly."""
        return UnsupportedConstraint(f"{keyword}: {message}", where=f"{self.pointer}/{keyword}")

    def _reference(self, keyword: str) -> str:
        reference = self.schema[keyword]
        if not isinstance(reference, str):
            raise self.invalid(keyword, "must be a string")
        return reference

    def refer(self, keyword: str) -> Place:
        """The place that the reference under ``keyword`` means."""
        return self.document.place_of(self, keyword, self._reference(keyword))

    def refer_dynamically(self, keyword: str) -> Place:
        """The target of ``$dynamicRef`` or ``$recursiveRef`` in the place's scope."""
        reference = self._reference(keyword)
        target = self.document.place_of(self, keyword, reference)
        if keyword == "$recursiveRef":
            name = RECURSIVE
        else:
            name = unquote(uris.split(reference)[1])
        named = keyword == "$recursiveRef" or name
        if not named or target.resource.dynamic.get(name) != target.path:
            return target  # no dynamic anchor: as $ref
        for known, resource in self.scope:
            if known == name:
                return self.document.place_at(resource.source, resource.dynamic[name], self.scope)
        return target


class Document:
    """A schema with the documents that it may refer to.

    Args:
        root: the schema.
        documents: other schemas by their absolute URIs.
        text: the JSON text of the schema, if it was read from one.
    """

    def __init__(
        self, root: Any, documents: Mapping[str, Any] | None = None, text: str | None = None
    ) -> None:
        self.main = Source(root, "", draft_of(root, LATEST), text=text)
        self._others: dict[str, Source] = {}
        self._contested: frozenset[str] | None = None
        self._scopes: dict[Scope, Scope] = {}
        if not isinstance(documents, Mapping | None):
            raise InvalidConstraint("documents: must be schemas by their URIs")
        for name, other in (documents or {}).items():
            if not isinstance(name, str) or not uris.has_scheme(name):
                raise InvalidConstraint(f"documents: {name!r} is not an absolute URI")
            if isinstance(other, str):
                other = parse(other)
            base = uris.split(name)[0]
            draft = draft_of(other, self.main.draft, base + "#")
            self._others[base] = Source(other, base, draft, self.main.whole.declared)

    def close(self) -> None:
        """The schemas have been read: let go of them."""
        for source in (self.main, *self._others.values()):
            source.close()

    def place(self) -> Place:
        """The root schema."""
        return self.place_at(self.main, (), ())

    def place_at(self, source: Source, path: Path, scope: Scope) -> Place:
        """The place at the end of ``path``, entered from ``scope``."""
        schema = value_at(source.root, path)
        if type(schema) is not dict and type(schema) is not bool:
            where = source.name + pointer(path)
            raise InvalidConstraint("a schema must be an object, true or false", where=where)
        resource = source.whole
        if not source.plain:
            resource = source.index().at(path)
            # Resources that no keyword leads to are met on the way.
            for length in range(len(resource.path), len(path) + 1):
                inner = value_at(source.root, path[:length])
                if isinstance(inner, dict):
                    resource = _resource_of(inner, path[:length], resource)
        return Place(schema, resource, path, self, self.entered(scope, resource))

    def entered(self, scope: Scope, resource: Resource) -> Scope:
        """The scope after ``resource`` was entered from ``scope``."""
        if not resource.dynamic:
            return scope
        if self._contested is None:
            self._contested = self._find_contested()
        known = {name for name, _ in scope}
        new = [(name, resource) for name in resource.dynamic if name in self._contested and name not in known]
        if not new:
            return scope
        found = tuple(sorted((*scope, *new), key=lambda pair: pair[0]))
        if found not in self._scopes and len(self._scopes) >= limits.MAX_SCOPES:
            raise ConstraintTooComplex(
                f"$dynamicRef: the schemas meet in more than {limits.MAX_SCOPES} dynamic scopes; use $ref"
            )
        return self._scopes.setdefault(found, found)

    def _find_contested(self) -> frozenset[str]:
        """The dynamic anchors whose meaning may depend on the scope: those of several resources."""
        counts: Counter[str] = Counter()
        for source in (self.main, *self._others.values()):
            for resource in source.index().resources.values():
                counts.update(resource.dynamic.keys())
        # The drafts' own schemas are read only when they are referred to, and these are their anchors.
        return frozenset(name for name, count in counts.items() if count > 1) | {"meta", RECURSIVE}

    def place_of(self, place: Place, keyword: str, reference: str) -> Place:
        """The place that ``reference`` means at ``place``.

        Raises:
            InvalidConstraint: it points to nothing, or to no schema.
            UnsupportedConstraint: it names a document that is not here.
        """
        source, resource = place.resource.source, place.resource
        found: tuple[Resource, Path] | None = None
        if source.plain and (reference == "#" or reference.startswith("#/")):
            path = follow(resource, reference[1:])
            found = (resource, path) if path is not None else None
        if found is None:
            found = self._target(place, keyword, reference, source.index(), resource)
        if found is None:
            lenient = source.index(lenient=True)
            found = self._target(place, keyword, reference, lenient, lenient.at(place.path))
        if found is None:
            self._refuse(place, keyword, reference)
        target, path = found
        schema = value_at(target.source.root, path)
        if type(schema) is not dict and type(schema) is not bool:
            raise place.invalid(keyword, f"{reference!r} does not point to a schema")
        return self.place_at(target.source, path, place.scope)

    def _target(
        self, place: Place, keyword: str, reference: str, index: Index, base: Resource
    ) -> tuple[Resource, Path] | None:
        """The resource and the path in its document that a reference means in one reading."""
        uri, fragment = uris.split(uris.resolve(base.uri, reference))
        resource = base
        if not reference.startswith("#"):
            found = index.by_uri.get(uri) or self._elsewhere(uri)
            if found is None:
                return None
            if "" in found.doubtful:
                raise place.invalid(keyword, f"{uri!r} is the identifier of several different schemas")
            resource = found
        if not fragment or fragment[0] == "/":
            path = follow(resource, fragment)
        else:
            name = unquote(fragment)
            if name in resource.doubtful:
                raise place.invalid(keyword, f"#{name} is the anchor of several different schemas")
            path = resource.anchors.get(name)
        return (resource, path) if path is not None else None

    def _elsewhere(self, uri: str) -> Resource | None:
        """A resource of the other documents, or of the standard."""
        other = self._others.get(uri)
        if other is not None:
            return other.index().resources[()]
        for source in (self.main, *self._others.values()):
            found = source.index().by_uri.get(uri)
            if found is not None:
                return found
        standard = metaschema(uri)
        return standard.index().resources[()] if standard is not None else None

    def _refuse(self, place: Place, keyword: str, reference: str) -> NoReturn:
        source = place.resource.source
        for lenient in (False, True):
            index = source.index(lenient)
            base = index.at(place.path) if lenient else place.resource
            uri, _ = uris.split(uris.resolve(base.uri, reference))
            here = reference.startswith("#") or uri in index.by_uri or self._elsewhere(uri) is not None
            if not here and uris.has_scheme(uri):
                raise place.unsupported(
                    keyword, f"{uri!r} is another document, and nothing is fetched: put it into $defs"
                )
        raise place.invalid(
            keyword, f"{reference!r} points to nothing in this document; local references begin with #"
        )


def _resource_of(schema: dict[str, Any], path: Path, outer: Resource) -> Resource:
    """The resource that the object at ``path``, somewhere below the root of ``outer``, is in.

    Raises:
        GrammarError: its ``$schema`` names no draft that is supported.
    """
    index = outer.source.index()
    found = index.resources.get(path)
    if found is None:
        draft = outer.draft
        if "$schema" in schema:
            draft = draft_of(schema, draft, outer.source.name + pointer(path))
        name = outer.source.identifier(schema, draft, lenient=False)
        if name is None:
            return outer
        uri, fragment = uris.split(uris.resolve(outer.uri, name))
        if fragment and uri == outer.uri:
            return outer
        found = index.read(schema, path, outer.uri, draft)
        if found.dynamic:
            raise UnsupportedConstraint(
                "dynamic anchors below a keyword that no draft knows: move the schema into $defs",
                where=outer.source.name + pointer(path),
            )
    if found.fault is not None:
        raise found.fault
    return found


def follow(resource: Resource, fragment: str) -> Path | None:
    """The path that a JSON pointer in a fragment leads to from the root of ``resource``."""
    value: Any = resource.schema
    keys: list[str | int] = []
    for part in fragment[1:].split("/") if fragment else []:
        name = unquote(part) if "%" in part else part
        name = name.replace("~1", "/").replace("~0", "~")
        key: str | int = name
        if isinstance(value, list) and name.isascii() and name.isdigit() and str(int(name)) == name:
            key = int(name)
        try:
            value = value_at(value, (key,))
        except (LookupError, TypeError):
            return None
        keys.append(key)
    return (*resource.path, *keys)


def parse(text: str) -> Any:
    """The JSON value of a text, members in order.

    Raises:
        InvalidConstraint: not JSON, or an object names a member twice.
        ConstraintTooComplex: nested too deeply.
    """
    try:
        if text.startswith("\ufeff"):
            raise json.JSONDecodeError("Unexpected UTF-8 BOM (decode using utf-8-sig)", text, 0)
        return DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidConstraint(
            f"the schema is not JSON: {error.msg}", where=f"line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise ConstraintTooComplex("the schema is nested too deeply") from None
    except GrammarError:
        raise
    except ValueError as error:  # an integer of more digits than Python reads
        raise InvalidConstraint(f"the schema is not readable: {error}") from None
