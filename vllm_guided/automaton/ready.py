"""Automata of rules that need no construction: JSON objects, arrays, members, names and choices of texts.

In: a few numbers for each rule, as :mod:`.ready_rules` writes them. Out: deterministic automata in the form
that :mod:`.determinise` has for all others.

=========== =======================================================================================
OBJECT      bag, blanks (-1: none), whether it may be empty
LIST        opening byte, closing byte, item or member (-1: none), blanks, least (0 or 1)
MEMBER      where its name begins in ``blob``, length of the name, blanks, value
OTHER       number of names, blanks, value, name's rest, name's beginning beyond ASCII, and of each declared
            name, in ascending order, where it begins (without quotes) and its length
ANY_NAME    blanks, value, any string
VALUE       number of texts, number of rules, beginning and length of each text in ascending order, the rules
ORDERED     blanks, whether it may be empty, other member (-1: none), number of names, and of each name where
            it begins, its length, the value and whether it must be there (:mod:`.ready_order`)
=========== =======================================================================================

Rules are numbers of the program's rules.
"""

# Compiled functions have numba signatures instead of annotations, and numba's rules for integers.
# mypy: allow-untyped-defs, disable-error-code="assignment,operator"

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.automaton.labels import CALL, TAIL
from vllm_guided.automaton.ready_moves import bytes_move, move, state_ends, value_states
from vllm_guided.automaton.ready_order import ordered_size, write_ordered
from vllm_guided.numba_setup import jit

OBJECT, LIST, MEMBER, OTHER, ANY_NAME, VALUE, ORDERED = range(7)

_ints = types.int32[::1]
_bytes = types.uint8[::1]
_longs = types.int64[::1]

QUOTE, COMMA, BACKSLASH, OPEN, CLOSE = 0x22, 0x2C, 0x5C, 0x7B, 0x7D
FIRST_ASCII, LAST_ASCII = 0x20, 0x7F


@jit(types.UniTuple(types.int64, 2)(types.int64, _ints, _bytes))
def ready_size(at, ops, blob):
    """At least how much room the rule at ``at`` needs: of states, and of moves."""
    kind = ops[at]
    if kind == ORDERED:
        return ordered_size(at, ops, blob)
    if kind == MEMBER:
        return np.int64(ops[at + 2]) + 8, np.int64(ops[at + 2]) + 16
    if kind in (OTHER, VALUE):
        names = np.int64(ops[at + 1])
        first = at + 6 if kind == OTHER else at + 3
        total = np.int64(0)
        for i in range(names):
            total += ops[first + 2 * i + 1]
        if kind == OTHER:
            return total + 10, 3 * total + 6 * (total + 10)
        return total + 4, total + ops[at + 2] + 4
    return np.int64(10), np.int64(32)


@jit(types.void(_longs, types.int64, _ints, types.int64, _ints, _ints, _ints, _bytes))
def _object(counts, at, ops, base, edge_offsets, labels, targets, accepting):
    blanks = ops[at + 2] >= 0
    empty = ops[at + 3] != 0
    bag = CALL | (1 if blanks else 0)
    end = 5 if blanks else 3
    bytes_move(counts, OPEN, OPEN, 1, labels, targets)
    state_ends(counts, False, base, edge_offsets, accepting)
    after = 3 if blanks else 2
    for turn in range(2 if blanks else 1):
        if empty:
            bytes_move(counts, CLOSE, CLOSE, end, labels, targets)
        if blanks and turn == 0:
            move(counts, CALL, 2, labels, targets)
        move(counts, bag, after, labels, targets)
        state_ends(counts, False, base, edge_offsets, accepting)
    for turn in range(2 if blanks else 1):
        bytes_move(counts, CLOSE, CLOSE, end, labels, targets)
        if blanks and turn == 0:
            move(counts, CALL, 4, labels, targets)
        state_ends(counts, False, base, edge_offsets, accepting)
    state_ends(counts, True, base, edge_offsets, accepting)


@jit(types.void(_longs, types.int64, _ints, types.int64, _ints, _ints, _ints, _bytes))
def _list(counts, at, ops, base, edge_offsets, labels, targets, accepting):
    opening, closing = np.int64(ops[at + 1]), np.int64(ops[at + 2])
    some = ops[at + 3] >= 0
    blanks = ops[at + 4] >= 0
    least = ops[at + 5]
    turns = 2 if blanks else 1
    item = CALL | (1 if blanks else 0)
    # Behind: the opening bracket, an item, a comma; each with and without blanks; the end.
    first_item, first_comma = 1 + turns, 1 + 2 * turns
    end = 1 + 3 * turns if some else 1 + turns
    bytes_move(counts, opening, opening, 1, labels, targets)
    state_ends(counts, False, base, edge_offsets, accepting)
    for turn in range(turns):
        if least == 0:
            bytes_move(counts, closing, closing, end, labels, targets)
        if blanks and turn == 0:
            move(counts, CALL, 2, labels, targets)
        if some:
            move(counts, item, first_item, labels, targets)
        state_ends(counts, False, base, edge_offsets, accepting)
    if some:
        for turn in range(turns):
            bytes_move(counts, COMMA, COMMA, first_comma, labels, targets)
            bytes_move(counts, closing, closing, end, labels, targets)
            if blanks and turn == 0:
                move(counts, CALL, first_item + 1, labels, targets)
            state_ends(counts, False, base, edge_offsets, accepting)
        for turn in range(turns):
            if blanks and turn == 0:
                move(counts, CALL, first_comma + 1, labels, targets)
            move(counts, item, first_item, labels, targets)
            state_ends(counts, False, base, edge_offsets, accepting)
    state_ends(counts, True, base, edge_offsets, accepting)


