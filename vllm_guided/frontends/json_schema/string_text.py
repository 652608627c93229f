"""The JSON texts of a set of strings, quotes included.

In: one :class:`~.strings.Strings`. Out: an IR node. A length alone is a counter; a pattern alone goes
through the regex frontend; everything else is an automaton over characters whose labels are spelt as
JSON (:mod:`.spelling`). A length that a pattern does not imply is a counter too where the pattern ends in one
repeated class, and is multiplied into the automaton otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from vllm_guided.bounded import bounded_cache
from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.json_schema import formats, limits, patterns, spelling
from vllm_guided.frontends.json_schema.strings import Strings, small_automaton, unbounded_automaton
from vllm_guided.frontends.regex import CharDfa
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


@bounded_cache(4096, 8 << 20)
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
            return quoted(patterns.node(str(value), encode))
        if kind == "format" and formats.is_one_pattern(str(value)):
            return quoted(patterns.node(formats.pattern(str(value)), _usual_spelling))
    automaton, minimum, maximum = None, strings.minimum, strings.maximum
    if maximum is not None:
        small = small_automaton(strings)
        if small is not None and (small[1] is None or minimum <= small[1]):
            automaton = small[0]
            maximum = maximum if small[1] is None else min(maximum, small[1])
    if automaton is None:
        automaton = unbounded_automaton(strings)
    if any(kind == "format" for kind, _ in strings.positive):
        plain = True
    return quoted(_with_length(automaton, minimum, maximum, plain))


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
    named = f"minLength {minimum}" if minimum else f"maxLength {maximum}"
    # Shorter strings need fewer states: where they are too many, the longest strings are left out.
    while True:
        node, reached = _unrolled(automaton, minimum, maximum, plain)
        if node is not None:
            return node
        if maximum is None or reached - 1 < max(minimum, automaton.minimum_length() or 0):
            raise ConstraintTooComplex(
                f"{named} together with the pattern needs too large an automaton; "
                "write the length into the pattern or lower it"
            )
        maximum = min(reached, maximum) - 1


def _unrolled(
    automaton: CharDfa, minimum: int, maximum: int | None, plain: bool
) -> tuple[ir.Node | None, int]:
    """The automaton with the length so far in its states (up to the minimum, if there is no maximum).

    ``None`` and the length that was reached, where that is beyond the budget.
    """
    outgoing, members = _outgoing(automaton), automaton.partition.members()
    to_accept = _distances(automaton, outgoing)
    counted = minimum if maximum is None else maximum
    encode = _usual_spelling if plain or counted > 32 else _every_spelling
    # By state: the targets that can accept, how far they are from that, and which label leads there.
    kinds: dict[tuple[int, ...], int] = {}
    moves = [
        [
            (target, to_accept[target], kinds.setdefault(tuple(classes), len(kinds)))
            for target, classes in targets.items()
            if target in to_accept
        ]
        for targets in outgoing
    ]
    kind_classes = list(kinds)
    labels: list[tuple[ir.Node, int] | None] = [None] * len(kinds)
    nodes: dict[tuple[int, int], int] = {(0, 0): 0}
    queue = [(0, 0)]
    edges: list[tuple[int, ir.Node, int]] = []
    accepting: set[int] = set()
    total, needed = 0, 2 if maximum is None else 1  # without a maximum nothing can be left out
    most_bytes, most_edges = needed * limits.LENGTH_BYTES, needed * limits.LENGTH_EDGES
    for here, (state, length) in enumerate(queue):  # grows while it is read
        if length >= minimum and state in automaton.accepting:
            accepting.add(here)
        after = length + 1 if maximum is not None else min(length + 1, minimum)
        for target, distance, kind in moves[state]:
            if maximum is not None and after + distance > maximum:
                continue
            label = labels[kind]
            if label is None:
                node = _label(members, list(kind_classes[kind]), encode)
                label = labels[kind] = node, _weight(node)
            following = target, after
            there = nodes.get(following)
            if there is None:
                there = nodes[following] = len(nodes)
                queue.append(following)
            edges.append((here, label[0], there))
            total += label[1]
        if total > most_bytes or len(edges) > most_edges:
            return None, after
    return (ir.Graph(tuple(edges), frozenset(accepting)) if accepting else ir.NOTHING), counted


def _weight(node: ir.Node) -> int:
    """About how many byte transitions a label has."""
    match node:
        case ir.CharSet(ranges):
            return sum(1 if high < 0x80 else 6 for _, high in ranges)
        case ir.Sequence(items):
            return sum(_weight(item) for item in items)
        case ir.Choice(options):
            return sum(_weight(option) for option in options)
        case _:
            return 1


def _outgoing(automaton: CharDfa) -> list[dict[int, list[int]]]:
    """For each state, the classes by target."""
    outgoing: list[dict[int, list[int]]] = []
    for row in automaton.rows:
        targets: dict[int, list[int]] = {}
        for label, target in enumerate(row):
            if target >= 0:
                targets.setdefault(target, []).append(label)
        outgoing.append(targets)
    return outgoing


def _distances(automaton: CharDfa, outgoing: list[dict[int, list[int]]]) -> dict[int, int]:
    """How many characters each state is away from acceptance."""
    incoming: dict[int, list[int]] = {}
    for state, targets in enumerate(outgoing):
        for target in targets:
            incoming.setdefault(target, []).append(state)
    found = dict.fromkeys(automaton.accepting, 0)
    queue = list(found)
    for state in queue:  # grows while it is read
        for source in incoming.get(state, ()):
            if source not in found:
                found[source] = found[state] + 1
                queue.append(source)
    return found


def _label(members: Sequence[Iterable[tuple[int, int]]], classes: list[int], encode: Encoder) -> ir.Node:
    found = ir.char_set(span for label in classes for span in members[label])
    return encode(found.ranges) if isinstance(found, ir.CharSet) else ir.NOTHING


def _counted_tail(automaton: CharDfa, minimum: int, maximum: int | None, plain: bool) -> ir.Node | None:
    """Where nothing but a state's only, last loop repeats: a graph by length whose loops are counters.

    ``ir.NOTHING`` where no text has such a length.
    """
    members, outgoing = automaton.partition.members(), _outgoing(automaton)
    order = _order_without_loops(outgoing)
    if order is None:
        return None
    encode = _usual_spelling if plain else _every_spelling

    nodes: dict[tuple[int, int], int] = {(0, 0): 0}
    queue = [(0, 0)]
    edges: list[tuple[int, ir.Node, int]] = []
    accepting: set[int] = set()
    end = -1
    while queue:
        state, length = queue.pop()
        here = nodes[(state, length)]
        fits = length >= minimum and (maximum is None or length <= maximum)
        if state in outgoing[state]:
            if state in automaton.accepting and (maximum is None or length <= maximum):
                most = None if maximum is None else maximum - length
                again = _label(members, outgoing[state][state], encode)
                edges.append((here, ir.Repeat(again, max(minimum - length, 0), most), end))
            continue
        if fits and state in automaton.accepting:
            accepting.add(here)
        for target, labels in outgoing[state].items():
            key = (target, length + 1)
            if key not in nodes:
                nodes[key] = len(nodes)
                queue.append(key)
                if len(nodes) > limits.COUNTED_STATES:
                    return None
            edges.append((here, _label(members, labels, encode), nodes[key]))
    if not accepting and all(target != end for _, _, target in edges):
        return ir.NOTHING
    last = len(nodes)
    accepting.add(last)
    moved = [(source, label, last if target == end else target) for source, label, target in edges]
    return ir.Graph(tuple(moved), frozenset(accepting))


def _order_without_loops(outgoing: list[dict[int, list[int]]]) -> list[int] | None:
    """The states in topological order; ``None`` if a cycle is more than a state that only repeats itself."""
    incoming = [0] * len(outgoing)
    for state, targets in enumerate(outgoing):
        if state in targets and len(targets) > 1:
            return None
        for target in targets:
            incoming[target] += target != state
    order = [state for state, count in enumerate(incoming) if count == 0]
    for state in order:
        for target in outgoing[state]:
            if target != state:
                incoming[target] -= 1
                if incoming[target] == 0:
                    order.append(target)
    return order if len(order) == len(outgoing) else None
