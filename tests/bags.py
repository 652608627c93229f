"""What may come next in a bag, by definition: shared by the slow references.

Comes in: an :class:`vllm_guided.grammar.ir.Bag`, and what was taken of it so far (:class:`Taken`). Goes
out: whether an entry may stand next, whether the bag may end, and (:class:`Ends`) whether it can be brought
to an end at all, found by trying every entry and, of items that have only a few texts, every text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_guided.grammar import ir

Text = tuple[Any, ...]


@dataclass(frozen=True)
class Taken:
    """The members so far: how many, which flags they set, and the texts of the distinct items."""

    count: int = 0
    flags: frozenset[int] = frozenset()
    texts: frozenset[Text] = frozenset()

    def plus(self, entry: ir.Entry, text: Text | None) -> Taken:
        """One member more. ``text`` counts for distinct entries only."""
        texts = self.texts | {text} if entry.distinct and text is not None else self.texts
        return Taken(self.count + 1, self.flags | sets(entry), texts)


def sets(entry: ir.Entry) -> frozenset[int]:
    """The flags that an entry sets."""
    return entry.flags if entry.own is None else entry.flags | {entry.own}


def text_of(symbols: Sequence[Any]) -> Text:
    """An item as distinct items are compared: without JSON's white space, other than inside quotes."""
    kept: list[Any] = []
    quoted = escaped = False
    for symbol in symbols:
        if quoted:
            kept.append(symbol)
            if escaped:
                escaped = False
            elif symbol == ord("\\"):
                escaped = True
            elif symbol == ord('"'):
                quoted = False
        elif symbol not in b" \t\r\n" if isinstance(symbol, int) else True:
            kept.append(symbol)
            quoted = symbol == ord('"')
    return tuple(kept)


def may_stand(bag: ir.Bag, entry: ir.Entry, taken: Taken) -> bool:
    """Whether the next member may be this entry, as far as flags and positions go."""
    if bag.maximum is not None and taken.count >= bag.maximum:
        return False
    if entry.own is not None and entry.own in taken.flags:
        return False
    return entry.first <= taken.count and (entry.last is None or taken.count <= entry.last)


def may_end(bag: ir.Bag, taken: Taken) -> bool:
    """Whether there are enough members and all required flags are set."""
    enough = taken.count >= bag.minimum and (bag.maximum is None or taken.count <= bag.maximum)
    return enough and bag.required <= taken.flags


@dataclass
class Ends:
    """Which situations of one bag can be brought to an end.

    ``usable`` are the indices of entries that have a text at all; ``joined`` says whether the separator has
    one. ``few[index]`` are all texts of a distinct entry's item where there are few; the other items are
    taken to have one more text whatever was taken.
    """

    bag: ir.Bag
    usable: Collection[int]
    joined: bool
    few: dict[int, frozenset[Text]] = field(default_factory=dict)
    known: dict[Taken, bool] = field(default_factory=dict)

    def can_end(self, taken: Taken) -> bool:
        """Whether some further members bring the bag to an end."""
        start = self._cut(taken)
        before: dict[Taken, Taken | None] = {start: None}
        todo = [] if start in self.known else [start]
        while todo:
            here = todo.pop()
            if self.known.get(here) or may_end(self.bag, here):
                way: Taken | None = here
                while way is not None:
                    self.known[way] = True
                    way = before[way]
                return True
            for after in map(self._cut, self._afters(here) if here not in self.known else []):
                if after not in before:
                    before[after] = here
                    todo.append(after)
        if start not in self.known:
            self.known.update(dict.fromkeys(before, False))
        return self.known[start]

    def nexts(self, taken: Taken) -> list[int]:
        """The entries that may come next such that the bag can still be brought to an end."""
        if taken.count and not self.joined:
            return []
        return [index for index in self.usable if any(map(self.can_end, self._after(taken, index)))]

    def barred(self, taken: Taken, index: int) -> set[Text]:
        """The texts that this distinct entry must not have next, of those that can matter."""
        entry = self.bag.entries[index]
        matter = frozenset[Text]().union(*self.few.values())
        return set(taken.texts) | {text for text in matter if not self.can_end(taken.plus(entry, text))}

    def _after(self, taken: Taken, index: int) -> list[Taken]:
        """The situations after one more member of this entry."""
        entry = self.bag.entries[index]
        if not may_stand(self.bag, entry, taken):
            return []
        if entry.distinct and index in self.few:
            return [taken.plus(entry, text) for text in self.few[index] - taken.texts]
        return [taken.plus(entry, None)]

    def _afters(self, taken: Taken) -> list[Taken]:
        """Every next situation, those with the most required flags last."""
        if taken.count and not self.joined:
            return []
        afters = [after for index in self.usable for after in self._after(taken, index)]
        return sorted(afters, key=lambda after: len(after.flags & self.bag.required))

    def _cut(self, taken: Taken) -> Taken:
        """The same situation for all that can come: high counts are one, and so are texts of no matter."""
        count = taken.count
        if self.bag.maximum is None:
            places = [entry.first for entry in self.bag.entries]
            places += [entry.last + 1 for entry in self.bag.entries if entry.last is not None]
            count = min(count, max([self.bag.minimum, *places]))
        matter = frozenset[Text]().union(*self.few.values())
        return Taken(count, taken.flags, taken.texts & matter)
