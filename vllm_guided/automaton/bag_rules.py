"""Bags as rules: an ``ir.Bag`` whose nodes have become rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


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


@dataclass(slots=True)
class PlainBag:
    """The bag of a JSON object's members: each declared one at most once, and others without a limit.

    All members derive something. ``members`` are the rules of declared ones, whose places are their own
    flags; ``other``: that of all others, or -1; at least one member must be there.
    """

    rule: int
    separator: int
    members: list[int]
    other: int
    required: frozenset[int]
