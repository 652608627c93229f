"""The character sets that patterns name: ``\\d \\w \\s . \\p{...}``, and case-insensitive closures.

Everything but scripts and some binary properties (:mod:`unicode_tables`) comes from the running Python's own
Unicode tables (``unicodedata`` and ``re``), each set the first time a pattern asks for it, in a few
milliseconds. Standards: Python's ``re`` documentation;
ECMA-262, section 22.2.2 (CharacterClassEscape, Canonicalize); UTS 18 for the names of properties.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import cache
from itertools import groupby

import numpy as np

from vllm_guided.automaton.char_sets import ALL, Ranges, complement, normalised, union
from vllm_guided.frontends.regex.unicode_tables import QUALIFIERS, binary, loose, script

DIGIT_ASCII: Ranges = ((48, 57),)
WORD_ASCII: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACE_ASCII: Ranges = ((9, 13), (32, 32))
SPACE_ECMA: Ranges = (
    (9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
    (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
NEWLINE: Ranges = ((10, 10),)
LINE_ENDS_ECMA: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
WHITE_SPACE: Ranges = (
    (9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
    (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000),
)  # fmt: skip

GENERAL_CATEGORIES = {
    "l": "L", "letter": "L", "lu": "Lu", "uppercaseletter": "Lu", "ll": "Ll", "lowercaseletter": "Ll",
    "lt": "Lt", "titlecaseletter": "Lt", "lc": "LC", "casedletter": "LC", "lm": "Lm", "modifierletter": "Lm",
    "lo": "Lo", "otherletter": "Lo", "m": "M", "mark": "M", "combiningmark": "M", "mn": "Mn",
    "nonspacingmark": "Mn", "mc": "Mc", "spacingmark": "Mc", "me": "Me", "enclosingmark": "Me",
    "n": "N", "number": "N", "nd": "Nd", "decimalnumber": "Nd", "digit": "Nd", "nl": "Nl",
    "letternumber": "Nl",
    "no": "No", "othernumber": "No", "p": "P", "punctuation": "P", "punct": "P", "pc": "Pc",
    "connectorpunctuation": "Pc", "pd": "Pd", "dashpunctuation": "Pd", "ps": "Ps", "openpunctuation": "Ps",
    "pe": "Pe", "closepunctuation": "Pe", "pi": "Pi", "initialpunctuation": "Pi", "pf": "Pf",
    "finalpunctuation": "Pf", "po": "Po", "otherpunctuation": "Po", "s": "S", "symbol": "S", "sm": "Sm",
    "mathsymbol": "Sm", "sc": "Sc", "currencysymbol": "Sc", "sk": "Sk", "modifiersymbol": "Sk", "so": "So",
    "othersymbol": "So", "z": "Z", "separator": "Z", "zs": "Zs", "spaceseparator": "Zs", "zl": "Zl",
    "lineseparator": "Zl", "zp": "Zp", "paragraphseparator": "Zp", "c": "C", "other": "C", "cc": "Cc",
    "control": "Cc", "cntrl": "Cc", "cf": "Cf", "format": "Cf", "cs": "Cs", "surrogate": "Cs", "co": "Co",
    "privateuse": "Co", "cn": "Cn", "unassigned": "Cn",
}  # fmt: skip


# Planes 4 to 13 hold no assigned character, plane 14 only tags and variation selectors at its start,
# planes 15 and 16 are private but for their last two each.
_ASSIGNED_LIMIT = 0x40000
_TAG_PLANE = (0xE0000, 0xE0FFF)
_PRIVATE_PLANES = ((0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))
_UNASSIGNED = ((0x40000, 0xDFFFF), (0xE1000, 0xEFFFF), (0xFFFFE, 0xFFFFF), (0x10FFFE, 0x10FFFF))
# No character from here on has another case.
_CASED_LIMIT = 0x20000


@cache
def _characters() -> str:
    """Every character that may be a letter, a digit or white space."""
    return np.arange(_ASSIGNED_LIMIT, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


def _matched_by(pattern: str) -> Ranges:
    """The characters that a one-character ``re`` class matches, found in one search of all of them."""
    return normalised((run.start(), run.end() - 1) for run in re.finditer(f"{pattern}+", _characters()))


@cache
def digits() -> Ranges:
    """``\\d`` of ``re`` on ``str``: every decimal digit."""
    return _matched_by(r"\d")


@cache
def word() -> Ranges:
    """``\\w`` of ``re`` on ``str``."""
    return _matched_by(r"\w")


@cache
def space() -> Ranges:
    """``\\s`` of ``re`` on ``str``."""
    return _matched_by(r"\s")


@cache
def _by_category() -> dict[str, Ranges]:
    found: dict[str, list[tuple[int, int]]] = {"Co": list(_PRIVATE_PLANES), "Cn": list(_UNASSIGNED)}
    tags = map(chr, range(_TAG_PLANE[0], _TAG_PLANE[1] + 1))
    for start, characters in ((0, _characters()), (_TAG_PLANE[0], tags)):
        for category, run in groupby(map(unicodedata.category, characters)):
            length = sum(1 for _ in run)
            found.setdefault(category, []).append((start, start + length - 1))
            start += length
    return {name: normalised(ranges) for name, ranges in found.items()}


@cache
def _category(name: str) -> Ranges:
    tables = _by_category()
    if name == "LC":
        return union(tables["Lu"], tables["Ll"], tables["Lt"])
    return union(*(ranges for key, ranges in tables.items() if key.startswith(name)))


def _where(predicate: Callable[[str], bool]) -> Ranges:
    """The characters, of those that may have case, of which ``predicate`` holds."""
    candidates = _characters()[:_CASED_LIMIT]
    return normalised((point, point) for point, item in enumerate(candidates) if predicate(item))


@cache
def _binary_property(name: str) -> Ranges | None:
    """A property that can be told exactly from what Python knows; None for the others."""
    match name:
        case "any":
            return ALL
        case "ascii":
            return ((0, 127),)
        case "assigned":
            return complement(_category("Cn"))
        case "asciihexdigit" | "ahex":
            return ((48, 57), (65, 70), (97, 102))
        case "whitespace" | "wspace" | "space":
            return WHITE_SPACE
        case "lowercase" | "lower":
            return _where(str.islower)
        case "uppercase" | "upper":
            return _where(str.isupper)
        case _:
            return None


def property_set(text: str) -> Ranges | None:
    """The set of ``\\p{text}``; None if no property is named so.

    Known are general categories (``Lu``, ``gc=Lu``), scripts (``sc=Greek``, ``scx=Greek``, and ``Greek`` as
    other dialects have it), binary properties (``Alphabetic``), and these behind ``Is``, as in Java.
    """
    name, equals, value = text.partition("=")
    key = loose(name)
    if equals:
        if key in ("gc", "generalcategory"):
            category = GENERAL_CATEGORIES.get(loose(value))
            return _category(category) if category else None
        qualifier = QUALIFIERS.get(key)
        return script(value, qualifier) if qualifier else None
    category = GENERAL_CATEGORIES.get(key)
    if category:
        return _category(category)
    for found in (_binary_property(key), binary(key), script(key)):
        if found is not None:
            return found
    return property_set(key[2:]) if key.startswith("is") and len(key) > 2 else None


def _lower(character: str) -> str:
    lowered = character.lower()
    return lowered if len(lowered) == 1 else character


def _python_key(character: str) -> str:
    """Equal for the characters that ``re.IGNORECASE`` takes for one another."""
    return ("i" if character == "\u0130" else _lower(character)).upper()


# Characters that fold to one another although their full foldings are longer (CaseFolding.txt, status S).
_SIMPLE_FOLDS = {"\u1fd3": "\u0390", "\u1fe3": "\u03b0", "\ufb05": "\ufb06"}


def _ecma_key(character: str) -> str:
    """Simple case folding, as ECMA-262 canonicalizes with the u flag."""
    folded = character.casefold()
    return folded if len(folded) == 1 else _SIMPLE_FOLDS.get(character, _lower(character))


@cache
def _case_families(ecma: bool) -> dict[int, tuple[int, ...]]:
    """For each character that has other cases: all characters of its family."""
    key_of = _ecma_key if ecma else _python_key
    families: dict[str, list[int]] = {}
    for point in _cased():
        families.setdefault(key_of(chr(point)), []).append(point)
    return {point: tuple(family) for family in families.values() if len(family) > 1 for point in family}


@cache
def _cased() -> list[int]:
    """Every character whose case mapping is not itself, and what it is mapped to."""
    found: set[int] = set()
    characters = _characters()
    for start in range(0, _CASED_LIMIT, 256):
        block = characters[start : start + 256]
        if block.lower() == block and block.upper() == block and block.casefold() == block:
            continue
        for character in block:
            for other in (character.lower(), character.upper(), character.casefold()):
                if other != character:
                    found.add(ord(character))
                    if len(other) == 1:
                        found.add(ord(other))
    return sorted(found)


def _ascii_family(point: int, ecma: bool, ascii_only: bool) -> tuple[int, ...]:
    """The other cases of an ASCII character, without any table."""
    if not (65 <= point <= 90 or 97 <= point <= 122):
        return ()
    others = {ord("s"): (0x17F,), ord("k"): (0x212A,)} if ecma else {
        ord("s"): (0x17F,), ord("k"): (0x212A,), ord("i"): (0x130, 0x131),
    }  # fmt: skip
    return (point ^ 32, *(() if ascii_only else others.get(point | 32, ())))


def case_closure(ranges: Ranges, *, ecma: bool, ascii_only: bool = False) -> Ranges:
    """``ranges`` and every other case of its characters."""
    added: list[tuple[int, int]] = []
    if ascii_only or (ranges and ranges[-1][1] < 128):
        for low, high in ranges:
            for point in range(low, min(high, 127) + 1):
                added.extend((other, other) for other in _ascii_family(point, ecma, ascii_only))
    else:
        families = _case_families(ecma)
        for low, high in ranges:
            members = range(low, high + 1) if high - low < len(families) else families
            for point in members:
                if low <= point <= high and point in families:
                    added.extend((other, other) for other in families[point])
    return normalised([*ranges, *added])
