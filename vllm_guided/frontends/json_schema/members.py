"""The members that one shape of objects may have, as entries of bags and as nodes.

In: an :class:`~.shapes.Objects`. Out: its declared properties (:class:`Slot`) and the classes of its other
names (:class:`Free`), each in variants by which wanted members (``shape.some``) it is.

Where it matters how often a name stands (readers keep one member of each name: the last one), free names are
told apart: the few names of a class become properties, and those of a class of many are distinct items.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends import bags
from vllm_guided.frontends.json_schema import canonical, limits
from vllm_guided.frontends.json_schema import strings as string_sets
from vllm_guided.frontends.json_schema.object_sets import meet_names
from vllm_guided.frontends.json_schema.shapes import Objects, Term
from vllm_guided.frontends.json_schema.strings import Strings
from vllm_guided.grammar import ir

if TYPE_CHECKING:
    from vllm_guided.frontends.json_schema.emitter import Emitter

_Part = TypeVar("_Part")
UNLIMITED = 1 << 40


class Slot(NamedTuple):
    """One declared property: its text by which wanted members it is; no text where it may not be there."""

    name: str
    required: bool
    variants: tuple[tuple[int, ir.Node], ...]


class Free(NamedTuple):
    """A class of other names, with the values of those members that are at least these ``wanted`` ones.

    Variants of one class have the same ``group``.
    """

    group: int
    names: Strings
    wanted: int
    value: ir.Node


class Members(NamedTuple):
    """What one shape of objects is made of. Wanted members are bits; ``wanted`` are all of them."""

    slots: tuple[Slot, ...]
    free: tuple[Free, ...]
    wanted: int


def members(emitter: Emitter, shape: Objects) -> Members | None:
    """The members of the shape; ``None`` if a required one cannot be."""
    slots = []
    for name, term in shape.properties:
        slot = Slot(name, name in shape.required, _declared_variants(emitter, shape, name, term))
        if slot.required and not slot.variants:
            return None
        slots.append(slot)
    free = [each for group in range(len(shape.others)) for each in _free_variants(emitter, shape, group)]
    if (
        shape.some
        and sum(len(slot.variants) for slot in slots) + len(free) > len(slots) + limits.MAX_VARIANTS
    ):
        raise ConstraintTooComplex("too many members are asked for by not, oneOf or if at one object")
    return Members(tuple(slots), tuple(free), (1 << len(shape.some)) - 1)


def _declared_variants(
    emitter: Emitter, shape: Objects, name: str, term: Term
) -> tuple[tuple[int, ir.Node], ...]:
    member_of, value = emitter.layout.member, emitter.value(term)
    if ir.is_nothing(value):
        return ()
    if not shape.some:
        return ((0, member_of(name, value)),)
    found: list[tuple[int, Term, ir.Node]] = [(0, term, value)]
    for index, member in enumerate(shape.some):
        if not string_sets.accepts(member.names, name):
            continue
        for place, (wanted, parts, value) in enumerate(tuple(found)):
            joint = emitter.algebra.terms.both((parts, member.term))
            narrower = emitter.value(joint)
            if narrower == value:  # every such member is a wanted one
                found[place] = (wanted | 1 << index, joint, value)
            elif not ir.is_nothing(narrower):
                found.append((wanted | 1 << index, joint, narrower))
    return tuple((wanted, member_of(name, value)) for wanted, _, value in found)


def _free_variants(emitter: Emitter, shape: Objects, group: int) -> list[Free]:
    names, term = shape.others[group]
    declared = tuple(name for name, _ in shape.properties)
    value = emitter.value(term)
    if ir.is_nothing(value) or ir.is_nothing(emitter.name(names, declared)):
        return []
    found = [(Free(group, names, 0, value), term)]
    for index, member in enumerate(shape.some):
        for place, (free, parts) in enumerate(tuple(found)):
            met = meet_names(free.names, member.names)
            joint = emitter.algebra.terms.both((parts, member.term))
            value = ir.NOTHING if met is None else emitter.value(joint)
            if met is None or ir.is_nothing(value) or ir.is_nothing(emitter.name(met, declared)):
                continue
            narrower = Free(group, met, free.wanted | 1 << index, value)
            if (met, value) == (free.names, free.value):
                found[place] = (narrower, joint)
            else:
                found.append((narrower, joint))
    return [free for free, _ in found]


def _widest(variants: Iterable[tuple[int, _Part]], missing: int) -> list[tuple[int, _Part]]:
    """The variants, less those that are no more of the missing members than another that is fewer of all."""
    kept = list(variants)
    if len(kept) == 1:
        return [(kept[0][0] & missing, kept[0][1])]
    return [
        (wanted & missing, part)
        for wanted, part in kept
        if not any(
            other != wanted and other & ~wanted == 0 and other & missing == wanted & missing
            for other, _ in kept
        )
    ]


def free_members(found: Members, missing: int) -> list[Free]:
    """The other members by which of the ``missing`` wanted ones they are."""
    kept: list[Free] = []
    for group in dict.fromkeys(each.group for each in found.free):
        variants = _widest(((each.wanted, each) for each in found.free if each.group == group), missing)
        kept.extend(each._replace(wanted=wanted) for wanted, each in variants)
    return kept


@cache
def flags(wanted: int) -> frozenset[int]:
    """The flags of a bag that stand for wanted members."""
    return frozenset(bit for bit in range(ir.MAX_WANTED) if wanted >> bit & 1)


def repeated_names_matter(found: Members, missing: int, least: int) -> bool:
    """Whether free members must differ in their names.

    Args:
        missing: wanted members that one of the free ones may have to be.
        least: how many members there must be beside those that are certain: more than one name must differ.
    """
    return least > 1 or any(member.wanted & missing for member in found.free)


def bag(
    emitter: Emitter,
    found: Members,
    least: int,
    most: int | None,
    *,
    slots: Iterable[int],
    missing: int,
    distinct: bool,
) -> ir.Node:
    """Declared properties and other members in any order, between ``least`` and ``most`` of them.

    Args:
        slots: which declared properties; required ones among them must be there.
        missing: the wanted members that must be among them.
        distinct: no two of the free members have the same name.
    """
    entries: list[ir.Entry] = []
    needed: list[int] = []
    for own, slot in ((ir.MAX_WANTED + index, found.slots[index]) for index in slots):
        if slot.required:
            needed.append(own)
        if found.wanted:
            variants = _widest(slot.variants, missing)
            entries.extend(ir.Entry(node, own=own, flags=flags(wanted)) for wanted, node in variants)
        else:
            entries.append(ir.Entry(slot.variants[0][1], own=own))
    free = free_members(found, missing)
    if distinct:
        most = _add_distinct(emitter, found._replace(free=tuple(free)), entries, missing, most)
    else:
        entries.extend(
            ir.Entry(node, flags=flags(each.wanted))
            for each, node in zip(free, free_nodes(emitter, found, free), strict=True)
        )
    return bags.settled(entries, emitter.layout.comma, flags(missing).union(needed), least, most)


def _add_distinct(
    emitter: Emitter, found: Members, entries: list[ir.Entry], missing: int, most: int | None
) -> int | None:
    """Add the free members, each name at most once; how many members there can be then, at most ``most``."""
    few = _few_names(found)
    for own, name in enumerate(few, ir.MAX_WANTED + len(found.slots)):
        for each in found.free:
            if string_sets.accepts(each.names, name):
                node = emitter.layout.member(name, each.value)
                entries.append(ir.Entry(node, own=own, flags=flags(each.wanted)))
    stand_once = len({entry.own for entry in entries})
    taken = (*(slot.name for slot in found.slots), *few)
    counts: list[int] = []
    for each in found.free:
        key = emitter.name(each.names, taken, plain=True)
        if key == ir.NOTHING:
            continue
        rest = ir.sequence(emitter.layout.colon, each.value)
        entries.append(ir.Entry(key, rest, flags=flags(each.wanted), distinct=True))
        count = canonical.string_count(each.names)
        if count is None:
            counts.append(UNLIMITED)
            continue
        counts.append(count - sum(string_sets.accepts(each.names, name) for name in taken))
        if each.wanted & missing:  # as long as another member may come, one of these names is left
            most = counts[-1] if most is None else min(most, counts[-1])
    there_are = stand_once + max(counts, default=0)
    if there_are >= UNLIMITED:
        return most
    return there_are if most is None else min(most, there_are)


def _few_names(found: Members) -> list[str]:
    """The names of the classes that have only a few, declared ones left out."""
    declared = {slot.name for slot in found.slots}
    names: dict[str, None] = {}
    for each in found.free:
        names.update(dict.fromkeys(canonical.string_values(each.names, limits.MAX_FEW_NAMES) or ()))
    return [name for name in names if name not in declared]


def free_nodes(emitter: Emitter, found: Members, free: Iterable[Free]) -> list[ir.Node]:
    """The texts of other members."""
    declared = tuple(slot.name for slot in found.slots)
    return [
        ir.sequence(emitter.name(each.names, declared), emitter.layout.colon, each.value) for each in free
    ]
