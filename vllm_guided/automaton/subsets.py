"""The two ways to remove epsilon edges from one rule's automaton: subsets of states, or state by state.

An automaton without epsilon edges is: offsets of each state's edges, their labels and heads. A state's edges
are sorted by label, byte ranges first and by their first byte. A rule's automaton never accepts the empty
string: nullable calls count as epsilon edges too, so a frame only has to know the other strings.
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
_longs = types.int64[::1]


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


@jit(types.int64(types.int64))
def name_of(label):
    """What orders labels: byte ranges first, by their first byte and then by their last."""
    if label < CALL:
        return ((label & 255) << 8) | (label >> 8)
    return label


@jit(types.int64(types.int64, types.int64, _ints, _ints, _ints, _ints, _bools, _longs))
def _moves(low, high, pool, offsets, labels, targets, productive, keys):
    """All labelled moves of the set ``pool[low:high]`` as ``name << 32 | target``; how many there are.

    With no room in ``keys`` they are only counted.
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
            if label >= CALL and label < TOKEN:
                label &= ~np.int64(STRICT)
            if count < keys.size:
                keys[count] = (name_of(label) << 32) | targets[k]
            count += 1
    return count


@jit(types.int64(_longs, types.int64, _ints, _ints, _ints))
def _segments(keys, moves, seg_label, seg_first, seg_targets):
    """Cut overlapping byte ranges apart: labels that do not overlap, each with its targets.

    Segment ``i`` leads to ``seg_targets[seg_first[i]:seg_first[i + 1]]``. Returns how many there are, or -1
    where there is no room.
    """
    count = np.int64(0)
    used = np.int64(0)
    i = np.int64(0)
    while i < moves:
        name = keys[i] >> 32
        # Moves up to j overlap, directly or through one another, or have the same label.
        j = i + 1
        if name >= CALL:
            while j < moves and keys[j] >> 32 == name:
                j += 1
            alike = True
        else:
            reach = name & 255
            alike = True
            while j < moves and keys[j] >> 32 < CALL and keys[j] >> 40 <= reach:
                alike = alike and keys[j] >> 32 == name
                reach = max(reach, (keys[j] >> 32) & 255)
                j += 1
        if count + 514 > seg_label.size or used + j - i > seg_targets.size:
            return -1
        if alike:
            seg_label[count] = name if name >= CALL else (name >> 8) | (name & 255) << 8
            for k in range(i, j):
                seg_targets[used] = keys[k] & 0xFFFFFFFF
                used += 1
            count += 1
            seg_first[count] = used
            i = j
            continue
        byte = name >> 8
        while byte <= reach:
            if used + j - i > seg_targets.size:
                return -1
            last = reach
            for k in range(i, j):
                low = keys[k] >> 40
                high = (keys[k] >> 32) & 255
                if low > byte:
                    last = min(last, low - 1)
                    break
                if high >= byte:
                    last = min(last, high)
                    seg_targets[used] = keys[k] & 0xFFFFFFFF
                    used += 1
            seg_label[count] = byte | last << 8
            count += 1
            seg_first[count] = used
            byte = last + 1
        i = j
    return count


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
    types.int64, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _bools, _bools, types.int64, _ints,
    _ints, _ints, _ints, _ints, _ints, _longs,
))  # fmt: skip
def _follow(
    segments, seg_label, seg_first, seg_targets, members, stamp, offsets, labels, targets, nullable,
    important, first, pool, set_first, table, single, out_labels, heads, counts,
):  # fmt: skip
    """Write the edges of one set from its segments, making sets as they are met.

    ``counts`` says where to go on: [next segment, sets, used of the pool, edges, mark, the set's first edge].
    ``single[s]`` is the set that NFA state ``first + s`` alone leads to: -1 not known yet, -2 none. False
    where an array has no room (the next segment is then to be done again).
    """
    sets = counts[1]
    used = counts[2]
    edge_count = counts[3]
    mark = counts[4]
    done = True
    at = counts[0]
    while at < segments:
        if edge_count == out_labels.size:
            done = False
            break
        low, high = np.int64(seg_first[at]), np.int64(seg_first[at + 1])
        alone = True
        for i in range(low + 1, high):
            alone = alone and seg_targets[i] == seg_targets[low]
        found = np.int64(-1)
        if alone:
            found = np.int64(single[seg_targets[low] - first])
        if found == -1:
            if used + important.size > pool.size or sets + 2 > set_first.size or 2 * (sets + 1) > table.size:
                done = False
                break
            mark += 1
            count = np.int64(0)
            for i in range(low, high):
                if stamp[seg_targets[i]] != mark:
                    stamp[seg_targets[i]] = mark
                    members[count] = seg_targets[i]
                    count += 1
            count = _closure(members, count, offsets, labels, targets, nullable, stamp, mark)
            kept = _reduced(members, count, important, first)
            if kept == 0:
                found = np.int64(-2)
            else:
                found = _look_up(members, kept, pool, set_first, table)
                if found < 0:
                    table[-1 - found] = sets
                    for i in range(kept):
                        pool[used + i] = members[i]
                    used += kept
                    found = sets
                    sets += 1
                    set_first[sets] = used
            if alone:
                single[seg_targets[low] - first] = found
        label = np.int64(seg_label[at])
        at += 1
        if found < 0:
            continue
        if edge_count > counts[5] and label < CALL and heads[edge_count - 1] == found:
            previous = np.int64(out_labels[edge_count - 1])
            if previous < CALL and (previous >> 8) + 1 == label & 255:
                out_labels[edge_count - 1] = (previous & 255) | (label >> 8) << 8
                continue
        out_labels[edge_count] = label
        heads[edge_count] = found
        edge_count += 1
    counts[0] = at
    counts[1] = sets
    counts[2] = used
    counts[3] = edge_count
    counts[4] = mark
    return done


