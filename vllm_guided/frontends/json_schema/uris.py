"""URI references (RFC 3986), as far as identifiers of schemas need them.

In: a base and a reference. Out: the URI meant (section 5.2), whatever the scheme: ``urn:`` and unknown ones
resolve by the same rules, which ``urllib`` has for a fixed list of schemes only.
"""

from __future__ import annotations

import re

_PARTS = re.compile(
    r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.DOTALL
)
"""Appendix B, but with the scheme's own characters: ``a/b:c`` has no scheme."""


def split(uri: str) -> tuple[str, str]:
    """The URI without its fragment, and the fragment."""
    base, _, fragment = uri.partition("#")
    return base, fragment


def has_scheme(uri: str) -> bool:
    """Whether it is absolute."""
    found = _PARTS.match(uri)
    return found is not None and found[1] is not None


def resolve(base: str, reference: str) -> str:
    """The URI that ``reference`` means where ``base`` (without a fragment) is the base.

    >>> resolve("http://x.org/a/b", "../c#d")
    'http://x.org/c#d'
    """
    if not reference or reference[0] == "#":
        return base + reference
    if not base:
        return reference
    given, known = _PARTS.match(reference), _PARTS.match(base)
    assert given is not None and known is not None  # every part may be missing
    scheme, authority, path, query, fragment = given.groups()
    if scheme is None:
        scheme = known[1]
        if authority is None:
            authority = known[2]
            if path:
                path = _without_dots(path if path[0] == "/" else _merged(known[2], known[3], path))
            else:
                path, query = known[3], known[4] if query is None else query
        else:
            path = _without_dots(path)
    else:
        path = _without_dots(path)
    return (
        (f"{scheme}:" if scheme is not None else "")
        + (f"//{authority}" if authority is not None else "")
        + path
        + (f"?{query}" if query is not None else "")
        + (f"#{fragment}" if fragment is not None else "")
    )


def _merged(authority: str | None, base: str, path: str) -> str:
    """Section 5.2.3."""
    return "/" + path if authority is not None and not base else base[: base.rfind("/") + 1] + path


def _without_dots(path: str) -> str:
    """Section 5.2.4; a path with no dots to remove stays as it is (``urn:`` paths have no segments)."""
    if "." not in path:
        return path
    kept: list[str] = []
    segments = path.split("/")
    for index, segment in enumerate(segments):
        last = index == len(segments) - 1
        if segment in (".", ".."):
            if segment == ".." and kept and kept != [""]:
                kept.pop()
            if last:
                kept.append("")
        else:
            kept.append(segment)
    return "/".join(kept)
