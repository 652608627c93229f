"""Ranges of code points as sequences of byte ranges: their UTF-8 encodings (RFC 3629).

Every range is split where the encoding's length changes and where a continuation byte wraps around, until
each piece is a product of byte ranges. Surrogates have no encoding.
"""

from __future__ import annotations


def utf8_sequences(low: int, high: int) -> list[tuple[tuple[int, int], ...]]:
    """The UTF-8 encodings of code points ``low`` to ``high`` as sequences of inclusive byte ranges."""
    sequences: list[tuple[tuple[int, int], ...]] = []
    stack = [(low, high)]
    while stack:
        first, last = stack.pop()
        if first > last:
            continue
        for bound in (0xD7FF, 0x7F, 0x7FF, 0xFFFF):
            if first <= bound < last:
                stack.append((bound + 1, last))
                stack.append((first, bound))
                break
        else:
            if 0xD800 <= first <= 0xDFFF:
                stack.append((0xE000, last))
                continue
            if last < 0x80:
                sequences.append(((first, last),))
                continue
            length = len(chr(first).encode())
            for tail in range(1, length):
                span = (1 << 6 * tail) - 1
                if first & ~span != last & ~span:
                    if first & span:
                        stack.append(((first | span) + 1, last))
                        stack.append((first, first | span))
                        break
                    if last & span != span:
                        stack.append((last & ~span, last))
                        stack.append((first, (last & ~span) - 1))
                        break
            else:
                sequences.append(tuple(zip(chr(first).encode(), chr(last).encode(), strict=True)))
    return sequences