@jit(types.void(types.int64, types.int64, types.int64, _ints, _ints, _bools, _bools))
def _survey(first, past, accept, offsets, labels, productive, important):
    """Mark the states that have moves of their own or accept."""
    for state in range(first, past):
        for k in range(offsets[state], offsets[state + 1]):
            if labels[k] != EPSILON and not is_dead_call(np.int64(labels[k]), productive):
                important[state - first] = True
                break
    important[accept - first] = True


@jit(types.Tuple((_ints, _ints, _ints, _bools, types.int64))(
    types.int32, types.int32, types.int32, types.int32, _ints, _ints, _ints, _bools, _bools,
    _ints, _ints, types.int64,
))  # fmt: skip
def subsets(
    first, past, start, accept, offsets, labels, targets, nullable, productive, members, stamp, limit
):
    """Offsets, labels, heads, accepting of the subset automaton (state 0 starts); its size, or -1.

    The loops over edges and members are functions of their own: an array that a loop may replace is
    reference-counted at each turn.
    """
    important = np.zeros(past - first, np.bool_)
    _survey(first, past, accept, offsets, labels, productive, important)
    # Sets of NFA states: pool[set_first[i]:set_first[i + 1]], found again through a hash table.
    pool = np.empty(4 * (past - first) + 64, np.int32)
    set_first = np.zeros(past - first + 66, np.int32)
    size = 64
    while size < 2 * (past - first):
        size *= 2
    table = np.full(size, -1, np.int32)
    single = np.full(past - first, -1, np.int32)
    room = np.int64(offsets[past] - offsets[first]) + 64
    out_offsets = np.zeros(set_first.size, np.int32)
    out_labels = np.empty(room, np.int32)
    heads = np.empty(room, np.int32)
    keys = np.empty(64, np.int64)
    seg_label = np.empty(640, np.int32)
    seg_first = np.zeros(641, np.int32)
    seg_targets = np.empty(256, np.int32)
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
    # [next segment, sets, used of the pool, edges, mark, first edge of the set]
    counts = np.array([0, 1, used, 0, mark, 0], np.int64)
    here = 0
    while here < counts[1]:
        low, high = np.int64(set_first[here]), np.int64(set_first[here + 1])
        moves = _moves(low, high, pool, offsets, labels, targets, productive, keys)
        if moves > keys.size:
            keys = np.empty(2 * moves, np.int64)
            moves = _moves(low, high, pool, offsets, labels, targets, productive, keys)
        sort(keys, moves)
        while True:
            segments = _segments(keys, moves, seg_label, seg_first, seg_targets)
            if segments >= 0:
                break
            seg_label = np.empty(2 * seg_label.size, np.int32)
            seg_first = np.zeros(seg_label.size + 1, np.int32)
            seg_targets = np.empty(4 * seg_targets.size + moves, np.int32)
        counts[0] = 0
        counts[5] = counts[3]
        while not _follow(
            segments, seg_label, seg_first, seg_targets, members, stamp, offsets, labels, targets, nullable,
            important, first, pool, set_first, table, single, out_labels, heads, counts,
        ):  # fmt: skip
            sets = counts[1]
            if sets >= limit:
                return out_offsets, out_labels, heads, important, -1
            if counts[2] + past - first > pool.size:
                pool = doubled(pool)
            if sets + 2 > set_first.size:
                set_first = doubled(set_first)
                out_offsets = doubled(out_offsets)
            if counts[3] == out_labels.size:
                out_labels = doubled(out_labels)
                heads = doubled(heads)
            if 2 * (sets + 1) > table.size:
                table = _rebuilt(set_first, first_found, sets, pool, 2 * table.size)
        here += 1
        out_offsets[here] = counts[3]
    sets = counts[1]
    accepting = np.zeros(sets, np.bool_)
    for s in range(first_found, sets):
        for i in range(set_first[s], set_first[s + 1]):
            if pool[i] == accept:
                accepting[s] = True
                break
    stamp[stamp.size - 1] = counts[4]
    return cut(out_offsets, sets + 1), cut(out_labels, counts[3]), cut(heads, counts[3]), accepting, sets


