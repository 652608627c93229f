"""The arrays of an automaton's bags (``ir.Bag``), and what passes over automata need to know of them.

A bag owns no states: what it calls next depends on the members it has had, which only the runtime knows
(``runtime/bags.py``). Here its members are flattened, those that derive nothing left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vllm_guided.automaton.bag_rules import BagRule

#: Bits of the first word of a bag's flags that are its wanted flags; own flags come behind.
WANTED_BITS = 8

BAG_ARRAYS = (
    "bag_rule", "bag_separator", "bag_skips", "bag_minimum", "bag_maximum", "bag_groups", "bag_wanted",
    "bag_word_offsets", "bag_required", "bag_offsets",
)  # fmt: skip
MEMBER_ARRAYS = (
    "member_rule", "member_rest", "member_skips", "member_own", "member_wanted", "member_distinct",
    "member_first", "member_last",
)  # fmt: skip


def flag_words(groups: int) -> int:
    """Words of 64 bits that hold the wanted flags and ``groups`` own flags."""
    return (WANTED_BITS + groups + 63) // 64


def bag_arrays(
    bags: list[BagRule], productive: npt.NDArray[np.bool_], nullable: npt.NDArray[np.bool_]
) -> dict[str, Any]:
    """The bag and member arrays of an automaton; members with an unproductive rule are left out."""
    kept = [
        [
            member
            for member in bag.members
            if productive[member.rule] and (member.rest < 0 or productive[member.rest])
        ]
        for bag in bags
    ]
    members = [member for each in kept for member in each]
    words = [flag_words(bag.groups) for bag in bags]
    required: list[int] = []
    for bag, count in zip(bags, words, strict=True):
        bits = bag.wanted
        for own in bag.required:
            bits |= 1 << (WANTED_BITS + own)
        required.extend(bits >> (64 * word) & ((1 << 64) - 1) for word in range(count))
    column = np.array(
        [
            (member.rule, member.rest, member.rest >= 0 and nullable[member.rest], *member[2:])
            for member in members
        ],
        np.int32,
    ).reshape(len(members), len(MEMBER_ARRAYS))
    arrays = {name: np.ascontiguousarray(column[:, place]) for place, name in enumerate(MEMBER_ARRAYS)}
    return arrays | {
        "bag_rule": np.array([bag.rule for bag in bags], np.int32),
        "bag_separator": np.array([bag.separator for bag in bags], np.int32),
        "bag_skips": np.array([nullable[bag.separator] for bag in bags], np.int32),
        "bag_minimum": np.array([bag.minimum for bag in bags], np.int32),
        "bag_maximum": np.array([-1 if bag.maximum is None else bag.maximum for bag in bags], np.int32),
        "bag_groups": np.array([bag.groups for bag in bags], np.int32),
        "bag_wanted": np.array([bag.wanted for bag in bags], np.int32),
        "bag_word_offsets": _offsets(words),
        "bag_required": np.array(required, np.uint64).view(np.int64),
        "bag_offsets": _offsets([len(each) for each in kept]),
    }


def _offsets(sizes: list[int]) -> npt.NDArray[np.int32]:
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(sizes, dtype=np.int32)])


def called_by_bag(arrays: Any, bag: int) -> list[int]:
    """The rules that the bag calls, in the order that :func:`bag_content` leaves them out."""
    low, high = arrays["bag_offsets"][bag], arrays["bag_offsets"][bag + 1]
    rests = arrays["member_rest"][low:high]
    called: list[int] = [
        int(arrays["bag_separator"][bag]),
        *arrays["member_rule"][low:high].tolist(),
        *rests[rests >= 0].tolist(),
    ]
    return called


def bag_content(arrays: Any, bag: int) -> bytes:
    """What tells two bags apart that call equal rules."""
    low, high = arrays["bag_offsets"][bag], arrays["bag_offsets"][bag + 1]
    first, past = arrays["bag_word_offsets"][bag], arrays["bag_word_offsets"][bag + 1]
    parts = [b"bag", arrays["bag_required"][first:past].tobytes()]
    parts += [arrays[name][bag : bag + 1].tobytes() for name in ("bag_minimum", "bag_maximum", "bag_groups")]
    parts.append((arrays["member_rest"][low:high] >= 0).tobytes())
    parts += [arrays[name][low:high].tobytes() for name in MEMBER_ARRAYS[2:]]
    return b"|".join(parts)
