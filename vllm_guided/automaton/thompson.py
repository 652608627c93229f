"""A program's rules as nondeterministic automata (Thompson's construction).

All rules share one numbering of states and one list of edges ``(source, label, target)`` (``labels.py``).
A repetition whose copies would be many becomes a *counter*: a rule without states of its own that calls
its body between ``minimum`` and ``maximum`` times.

Everything works on a list of pending pieces instead of recursion, so deep input costs no call stack.
"""

# Compiled functions have numba signatures instead of annotations, and numba's rules for integers.
# mypy: allow-untyped-defs, disable-error-code="assignment,operator"

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.automaton.inlining import UNROLL_LIMIT
from vllm_guided.automaton.labels import CALL, EPSILON, TOKEN
from vllm_guided.automaton.program import (
    CALLED,
    CHOICE,
    GRAPH,
    LITERAL,
    REF,
    REPEAT,
    SEQUENCE,
    SET,
)
from vllm_guided.numba_setup import jit

_ints = types.int32[::1]
_longs = types.int64[::1]
_bools = types.boolean[::1]
_table = types.int32[:, ::1]

#: No constraint may have more edges than this before it is made deterministic.
EDGE_LIMIT = 2_000_000

#: Columns of the table of rules: the first state, start and accepting state (-1: none); the rule of the
#: program (-1: an item that is repeated, -2: a counter); counted rule (-1: none), least, most (-1: any).
FIRST, START, ACCEPT, ORIGIN, BODY, MINIMUM, MAXIMUM = range(7)


@jit(_ints(_ints, types.int64))
def _with_room(values, size):
    if values.size >= size:
        return values
    grown = np.empty(max(2 * values.size, size), np.int32)
    grown[: values.size] = values
    return grown


@jit(types.int64(_ints, types.int64, types.int64, types.int64, types.int64))
def _edge(edges, count, source, label, target):
    edges[count] = source
    edges[count + 1] = label
    edges[count + 2] = target
    return count + 3


@jit(types.int64(types.int64, types.int64, _table, _ints, _ints, _longs))
def _rule(rule, at, table, number_of, body_at, counts):
    """The number of a rule of the program (or, for ``rule`` -1, of the item at ``at``), new if need be."""
    if rule >= 0 and number_of[rule] >= 0:
        return np.int64(number_of[rule])
    number = counts[0]
    counts[0] += 1
    table[number, :] = -1
    table[number, ORIGIN] = rule
    body_at[number] = at
    if rule >= 0:
        number_of[rule] = number
    return number


