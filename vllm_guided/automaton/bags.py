"""The arrays of an automaton's bags (``ir.Bag``), and what passes over automata need to know of them.

A bag owns no states: what it calls next depends on the members it has had, which only the runtime knows
(``runtime/bags.py``). Here its members are flattened, those that derive nothing left out.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128_digest as digest

from vllm_guided.automaton.bag_rules import BagRule, PlainBag

Ints = npt.NDArray[np.int32]
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
        self,
        bags: list[BagRule | PlainBag],
        number_of: Sequence[int],
        productive: Sequence[bool] | npt.NDArray[np.bool_],
        nullable: Sequence[bool] | npt.NDArray[np.bool_],
    ) -> None:
        """``number_of`` translates the numbers in ``bags``."""
        self.rules = [number_of[bag.rule] for bag in bags]
        self.called: list[list[int]] = []
        self.contents: list[bytes] = []
        self._separators = [number_of[bag.separator] for bag in bags]
        self._skips = [bool(nullable[separator]) for separator in self._separators]
        self._number_of = number_of
        # Of each bag: least and most members, number of own flags, wanted flags.
        self._facts: list[tuple[int, int, int, int]] = []
        self._required: list[int] = []
        self._kept: list[int] = []
        self._columns: list[list[int]] = [[] for _ in MEMBER_ARRAYS]
        for bag, separator in zip(bags, self._separators, strict=True):
            if isinstance(bag, PlainBag):
                self._plain(bag, separator)
            else:
                self._any(bag, separator, productive, nullable)

    def _plain(self, bag: PlainBag, separator: int) -> None:
        number_of = self._number_of
        rules = [number_of[rule] for rule in bag.members]
        groups = count = len(rules)
        own = list(range(groups))
        if bag.other >= 0:
            rules.append(number_of[bag.other])
            own.append(-1)
            count += 1
        item, rest, skips, owns, wanted, distinct, first, last = self._columns
        none, no = [-1] * count, [0] * count
        item += rules
        rest += none
        skips += no
        owns += own
        wanted += no
        distinct += no
        first += no
        last += none
        most = -1 if bag.other >= 0 else groups
        bits = 0
        for flag in bag.required:
            bits |= 1 << (WANTED_BITS + flag)
        self._add(1, most, groups, 0, bits, count)
        self.called.append([separator, *rules])
        self.contents.append(b"plain bag %d %d %x" % (count, most, bits))

    def _any(
        self,
        bag: BagRule,
        separator: int,
        productive: Sequence[bool] | npt.NDArray[np.bool_],
        nullable: Sequence[bool] | npt.NDArray[np.bool_],
    ) -> None:
        number_of = self._number_of
        rows: list[tuple[int, ...]] = []
        for rule, rest, *facts in bag.members:
            item, behind = number_of[rule], number_of[rest] if rest >= 0 else -1
            if productive[item] and (rest < 0 or productive[behind]):
                rows.append((item, behind, behind >= 0 and bool(nullable[behind]), *facts))
        columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in MEMBER_ARRAYS]
        for column, own in zip(self._columns, columns, strict=True):
            column += own
        rules, rests, *others = columns
        bits = bag.wanted
        for flag in bag.required:
            bits |= 1 << (WANTED_BITS + flag)
        words = self._add(bag.minimum, _most(bag), bag.groups, bag.wanted, bits, len(rows))
        self.called.append([separator, *rules, *(rest for rest in rests if rest >= 0)])
        content = array("q", (bag.minimum, _most(bag), bag.groups, len(rows)))
        content.extend([rest >= 0 for rest in rests])
        for column in others:
            content.extend(column)
        self.contents.append(b"bag" + content.tobytes() + bits.to_bytes(8 * words, "little"))

    def _add(self, minimum: int, maximum: int, groups: int, wanted: int, bits: int, members: int) -> int:
        words = flag_words(groups)
        self._facts.append((minimum, maximum, groups, wanted))
        if words == 1:
            self._required.append(bits)
        else:
            self._required += [bits >> (64 * word) & ((1 << 64) - 1) for word in range(words)]
        self._kept.append(members)
        return words

    def contents_and_calls(self) -> tuple[Ints, npt.NDArray[np.uint64], Ints, Ints]:
        """The bags' rules, hashes of their contents (uint64 [bags, 2]), and what they call, by offsets."""
        return (
            np.array(self.rules, np.int32),
            np.frombuffer(b"".join(map(digest, self.contents)), np.uint64).reshape(-1, 2).copy(),
            np.array([0, *accumulate(map(len, self.called))], np.int32),
            np.array([*chain.from_iterable(self.called)], np.int32),
        )

    def arrays(self, place: list[int]) -> dict[str, Any]:
        """The bag and member arrays of an automaton in which rule ``r`` has the number ``place[r]``."""
        if not self.rules:
            return _NO_BAGS
        rules, rests, *others = self._columns
        bags = np.array(
            (
                [place[rule] for rule in self.rules],
                [place[rule] for rule in self._separators],
                self._skips,
                *zip(*self._facts, strict=True),
            ),
            np.int32,
        )
        members = np.array(
            (
                [place[rule] for rule in rules],
                [place[rest] if rest >= 0 else -1 for rest in rests],
                *others,
            ),
            np.int32,
        )
        return {
            **dict(zip(BAG_ARRAYS[:7], bags, strict=True)),
            "bag_word_offsets": np.array([0, *accumulate(map(flag_words, bags[5].tolist()))], np.int32),
            "bag_required": np.array(self._required, np.uint64).view(np.int64),
            "bag_offsets": np.array([0, *accumulate(self._kept)], np.int32),
            **dict(zip(MEMBER_ARRAYS, members, strict=True)),
        }


_NO_BAGS: dict[str, Any] = {
    **{name: np.empty(0, np.int32) for name in (*BAG_ARRAYS, *MEMBER_ARRAYS)},
    "bag_word_offsets": np.zeros(1, np.int32),
    "bag_offsets": np.zeros(1, np.int32),
    "bag_required": np.empty(0, np.int64),
}


def _most(bag: BagRule) -> int:
    return -1 if bag.maximum is None else bag.maximum
