"""How the characters of a JSON string are spelt (RFC 8259, section 7).

In: sets of code points as inclusive ranges. Out: IR nodes that match every spelling of one character
of the set (:func:`encode`), or the one spelling that ``json.dumps(..., ensure_ascii=False)`` writes
(:func:`encode_plain`). Lone surrogates have no place in UTF-8 text and are never matched.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring

from vllm_guided.bounded import bounded_cache
from vllm_guided.grammar import ir

Ranges = tuple[tuple[int, int], ...]

_SHORT = {0x22: '"', 0x5C: "\\", 0x2F: "/", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
_RAW: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, ir.MAX_CODE_POINT))
_ESCAPED: Ranges = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
_BMP: Ranges = ((0, 0xD7FF), (0xE000, 0xFFFF))
_ASTRAL: Ranges = ((0x10000, ir.MAX_CODE_POINT),)
ALL: Ranges = ((0, 0xD7FF), (0xE000, ir.MAX_CODE_POINT))


def overlap(left: Ranges, right: Ranges) -> Ranges:
    """The code points in both."""
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if low <= high:
            found.append((low, high))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def _merged(ranges: list[tuple[int, int]]) -> Ranges:
    merged = ir.char_set(ranges)
    return merged.ranges if isinstance(merged, ir.CharSet) else ()


def _hex_digit(values: list[int]) -> ir.Node:
    return (
        _HEX_DIGITS
        if len(values) == 16
        else ir.byte_set(byte for value in values for byte in (f"{value:x}{value:X}").encode())
    )


_HEX_DIGITS = ir.byte_set(b"0123456789abcdefABCDEF")


@bounded_cache(4096, 4 << 20)
def _hexadecimal(ranges: Ranges, digits: int) -> ir.Node:
    """The numbers in ``ranges`` in exactly so many hexadecimal digits of either case."""
    if digits == 0:
        return ir.EMPTY
    unit = 16 ** (digits - 1)
    inside: dict[int, list[tuple[int, int]]] = {}
    for low, high in ranges:
        for value in range(low // unit, high // unit + 1):
            start = value * unit
            span = (max(low - start, 0), min(high - start, unit - 1))
            inside.setdefault(value, []).append(span)
    groups: dict[Ranges, list[int]] = {}
    for value, spans in inside.items():
        groups.setdefault(tuple(spans), []).append(value)
    options = [
        ir.sequence(_hex_digit(values), _hexadecimal(rest, digits - 1)) for rest, values in groups.items()
    ]
    return ir.choice(*options)


def _surrogate_pairs(ranges: Ranges) -> ir.Node:
    """The code points of ``ranges`` (all above U+FFFF) as two ``\\u`` escapes."""
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for low, high in ranges:
        low, high = low - 0x10000, high - 0x10000
        first, last = low >> 10, high >> 10
        spans = [(first, last)] if first == last else [(first, first), (first + 1, last - 1), (last, last)]
        for start, end in spans:
            if start <= end:
                inside = (max(low, start << 10) & 0x3FF, min(high, (end << 10) | 0x3FF) & 0x3FF)
                groups.setdefault(inside, []).append((0xD800 + start, 0xD800 + end))
    options = []
    for (low, high), upper in groups.items():
        high_half = _hexadecimal(_merged(upper), 4)
        low_half = _hexadecimal(((0xDC00 + low, 0xDC00 + high),), 4)
        options.append(ir.sequence(ir.text("\\u"), high_half, ir.text("\\u"), low_half))
    return ir.choice(*options)


@bounded_cache(4096, 4 << 20)
def encode(ranges: Ranges) -> ir.Node:
    """One character of ``ranges`` in any of its JSON spellings."""
    options: list[ir.Node] = []
    raw = overlap(ranges, _RAW)
    if raw:
        options.append(ir.CharSet(raw))
    escapes: list[ir.Node] = []
    short = [ord(letter) for point, letter in _SHORT.items() if overlap(ranges, ((point, point),))]
    if short:
        escapes.append(ir.byte_set(short))
    plane = overlap(ranges, _BMP)
    if plane:
        escapes.append(ir.sequence(ir.text("u"), _hexadecimal(plane, 4)))
    if escapes:
        options.append(ir.sequence(ir.text("\\"), ir.choice(*escapes)))
    astral = overlap(ranges, _ASTRAL)
    if astral:
        options.append(_surrogate_pairs(astral))
    return ir.choice(*options)


@bounded_cache(4096, 4 << 20)
def encode_plain(ranges: Ranges) -> ir.Node:
    """One character of ``ranges`` as ``json.dumps(..., ensure_ascii=False)`` spells it."""
    options: list[ir.Node] = []
    raw = overlap(ranges, _RAW)
    if raw:
        options.append(ir.CharSet(raw))
    escaped = [point for low, high in overlap(ranges, _ESCAPED) for point in range(low, high + 1)]
    escapes: list[ir.Node] = []
    short = [ord(_SHORT[point]) for point in escaped if point in _SHORT]
    if short:
        escapes.append(ir.byte_set(short))
    for lead in ("0", "1"):
        last = [
            ord(f"{point & 15:x}") for point in escaped if point not in _SHORT and point >> 4 == int(lead)
        ]
        if last:
            escapes.append(ir.sequence(ir.text(f"u00{lead}"), ir.byte_set(last)))
    if escapes:
        options.append(ir.sequence(ir.text("\\"), ir.choice(*escapes)))
    return ir.choice(*options)


def literal(value: str) -> bytes:
    """The usual spelling of a whole string, quotes included."""
    text = encode_basestring(value)  # as json.dumps(value, ensure_ascii=False) has it
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:  # lone surrogates: only an escape can spell them
        return json.dumps(value).encode("ascii")


ANY_CHARACTER: ir.Node = encode(ALL)
ANY_PLAIN_CHARACTER: ir.Node = encode_plain(ALL)