@jit(types.Tuple((_ints, _table, types.int64))(
    _ints, _ints, _longs, _bools, types.uint8[::1], _ints, _ints, _ints, _ints, types.boolean, _ints,
))  # fmt: skip
def thompson(ops, end, size, inline, blob, begins, set_offsets, set_inner, set_edges, use_counters, needed):
    """The automata of rule 0 and all that it calls.

    Args:
        use_counters: False writes every repetition out.
        needed: further rules that are wanted, with all that they call.

    Returns:
        edges ``source, label, target`` flattened; the table of rules, one row each, in the order in which
        they were met; the number of states, or -1 where ``EDGE_LIMIT`` was passed.
    """
    repeats = 0
    for at in range(ops.size):
        repeats += ops[at] == REPEAT  # an upper bound: other numbers look like it
    table = np.empty((begins.size + 2 * repeats + 1, 7), np.int32)
    body_at = np.empty(table.shape[0], np.int32)
    number_of = np.full(begins.size, -1, np.int32)
    counter_at = np.full(ops.size, -1, np.int32)
    edges = np.empty(1024, np.int32)
    stack = np.empty(256, np.int32)
    used = 0
    states = 0
    counts = np.zeros(1, np.int64)  # of rules
    _rule(0, begins[0], table, number_of, body_at, counts)
    for rule in needed:
        _rule(np.int64(rule), begins[rule], table, number_of, body_at, counts)
    r = 0
    while r < counts[0]:
        table[r, FIRST] = states
        if body_at[r] < 0:
            r += 1
            continue
        table[r, START] = states
        table[r, ACCEPT] = states + 1
        stack[0] = body_at[r]
        stack[1] = states
        stack[2] = states + 1
        states += 2
        held = 3
        while held > 0:
            held -= 3
            at = np.int64(stack[held])
            source = np.int64(stack[held + 1])
            target = np.int64(stack[held + 2])
            kind = ops[at]
            if used > 3 * EDGE_LIMIT or states > 2 * EDGE_LIMIT:
                return edges, table, -1
            if kind == LITERAL:
                length = np.int64(ops[at + 2])
                edges = _with_room(edges, used + 3 * length + 3)
                first = np.int64(ops[at + 1])
                if length == 0:
                    used = _edge(edges, used, source, EPSILON, target)
                for i in range(length):
                    byte = np.int64(blob[first + i])
                    there = target
                    if i < length - 1:
                        there = states
                        states += 1
                    used = _edge(edges, used, source, byte | byte << 8, there)
                    source = there
            elif kind == SEQUENCE:
                parts = np.int64(ops[at + 1])
                stack = _with_room(stack, held + 3 * parts)
                if parts == 0:
                    edges = _with_room(edges, used + 3)
                    used = _edge(edges, used, source, EPSILON, target)
                part = at + 2
                for i in range(parts):
                    there = target
                    if i < parts - 1:
                        there = states
                        states += 1
                    _edge(stack, held, part, source, there)
                    held += 3
                    source = there
                    part = np.int64(end[part])
            elif kind == CHOICE:
                parts = np.int64(ops[at + 1])
                stack = _with_room(stack, held + 3 * parts)
                part = at + 2
                for _ in range(parts):
                    _edge(stack, held, part, source, target)
                    held += 3
                    part = np.int64(end[part])
            elif kind in (REF, CALLED):
                rule = ops[at + 1]
                if kind == REF and inline[rule]:
                    stack = _with_room(stack, held + 3)
                    _edge(stack, held, begins[rule], source, target)
                    held += 3
                else:
                    number = _rule(rule, begins[rule], table, number_of, body_at, counts)
                    edges = _with_room(edges, used + 3)
                    used = _edge(edges, used, source, CALL | number, target)
            elif kind == SET:
                low, high = set_offsets[ops[at + 1]], set_offsets[ops[at + 1] + 1]
                edges = _with_room(edges, used + high - low)
                for i in range(low, high, 3):
                    tail = np.int64(set_edges[i])
                    head = np.int64(set_edges[i + 2])
                    tail = source if tail == 0 else target if tail == 1 else states + tail - 2
                    head = source if head == 0 else target if head == 1 else states + head - 2
                    used = _edge(edges, used, tail, set_edges[i + 1], head)
                states += set_inner[ops[at + 1]]
            elif kind == REPEAT:
                minimum, maximum, item = np.int64(ops[at + 1]), np.int64(ops[at + 2]), at + 3
                copies = minimum if maximum < 0 else maximum
                if use_counters and copies > 1 and copies * size[item] > UNROLL_LIMIT:
                    number = np.int64(counter_at[at])
                    if number < 0:
                        rule = np.int64(-1)
                        place = item
                        if ops[item] in (REF, CALLED):
                            rule = np.int64(ops[item + 1])
                            place = np.int64(begins[rule])
                        body = _rule(rule, place, table, number_of, body_at, counts)
                        number = _rule(-2, -1, table, number_of, body_at, counts)
                        table[number, BODY] = body
                        table[number, MINIMUM] = minimum
                        table[number, MAXIMUM] = maximum
                        counter_at[at] = number
                    edges = _with_room(edges, used + 3)
                    used = _edge(edges, used, source, CALL | number, target)
                    continue
                if copies > EDGE_LIMIT:
                    return edges, table, -1
                most = minimum if maximum < 0 else maximum
                stack = _with_room(stack, held + 3 * most + 3)
                edges = _with_room(edges, used + 3 * (most - minimum) + 6)
                for i in range(most):
                    if i >= minimum:
                        used = _edge(edges, used, source, EPSILON, target)
                    _edge(stack, held, item, source, states)
                    held += 3
                    source = states
                    states += 1
                if maximum < 0:
                    loop = states
                    states += 1
                    used = _edge(edges, used, source, EPSILON, loop)
                    used = _edge(edges, used, loop, EPSILON, target)
                    _edge(stack, held, item, loop, loop)
                    held += 3
                else:
                    used = _edge(edges, used, source, EPSILON, target)
            elif kind == GRAPH:
                parts, triples = np.int64(ops[at + 1]), at + 6 + ops[at + 4]
                stack = _with_room(stack, held + 3 * parts)
                edges = _with_room(edges, used + 3 + 3 * ops[at + 4])
                used = _edge(edges, used, source, EPSILON, states + ops[at + 3])
                for i in range(ops[at + 4]):
                    used = _edge(edges, used, states + ops[at + 6 + i], EPSILON, target)
                places = np.empty(ops[at + 5], np.int32)
                part = triples + 3 * parts
                for i in range(places.size):
                    places[i] = part
                    part = np.int64(end[part])
                for k in range(triples, triples + 3 * parts, 3):
                    _edge(stack, held, places[ops[k + 1]], states + ops[k], states + ops[k + 2])
                    held += 3
                states += ops[at + 2]
            else:
                edges = _with_room(edges, used + 3)
                used = _edge(edges, used, source, TOKEN | ops[at + 1], target)
        r += 1
    return edges[:used].copy(), table[: counts[0]].copy(), states
