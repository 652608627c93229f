"""A schema document: its text, its drafts, and what its references mean.

In: a schema as a Python value or JSON text. Out: a :class:`Place` for its root, from which sub-schemas and
the targets of ``$ref`` are reached. References are resolved by the ``referencing`` library (RFC 6901
pointers, ``$id``, ``$anchor``), except the plain ``#/...`` of a document with one resource. Nothing is ever
fetched.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlparse

from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends.json_text import members

DRAFTS = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}
LATEST = 2020
_OLD = ("draft-00", "draft-01", "draft-02", "draft-03", "json-schema.org/schema")


class Resource:
    """One schema resource: what a ``$id`` names, or the whole document."""

    __slots__ = ("draft", "resolver", "root")

    def __init__(self, root: Any, draft: int, resolver: Any) -> None:
        self.root = root
        self.draft = draft
        self.resolver = resolver


class Place:
    """A sub-schema, the resource it is in, and its JSON pointer."""

    __slots__ = ("document", "pointer", "resource", "schema")

    def __init__(self, schema: Any, resource: Resource, pointer: str, document: Document) -> None:
        self.schema = schema
        self.resource = resource
        self.pointer = pointer
        self.document = document

    @property
    def draft(self) -> int:
        """4, 6, 7, 2019 or 2020."""
        return self.resource.draft

    def child(self, *keys: str | int) -> Place:
        """The sub-schema below ``keys``, in the resource of its own that it may be."""
        schema: Any = self.schema
        pointer = self.pointer
        for key in keys:
            schema = schema[key]
            text = str(key)
            if "~" in text or "/" in text:
                text = text.replace("~", "~0").replace("/", "~1")
            pointer = f"{pointer}/{text}"
        if type(schema) is not dict and type(schema) is not bool:
            raise InvalidConstraint("a schema must be an object, true or false", where=pointer)
        resource = self.resource
        if self.document.has_ids and isinstance(schema, dict):
            resource = self.document.enter(schema, resource)
        return Place(schema, resource, pointer, self.document)

    def invalid(self, keyword: str, message: str) -> InvalidConstraint:
        """The error of a keyword whose value is wrong."""
        return InvalidConstraint(f"{keyword}: {message}", where=f"{self.pointer}/{keyword}")

    def unsupported(self, keyword: str, message: str) -> UnsupportedConstraint:
        """The error of a keyword that cannot be honoured exactly."""
        return UnsupportedConstraint(f"{keyword}: {message}", where=f"{self.pointer}/{keyword}")

    def refer(self, keyword: str) -> Place:
        """The place that the reference under ``keyword`` means."""
        reference = self.schema[keyword]
        if not isinstance(reference, str):
            raise self.invalid(keyword, "must be a string")
        if not self.document.has_ids and (reference == "#" or reference.startswith("#/")):
            return self._pointer(keyword, reference)
        return self.document.lookup(self, keyword, reference)

    def _pointer(self, keyword: str, reference: str) -> Place:
        schema: Any = self.document.root
        for part in reference[2:].split("/") if len(reference) > 1 else []:
            name = unquote(part) if "%" in part else part
            name = name.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict) and name in schema:
                schema = schema[name]
            elif isinstance(schema, list) and name.isdigit() and int(name) < len(schema):
                schema = schema[int(name)]
            else:
                raise self.invalid(keyword, f"{reference!r} points to nothing in this document")
        if type(schema) is not dict and type(schema) is not bool:
            raise self.invalid(keyword, f"{reference!r} does not point to a schema")
        return Place(schema, self.resource, reference, self.document)


class Document:
    """A parsed schema and its resources."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.draft = draft_of(root, LATEST)
        self.has_ids = _holds_identifiers(root, self.draft)
        self._entered: dict[int, Resource] = {}
        self._registry: Any = None
        self.base = Resource(root, self.draft, None)
        if self.has_ids:
            self.base.resolver = self._root_resolver()

    def place(self) -> Place:
        """The root schema."""
        if type(self.root) is not dict and type(self.root) is not bool:
            raise InvalidConstraint("a schema must be an object, true or false", where="#")
        return Place(self.root, self.base, "#", self)

    def _root_resolver(self) -> Any:
        from referencing import Registry
        from referencing.exceptions import Unresolvable

        try:
            resource = _specification(self.draft).create_resource(self.root)
            base = resource.id() or ""
            self._registry = Registry().with_resource(base, resource)
            return self._registry.resolver(base)
        except (Unresolvable, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidConstraint(f"the schema's identifiers are wrong: {error}", where="#") from None

    def enter(self, schema: dict[str, Any], outer: Resource) -> Resource:
        """The resource that ``schema`` is in: its own where it has an identifier."""
        found = self._entered.get(id(schema))
        if found is not None:
            return found
        name = schema.get("$id", schema.get("id") if outer.draft == 4 else None)
        if not isinstance(name, str) or (outer.draft < 2019 and (name.startswith("#") or "$ref" in schema)):
            return outer
        draft = draft_of(schema, outer.draft)
        resolver = outer.resolver.in_subresource(_specification(draft).create_resource(schema))
        found = self._entered[id(schema)] = Resource(schema, draft, resolver)
        return found

    def lookup(self, place: Place, keyword: str, reference: str) -> Place:
        """Resolve by the library; remote documents are refused by name."""
        from referencing.exceptions import Unresolvable

        resolver = place.resource.resolver
        if resolver is None:
            resolver = self.base.resolver = self._root_resolver()
            place.resource.resolver = resolver
        try:
            resolved = resolver.lookup(reference)
        except (Unresolvable, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            uri = urldefrag(urljoin(resolver._base_uri, reference)).url
            if uri in resolver._registry or not urlparse(uri).scheme:
                raise place.invalid(
                    keyword,
                    f"{reference!r} points to nothing in this document; local references begin with #",
                ) from None
            raise place.unsupported(
                keyword, f"{uri!r} is another document, and nothing is fetched: put it into $defs"
            ) from None
        schema = resolved.contents
        if type(schema) is not dict and type(schema) is not bool:
            raise place.invalid(keyword, f"{reference!r} does not point to a schema")
        return Place(schema, self._resource_of(schema, resolved, place), reference, self)

    def dynamic(self, place: Place, keyword: str) -> Place:
        """The target of ``$dynamicRef`` and ``$recursiveRef`` where the dynamic scope cannot matter."""
        anchor = "$recursiveAnchor" if keyword == "$recursiveRef" else "$dynamicAnchor"
        reference = place.schema[keyword]
        if not isinstance(reference, str):
            raise place.invalid(keyword, "must be a string")
        name = reference.rpartition("#")[2] if keyword == "$dynamicRef" else None
        if _count_anchors(self.root, anchor, name) > 1:
            raise place.unsupported(
                keyword,
                f"several schemas have the {anchor} that {reference!r} means: use $ref to one of them",
            )
        return self.lookup(place, keyword, reference)

    def _resource_of(self, schema: Any, resolved: Any, place: Place) -> Resource:
        base = resolved.resolver._base_uri
        for resource in (place.resource, self.base, *self._entered.values()):
            if resource.resolver is not None and resource.resolver._base_uri == base:
                found = resource
                break
        else:
            found = Resource(schema, place.resource.draft, resolved.resolver)
        if isinstance(schema, dict):
            known = self._entered.get(id(schema))
            if known is not None:
                return known
            if found.root is schema:
                self._entered[id(schema)] = found
        return found


@lru_cache(maxsize=8)
def _specification(draft: int) -> Any:
    from referencing import jsonschema as known

    return {
        4: known.DRAFT4,
        6: known.DRAFT6,
        7: known.DRAFT7,
        2019: known.DRAFT201909,
        2020: known.DRAFT202012,
    }[draft]


def draft_of(schema: Any, default: int) -> int:
    """The draft that ``$schema`` names; ``default`` where there is none."""
    name = schema.get("$schema") if isinstance(schema, dict) else None
    if name is None:
        return default
    if not isinstance(name, str):
        raise InvalidConstraint("$schema: must be a string", where="#/$schema")
    draft = DRAFTS.get(name.rstrip("#"))
    if draft is not None:
        return draft
    https = DRAFTS.get(name.rstrip("#").replace("https://", "http://")) or DRAFTS.get(
        name.rstrip("#").replace("http://", "https://")
    )
    if https is not None:
        return https
    if any(old in name for old in _OLD[:4]):
        raise UnsupportedConstraint(
            f"$schema: {name!r} is not one of the drafts 4, 6, 7, 2019-09 and 2020-12", where="#/$schema"
        )
    return default


def _holds_identifiers(root: Any, draft: int) -> bool:
    """Whether anything below the root (or an absolute identifier on it) makes references relative to it."""
    stack = [root]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            if value is not root:
                if isinstance(value.get("$id"), str) or isinstance(value.get("$anchor"), str):
                    return True
                if draft == 4 and isinstance(value.get("id"), str):
                    return True
            if isinstance(value.get("$dynamicRef"), str) or isinstance(value.get("$recursiveRef"), str):
                return True
            stack.extend(item for item in value.values() if type(item) is dict or type(item) is list)
        elif isinstance(value, list):
            stack.extend(item for item in value if type(item) is dict or type(item) is list)
    return False


def _count_anchors(root: Any, keyword: str, name: str | None) -> int:
    """How many schemas of the document have the dynamic anchor (any, for ``None``)."""
    found = 0
    stack = [root]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            anchor = value.get(keyword)
            if (name is None and anchor is True) or (name is not None and anchor == name):
                found += 1
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
    return found


def parse(text: str) -> Any:
    """The JSON value of a text, members in order.

    Raises:
        InvalidConstraint: not JSON, or an object names a member twice.
        ConstraintTooComplex: nested too deeply.
    """

    def constant(word: str) -> Any:
        raise InvalidConstraint(f"{word} is not JSON")

    try:
        return json.loads(text, object_pairs_hook=members, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise InvalidConstraint(
            f"the schema is not JSON: {error.msg}", where=f"line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise ConstraintTooComplex("the schema is nested too deeply") from None
    except InvalidConstraint:
        raise
    except ValueError as error:  # an integer of more digits than Python reads
        raise InvalidConstraint(f"the schema is not readable: {error}") from None
