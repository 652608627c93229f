"""Sets of code points as sorted, inclusive, disjoint ranges, and the classes a group of sets cuts.

In and out: ``Ranges``, a tuple of ``(first, last)`` pairs that neither overlap nor touch. The alphabet is
the Unicode scalar values: surrogates are in no set, for no UTF-8 text holds one.

Two characters that no set of a pattern tells apart belong to one class (the minterms of symbolic automata,
D'Antoni and Veanes 2014), so that automata work on a handful of classes, not on 1,112,064 characters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

Range = tuple[int, int]
Ranges = tuple[Range, ...]

MAX_CODE_POINT = 0x10FFFF
ALL: Ranges = ((0, 0xD7FF), (0xE000, MAX_CODE_POINT))
NONE: Ranges = ()


def normalised(ranges: Iterable[Range]) -> Ranges:
    """The union of ``ranges`` in any order, without surrogates."""
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if low > high:
            continue
        if merged and low <= merged[-1][1] + 1:
            if high > merged[-1][1]:
                merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    if any(low <= 0xDFFF and high >= 0xD800 for low, high in merged):
        return intersection(tuple(merged), ALL)
    return tuple(merged)


def union(*sets: Ranges) -> Ranges:
    """The code points of any of the sets."""
    return normalised(item for ranges in sets for item in ranges)


def intersection(left: Ranges, right: Ranges) -> Ranges:
    """The code points of both sets."""
    out: list[Range] = []
    i = j = 0
    while i < len(left) and j < len(right):
        low = max(left[i][0], right[j][0])
        high = min(left[i][1], right[j][1])
        if low <= high:
            out.append((low, high))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


def complement(ranges: Ranges) -> Ranges:
    """Every scalar value that is not in the set."""
    out: list[Range] = []
    following = 0
    for low, high in ranges:
        if low > following:
            out.append((following, low - 1))
        following = high + 1
    if following <= MAX_CODE_POINT:
        out.append((following, MAX_CODE_POINT))
    return intersection(tuple(out), ALL)


def difference(left: Ranges, right: Ranges) -> Ranges:
    """The code points of ``left`` that are not in ``right``."""
    return intersection(left, complement(right))


def contains(ranges: Ranges, code_point: int) -> bool:
    """Whether ``code_point`` is in the set."""
    index = bisect_right(ranges, (code_point, MAX_CODE_POINT + 1)) - 1
    return index >= 0 and ranges[index][1] >= code_point


def size(ranges: Ranges) -> int:
    """How many code points the set holds."""
    return sum(high - low + 1 for low, high in ranges)


class Partition:
    """The scalar values cut into classes.

    Attributes:
        starts: first code point of each interval, ascending, beginning with 0.
        class_of: class of each interval; -1 for the surrogates.
        count: number of classes.
    """

    __slots__ = ("_members", "class_of", "count", "starts")

    def __init__(self, starts: list[int], class_of: list[int], count: int) -> None:
        self.starts = starts
        self.class_of = class_of
        self.count = count
        self._members: list[Ranges] | None = None

    def find(self, code_point: int) -> int:
        """The class of ``code_point``; -1 for a surrogate."""
        return self.class_of[bisect_right(self.starts, code_point) - 1]

    def members(self) -> list[Ranges]:
        """The code points of each class."""
        if self._members is None:
            found: list[list[Range]] = [[] for _ in range(self.count)]
            limits = [*self.starts[1:], MAX_CODE_POINT + 1]
            for start, limit, index in zip(self.starts, limits, self.class_of, strict=True):
                if index >= 0:
                    found[index].append((start, limit - 1))
            self._members = [normalised(ranges) for ranges in found]
        return self._members


def partition(sets: Sequence[Ranges]) -> tuple[Partition, list[int]]:
    """The coarsest partition in which each set is a union of classes, and each set as a mask of classes."""
    flips: dict[int, int] = {0: 0, 0xD800: 0, 0xE000: 0}
    for index, ranges in enumerate(sets):
        bit = 1 << index
        for low, high in ranges:
            flips[low] = flips.get(low, 0) ^ bit
            flips[high + 1] = flips.get(high + 1, 0) ^ bit
    flips.pop(MAX_CODE_POINT + 1, None)
    starts: list[int] = []
    class_of: list[int] = []
    classes: dict[int, int] = {}
    current = 0
    for start in sorted(flips):
        current ^= flips[start]
        found = -1 if 0xD800 <= start <= 0xDFFF else classes.setdefault(current, len(classes))
        if class_of and class_of[-1] == found:
            continue
        starts.append(start)
        class_of.append(found)
    masks = [0] * len(sets)
    for signature, index in classes.items():
        for member in range(len(sets)):
            if signature >> member & 1:
                masks[member] |= 1 << index
    return Partition(starts, class_of, len(classes)), masks


def refine(left: Partition, right: Partition) -> tuple[Partition, list[tuple[int, int]]]:
    """The coarsest common refinement, and the pair of old classes behind each new class."""
    pairs: dict[tuple[int, int], int] = {}
    starts: list[int] = []
    class_of: list[int] = []
    i = j = 0
    while i < len(left.starts) or j < len(right.starts):
        next_left = left.starts[i] if i < len(left.starts) else MAX_CODE_POINT + 1
        next_right = right.starts[j] if j < len(right.starts) else MAX_CODE_POINT + 1
        start = min(next_left, next_right)
        if next_left == start:
            i += 1
        if next_right == start:
            j += 1
        pair = (left.class_of[i - 1], right.class_of[j - 1])
        found = -1 if pair[0] < 0 else pairs.setdefault(pair, len(pairs))
        if class_of and class_of[-1] == found:
            continue
        starts.append(start)
        class_of.append(found)
    return Partition(starts, class_of, len(pairs)), list(pairs)