@jit(types.int64(types.int64, types.int64, types.int64, types.int64, _ints, _bytes))
def _group_end(i, past, depth, texts, ops, blob):
    """The end of the texts that have the same byte at ``depth`` as text ``i``."""
    byte = blob[ops[texts + 2 * i] + depth]
    j = i + 1
    while j < past and blob[ops[texts + 2 * j] + depth] == byte:
        j += 1
    return j


@jit(types.void(_longs, types.int64, _ints, _bytes, types.int64, _ints, _ints, _ints, _bytes))
def _other(counts, at, ops, blob, base, edge_offsets, labels, targets, accepting):
    """Any name but some, and its value: the trie of the names, left at the first other character."""
    names = np.int64(ops[at + 1])
    blanks = ops[at + 2] >= 0
    texts = at + 6
    beyond, rest = CALL | 0, CALL | 1
    # The start, what follows the name, a free name's rest, a declared name's end, and the trie.
    behind = 1
    free = 5 if blanks else 3
    leaf = free + 1
    total = np.int64(0)
    for i in range(names):
        total += ops[texts + 2 * i + 1]
    # Of each state of the trie the texts that go through it, and how long they are there.
    node = np.empty((total + 2, 3), np.int32)
    node[0, 0], node[0, 1], node[0, 2] = 0, names, 0
    known = np.int64(1)
    bytes_move(counts, QUOTE, QUOTE, leaf + 1, labels, targets)
    state_ends(counts, False, base, edge_offsets, accepting)
    value_states(
        counts, 2 if blanks else -1, 3 if blanks else 2, TAIL, base, edge_offsets, labels, targets, accepting
    )
    move(counts, rest, behind, labels, targets)
    state_ends(counts, False, base, edge_offsets, accepting)
    for which in range(-1, total + 1):
        if which >= known:
            break
        depth = np.int64(0)
        i = np.int64(0)
        past = np.int64(0)
        terminal = True
        if which >= 0:
            i, past, depth = np.int64(node[which, 0]), np.int64(node[which, 1]), np.int64(node[which, 2])
            terminal = ops[texts + 2 * i + 1] == depth
            if terminal:
                i += 1
        byte = np.int64(FIRST_ASCII)
        while True:
            child = np.int64(256)
            if i < past:
                child = np.int64(blob[ops[texts + 2 * i] + depth])
            stop = child
            if byte <= QUOTE < stop:
                stop = np.int64(QUOTE)
            if byte <= BACKSLASH < stop:
                stop = np.int64(BACKSLASH)
            if stop == 256:
                bytes_move(counts, byte, LAST_ASCII, free, labels, targets)
                break
            bytes_move(counts, byte, stop - 1, free, labels, targets)
            byte = stop + 1
            if stop == child:
                j = _group_end(i, past, depth, texts, ops, blob)
                target = np.int64(leaf)
                if j > i + 1 or ops[texts + 2 * i + 1] > depth + 1:
                    node[known, 0], node[known, 1], node[known, 2] = i, j, depth + 1
                    target = leaf + 1 + known
                    known += 1
                bytes_move(counts, stop, stop, target, labels, targets)
                i = j
            elif stop == QUOTE and not terminal:
                bytes_move(counts, QUOTE, QUOTE, behind, labels, targets)
        move(counts, beyond, behind, labels, targets)
        state_ends(counts, False, base, edge_offsets, accepting)