@jit(types.Tuple((_ints, _ints, _ints, _bools, types.int64))(
    types.int32, types.int32, types.int32, types.int32, _ints, _ints, _ints, _bools, _bools,
    _ints, _ints,
))  # fmt: skip
def without_epsilon(first, past, start, accept, offsets, labels, targets, nullable, productive,
                     members, stamp):  # fmt: skip
    """The rule's own nondeterministic automaton without epsilon edges; state 0 starts."""
    size = past - first
    out_offsets = np.zeros(size + 2, np.int32)
    out_labels = np.empty(256, np.int32)
    heads = np.empty(256, np.int32)
    keys = np.empty(256, np.int64)
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
            if members[i] == accept and tail > 0:
                accepting[tail] = True
        moves = _moves(0, count, members, offsets, labels, targets, productive, keys)
        if moves > keys.size:
            keys = np.empty(2 * moves, np.int64)
            moves = _moves(0, count, members, offsets, labels, targets, productive, keys)
        sort(keys, moves)
        while edge_count + moves > out_labels.size:
            out_labels = doubled(out_labels)
            heads = doubled(heads)
        for i in range(moves):
            if i > 0 and keys[i] == keys[i - 1]:
                continue
            name = keys[i] >> 32
            out_labels[edge_count] = name if name >= CALL else (name >> 8) | (name & 255) << 8
            heads[edge_count] = (keys[i] & 0xFFFFFFFF) - first + 1
            edge_count += 1
        out_offsets[tail + 1] = edge_count
    stamp[stamp.size - 1] = mark
    return out_offsets, cut(out_labels, edge_count), cut(heads, edge_count), accepting, size + 1
