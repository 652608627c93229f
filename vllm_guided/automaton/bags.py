"""The arrays of an automaton's bags (``ir.Bag``), and what passes over automata need to know of them.

A bag owns no states: what it calls next depends on the members it has had, which only the runtime knows
(``runtime/bags.py``). Here its members are flattened, those that derive nothing left out.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Any

import numpy as np

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


class Bags:
    """The bags of a grammar, in the numbers of its NFA; members that derive nothing are left out.

    Attributes:
        rules: the bags' rules.
        called: the rules that each bag calls, in the order that ``contents`` leaves them out.
        contents: what tells bags apart that call equal rules.
    """

    def __init__(
        self, bags: list[BagRule], number_of: list[int], productive: list[bool], nullable: list[bool]
    ) -> None:
        """``number_of`` translates the numbers in ``bags``."""
        self._bags = bags
        self.rules = [number_of[bag.rule] for bag in bags]
        self.called: list[list[int]] = []
        self.contents: list[bytes] = []
        self._separators = [number_of[bag.separator] for bag in bags]
        self._skips = [nullable[separator] for separator in self._separators]
        self._words = [flag_words(bag.groups) for bag in bags]
        self._required: list[int] = []
        self._kept: list[int] = []
        self._columns: list[list[int]] = [[] for _ in MEMBER_ARRAYS]
        for bag, separator, words in zip(bags, self._separators, self._words, strict=True):
            rows: list[tuple[int, ...]] = []
            for rule, rest, *facts in bag.members:
                item, behind = number_of[rule], number_of[rest] if rest >= 0 else -1
                if productive[item] and (rest < 0 or productive[behind]):
                    rows.append((item, behind, behind >= 0 and nullable[behind], *facts))
            columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in MEMBER_ARRAYS]
            for column, own in zip(self._columns, columns, strict=True):
                column += own
            rules, rests, *others = columns
            bits = bag.wanted
            for flag in bag.required:
                bits |= 1 << (WANTED_BITS + flag)
            self._required += [bits >> (64 * word) & ((1 << 64) - 1) for word in range(words)]
            self._kept.append(len(rows))
            self.called.append([separator, *rules, *(rest for rest in rests if rest >= 0)])
            content = array("q", (bag.minimum, _most(bag), bag.groups, len(rows)))
            content.extend([rest >= 0 for rest in rests])
            for column in others:
                content.extend(column)
            self.contents.append(b"bag" + content.tobytes() + bits.to_bytes(8 * words, "little"))

    def arrays(self, place: list[int]) -> dict[str, Any]:
        """The bag and member arrays of an automaton in which rule ``r`` has the number ``place[r]``."""
        bags = self._bags
        rules, rests, *others = self._columns
        columns: dict[str, list[int]] = {
            "bag_rule": [place[rule] for rule in self.rules],
            "bag_separator": [place[rule] for rule in self._separators],
            "bag_skips": [int(skips) for skips in self._skips],
            "bag_minimum": [bag.minimum for bag in bags],
            "bag_maximum": [_most(bag) for bag in bags],
            "bag_groups": [bag.groups for bag in bags],
            "bag_wanted": [bag.wanted for bag in bags],
            "bag_word_offsets": [0, *accumulate(self._words)],
            "bag_offsets": [0, *accumulate(self._kept)],
            "member_rule": [place[rule] for rule in rules],
            "member_rest": [place[rest] if rest >= 0 else -1 for rest in rests],
            **dict(zip(MEMBER_ARRAYS[2:], others, strict=True)),
        }
        return {name: np.array(column, np.int32) for name, column in columns.items()} | {
            "bag_required": np.array(self._required, np.uint64).view(np.int64)
        }


def _most(bag: BagRule) -> int:
    return -1 if bag.maximum is None else bag.maximum