@jit(types.void(_longs, types.int64, _ints, _bytes, types.int64, _ints, _ints, _ints, _bytes))
def _value(counts, at, ops, blob, base, edge_offsets, labels, targets, accepting):
    """Texts, and calls from the start: state 1 is where a text ends that is no beginning of another."""
    count, rules = np.int64(ops[at + 1]), np.int64(ops[at + 2])
    texts = at + 3
    total = np.int64(0)
    for i in range(count):
        total += ops[texts + 2 * i + 1]
    node = np.empty((total + 2, 3), np.int32)
    node[0, 0], node[0, 1], node[0, 2] = 0, count, 0
    known = np.int64(1)
    which = 0
    while which < known:
        i, past, depth = np.int64(node[which, 0]), np.int64(node[which, 1]), np.int64(node[which, 2])
        terminal = i < past and ops[texts + 2 * i + 1] == depth
        if terminal:
            i += 1
        while i < past:
            byte = np.int64(blob[ops[texts + 2 * i] + depth])
            j = _group_end(i, past, depth, texts, ops, blob)
            target = np.int64(1)
            if j > i + 1 or ops[texts + 2 * i + 1] > depth + 1:
                node[known, 0], node[known, 1], node[known, 2] = i, j, depth + 1
                target = known + 1
                known += 1
            bytes_move(counts, byte, byte, target, labels, targets)
            i = j
        if which == 0:
            for k in range(rules):
                move(counts, CALL | k, TAIL, labels, targets)
        state_ends(counts, terminal, base, edge_offsets, accepting)
        if which == 0 and count > 0:
            state_ends(counts, True, base, edge_offsets, accepting)
        which += 1


@jit(types.int64(_ints, types.int64, types.int64, _ints))
def _callee(callees, used, rule, number_of):
    callees[used] = number_of[rule]
    return used + 1


@jit(types.UniTuple(types.int64, 3)(
    types.int64, _ints, _bytes, _ints, types.int64, types.int64, types.int64, _ints, _ints, _ints, _bytes,
    _ints,
))  # fmt: skip
def write_ready(
    at, ops, blob, number_of, base, edges, called, edge_offsets, labels, targets, accepting, callees
):
    """Write the automaton of the rule at ``at`` behind ``base`` states, ``edges`` moves, ``called`` callees.

    There must be the room that ``ready_size`` asks for, and six callees more than the rule has.

    Returns:
        How many states, moves and callees there are then.
    """
    counts = np.empty(2, np.int64)
    counts[0] = 0
    counts[1] = edges
    kind = ops[at]
    if kind == OBJECT:
        if ops[at + 2] >= 0:
            called = _callee(callees, called, np.int64(ops[at + 2]), number_of)
        called = _callee(callees, called, np.int64(ops[at + 1]), number_of)
        _object(counts, at, ops, base, edge_offsets, labels, targets, accepting)
    elif kind == ORDERED:
        if ops[at + 1] >= 0:
            called = _callee(callees, called, np.int64(ops[at + 1]), number_of)
        if ops[at + 3] >= 0:
            called = _callee(callees, called, np.int64(ops[at + 3]), number_of)
        for i in range(ops[at + 4]):
            called = _callee(callees, called, np.int64(ops[at + 7 + 4 * i]), number_of)
        write_ordered(counts, at, ops, blob, base, edge_offsets, labels, targets, accepting)
    elif kind == LIST:
        if ops[at + 4] >= 0:
            called = _callee(callees, called, np.int64(ops[at + 4]), number_of)
        if ops[at + 3] >= 0:
            called = _callee(callees, called, np.int64(ops[at + 3]), number_of)
        _list(counts, at, ops, base, edge_offsets, labels, targets, accepting)
    elif kind == MEMBER:
        first, length = np.int64(ops[at + 1]), np.int64(ops[at + 2])
        for i in range(length):
            byte = np.int64(blob[first + i])
            bytes_move(counts, byte, byte, i + 1, labels, targets)
            state_ends(counts, False, base, edge_offsets, accepting)
        place = 0
        if ops[at + 3] >= 0:
            called = _callee(callees, called, np.int64(ops[at + 3]), number_of)
            place = 1
        called = _callee(callees, called, np.int64(ops[at + 4]), number_of)
        value_states(counts, place - 1, place, TAIL, base, edge_offsets, labels, targets, accepting)
    elif kind == OTHER:
        called = _callee(callees, called, np.int64(ops[at + 5]), number_of)
        called = _callee(callees, called, np.int64(ops[at + 4]), number_of)
        if ops[at + 2] >= 0:
            called = _callee(callees, called, np.int64(ops[at + 2]), number_of)
        called = _callee(callees, called, np.int64(ops[at + 3]), number_of)
        _other(counts, at, ops, blob, base, edge_offsets, labels, targets, accepting)
    elif kind == ANY_NAME:
        called = _callee(callees, called, np.int64(ops[at + 3]), number_of)
        if ops[at + 1] >= 0:
            called = _callee(callees, called, np.int64(ops[at + 1]), number_of)
        called = _callee(callees, called, np.int64(ops[at + 2]), number_of)
        move(counts, CALL, 1, labels, targets)
        state_ends(counts, False, base, edge_offsets, accepting)
        place = 2 if ops[at + 1] >= 0 else 1
        value_states(
            counts, 1 if ops[at + 1] >= 0 else -1, place, TAIL, base, edge_offsets, labels, targets, accepting
        )
    else:
        rules = np.int64(ops[at + 2])
        first = at + 3 + 2 * ops[at + 1]
        for k in range(rules):
            called = _callee(callees, called, np.int64(ops[first + k]), number_of)
        _value(counts, at, ops, blob, base, edge_offsets, labels, targets, accepting)
    return base + counts[0], counts[1], called
