"""Arrays whose items all differ: ``uniqueItems``.

In: an :class:`~.shapes.Arrays`. Out: an IR node. Over a short list of values, each is an entry that stands
once, in every spelling it has. Other items are written in one way each (:mod:`.canonical_emitter`) and
compared as texts; an array of one item is not held to that. How many different items there are bounds the
length, so that no array runs out of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm_guided.errors import UnsupportedConstraint
from vllm_guided.frontends import bags
from vllm_guided.frontends.json_schema import limits
from vllm_guided.frontends.json_schema.few_texts import FewTexts, Texts
from vllm_guided.frontends.json_schema.shapes import Arrays, Contains, Norm, Term
from vllm_guided.frontends.json_schema.single_values import listed
from vllm_guided.grammar import ir

if TYPE_CHECKING:
    from vllm_guided.frontends.json_schema.algebra import Algebra
    from vllm_guided.frontends.json_schema.emitter import Emitter

_MAX_CONTAINS = 3


def unique_items(emitter: Emitter, shape: Arrays, length: int, least: int, most: int | None) -> ir.Node:
    """At least one item, all different.

    Args:
        length: how many items of the prefix there can be.
        least, most: bounds of the length, which is more than one at most.

    Raises:
        UnsupportedConstraint: contains counts above one; or the items of a tuple may use each other up.
    """
    contains = tuple(item for item in shape.contains if item.minimum > 0 or item.maximum is not None)
    if contains and (length or any(item[1:] != (1, None, 0) for item in contains)):
        raise UnsupportedConstraint(
            "uniqueItems: together with minContains, maxContains or contains beside a tuple; leave one out"
        )
    if len(contains) > _MAX_CONTAINS:
        raise UnsupportedConstraint("uniqueItems: together with so many contains; leave some out")
    values = None if length else listed(emitter.algebra, shape.rest, limits.MAX_LISTED_ITEMS)
    if values is not None:
        return _from_list(emitter, values, contains, least, most)
    return _from_texts(emitter, shape, length, contains, least, most)


def with_repeats(algebra: Algebra, shapes: tuple[Arrays, ...]) -> list[Arrays]:
    """The shapes, those with two equal items as shapes that contain one value twice.

    They come from where uniqueItems is negated. Beyond a few values that is no language of an automaton: such
    shapes are left out beside others.

    Raises:
        UnsupportedConstraint: there are no others.
    """
    found: list[Arrays] = []
    for shape in shapes:
        if not shape.repeated:
            found.append(shape)
            continue
        term = algebra.terms.either((*shape.prefix, shape.rest))
        for spelt in listed(algebra, term, limits.MAX_REPEATED_ITEMS) or ():
            value = algebra.terms.either(map(algebra.terms.norm, spelt))
            twice = (*shape.contains, Contains(value, 2))
            found.append(shape._replace(repeated=False, contains=twice))
    if shapes and not found:
        raise UnsupportedConstraint("uniqueItems cannot be negated but over a few values; keep it out of not")
    return found


def _variants(
    emitter: Emitter, term: Term, contains: tuple[Contains, ...]
) -> list[tuple[frozenset[int], ir.Node]]:
    """The values of a term by which contains they fulfil; those that fulfil more are among the others too."""
    variants = []
    for chosen in range(1 << len(contains)):
        flags = frozenset(index for index in range(len(contains)) if chosen >> index & 1)
        parts = [term, *(contains[index].term for index in sorted(flags))]
        node = emitter.value(emitter.algebra.terms.both(parts))
        if not ir.is_nothing(node):
            variants.append((flags, node))
    return variants


def _from_list(
    emitter: Emitter,
    values: list[list[Norm]],
    contains: tuple[Contains, ...],
    least: int,
    most: int | None,
) -> ir.Node:
    entries = [
        ir.Entry(node, own=ir.MAX_WANTED + index, flags=flags)
        for index, spelt in enumerate(values)
        for norm in spelt
        for flags, node in _variants(emitter, emitter.algebra.terms.norm(norm), contains)
    ]
    required = frozenset(range(len(contains)))
    return bags.settled(entries, emitter.layout.comma, required, max(least, 1), most)


def _from_texts(
    emitter: Emitter,
    shape: Arrays,
    length: int,
    contains: tuple[Contains, ...],
    least: int,
    most: int | None,
) -> ir.Node:
    writer = emitter.canonical()
    prefix = [writer.value(term) for term in shape.prefix[:length]]
    rest = _variants(writer, shape.rest, contains) if most is None or most > length else []
    if ir.NOTHING in prefix or (not rest and (most is None or most > length)):
        raise UnsupportedConstraint("uniqueItems: over numbers that differ only in how they are spelt")

    def build(few: FewTexts) -> ir.Node:
        flags = frozenset(range(len(contains)))
        terms = (*shape.prefix[:length], shape.rest)
        return _distinct(emitter, few, terms, prefix, rest, flags, max(least, 1), most)

    body = writer.later(build)
    first = shape.prefix[0] if length else shape.rest
    norm = emitter.algebra.norm(first)
    if writer is emitter or contains or least > 1 or not (norm.arrays or norm.objects):
        return body
    return ir.choice(emitter.value(first), body)


def _distinct(
    emitter: Emitter,
    few: FewTexts,
    terms: tuple[Term, ...],
    prefix: list[ir.Node],
    rest: list[tuple[frozenset[int], ir.Node]],
    required: frozenset[int],
    least: int,
    most: int | None,
) -> ir.Node:
    length = len(prefix)
    sets = [few.of(node) for node in prefix]
    others = few.of(rest[0][1]) if rest else frozenset[bytes]()
    spent = 0 if others is None or not rest else _met(emitter, terms, [*sets, others], length)
    scarce = any(
        here is not None and len(here) <= _met(emitter, terms, sets, index)
        for index, here in enumerate(sets)
        if index and (most is None or index < most)
    )
    if spent or scarce:
        values = None if others is None else _all_scalars([*sets, others])
        if values is not None and len(values) <= limits.MAX_SHARED_ITEMS:
            return _by_sets(emitter, sets, others or frozenset(), least, most)
        if scarce:
            raise UnsupportedConstraint(
                "uniqueItems: items of this tuple may use up what others need; make their sets disjoint"
            )
    if others is not None and rest:
        there_are = length + max(len(others) - spent, 0)
        if spent and least > there_are:
            raise UnsupportedConstraint(
                "uniqueItems: the tuple may use up items that minItems needs; make their sets disjoint"
            )
        most = there_are if most is None else min(most, there_are)
    entries = [ir.Entry(node, distinct=True, first=i, last=i) for i, node in enumerate(prefix)]
    entries.extend(ir.Entry(node, flags=flags, distinct=True, first=length) for flags, node in rest)
    return bags.settled(entries, emitter.layout.comma, required, least, most)


def _met(emitter: Emitter, terms: tuple[Term, ...], sets: list[Texts | None], index: int) -> int:
    """How many of the items before ``index`` may be one that fits there."""
    here, count = sets[index], 0
    for term, before in zip(terms[:index], sets[:index], strict=True):
        if before is not None and here is not None:
            count += not before.isdisjoint(here)
        else:
            count += not emitter.algebra.is_empty(emitter.algebra.terms.both((term, terms[index])))
    return count


def _all_scalars(sets: list[Texts | None]) -> Texts | None:
    """The union of finite sets of words, numbers and strings; ``None`` if they are not that."""
    found: Texts = frozenset()
    for each in sets:
        if each is None:
            return None
        found |= each
    return None if any(text[:1] in (b"[", b"{") for text in found) else found


def _by_sets(
    emitter: Emitter, sets: list[Texts | None], others: Texts, least: int, most: int | None
) -> ir.Node:
    """A tuple whose items may use each other up: a graph whose nodes are the index and the items used."""
    longest = len(sets) + len(others) if most is None else most
    ends = _ends(sets, others, least, longest)
    nodes: dict[tuple[int, Texts], int] = {(0, frozenset()): 0}
    queue = [(0, frozenset[bytes]())]
    edges: list[tuple[int, ir.Node, int]] = []
    accepting: set[int] = set()
    for index, used in queue:  # grows while it is read
        source = nodes[(index, used)]
        if index >= least:
            accepting.add(source)
        for text in sorted((sets[index] if index < len(sets) else others) or ()):
            after = (index + 1, used | {text})
            if index >= longest or text in used or not ends(*after):
                continue
            if after not in nodes:
                nodes[after] = len(nodes)
                queue.append(after)
            label = ir.text(text) if index == 0 else ir.sequence(emitter.layout.comma, ir.text(text))
            edges.append((source, label, nodes[after]))
    return ir.Graph(tuple(edges), frozenset(accepting)) if accepting else ir.NOTHING


def _ends(sets: list[Texts | None], others: Texts, least: int, longest: int) -> Callable[[int, Texts], bool]:
    """A function that says whether an array can be brought to its least length from an index on."""
    known: dict[tuple[int, Texts], bool] = {}

    def ends(index: int, used: Texts) -> bool:
        if index >= least:
            return True
        key = (index, used)
        if key not in known:
            here = (sets[index] if index < len(sets) else others) or frozenset()
            known[key] = index < longest and any(ends(index + 1, used | {text}) for text in here - used)
        return known[key]

    return ends
