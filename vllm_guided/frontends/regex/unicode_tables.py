"""Scripts and binary properties that Python's own tables do not tell: names to sets of characters.

The table is ``unicode_properties.txt`` beside this module, written by ``scripts/make_unicode_properties.py``
from the Unicode Character Database; it is read when a pattern first asks, a line when it is asked for.
Names are matched loosely (UTS 18, UAX 44-LM3): case, ``_``, ``-`` and blanks do not count.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from vllm_guided.automaton.char_sets import Ranges

QUALIFIERS = {"script": "sc", "sc": "sc", "scriptextensions": "scx", "scx": "scx"}
_ALIASES = {"qaai": "zinh", "qaac": "copt"}


def loose(name: str) -> str:
    """A property's name as it is looked up."""
    return name.replace("_", "").replace("-", "").replace(" ", "").lower()


@cache
def _lines() -> dict[tuple[str, str], str]:
    """For each kind (``sc``, ``scx``, ``bin``) and name the numbers of its line."""
    found: dict[tuple[str, str], str] = {}
    text = files(__package__).joinpath("unicode_properties.txt").read_text("ascii")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        head, _, numbers = line.partition(":")
        kind, *names = head.split()
        for name in names:
            found[kind, loose(name)] = numbers
    return found


@cache
def _ranges(kind: str, name: str) -> Ranges | None:
    numbers = _lines().get((kind, name))
    if numbers is None:
        return None
    ranges, code = [], 0
    values = map(int, numbers.split())
    for skipped, length in zip(values, values, strict=True):
        ranges.append((code + skipped, code + skipped + length - 1))
        code += skipped + length
    return tuple(ranges)


def script(name: str, qualifier: str = "sc") -> Ranges | None:
    """The characters of a script (``sc``), or those that it uses (``scx``); None for no script's name."""
    key = loose(name)
    key = _ALIASES.get(key, key)
    if qualifier == "scx":
        extended = _ranges("scx", key)
        if extended is not None:
            return extended
    return _ranges("sc", key)


def binary(name: str) -> Ranges | None:
    """The characters that have a binary property; None for no such property's name."""
    return _ranges("bin", loose(name))
