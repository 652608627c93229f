"""The normal form of a schema: for each JSON type, a union of shapes.

A schema says nothing about how the types hang together, so it is a union of seven independent sets: the
three words, numbers, strings, arrays and objects. Sub-schemas are *terms*: numbers of entries in the
:class:`~.terms.Terms` table, which are normalised only when somebody asks; recursion passes through them.
"""

from __future__ import annotations

from typing import NamedTuple

from vllm_guided.frontends.json_schema import numbers as number_sets
from vllm_guided.frontends.json_schema import strings as string_sets
from vllm_guided.frontends.json_schema.numbers import Numbers
from vllm_guided.frontends.json_schema.strings import Strings

Term = int
EVERYTHING: Term = 0
"""The term of ``true``."""
NOTHING: Term = 1
"""The term of ``false``."""

NULL, FALSE, TRUE = 1, 2, 4
"""Bits of the words in :attr:`Norm.words`."""


class Contains(NamedTuple):
    """Between ``minimum`` and ``maximum`` items at index ``offset`` and later are of ``term``."""

    term: Term
    minimum: int = 1
    maximum: int | None = None
    offset: int = 0


class Arrays(NamedTuple):
    """Arrays whose items are of ``prefix`` and then of ``rest``.

    All differ if ``unique``; two are equal if ``repeated``.

    ``evaluated`` is what ``unevaluatedItems`` asks about (only kept where it is asked): the items below
    this index were looked at, ``None`` means all; ``matched`` are the contains terms that count too.
    """

    prefix: tuple[Term, ...] = ()
    rest: Term = EVERYTHING
    minimum: int = 0
    maximum: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: bool = False
    evaluated: int | None = 0
    matched: tuple[Term, ...] = ()
    repeated: bool = False


class Member(NamedTuple):
    """At least one member has a name in ``names`` and a value of ``term``."""

    names: Strings
    term: Term


class Objects(NamedTuple):
    """Objects by what each name may hold.

    Attributes:
        properties: declared names in order, each with the term of its value (NOTHING: may not be there).
        required: names that must be there; each is in ``properties``.
        others: for every other name the classes of names allowed, with the term of their values. Two
            classes that overlap have the same term. A name in no class is not allowed.
        minimum, maximum: how many members.
        some: members that must exist.
        runs: how many properties each ``properties`` keyword has brought, one after the other; only within
            one does the order count. Empty: one run.
        unordered: required names that no ``properties`` declares; they stand anywhere among the others.
        evaluated_names, evaluated_others: what ``unevaluatedProperties`` asks about, kept only where asked.
    """

    properties: tuple[tuple[str, Term], ...] = ()
    required: frozenset[str] = frozenset()
    others: tuple[tuple[Strings, Term], ...] = ((string_sets.ANY, EVERYTHING),)
    minimum: int = 0
    maximum: int | None = None
    some: tuple[Member, ...] = ()
    unordered: frozenset[str] = frozenset()
    runs: tuple[int, ...] = ()
    evaluated_names: frozenset[str] = frozenset()
    evaluated_others: tuple[Strings, ...] = ()


class Norm(NamedTuple):
    """A set of JSON values."""

    words: int = 0
    numbers: tuple[Numbers, ...] = ()
    strings: tuple[Strings, ...] = ()
    arrays: tuple[Arrays, ...] = ()
    objects: tuple[Objects, ...] = ()


ANY_NUMBERS = (number_sets.ANY,)
ANY_STRINGS = (string_sets.ANY,)
ANY_ARRAYS = (Arrays(),)
ANY_OBJECTS = (Objects(),)
ANY = Norm(NULL | FALSE | TRUE, ANY_NUMBERS, ANY_STRINGS, ANY_ARRAYS, ANY_OBJECTS)
EMPTY = Norm()
