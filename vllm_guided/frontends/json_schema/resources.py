"""The schema resources of a document, and the names by which references reach them.

In: one JSON document. Out: an :class:`Index` of it: each resource (what an identifier names, or the whole
document) with its URI and its anchors. A document is looked through once, and only at places where
a draft has sub-schemas: what looks like an identifier inside ``enum`` is none.

There are two readings. The *strict* one is that of the document's draft. The *lenient* one also takes
identifiers that the draft does not know: ``id`` in later drafts, ``$id`` in draft 4, ``$id: "#name"``, and
those below a ``$ref`` that makes them void. It is asked only where a reference would else point to nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any

from vllm_guided.errors import GrammarError
from vllm_guided.frontends.json_schema import uris
from vllm_guided.frontends.json_schema.drafts import (
    RECURSIVE,
    anchors,
    draft_of,
    identifier,
    sub_schemas,
)

Path = tuple[str | int, ...]
"""Keys and indices from the root of a document."""


class Resource:
    """One schema resource.

    Attributes:
        source: the document it is in; ``path`` leads to its root, which is ``schema``.
        uri: its base URI, without a fragment; empty where nothing names it.
        draft: 4, 6, 7, 2019 or 2020; ``declared``: ``$schema`` says so.
        anchors: the paths of its named sub-schemas; ``dynamic``: of those with a dynamic anchor.
        doubtful: anchors that different schemas of the resource have; the empty one stands for its URI.
        fault: why it cannot be entered.
    """

    __slots__ = (
        "anchors",
        "declared",
        "doubtful",
        "draft",
        "dynamic",
        "fault",
        "path",
        "schema",
        "source",
        "uri",
    )

    def __init__(self, source: Source, path: Path, schema: Any, uri: str, draft: int, declared: bool) -> None:
        self.source = source
        self.path = path
        self.schema = schema
        self.uri = uri
        self.draft = draft
        self.declared = declared or (isinstance(schema, dict) and "$schema" in schema)
        self.anchors: dict[str, Path] = {}
        self.dynamic: dict[str, Path] = {}
        self.doubtful: set[str] = set()
        self.fault: GrammarError | None = None


class Index:
    """The resources of one document in one reading."""

    def __init__(self, source: Source, lenient: bool) -> None:
        self.source = source
        self.lenient = lenient
        self.resources: dict[Path, Resource] = {}
        self.by_uri: dict[str, Resource] = {}
        self._counting = True
        self.read(source.root, (), source.name, source.draft)

    def at(self, path: Path) -> Resource:
        """The innermost resource of a place."""
        for length in range(len(path), 0, -1):
            found = self.resources.get(path[:length])
            if found is not None:
                return found
        return self.resources[()]

    def read(self, root: Any, start: Path, base: str, draft: int) -> Resource:
        """Look through everything below ``root``; the resource that it is the root of.

        Below an unknown keyword there are resources only for who is led there: their URIs do not count.
        """
        if start or self.lenient:
            first = Resource(self.source, start, root, base, draft, self.source.whole.declared)
        else:
            first = self.source.whole
        self.resources[start] = first
        self._counting = not start
        self._uri(base, first)
        stack: list[tuple[Any, Path, Resource]] = [(root, start, first)]
        while stack:
            schema, path, resource = stack.pop()
            if not isinstance(schema, dict):
                continue
            resource = self._named(schema, path, resource)
            for name, dynamic in anchors(schema, resource.draft):
                self._anchor(resource, name, path, schema)
                if dynamic:
                    resource.dynamic.setdefault(name, path)
            if self.lenient or not ("$ref" in schema and resource.draft <= 7):
                children = [((*path, *keys), item) for keys, item in sub_schemas(schema)]
                stack.extend((item, inner, resource) for inner, item in reversed(children))
        return first

    def _named(self, schema: dict[str, Any], path: Path, outer: Resource) -> Resource:
        """The resource that ``schema`` is in: its own where it has an identifier."""
        draft, fault = outer.draft, None
        if "$schema" in schema and path != outer.path:
            try:
                draft = draft_of(schema, draft, pointer(path))
            except GrammarError as error:
                fault = error
        name = self.source.identifier(schema, draft, self.lenient)
        if name is None:
            found = outer
        else:
            uri, fragment = uris.split(uris.resolve(outer.uri, name))
            if path == outer.path:
                found = outer
                found.uri = uri
                self._uri(uri, found)
            elif uri == outer.uri and fragment:
                found = outer
            else:
                found = self.resources[path] = Resource(self.source, path, schema, uri, draft, outer.declared)
                found.fault = fault
                self._uri(uri, found)
            if fragment and (found.draft <= 7 or self.lenient):
                self._anchor(found, fragment, path, schema)
        if path == found.path and found.draft >= 2019 and schema.get("$recursiveAnchor") is True:
            found.dynamic[RECURSIVE] = path
        return found

    def _uri(self, uri: str, resource: Resource) -> None:
        if not self._counting:
            return
        known = self.by_uri.setdefault(uri, resource)
        if known is not resource and json.dumps(known.schema) != json.dumps(resource.schema):
            known.doubtful.add("")

    def _anchor(self, resource: Resource, name: str, path: Path, schema: Any) -> None:
        known = resource.anchors.setdefault(name, path)
        if known != path and json.dumps(value_at(self.source.root, known)) != json.dumps(schema):
            resource.doubtful.add(name)


class Source:
    """One JSON document.

    Args:
        root: its value.
        name: the URI it was given under; empty for the schema that is compiled.
        draft: of its root.
        declared: whether the draft was chosen by somebody who referred to it.
        text: the JSON text that ``root`` was read from.

    Attributes:
        whole: the resource of its root.
        plain: nothing below the root changes what references mean.
        mixed: it may have identifiers below the root that only the lenient reading takes.
    """

    def __init__(
        self, root: Any, name: str, draft: int, declared: bool = False, text: str | None = None
    ) -> None:
        self.root = root
        self.name = name
        self.draft = draft
        self.whole = Resource(self, (), root, name, draft, declared)
        self.plain, self.mixed = True, False
        if text is None or _may_name(text, root):
            self.plain, self.mixed = _look_over(root, draft)
        # Without $schema the newest draft is meant, where $id counts beside $ref. Up to draft 7 it did
        # not, and who writes `definitions` writes one of those.
        undeclared = isinstance(root, dict) and not self.whole.declared
        self._old_style = undeclared and "definitions" in root and "$defs" not in root
        self._indices: dict[bool, Index] = {}

    def index(self, lenient: bool = False) -> Index:
        """Its resources, in one of the two readings."""
        found = self._indices.get(lenient)
        if found is None:
            found = self._indices[lenient] = Index(self, lenient)
        return found

    def close(self) -> None:
        """Let go of what refers back to this object: it is used no more."""
        self._indices.clear()
        del self.whole

    def identifier(self, schema: dict[str, Any], draft: int, lenient: bool) -> str | None:
        """What a schema of the document calls itself."""
        return identifier(schema, draft, lenient=lenient, overridden=draft <= 7 or self._old_style)


def value_at(root: Any, path: Path) -> Any:
    """The value that a path leads to.

    Raises:
        LookupError: there is none.
    """
    for key in path:
        if not isinstance(root, dict | list):
            raise KeyError(key)
        root = root[key]  # type: ignore[index]
    return root


def pointer(path: Path) -> str:
    """A path as a JSON pointer in a URI fragment (RFC 6901, section 6)."""
    parts = ["#"]
    for key in path:
        text = key if isinstance(key, str) else str(key)
        if not text.isalnum() or not text.isascii():
            from urllib.parse import quote

            text = text.replace("~", "~0").replace("/", "~1")
            text = quote(text, safe="!$&'()*+,;=:@?", errors="surrogatepass")
        parts.append(text)
    return "/".join(parts)


_NAMING = "id", "anchor", "dynamic", "recursive"
"""What keywords that give names, or are led by them, begin with behind their ``$``."""
_TEXT_FOLLOWS = re.compile(r'\s*:\s*"')


def _may_name(text: str, root: Any) -> bool:
    """Whether :func:`_look_over` may find anything in the value of a text.

    A single character is searched for many times as fast as a word.
    """
    drafts = 0
    at = text.find("$")
    while at >= 0:
        if text.startswith(_NAMING, at + 1):
            return True
        drafts += text.startswith("schema", at + 1)
        at = text.find("$", at + 1)
    if drafts > (isinstance(root, dict) and "$schema" in root):
        return True
    at = text.find("\\")
    while at >= 0:
        if text.startswith("u", at + 1):
            return True
        at = text.find("\\", at + 2)
    at = text.find('"id"')
    while at >= 0:
        if _TEXT_FOLLOWS.match(text, at + 4):
            return True
        at = text.find('"id"', at + 4)
    return False


def _look_over(root: Any, draft: int) -> tuple[bool, bool]:
    """``plain`` and ``mixed`` of a :class:`Source`; looks everywhere, so both may be too cautious.

    Where nothing refers to anything, and no other draft begins below the root, names mean nothing.
    """
    plain, mixed, matters = True, False, False
    stack = [root]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            if value is not root:
                old, new = isinstance(value.get("id"), str), isinstance(value.get("$id"), str)
                if new or (old and draft == 4) or isinstance(value.get("$anchor"), str):
                    plain = False
                if (old and draft != 4) or (new and (draft == 4 or "$ref" in value)):
                    mixed = True
                if "$schema" in value:
                    mixed = matters = True
            matters = matters or isinstance(value.get("$ref"), str)
            if (
                isinstance(value.get("$dynamicRef"), str)
                or isinstance(value.get("$recursiveRef"), str)
                or isinstance(value.get("$dynamicAnchor"), str)
                or value.get("$recursiveAnchor") is True
            ):
                plain = False
                matters = matters or "$dynamicRef" in value or "$recursiveRef" in value
            stack.extend(item for item in value.values() if type(item) is dict or type(item) is list)
        elif isinstance(value, list):
            stack.extend(item for item in value if type(item) is dict or type(item) is list)
    return (plain, mixed) if matters else (True, False)
