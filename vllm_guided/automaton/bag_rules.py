"""Bags as rules: an ``ir.Bag`` whose nodes have become rules, and what the analysis of rules sees of it."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from vllm_guided.automaton.labels import CALL, EPSILON


class Member(NamedTuple):
    """An entry of a bag (``ir.Entry``) with rules for its nodes.

    ``rest`` is -1 where nothing follows or where ``rule`` holds it already; ``own`` is a number below the
    bag's ``groups`` or -1; ``wanted`` has a bit for each wanted flag that is set; ``last`` -1: no limit.
    """

    rule: int
    rest: int
    own: int
    wanted: int
    distinct: bool
    first: int
    last: int


@dataclass(slots=True)
class BagRule:
    """``rule`` stands for an ``ir.Bag``.

    Attributes:
        members: sorted by ``own``, those without one last.
        groups: how many different own flags there are; required: those that must be set.
        wanted: a bit for each flag that must be set and is nobody's own.
    """

    rule: int
    separator: int
    members: list[Member]
    groups: int
    required: frozenset[int]
    wanted: int
    minimum: int
    maximum: int | None


def write_bag_states(
    bag: BagRule, start: int, accept: int, edges: array[int], new_state: Callable[[], int]
) -> None:
    """Edges from ``start`` to ``accept``: nullable, productive and calling from the left as the bag is.

    They are not the bag: nothing but the analysis of the rules looks at them.
    """
    if bag.minimum == 0 and not bag.required and not bag.wanted:
        edges.extend((start, EPSILON, accept))
    here = new_state()

    def member(source: int, member: Member, target: int) -> None:
        if member.rest >= 0:
            between = new_state()
            edges.extend((source, CALL | member.rule, between, between, CALL | member.rest, target))
        else:
            edges.extend((source, CALL | member.rule, target))

    for each in bag.members:
        member(start, each, here)
    edges.extend((here, CALL | bag.separator, start))
    asked = [[each for each in bag.members if each.own == own] for own in sorted(bag.required)]
    asked += [
        [each for each in bag.members if each.wanted >> flag & 1] for flag in range(bag.wanted.bit_length())
    ]
    for able in asked:
        there = new_state()
        for each in able:
            member(here, each, there)
        here = there
    edges.extend((here, EPSILON, accept))
