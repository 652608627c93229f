"""Automata of JSON objects whose declared members come in their order, others behind them.

In: numbers as :mod:`.ready` describes them (``ORDERED``). Out: one deterministic automaton. Where a member
may begin, the names that may follow (from the next one up to the first that must be there) are a trie. From
the last position to the first, each trie is the one behind it with one name more, and shares with it all but
the way to that name (a persistent trie, by path copying: Driscoll et al., "Making data structures
persistent", 1989). Where only one name is left, the rest of it is a chain that all tries share. So there are
about as many states as the names have characters, whatever may be left out.
"""

# Compiled functions have numba signatures instead of annotations, and numba's rules for integers.
# mypy: allow-untyped-defs, disable-error-code="assignment,operator"

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.automaton.labels import CALL
from vllm_guided.automaton.ready_moves import bytes_move, move, state_ends, value_states
from vllm_guided.automaton.subsets import doubled
from vllm_guided.numba_setup import jit

_ints = types.int32[::1]
_bytes = types.uint8[::1]
_longs = types.int64[::1]
_table = types.int32[:, ::1]

QUOTE, COMMA, OPEN, CLOSE = 0x22, 0x2C, 0x7B, 0x7D
FIRST_NAME = 5
"""Where the names begin in the description, four numbers each."""
NODE = -1
"""In place of a name: what follows is a node of a trie, not the rest of that name."""


@jit(types.Tuple((_table, _ints, _ints, _ints, types.int64, types.int64))(types.int64, _ints, _bytes))
def _tries(at, ops, blob):
    """The tries of all positions.

    Returns:
        roots [names, 2] by position, behind the opening quote, as edges lead (below); of each node its first
        edge; edges, four numbers each: byte, name, node or depth, next edge of the node (-1: none), where a
        name means the rest of that name from that depth on, and ``NODE`` a node; from which depth on the
        rest of each name is led to; number of nodes, and of edges.
    """
    names = np.int64(ops[at + 4])
    total = np.int64(0)
    for k in range(names):
        total += ops[at + FIRST_NAME + 4 * k + 1]
    roots = np.empty((names, 2), np.int32)
    heads = np.empty(total + 1, np.int32)
    edges = np.empty(8 * names + 16, np.int32)
    nodes = np.int64(0)
    used = np.int64(0)
    for k in range(names - 1, -1, -1):
        own = at + FIRST_NAME + 4 * k
        if k == names - 1 or ops[own + 3] != 0:
            roots[k, 0] = k
            roots[k, 1] = 1
            continue
        begin = np.int64(ops[own])
        name, place = np.int64(roots[k + 1, 0]), np.int64(roots[k + 1, 1])
        depth = np.int64(1)
        slot = np.int64(-1)
        while True:
            # A node for what the current one, or rest of a name, leads to, and the way to the new name.
            node = nodes
            nodes += 1
            heads[node] = -1
            if slot < 0:
                roots[k, 0] = NODE
                roots[k, 1] = node
            else:
                edges[4 * slot + 1] = NODE
                edges[4 * slot + 2] = node
            byte = np.int64(blob[begin + depth])
            slot = np.int64(-1)
            last = np.int64(-1)
            e = np.int64(heads[place]) if name == NODE else np.int64(-2)
            next_name = np.int64(0)
            next_place = np.int64(0)
            placed = False
            while True:
                edge_byte = np.int64(256)
                edge_name = np.int64(0)
                edge_place = np.int64(0)
                following = np.int64(-1)
                if e == -2:
                    edge_byte = np.int64(blob[ops[at + FIRST_NAME + 4 * name] + place])
                    edge_name, edge_place = name, place + 1
                elif e >= 0:
                    edge_byte, edge_name = np.int64(edges[4 * e]), np.int64(edges[4 * e + 1])
                    edge_place, following = np.int64(edges[4 * e + 2]), np.int64(edges[4 * e + 3])
                new = not placed and edge_byte >= byte
                if not new and e == -1:
                    break
                if 4 * used + 4 > edges.size:
                    edges = doubled(edges)
                if last >= 0:
                    edges[4 * last + 3] = used
                else:
                    heads[node] = used
                edges[4 * used + 3] = -1
                if new:
                    placed = True
                    edges[4 * used] = byte
                    edges[4 * used + 1] = k
                    edges[4 * used + 2] = depth + 1
                    if edge_byte == byte:
                        slot = used
                        next_name, next_place = edge_name, edge_place
                        e = following
                else:
                    edges[4 * used] = edge_byte
                    edges[4 * used + 1] = edge_name
                    edges[4 * used + 2] = edge_place
                    e = following
                last = used
                used += 1
            if slot < 0:
                break
            name, place = next_name, next_place
            depth += 1
    led_to = np.empty(names, np.int32)
    for k in range(names):
        led_to[k] = ops[at + FIRST_NAME + 4 * k + 1]
    for k in range(names):
        if roots[k, 0] != NODE:
            led_to[k] = 1
    for e in range(used):
        k = edges[4 * e + 1]
        if k != NODE:
            led_to[k] = min(led_to[k], edges[4 * e + 2])
    return roots, heads, edges, led_to, nodes, used


@jit(types.UniTuple(types.int64, 2)(types.int64, _ints, _bytes))
def ordered_size(at, ops, blob):
    """At least how much room an object needs: of states, and of moves."""
    _, _, _, led_to, nodes, used = _tries(at, ops, blob)
    names = np.int64(ops[at + 4])
    rests = np.int64(0)
    for k in range(names):
        rests += ops[at + FIRST_NAME + 4 * k + 1] - led_to[k]
    return 8 * names + rests + nodes + 4, 18 * names + rests + used + 9


