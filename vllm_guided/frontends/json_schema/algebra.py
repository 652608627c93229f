"""Intersection, union, difference and emptiness of sets of JSON values.

In: terms. Out: their normal forms (:class:`~.shapes.Norm`), each computed once. Types are independent, and
each type is a union of shapes, so an intersection is pairwise, a union is a list, and a difference takes
away one shape at a time, by De Morgan, from those shapes it meets. What is plainly empty is dropped at
once; what is empty only deep inside is found when the grammar is complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint
from vllm_guided.frontends.json_schema import array_sets, limits, object_sets
from vllm_guided.frontends.json_schema import numbers as number_sets
from vllm_guided.frontends.json_schema import strings as string_sets
from vllm_guided.frontends.json_schema.documents import Place
from vllm_guided.frontends.json_schema.numbers import Numbers
from vllm_guided.frontends.json_schema.shapes import (
    ANY,
    EMPTY,
    EVERYTHING,
    NOTHING,
    Arrays,
    Norm,
    Objects,
    Term,
)
from vllm_guided.frontends.json_schema.strings import Strings
from vllm_guided.frontends.json_schema.terms import InProgress, Terms

_WHOLE = (ANY.numbers[0], ANY.strings[0], ANY.arrays[0], ANY.objects[0])
Shape = TypeVar("Shape", Numbers, Strings, Arrays, Objects)


class Algebra:
    """The sets of one compile.

    Args:
        read: turns one place of the schema into its normal form (``keywords.read``); its last argument
            says whether evaluated members and items are to be kept for ``unevaluated...``.
    """

    def __init__(self, read: Callable[[Algebra, Place, bool], Norm], closed_objects: bool = False) -> None:
        self.terms = Terms()
        self.closed_objects = closed_objects
        self._read = read
        self._norms: dict[tuple[Term, bool], Norm] = {(EVERYTHING, False): ANY, (NOTHING, False): EMPTY}
        self._active: set[tuple[Term, bool]] = set()
        self._empty: dict[Term, bool] = {EVERYTHING: False, NOTHING: True}
        # By identity, with the tuples themselves so that they keep it.
        self._by_name: dict[int, tuple[tuple[tuple[str, Term], ...], dict[str, Term]]] = {}
        self._depth = 0
        self._floor = 0
        self._steps = 0
        self._began = time.thread_time()

    # Terms to normal forms

    def norm(self, term: Term, annotate: bool = False) -> Norm:
        """The normal form of ``term``.

        Raises:
            InvalidConstraint: the schema is wrong, or refers to itself without going into the value.
            UnsupportedConstraint: it cannot be honoured exactly.
            ConstraintTooComplex: a budget ran out.
        """
        key = (term, annotate)
        found = self._norms.get(key)
        if found is not None:
            return found
        if term in (EVERYTHING, NOTHING):
            return self._norms[(term, False)]
        if key in self._active:
            raise InProgress
        if len(self._active) - self._floor > limits.MAX_IN_PLACE_DEPTH:
            raise ConstraintTooComplex(
                "allOf, anyOf, $ref and the like are nested too deeply at one place",
                where=self.terms.pointer(term),
            )
        self._active.add(key)
        try:
            found = self._compute(term, annotate)
        finally:
            self._active.discard(key)
        self._norms[key] = found
        return found

    def top(self, term: Term) -> Norm:
        """As :meth:`norm`, with an endless reference as an error of the schema."""
        try:
            return self.norm(term)
        except InProgress:
            raise InvalidConstraint(
                "the schema refers to itself without going into an array or object",
                where=self.terms.pointer(term),
            ) from None

    def _compute(self, term: Term, annotate: bool) -> Norm:
        entry = self.terms.entries[term]
        if entry.kind == "place":
            assert entry.place is not None
            return self._read(self, entry.place, annotate)
        if entry.kind == "constant":
            from vllm_guided.frontends.json_schema.constants import constant_norm

            assert entry.place is not None
            return constant_norm(self, entry.constant, entry.place)
        if entry.kind == "norm":
            assert entry.norm is not None
            return entry.norm
        parts = [self.norm(part) for part in entry.parts]
        try:
            if entry.kind == "not":
                return self.difference(ANY, parts[0])
            result = parts[0]
            for part in parts[1:]:
                result = self.intersection(result, part) if entry.kind == "and" else self.union(result, part)
            return result
        except GrammarError as error:
            raise self.located(error, self.terms.pointer(term)) from None

    def located(self, error: GrammarError, pointer: str) -> GrammarError:
        """``error``, with a place if it has none yet."""
        return error if error.where else type(error)(error.message, where=pointer)

    def is_empty(self, term: Term) -> bool:
        """Whether nothing is in ``term`` as far as a look of bounded depth says; ``False`` if unsure."""
        found = self._empty.get(term)
        if found is not None:
            return found
        if self._depth >= limits.MAX_EMPTINESS_DEPTH:
            return False
        self._depth += 1
        floor, self._floor = self._floor, len(self._active)
        try:
            found = self.norm(term) == EMPTY
        except InProgress:
            return False
        finally:
            self._depth -= 1
            self._floor = floor
        self._empty[term] = found
        return found

    def by_name(self, properties: tuple[tuple[str, Term], ...]) -> Mapping[str, Term]:
        """The properties of a shape as a mapping, made once."""
        found = self._by_name.get(id(properties))
        if found is None:
            found = self._by_name[id(properties)] = properties, dict(properties)
        return found[1]

    def step(self) -> None:
        """Count one operation against the budget."""
        self._steps += 1
        if self._steps % 64 == 0:
            self.check_time()
        if self._steps > limits.MAX_STEPS:
            raise ConstraintTooComplex(
                "allOf, anyOf, oneOf and not multiply out to too many alternatives; simplify the schema"
            )

    def check_time(self) -> None:
        """Refuse to go on when the time is over."""
        if time.thread_time() - self._began > limits.MAX_SECONDS:
            raise ConstraintTooComplex(
                f"the schema takes more than {limits.MAX_SECONDS:g} seconds to compile; simplify it",
                passing=True,
            )

    def _pairs(
        self, left: tuple[Shape, ...], right: tuple[Shape, ...], meet: Callable[[Shape, Shape], Shape | None]
    ) -> tuple[Shape, ...]:
        if len(left) == 1 and left[0] in _WHOLE:
            return right
        if len(right) == 1 and right[0] in _WHOLE:
            return left
        found: dict[Shape, None] = {}
        for a in left:
            for b in right:
                self.step()
                both = meet(a, b)
                if both is not None:
                    found[both] = None
        if len(found) > limits.MAX_ALTERNATIVES:
            raise ConstraintTooComplex("allOf, anyOf, oneOf and not multiply out to too many alternatives")
        return tuple(found)

    def _meet_objects(self, left: Objects, right: Objects) -> Objects | None:
        return object_sets.intersect(self, left, right)

    def _meet_arrays(self, left: Arrays, right: Arrays) -> Arrays | None:
        return array_sets.intersect(self, left, right)

    def _outside_objects(self, shape: Objects) -> list[Objects]:
        return object_sets.complement(self, shape)

    def _outside_arrays(self, shape: Arrays) -> list[Arrays]:
        return array_sets.complement(self, shape)

    @staticmethod
    def _meet_strings(left: Strings, right: Strings) -> Strings | None:
        both = string_sets.intersect(left, right)
        if both is None or both in (left, right):
            return both
        return None if string_sets.is_empty(both) else both

    def intersection(self, left: Norm, right: Norm) -> Norm:
        """The values in both."""
        if left in (ANY, right):
            return right
        if right == ANY:
            return left
        return Norm(
            left.words & right.words,
            self._pairs(left.numbers, right.numbers, number_sets.intersect),
            self._pairs(left.strings, right.strings, self._meet_strings),
            self._pairs(left.arrays, right.arrays, self._meet_arrays),
            self._pairs(left.objects, right.objects, self._meet_objects),
        )

    def union(self, left: Norm, right: Norm) -> Norm:
        """The values in either."""
        if right == EMPTY or left == right:
            return left
        if left == EMPTY:
            return right
        return Norm(
            left.words | right.words,
            _joined(left.numbers, right.numbers, ANY.numbers),
            _merged_finite(_joined(left.strings, right.strings, ANY.strings)),
            _joined(left.arrays, right.arrays, ANY.arrays),
            _joined(left.objects, right.objects, ANY.objects),
        )

    def difference(self, left: Norm, right: Norm) -> Norm:
        """The values in ``left`` that are not in ``right``."""
        return Norm(
            left.words & ~right.words,
            self._without(left.numbers, right.numbers, number_sets.intersect, number_sets.complement),
            self._without(left.strings, right.strings, self._meet_strings, string_sets.complement),
            self._without(left.arrays, right.arrays, self._meet_arrays, self._outside_arrays),
            self._without(
                left.objects,
                right.objects,
                self._meet_objects,
                self._outside_objects,
            ),
        )

    def _without(
        self,
        left: tuple[Shape, ...],
        right: tuple[Shape, ...],
        meet: Callable[[Shape, Shape], Shape | None],
        outside: Callable[[Shape], list[Shape]],
    ) -> tuple[Shape, ...]:
        for shape in right:
            if not left:
                break
            touched = [self._touch(item, shape, meet) for item in left]
            if not any(touched):
                continue
            rest = tuple(outside(shape))
            kept: dict[Shape, None] = {}
            for item, touches in zip(left, touched, strict=True):
                if touches:
                    kept.update(dict.fromkeys(self._pairs((item,), rest, meet)))
                else:
                    kept[item] = None
            if len(kept) > limits.MAX_ALTERNATIVES:
                raise ConstraintTooComplex("oneOf and not multiply out to too many alternatives")
            left = tuple(kept)
        return left

    def _touch(self, left: Shape, right: Shape, meet: Callable[[Shape, Shape], Shape | None]) -> bool:
        self.step()
        both_objects = isinstance(left, Objects) and isinstance(right, Objects)
        if both_objects and object_sets.plainly_disjoint(self, left, right):  # type: ignore[arg-type]
            return False
        return meet(left, right) is not None


def _joined(left: tuple[Shape, ...], right: tuple[Shape, ...], every: tuple[Shape, ...]) -> tuple[Shape, ...]:
    if not left or left == right:
        return right
    if not right:
        return left
    if left == every or right == every:
        return every
    return tuple(dict.fromkeys(left + right))


def _merged_finite(strings: tuple[Strings, ...]) -> tuple[Strings, ...]:
    finite = [shape for shape in strings if shape.finite is not None]
    if len(finite) < 2:
        return strings
    values = dict.fromkeys(value for shape in finite for value in shape.finite or ())
    return (Strings(finite=tuple(values)), *(shape for shape in strings if shape.finite is None))
