"""The two ways to remove epsilon edges from one rule's automaton: subsets of states, or state by state.

The alphabet of a rule is: intervals of bytes between which its edges do not differ, calls, and special
tokens. A rule's automaton never accepts the empty string: nullable calls count as epsilon edges too,
so a frame only has to know the other strings.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.automaton.labels import CALL, EPSILON, RULE_MASK, STRICT, TOKEN
from vllm_guided.numba_setup import jit

_ints = types.int32[::1]
_bools = types.boolean[::1]


@jit(_ints(_ints))
def doubled(values):
    grown = np.empty(2 * values.size + 16, np.int32)
    grown[: values.size] = values
    return grown


@jit([types.void(_ints, types.int64), types.void(types.int64[::1], types.int64)])
def sort(values, count):
    """Sort ``values[:count]`` in place. (numba's own sort allocates, which costs more than few values.)"""
    if count > 32:
        values[:count].sort()
        return
    for i in range(1, count):
        value = values[i]
        j = i - 1
        while j >= 0 and values[j] > value:
            values[j + 1] = values[j]
            j -= 1
        values[j + 1] = value


@jit(_ints(_ints, types.int64))
def cut(values, count):
    return values[:count].copy()


@jit(types.boolean(types.int64, _bools))
def is_dead_call(label, productive):
    """Whether the label calls a rule that derives nothing."""
    return label >= CALL and label < TOKEN and not productive[label & RULE_MASK]


@jit(types.int64(_ints, types.int64, _ints, _ints, _ints, _bools, _ints, types.int64))
def _closure(members, count, offsets, labels, targets, nullable, stamp, mark):
    """Extend ``members[:count]`` by what epsilon edges and nullable calls reach; the new count."""
    head = 0
    while head < count:
        state = members[head]
        head += 1
        for k in range(offsets[state], offsets[state + 1]):
            label = labels[k]
            through = label == EPSILON
            if label >= CALL and label < TOKEN:
                through = nullable[label & RULE_MASK] and label & STRICT == 0
            if through and stamp[targets[k]] != mark:
                stamp[targets[k]] = mark
                members[count] = targets[k]
                count += 1
    return count


@jit(types.int64(_ints, types.int64, _bools, types.int64))
def _reduced(members, count, important, first):
    """Keep the states that have moves of their own or accept, sorted; how many those are."""
    kept = 0
    for i in range(count):
        if important[members[i] - first]:
            members[kept] = members[i]
            kept += 1
    sort(members, kept)
    return kept


@jit(types.int64(types.int64, types.int64, _ints, _ints, _ints, _ints, _ints, _bools, types.int64[::1]))
def _moves(low, high, pool, offsets, labels, targets, interval_of, productive, pairs):
    """All labelled moves of the set ``pool[low:high]`` as ``label << 32 | target``, byte ranges cut into
    intervals. With no room in ``pairs`` they are only counted.
    """
    count = np.int64(0)
    for i in range(low, high):
        state = pool[i]
        if state < 0:
            continue
        for k in range(offsets[state], offsets[state + 1]):
            label = np.int64(labels[k])
            if label == EPSILON or is_dead_call(label, productive):
                continue
            first = label
            if label < CALL:
                first = np.int64(interval_of[label & 255])
                last = np.int64(interval_of[label >> 8])
            else:
                if label < TOKEN:
                    first = label & ~np.int64(STRICT)
                last = first
            if count + last - first < pairs.size:
                for symbol in range(first, last + 1):
                    pairs[count + symbol - first] = (symbol << 32) | targets[k]
            count += last - first + 1
    return count


@jit(types.UniTuple(types.int64, 2)(
    types.int64[::1], types.int64, types.int64, _ints, _ints, types.int64, _ints, _ints, _ints, _bools,
    _bools, types.int64,
))  # fmt: skip
def _target_set(pairs, at, moves, members, stamp, mark, offsets, labels, targets, nullable, important, first):
    """The closed, reduced, sorted set that the moves with the label at ``pairs[at]`` lead to.

    Returns where the next label begins, and the size of the set (in ``members``).
    """
    symbol = pairs[at] >> 32
    count = 0
    while at < moves and pairs[at] >> 32 == symbol:
        target = pairs[at] & 0xFFFFFFFF
        if stamp[target] != mark:
            stamp[target] = mark
            members[count] = target
            count += 1
        at += 1
    count = _closure(members, count, offsets, labels, targets, nullable, stamp, mark)
    return at, _reduced(members, count, important, first)


@jit(types.uint64(_ints, types.int64, types.int64))
def _hash(values, low, high):
    """FNV-1a over ``values[low:high]``, word by word, folded."""
    key = np.uint64(14695981039346656037)
    for i in range(low, high):
        key = (key ^ np.uint64(values[i])) * np.uint64(1099511628211)
    return key ^ (key >> np.uint64(29))


@jit(types.int64(_ints, types.int64, _ints, _ints, _ints))
def _look_up(members, count, pool, set_first, table):
    """The number of the set ``members[:count]``, or ``-1 - slot`` where its number belongs."""
    slot = np.int64(_hash(members, 0, count) & np.uint64(table.size - 1))
    while table[slot] >= 0:
        low = np.int64(set_first[table[slot]])
        if set_first[table[slot] + 1] - low == count:
            i = 0
            while i < count and pool[low + i] == members[i]:
                i += 1
            if i == count:
                return np.int64(table[slot])
        slot = (slot + 1) & (table.size - 1)
    return -1 - slot


@jit(_ints(_ints, types.int64, types.int64, _ints, types.int64))
def _rebuilt(set_first, first_set, sets, pool, size):
    """A hash table of ``size`` slots for the sets from ``first_set`` on."""
    table = np.full(size, -1, np.int32)
    for number in range(first_set, sets):
        slot = np.int64(
            _hash(pool, np.int64(set_first[number]), np.int64(set_first[number + 1])) & np.uint64(size - 1)
        )
        while table[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        table[slot] = number
    return table


@jit(types.boolean(
    types.int64, types.int64, types.int64[::1], _ints, _ints, _ints, _ints, _ints, _bools, _bools,
    types.int64, _ints, _ints, _ints, _ints, _ints, _ints, _ints, types.int64[::1],
))  # fmt: skip
def _follow(
    here, moves, pairs, members, stamp, offsets, labels, targets, nullable, important, first, pool, set_first,
    table, tails, out_labels, heads, interval_label, counts,
):  # fmt: skip
    """Write the edges of set ``here`` from its sorted moves, making sets as they are met.

    ``counts`` says where to go on: [next move, sets, used of the pool, edges, mark]. False where an array
    has no room (the next move is then to be done again).
    """
    at = counts[0]
    sets = counts[1]
    used = counts[2]
    edge_count = counts[3]
    mark = counts[4]
    done = True
    while at < moves:
        if (
            used + important.size > pool.size
            or sets + 2 > set_first.size
            or edge_count == tails.size
            or 2 * (sets + 1) > table.size
        ):
            done = False
            break
        symbol = pairs[at] >> 32
        mark += 1
        at, kept = _target_set(
            pairs, at, moves, members, stamp, mark, offsets, labels, targets, nullable, important, first
        )
        if kept == 0:
            continue
        found = _look_up(members, kept, pool, set_first, table)
        if found < 0:
            table[-1 - found] = sets
            for i in range(kept):
                pool[used + i] = members[i]
            used += kept
            found = sets
            sets += 1
            set_first[sets] = used
        tails[edge_count] = here
        out_labels[edge_count] = interval_label[symbol] if symbol < CALL else symbol
        heads[edge_count] = found
        edge_count += 1
    counts[0] = at
    counts[1] = sets
    counts[2] = used
    counts[3] = edge_count
    counts[4] = mark
    return done


@jit(types.void(types.int64, types.int64, types.int64, _ints, _ints, _bools, _bools, _bools))
def _survey(first, past, accept, offsets, labels, productive, bound, important):
    """Mark the bytes where an interval begins, and the states that have moves of their own."""
    for state in range(first, past):
        for k in range(offsets[state], offsets[state + 1]):
            label = labels[k]
            if label == EPSILON:
                continue
            if label < CALL:
                bound[label & 255] = True
                bound[(label >> 8) + 1] = True
            if not is_dead_call(np.int64(label), productive):
                important[state - first] = True
    important[accept - first] = True


@jit(types.Tuple((_ints, _ints, _ints, _bools, types.int64))(
    types.int32, types.int32, types.int32, types.int32, _ints, _ints, _ints, _bools, _bools,
    _ints, _ints, types.int64,
))  # fmt: skip
def subsets(
    first, past, start, accept, offsets, labels, targets, nullable, productive, members, stamp, limit
):
    """Tails, labels, heads, accepting of the subset automaton (state 0 starts); its size, or -1.

    The loops over edges and members are functions of their own: an array that a loop may replace is
    reference-counted at each turn.
    """
    bound = np.zeros(257, np.bool_)
    important = np.zeros(past - first, np.bool_)
    _survey(first, past, accept, offsets, labels, productive, bound, important)
    interval_of = np.zeros(257, np.int32)
    interval = 0
    for byte in range(257):
        if byte > 0 and bound[byte]:
            interval += 1
        interval_of[byte] = interval
    interval_label = np.zeros(interval + 1, np.int32)
    for byte in range(255, -1, -1):
        last = interval_label[interval_of[byte]] >> 8
        interval_label[interval_of[byte]] = byte | max(last, np.int32(byte)) << 8
    # Sets of NFA states: pool[set_first[i]:set_first[i + 1]], found again through a hash table.
    pool = np.empty(4 * (past - first) + 64, np.int32)
    set_first = np.zeros(257, np.int32)
    table = np.full(512, -1, np.int32)
    tails = np.empty(256, np.int32)
    out_labels = np.empty(256, np.int32)
    heads = np.empty(256, np.int32)
    pairs = np.empty(256, np.int64)
    mark = stamp[stamp.size - 1] + 1
    members[0] = start
    stamp[start] = mark
    count = _closure(members, 1, offsets, labels, targets, nullable, stamp, mark)
    accepts_empty = False
    for i in range(count):
        if members[i] == accept:
            accepts_empty = True
    used = _reduced(members, count, important, first)
    for i in range(used):
        pool[i] = members[i]
    if accepts_empty:
        # A marker keeps the start, which must not accept, apart from an equal set that does.
        pool[used] = -1
        used += 1
    set_first[1] = used
    # The start itself is not found again: an equal set may accept.
    first_found = 1 if accepts_empty else 0
    if not accepts_empty:
        table = _rebuilt(set_first, 0, 1, pool, table.size)
    # [next move, sets, used of the pool, edges, mark]
    counts = np.array([0, 1, used, 0, mark], np.int64)
    here = 0
    while here < counts[1]:
        low, high = np.int64(set_first[here]), np.int64(set_first[here + 1])
        moves = _moves(low, high, pool, offsets, labels, targets, interval_of, productive, pairs)
        if moves > pairs.size:
            pairs = np.empty(2 * moves, np.int64)
            moves = _moves(low, high, pool, offsets, labels, targets, interval_of, productive, pairs)
        sort(pairs, moves)
        counts[0] = 0
        while not _follow(
            here, moves, pairs, members, stamp, offsets, labels, targets, nullable, important, first, pool,
            set_first, table, tails, out_labels, heads, interval_label, counts,
        ):  # fmt: skip
            sets = counts[1]
            if sets >= limit:
                return tails, out_labels, heads, important, -1
            if counts[2] + past - first > pool.size:
                pool = doubled(pool)
            if sets + 2 > set_first.size:
                set_first = doubled(set_first)
            if counts[3] == tails.size:
                tails = doubled(tails)
                out_labels = doubled(out_labels)
                heads = doubled(heads)
            if 2 * (sets + 1) > table.size:
                table = _rebuilt(set_first, first_found, sets, pool, 2 * table.size)
        here += 1
    sets = counts[1]
    edge_count = counts[3]
    mark = counts[4]
    accepting = np.zeros(sets, np.bool_)
    for s in range(first_found, sets):
        for i in range(set_first[s], set_first[s + 1]):
            if pool[i] == accept:
                accepting[s] = True
                break
    stamp[stamp.size - 1] = mark
    return cut(tails, edge_count), cut(out_labels, edge_count), cut(heads, edge_count), accepting, sets


@jit(types.Tuple((_ints, _ints, _ints, _bools, types.int64))(
    types.int32, types.int32, types.int32, types.int32, _ints, _ints, _ints, _bools, _bools,
    _ints, _ints,
))  # fmt: skip
def without_epsilon(first, past, start, accept, offsets, labels, targets, nullable, productive,
                     members, stamp):  # fmt: skip
    """The rule's own nondeterministic automaton without epsilon edges; state 0 starts."""
    size = past - first
    tails = np.empty(256, np.int32)
    out_labels = np.empty(256, np.int32)
    heads = np.empty(256, np.int32)
    accepting = np.zeros(size + 1, np.bool_)
    edge_count = 0
    mark = stamp[stamp.size - 1]
    for tail in range(size + 1):
        # State 0 is a start that does not accept; state s + 1 stands for NFA state first + s.
        origin = start if tail == 0 else first + tail - 1
        mark += 1
        members[0] = origin
        stamp[origin] = mark
        count = _closure(members, 1, offsets, labels, targets, nullable, stamp, mark)
        for i in range(count):
            state = members[i]
            if state == accept and tail > 0:
                accepting[tail] = True
            for k in range(offsets[state], offsets[state + 1]):
                label = labels[k]
                if label == EPSILON or is_dead_call(label, productive):
                    continue
                if edge_count == tails.size:
                    tails = doubled(tails)
                    out_labels = doubled(out_labels)
                    heads = doubled(heads)
                if label >= CALL and label < TOKEN:
                    label = label & ~STRICT
                tails[edge_count] = tail
                out_labels[edge_count] = label
                heads[edge_count] = targets[k] - first + 1
                edge_count += 1
    stamp[stamp.size - 1] = mark
    return cut(tails, edge_count), cut(out_labels, edge_count), cut(heads, edge_count), accepting, size + 1
