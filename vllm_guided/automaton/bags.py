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
    bags: list[BagRule],
    numbers: npt.NDArray[np.int32],
    productive: npt.NDArray[np.bool_],
    nullable: npt.NDArray[np.bool_],
) -> dict[str, Any]:
    """The bag and member arrays of an automaton; members with an unproductive rule are left out.

    Args:
        numbers: what to call the rules, by the numbers that the bags have for them.
        productive, nullable: by the numbers that the bags have, too.
    """
    alive = productive.tolist()
    kept = [
        [member for member in bag.members if alive[member.rule] and (member.rest < 0 or alive[member.rest])]
        for bag in bags
    ]
    words = [flag_words(bag.groups) for bag in bags]
    required: list[int] = []
    for bag, count in zip(bags, words, strict=True):
        bits = bag.wanted
        for own in bag.required:
            bits |= 1 << (WANTED_BITS + own)
        required.extend(bits >> (64 * word) & ((1 << 64) - 1) for word in range(count))
    column = np.array([member for members in kept for member in members], np.int32).reshape(
        -1, len(MEMBER_ARRAYS) - 1
    )
    rests = column[:, 1]
    arrays: dict[str, Any] = {
        "member_rule": numbers[column[:, 0]],
        "member_rest": np.where(rests < 0, np.int32(-1), numbers[rests]),
        "member_skips": ((rests >= 0) & nullable[rests]).astype(np.int32),
    }
    for place, name in enumerate(MEMBER_ARRAYS[3:], 2):
        arrays[name] = np.ascontiguousarray(column[:, place])
    return arrays | {
        "bag_rule": numbers[[bag.rule for bag in bags]] if bags else np.zeros(0, np.int32),
        "bag_separator": numbers[[bag.separator for bag in bags]] if bags else np.zeros(0, np.int32),
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
