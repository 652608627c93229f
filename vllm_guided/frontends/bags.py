"""Which bags have a text.

In: a :class:`~vllm_guided.grammar.ir.Bag`. Out: whether its flags, counts and positions can be satisfied with
the entries that have a text (:func:`can_be_filled`); a bag of what has a text at all (:func:`settled`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from vllm_guided.grammar import ir


def settled(
    entries: Iterable[ir.Entry],
    separator: ir.Node,
    required: frozenset[int] = frozenset(),
    minimum: int = 0,
    maximum: int | None = None,
) -> ir.Node:
    """The bag of the entries whose nodes are not ``ir.NOTHING``, or that if nothing fills it.

    Where all entries stand once, ``maximum`` is at most their number. Where entries are distinct, the caller
    has capped it.
    """
    kept = tuple(
        entry for entry in entries if not ir.is_nothing(entry.item) and not ir.is_nothing(entry.rest)
    )
    own = {entry.own for entry in kept}
    if None not in own and (maximum is None or maximum > len(own)):
        maximum = len(own)
    bag = ir.Bag(kept, separator, required, minimum, maximum)
    return bag if can_be_filled(bag, lambda _: True) else ir.NOTHING


def can_be_filled(bag: ir.Bag, usable: Callable[[ir.Node], bool]) -> bool:
    """Whether members can be found that end the bag, if the ``usable`` nodes are those that have a text.

    Distinct items are taken to have enough texts, and entries with positions to have no flags: whoever
    builds a bag sees to both (see :class:`~vllm_guided.grammar.ir.Bag`).
    """
    if not any(entry.flags or entry.first or entry.last is not None for entry in bag.entries):
        return plain_can_be_filled(bag, usable)
    return flagged_can_be_filled(bag, usable)


def flagged_can_be_filled(bag: ir.Bag, usable: Callable[[ir.Node], bool]) -> bool:
    """The same for any bag."""
    entries = [entry for entry in bag.entries if usable(entry.item) and usable(entry.rest)]
    required = _members_for(entries, bag.required)
    if required is None:
        return False
    count = max(required, bag.minimum)
    too_many = bag.maximum is not None and count > bag.maximum
    if too_many or (count > 1 and not usable(bag.separator)):
        return False
    own = {entry.own for entry in entries if entry.own is not None}
    return _places_without_free_entry(entries, count) <= len(own)


def plain_can_be_filled(bag: ir.Bag, usable: Callable[[ir.Node], bool]) -> bool:
    """The same where entries have neither flags nor positions: each entry is looked at once, if at all."""
    needed = set(bag.required)
    count = max(len(needed), bag.minimum)
    if bag.maximum is not None and count > bag.maximum:
        return False
    if needed:
        for entry in bag.entries:
            if entry.own in needed and usable(entry.item) and usable(entry.rest):
                needed.discard(entry.own)
        if needed:
            return False
    if count > 1 and not usable(bag.separator):
        return False
    if len(bag.required) >= count:
        return True
    own: set[int] = set(bag.required)
    for entry in bag.entries:
        if entry.own not in own and usable(entry.item) and usable(entry.rest):
            if entry.own is None:
                return True
            own.add(entry.own)
            if len(own) >= count:
                return True
    return False


def _members_for(entries: Sequence[ir.Entry], required: frozenset[int]) -> int | None:
    """The least number of members that set all required flags; None if none do.

    By wanted flags reached so far: of the entries with one ``own`` one is taken at most (and must be, where
    the flag is required and nothing else sets it), the others once each.
    """
    wanted = required & frozenset[int]().union(*(entry.flags for entry in entries))
    groups: dict[int, list[frozenset[int]]] = {}
    free: list[frozenset[int]] = []
    for entry in entries:
        if entry.own is None:
            free.append(entry.flags & wanted)
        else:
            groups.setdefault(entry.own, []).append((entry.flags | {entry.own}) & wanted)
    alone = required - wanted
    if not alone <= groups.keys():
        return None
    least: dict[frozenset[int], int] = {frozenset(): 0}
    for options, may_miss in [
        *((options, own not in alone) for own, options in groups.items()),
        *(([flags], True) for flags in free),
    ]:
        if may_miss and not any(options):
            continue
        reached = dict(least) if may_miss else {}
        for flags, count in least.items():
            for option in set(options):
                after = flags | option
                reached[after] = min(reached.get(after, count + 1), count + 1)
        least = reached
    return least.get(wanted)


def _places_without_free_entry(entries: list[ir.Entry], count: int) -> int:
    """Of the first ``count`` positions, those at which only entries with a flag of their own may stand."""
    free = sorted(
        (entry.first, count if entry.last is None else entry.last + 1)
        for entry in entries
        if entry.own is None
    )
    covered = reach = 0
    for first, behind in free:
        low, high = max(first, reach), min(behind, count)
        if high > low:
            covered += high - low
            reach = high
    return count - covered