@jit(types.int64(types.int64, types.int64, types.int64, _ints, _longs, types.int64, types.int64))
def _rest(name, depth, at, ops, rests, colons, each):
    """The state from which on the rest of a name is read: what follows the name where that is nothing."""
    if depth == ops[at + FIRST_NAME + 4 * name + 1]:
        return colons + each * name
    return rests[name] + depth


@jit(types.void(
    _longs, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, _ints,
    _ints, _ints, _bytes,
))  # fmt: skip
def _behind(
    counts, names, last, needed, turns, behind, begins, base, edge_offsets, labels, targets, accepting
):
    """What follows each member: a comma where another may come, and the end where none must."""
    for k in range(names):
        for turn in range(turns):
            if k + 1 <= last:
                bytes_move(counts, COMMA, COMMA, begins + turns * k, labels, targets)
            if k >= needed:
                bytes_move(counts, CLOSE, CLOSE, 1, labels, targets)
            if turns == 2 and turn == 0:
                move(counts, CALL, behind + turns * k + 1, labels, targets)
            state_ends(counts, False, base, edge_offsets, accepting)


@jit(types.void(_longs, types.int64, _ints, _bytes, types.int64, _ints, _ints, _ints, _bytes))
def write_ordered(counts, at, ops, blob, base, edge_offsets, labels, targets, accepting):
    """Write the automaton; callees are blanks and other members, if there are any, and then the values.

    States: the start; the end; then by turns, with and without blanks before them, where the first member
    may begin; what follows each member; where each later member may begin; then what follows each name; the
    rests of names; nodes.
    """
    roots, heads, edges, led_to, nodes, _ = _tries(at, ops, blob)
    blanks, other = ops[at + 1] >= 0, ops[at + 3] >= 0
    empty = ops[at + 2] != 0
    names = np.int64(ops[at + 4])
    turns = np.int64(2) if blanks else np.int64(1)
    other_call = np.int64(CALL) | (1 if blanks else 0)
    first_value = (1 if blanks else 0) + (1 if other else 0)
    # Positions count the declared names that are passed; others come at the last.
    last = names if other else names - 1
    needed = np.int64(-1)  # the last name that must be there
    for k in range(names):
        if ops[at + FIRST_NAME + 4 * k + 3] != 0:
            needed = k
    behind = np.int64(2) + turns
    begins = behind + turns * names
    colons = begins + turns * last
    each = np.int64(4) if blanks else np.int64(2)
    rests = np.empty(names + 1, np.int64)  # where the rest of each name would begin from depth 0 on
    following = colons + each * names
    for k in range(names):
        rests[k] = following - led_to[k]
        following += ops[at + FIRST_NAME + 4 * k + 1] - led_to[k]
    first_node = following

    bytes_move(counts, OPEN, OPEN, 2, labels, targets)
    state_ends(counts, False, base, edge_offsets, accepting)
    state_ends(counts, True, base, edge_offsets, accepting)
    for position in range(last + 1):
        if position == 1:
            # What follows the members comes before where the later ones begin.
            _behind(
                counts, names, last, needed, turns, behind, begins, base, edge_offsets, labels, targets,
                accepting,
            )  # fmt: skip
        for turn in range(turns):
            if position < names:
                root = np.int64(roots[position, 1])
                if roots[position, 0] == NODE:
                    root += first_node
                else:
                    root = _rest(np.int64(roots[position, 0]), root, at, ops, rests, colons, each)
                bytes_move(counts, QUOTE, QUOTE, root, labels, targets)
            if position == 0 and empty:
                bytes_move(counts, CLOSE, CLOSE, 1, labels, targets)
            here = np.int64(2) if position == 0 else begins + turns * (position - 1)
            if blanks and turn == 0:
                move(counts, CALL, here + 1, labels, targets)
            if other and position > needed:
                move(counts, other_call, behind + turns * (names - 1), labels, targets)
            state_ends(counts, False, base, edge_offsets, accepting)
    if last == 0:
        _behind(
            counts, names, last, needed, turns, behind, begins, base, edge_offsets, labels, targets, accepting
        )
    for k in range(names):
        value_states(
            counts, 0 if blanks else -1, first_value + k, behind + turns * k, base, edge_offsets, labels,
            targets, accepting,
        )  # fmt: skip
    for k in range(names):
        begin, length = np.int64(ops[at + FIRST_NAME + 4 * k]), np.int64(ops[at + FIRST_NAME + 4 * k + 1])
        for depth in range(led_to[k], length):
            byte = np.int64(blob[begin + depth])
            target = _rest(k, np.int64(depth + 1), at, ops, rests, colons, each)
            bytes_move(counts, byte, byte, target, labels, targets)
            state_ends(counts, False, base, edge_offsets, accepting)
    for node in range(nodes):
        e = np.int64(heads[node])
        while e >= 0:
            target = np.int64(edges[4 * e + 2])
            if edges[4 * e + 1] == NODE:
                target += first_node
            else:
                target = _rest(np.int64(edges[4 * e + 1]), target, at, ops, rests, colons, each)
            bytes_move(counts, np.int64(edges[4 * e]), np.int64(edges[4 * e]), target, labels, targets)
            e = np.int64(edges[4 * e + 3])
        state_ends(counts, False, base, edge_offsets, accepting)
