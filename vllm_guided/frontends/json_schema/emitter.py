"""From normal forms to the rules of a grammar.

In: the term of the whole schema. Out: an :class:`~vllm_guided.grammar.ir.Grammar`. Every distinct
set of values is written once; arrays and objects become rules of their own (so recursion ends), string
bodies and numbers become shared rules. A last pass finds rules that nothing satisfies, which only a
cycle can hide until then.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends.json_schema import limits
from vllm_guided.frontends.json_schema import numbers as number_sets
from vllm_guided.frontends.json_schema.algebra import Algebra
from vllm_guided.frontends.json_schema.array_text import array_node
from vllm_guided.frontends.json_schema.array_unique import with_repeats
from vllm_guided.frontends.json_schema.decimals import decimal
from vllm_guided.frontends.json_schema.documents import Place
from vllm_guided.frontends.json_schema.generic import add_generic
from vllm_guided.frontends.json_schema.layout import Layout
from vllm_guided.frontends.json_schema.names import RULES, name_node
from vllm_guided.frontends.json_schema.number_text import number_node
from vllm_guided.frontends.json_schema.numbers import ANY_FORM, DIGITS, NOT_DIGITS, Numbers
from vllm_guided.frontends.json_schema.object_text import object_node
from vllm_guided.frontends.json_schema.plain import NotPlain, Plain
from vllm_guided.frontends.json_schema.productivity import references, unproductive, without_dead
from vllm_guided.frontends.json_schema.shapes import (
    ANY,
    ANY_ARRAYS,
    ANY_NUMBERS,
    ANY_OBJECTS,
    ANY_STRINGS,
    EMPTY,
    FALSE,
    NULL,
    TRUE,
    Arrays,
    Norm,
    Objects,
    Term,
)
from vllm_guided.frontends.json_schema.string_text import string_node, united_node
from vllm_guided.frontends.json_schema.strings import Strings
from vllm_guided.grammar import ir
from vllm_guided.grammar.expansion import expanded_rule
from vllm_guided.grammar.json_rules import JSON_RULES, JsonRule, json_references

if TYPE_CHECKING:
    from vllm_guided.frontends.json_schema.canonical_emitter import CanonicalEmitter

WORDS = ((NULL, ir.text("null")), (FALSE, ir.text("false")), (TRUE, ir.text("true")))
Leaves = dict[int, tuple[str, ir.Rule]]
INLINE = 8
"""Finite sets up to this size stand where they are used."""


class Emitter:
    """Writes the rules of one grammar.

    Args:
        any_order: members of objects stand in any order; otherwise declared ones first, in their order.
        prefix: of the names of the rules that only this grammar has.
        leaves: rules for strings and numbers that other grammars of the same text have, by the identity of
            their bodies; new ones are added.
        whole_as_digits: where only whole numbers may stand, they are written as digits, never as ``1.0``.
    """

    def __init__(
        self,
        algebra: Algebra,
        layout: Layout,
        any_order: bool = False,
        whole_as_digits: bool = False,
        prefix: str = "",
        leaves: Leaves | None = None,
    ) -> None:
        self.algebra = algebra
        self.layout = layout
        self.any_order = any_order
        self.whole_as_digits = whole_as_digits
        self.prefix = prefix
        self.leaves = leaves
        self.shuffled = 0  # states that went into properties whose schemas say nothing of their order
        self.rules: dict[str, ir.Rule] = dict(layout.rules)
        self.places: dict[str, Term | None] = {}
        self._certain: set[str] = set()
        self._by_term: dict[Term, ir.Node] = {}
        self._by_norm: dict[Norm, ir.Node] = {}
        self._by_shape: dict[object, ir.Node] = {}
        self._queue: deque[tuple[str, Emitter, Arrays | Objects]] = deque()
        self._canonical: CanonicalEmitter | None = None
        self.plain: Plain | None = None  # what writes plain places, if anything does
        self._place: Term | None = None  # where the rules that are made belong; None: the root
        self._count = 0

    # Terms and sets

    def value(self, term: Term) -> ir.Node:
        """The texts of a term's values; ``ir.NOTHING`` where it is plainly empty."""
        found = self._by_term.get(term)
        if found is None:
            before, self._place = self._place, term
            try:
                place = self.algebra.terms.entries[term].place if self.plain is not None else None
                if place is not None:
                    found = self.plain.node(place)  # type: ignore[union-attr]
                if found is None:
                    found = self.norm_node(self.algebra.top(term))
            except GrammarError as error:
                raise self.algebra.located(error, self._pointer(term)) from None
            finally:
                self._place = before
            self._by_term[term] = found
        return found

    def _pointer(self, term: Term | None) -> str:
        return "#" if term is None else self.algebra.terms.pointer(term)

    def norm_node(self, norm: Norm) -> ir.Node:
        """The texts of a set of values."""
        found = self._by_norm.get(norm)
        if found is None:
            found = self._by_norm[norm] = self._compute(norm)
        return found

    def _compute(self, norm: Norm) -> ir.Node:
        if norm == ANY:
            return self.generic("value")
        options: list[ir.Node] = []
        for bit, word in WORDS:
            if norm.words & bit:
                options.append(word)
        if norm.numbers:
            options.extend(self._numbers(norm))
        if norm.strings == ANY_STRINGS:
            options.append(self.generic("string"))
        elif norm.strings:
            options.extend(self._string_sets(norm.strings))
        if norm.arrays == ANY_ARRAYS:
            options.append(self.generic("array"))
        elif norm.arrays:
            options.extend(self._arrays(norm.arrays))
        if norm.objects == ANY_OBJECTS:
            options.append(self.generic("object"))
        else:
            options.extend(self._shape("object", shape) for shape in norm.objects)
        kept = [option for option in options if not ir.is_nothing(option)]
        node = ir.choice(*kept)
        if len(kept) > INLINE:
            node = self.rule("choice", node, shared=False)
        return node

    def canonical(self) -> CanonicalEmitter:
        """What writes each value in one way, into the same grammar."""
        from vllm_guided.frontends.json_schema.canonical_emitter import CanonicalEmitter

        if self._canonical is None:
            self._canonical = CanonicalEmitter(self)
        return self._canonical

    def generic(self, name: str) -> ir.Node:
        """Any JSON value, array, object, string or number."""
        if name not in self.rules:
            add_generic(self.rules, self.layout, name)
        return ir.Ref(name)

    def name(self, names: Strings, declared: tuple[str, ...], plain: bool = False) -> ir.Node:
        """The quoted member names of a class, less the declared ones; with ``plain`` in one spelling each."""
        key = ("name", names, declared, plain)
        found = self._by_shape.get(key)
        if found is None:
            if names == Strings() and not declared and not plain:
                found = self.generic("string")
            else:
                node = name_node(names, declared, plain)
                found = node if ir.is_nothing(node) else self.rule("name", node, shared=not declared)
                if names == Strings() and isinstance(found, ir.Ref):
                    self._certain.add(found.name)
                    self.rules.update(RULES[plain])
            self._by_shape[key] = found
        return found

    def rule(self, kind: str, body: ir.Node, shared: bool) -> ir.Node:
        """A rule of its own for ``body``; a ``shared`` one has a text."""
        if shared and self.leaves is not None and (found := self.leaves.get(id(body))) is not None:
            self.rules[found[0]] = found[1]
            return ir.Ref(found[0])
        name = self.fresh(kind)
        rule = self.rules[name] = ir.Rule(body, shared)
        if shared and self.leaves is not None:
            self.leaves[id(body)] = name, rule
        self.places[name] = self._place
        return ir.Ref(name)

    def fresh(self, kind: str) -> str:
        self._count += 1
        if self._count > limits.MAX_RULES:
            raise ConstraintTooComplex(f"the schema needs more than {limits.MAX_RULES} rules")
        return f"{self.prefix}{kind}_{self._count}"

    # Scalars

    def _numbers(self, norm: Norm) -> list[ir.Node]:
        if norm.numbers == ANY_NUMBERS:
            return [self.generic("number")]
        points: dict[bytes, None] = {}
        options: list[ir.Node] = []
        for numbers in norm.numbers:
            if self.whole_as_digits and numbers.form == ANY_FORM and isinstance(numbers.multiple, int):
                numbers = numbers._replace(form=DIGITS)
            if numbers.low is not None and numbers.low == numbers.high and numbers.form != NOT_DIGITS:
                points.update(dict.fromkeys(_point_texts(numbers)))
                continue
            found = self._by_shape.get(numbers)
            if found is None:
                node = number_node(numbers)
                kind = "integer" if numbers.multiple == 1 else "number"
                found = node if ir.is_nothing(node) else self.rule(kind, node, shared=True)
                self._by_shape[numbers] = found
            options.append(found)
        options.extend(ir.text(point) for point in points)
        return options

    def _string_sets(self, sets: tuple[Strings, ...]) -> list[ir.Node]:
        """A node for each set; those with the same bounded length and more conditions become one."""
        if len(sets) == 1:
            return [self._strings(sets[0])]
        groups: dict[object, list[Strings]] = {}
        for strings in sets:
            bounded = (strings.minimum or strings.maximum is not None) and strings.positive + strings.negative
            key = (strings.minimum, strings.maximum) if bounded else strings
            groups.setdefault(key, []).append(strings)
        nodes: list[ir.Node] = []
        for group in groups.values():
            if len(group) == 1:
                nodes.append(self._strings(group[0]))
                continue
            known = tuple(group)
            if known not in self._by_shape:
                node = united_node(group)
                found = node if ir.is_nothing(node) else self.rule("string", node, shared=True)
                self._by_shape[known] = found
            nodes.append(self._by_shape[known])
        return nodes

    def _strings(self, strings: Strings) -> ir.Node:
        found = self._by_shape.get(strings)
        if found is None:
            node = string_node(strings)
            if ir.is_nothing(node) or (strings.finite is not None and len(strings.finite) <= INLINE):
                found = node
            else:
                found = self.rule("string", node, shared=strings.finite is None)
            self._by_shape[strings] = found
        return found

    # Containers

    def _arrays(self, shapes: tuple[Arrays, ...]) -> list[ir.Node]:
        return [self._shape("array", shape) for shape in with_repeats(self.algebra, shapes)]

    def _shape(self, kind: str, shape: Arrays | Objects) -> ir.Node:
        found = self._by_shape.get(shape)
        if found is None:
            name = self.fresh(kind)
            found = self._by_shape[shape] = ir.Ref(name)
            self.rules[name] = ir.Rule(ir.NOTHING)
            self.places[name] = self._place
            self._queue.append((name, self, shape))
        return found

    def _body(self, name: str, shape: Arrays | Objects) -> ir.Node:
        if self.plain is not None and (whole := self.plain.shape(shape)) is not None:
            return whole
        return object_node(self, shape) if isinstance(shape, Objects) else array_node(self, shape)

    def close(self) -> None:
        """Let go of what refers back to this object, so that all is freed without a collector."""
        self._queue.clear()
        if self.plain is not None:
            self.plain.close()
        if self._canonical is not None:
            self._canonical.close()
            self._canonical = None

    def grammar(self, place: Place) -> ir.Grammar:
        """The whole grammar of the schema at ``place``, from the rule ``start``.

        Raises:
            InvalidConstraint: nothing satisfies the schema.
        """
        start = f"{self.prefix}start"
        value = self.plain.node(place) if self.plain is not None else None
        whole = self.algebra.terms.place(place) if value is None else None
        if whole is not None:
            value = self.value(whole)
        assert value is not None
        self.rules[start] = ir.Rule((self.plain and self.plain.choice(value)) or value)
        self.places[start] = None
        while self._queue:
            name, writer, shape = self._queue.popleft()
            if len(self._queue) % 16 == 0:
                self.algebra.check_time()
            self._place = self.places[name]
            try:
                self.rules[name] = ir.Rule(writer._body(name, shape))
            except GrammarError as error:
                raise self.algebra.located(error, self._pointer(self._place)) from None
        if self._canonical is not None:
            self._canonical.finish()
        if type(value) is ir.Ref and type(self.rules[value.name].body) in JSON_RULES:
            self.rules[start] = self.rules[value.name]
        elif whole is not None and self.algebra.top(whole) == EMPTY:
            raise InvalidConstraint("unsatisfiable: no JSON value fits", where="#")
        self._check(start)
        return ir.Grammar(self.rules, start)

    def _check(self, start: str) -> None:
        """Refuse a grammar without a text."""
        dead = unproductive(self.rules, self._certain)
        if start in dead and self.plain is not None and self.plain.used:
            raise NotPlain  # the general way knows which place it is
        if start in dead:
            if self._canonical is not None and self._canonical.narrowed:
                raise UnsupportedConstraint(
                    "uniqueItems: objects in such an array have at most one member that is not declared",
                    where=self._culprit(start, dead),
                )
            raise InvalidConstraint(
                "unsatisfiable: no JSON value fits what is required here", where=self._culprit(start, dead)
            )
        if dead:
            live = self.rules.keys() - dead
            for name in dead:
                self.rules[name] = ir.Rule(ir.NOTHING)
            for name in live:
                rule = self.rules[name]
                body = rule.body
                if isinstance(body, JsonRule):
                    if dead.isdisjoint(json_references(body)):
                        continue
                    body = expanded_rule(body)
                self.rules[name] = ir.Rule(without_dead(body, live), rule.shared)

    def _culprit(self, start: str, dead: set[str]) -> str:
        """The deepest place that keeps the start from having a text."""
        name, seen = start, {start}
        while True:
            dead_ones = (other for other in references(self.rules[name].body) if other in dead)
            following = next((other for other in dead_ones if other not in seen), None)
            if following is None:
                return self._pointer(self.places.get(name))
            name = following
            seen.add(name)


def _point_texts(numbers: Numbers) -> list[bytes]:
    """The usual texts of one number."""
    value = numbers.low
    assert value is not None
    texts: list[str] = []
    if isinstance(value, int):
        texts.append(str(value))
        if value == 0:
            texts.append("-0")
        if numbers.form != DIGITS:
            texts.extend([f"{value}.0"] + (["-0.0"] if value == 0 else []))
    elif numbers.form != DIGITS:
        plain = decimal(abs(value), True)
        texts.append(f"{'-' if value < 0 else ''}{plain.whole}.{plain.fraction}")
    if numbers.form != DIGITS:
        try:
            approximate = float(value)
        except OverflowError:
            approximate = 0.0
        if number_sets.exact(approximate) == value and abs(approximate) != float("inf"):
            texts.append(repr(approximate))
    return [text.encode() for text in dict.fromkeys(texts)]
