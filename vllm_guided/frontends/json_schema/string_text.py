"""The JSON texts of a set of strings, quotes included.

In: one :class:`~.strings.Strings`. Out: an IR node. A length alone is a counter; a pattern alone goes
through the regex frontend; everything else is an automaton over characters whose labels are spelt as
JSON (:mod:`.spelling`). A length that a pattern does not imply is a counter too where the pattern ends in one
repeated class, and is multiplied into the automaton otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.json_schema import formats, limits, spelling
from vllm_guided.frontends.json_schema.strings import Strings, short_automaton, unbounded_automaton
from vllm_guided.frontends.regex import CharDfa, regex_node
from vllm_guided.grammar import ir

_QUOTE = ir.text('"')
Encoder = Callable[[spelling.Ranges], ir.Node]


def _every_spelling(ranges: tuple[tuple[int, int], ...]) -> ir.Node:
    return spelling.encode(tuple(ranges))


def _usual_spelling(ranges: tuple[tuple[int, int], ...]) -> ir.Node:
    return spelling.encode_plain(tuple(ranges))


def quoted(body: ir.Node) -> ir.Node:
    """``body`` between quotes."""
    return ir.sequence(_QUOTE, body, _QUOTE) if body != ir.NOTHING else ir.NOTHING


@lru_cache(maxsize=4096)
def string_node(strings: Strings, plain: bool = False) -> ir.Node:
    """The texts of the set; with ``plain`` each in its usual spelling only; ``ir.NOTHING`` if it is empty.

    Raises:
        ConstraintTooComplex: an automaton is beyond its budget.
    """
    if strings.finite is not None:
        return ir.choice(*(ir.text(spelling.literal(value)) for value in strings.finite))
    if not strings.positive and not strings.negative:
        character = spelling.ANY_PLAIN_CHARACTER if plain else spelling.ANY_CHARACTER
        return quoted(ir.Repeat(character, strings.minimum, strings.maximum))
    unbounded = strings.minimum == 0 and strings.maximum is None
    if unbounded and not strings.negative and len(strings.positive) == 1:
        kind, value = strings.positive[0]
        encode = _usual_spelling if plain else _every_spelling
        if kind == "pattern":
            return quoted(regex_node(str(value), dialect="ecma", search=True, encode=encode))
        if kind == "format" and formats.is_one_pattern(str(value)):
            pattern = formats.pattern(str(value))
            return quoted(regex_node(pattern, dialect="ecma", search=True, encode=_usual_spelling))
    automaton = None
    if strings.maximum is not None and strings.minimum <= formats.SHORT:
        automaton = short_automaton(strings)
    if automaton is not None:
        strings = strings._replace(maximum=min(strings.maximum or 0, formats.SHORT))
    else:
        automaton = unbounded_automaton(strings)
    if any(kind == "format" for kind, _ in strings.positive):
        plain = True
    return quoted(_with_length(automaton, strings.minimum, strings.maximum, plain))


def united_node(sets: list[Strings]) -> ir.Node:
    """The texts of several sets with the same length bounds, which are multiplied in once."""
    automaton = unbounded_automaton(sets[0])
    for strings in sets[1:]:
        automaton = automaton.union(unbounded_automaton(strings))
    plain = any(kind == "format" for strings in sets for kind, _ in strings.positive)
    return quoted(_with_length(automaton, sets[0].minimum, sets[0].maximum, plain))


def automaton_node(automaton: CharDfa, plain: bool) -> ir.Node:
    """The body of the strings an automaton accepts."""
    edges = sum(1 for row in automaton.rows for target in row if target >= 0)
    encode = _usual_spelling if plain or edges > limits.SPELLED_EDGES else _every_spelling
    return automaton.to_node(encode)


def _with_length(automaton: CharDfa, minimum: int, maximum: int | None, plain: bool) -> ir.Node:
    if automaton.is_empty():
        return ir.NOTHING
    if minimum <= (automaton.minimum_length() or 0):
        minimum = 0
    longest = automaton.maximum_length()
    if longest is not None and (maximum is None or longest <= maximum):
        maximum = None
    if minimum == 0 and maximum is None:
        return automaton_node(automaton, plain)
    if maximum is not None and maximum < minimum:
        return ir.NOTHING
    counted = _counted_tail(automaton, minimum, maximum, plain)
    if counted is not None:
        return counted
    states = len(automaton.rows)
    most = min(max(limits.LENGTH_STATES // states, 64), limits.MAX_STRING_STATES // states)
    if minimum * states > limits.MAX_STRING_STATES:
        raise ConstraintTooComplex(
            f"minLength {minimum} together with the pattern needs too large an automaton; "
            "write the length into the pattern or lower it"
        )
    if maximum is not None:
        maximum = min(maximum, max(most, minimum))
    return automaton_node(automaton.with_length(minimum, maximum), plain)


def _counted_tail(automaton: CharDfa, minimum: int, maximum: int | None, plain: bool) -> ir.Node | None:
    """A chain of single edges into one state that repeats a class: its length is a counter."""
    members = automaton.partition.members()
    labels: list[ir.Node] = []
    state, seen = 0, {0}
    encode = _usual_spelling if plain else _every_spelling
    while True:
        targets: dict[int, list[int]] = {}
        for label, target in enumerate(automaton.rows[state]):
            if target >= 0:
                targets.setdefault(target, []).append(label)
        if len(targets) != 1:
            return None
        target, classes = next(iter(targets.items()))
        found = ir.char_set(span for label in classes for span in members[label])
        label_node = encode(found.ranges) if isinstance(found, ir.CharSet) else ir.NOTHING
        if target == state:
            break
        if target in seen:
            return None
        labels.append(label_node)
        seen.add(target)
        state = target
    edges: list[tuple[int, ir.Node, int]] = [(i, label, i + 1) for i, label in enumerate(labels)]
    length = len(labels)
    order = _chain_order(automaton, length)
    accepting = {
        position
        for position, where in enumerate(order[:-1])
        if where in automaton.accepting and minimum <= position and (maximum is None or position <= maximum)
    }
    if order[-1] in automaton.accepting and (maximum is None or maximum >= length):
        rest = None if maximum is None else maximum - length
        edges.append((length, ir.Repeat(label_node, max(0, minimum - length), rest), length + 1))
        accepting.add(length + 1)
    return ir.Graph(tuple(edges), frozenset(accepting)) if accepting else ir.NOTHING


def _chain_order(automaton: CharDfa, length: int) -> list[int]:
    order = [0]
    for _ in range(length):
        order.append(next(target for target in automaton.rows[order[-1]] if target >= 0))
    return order
