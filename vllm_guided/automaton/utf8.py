"""Code point ranges as byte-range sequences of their UTF-8 encodings.

The split is Thompson's: a range is cut where the encoded length changes, then where the leading or
continuation bytes stop covering their full range (see Russ Cox, "Regular Expression Matching in the
Wild", section "Step 3", and RFC 3629). Surrogates have no UTF-8 encoding and are left out.
"""

from __future__ import annotations

from vllm_guided.bounded import bounded_cache

ByteRange = tuple[int, int]

_LENGTH_LIMITS = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)
_SURROGATES = (0xD800, 0xDFFF)


Fragment = tuple[int, tuple[int, ...]]


@bounded_cache(1024, 4 << 20)
def utf8_fragment(ranges: tuple[tuple[int, int], ...]) -> Fragment:
    """A deterministic automaton for one code point of ``ranges``, with equal tails shared.

    Returns:
        the number of its inner states, and its edges ``source, low | high << 8, target`` flattened;
        state 0 is the start, 1 the end, inner states follow from 2.
    """
    edges: list[int] = []
    place: dict[tuple[tuple[ByteRange, ...], ...], int] = {((),): 1}
    # The split gives sequences whose first ranges are equal or disjoint, so grouping by the first range
    # is deterministic.
    pending: list[tuple[int, tuple[tuple[ByteRange, ...], ...]]] = [(0, utf8_sequences(ranges))]
    while pending:
        source, sequences = pending.pop()
        tails: dict[ByteRange, list[tuple[ByteRange, ...]]] = {}
        for first, *rest in sequences:
            tails.setdefault(first, []).append(tuple(rest))
        for (low, high), members in tails.items():
            key = tuple(members)
            target = place.get(key)
            if target is None:
                target = place[key] = len(place) + 1
                pending.append((target, key))
            edges.extend((source, low | high << 8, target))
    return len(place) - 1, tuple(edges)


@bounded_cache(1024, 4 << 20)
def utf8_sequences(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[ByteRange, ...], ...]:
    """Sequences of inclusive byte ranges that together spell exactly the code points of ``ranges``."""
    found: list[tuple[ByteRange, ...]] = []
    for low, high in ranges:
        pieces = [(low, min(high, _SURROGATES[0] - 1)), (max(low, _SURROGATES[1] + 1), high)]
        for first, last in pieces:
            if first <= last:
                _split(first, last, found)
    return tuple(found)


def _split(low: int, high: int, found: list[tuple[ByteRange, ...]]) -> None:
    pending = [(low, high)]
    while pending:
        low, high = pending.pop()
        cut = _cut(low, high)
        if cut is not None:
            pending.append((cut + 1, high))
            pending.append((low, cut))
            continue
        first, last = chr(low).encode(), chr(high).encode()
        found.append(tuple(zip(first, last, strict=True)))


def _cut(low: int, high: int) -> int | None:
    """Where to cut ``low..high`` so that the left part is nearer to a product of byte ranges."""
    for limit in _LENGTH_LIMITS:
        if low <= limit < high:
            return limit
    if high <= 0x7F:
        return None
    for bits in (6, 12, 18):
        mask = (1 << bits) - 1
        if low & ~mask != high & ~mask:
            if low & mask:
                return low | mask
            if high & mask != mask:
                return (high & ~mask) - 1
    return None
