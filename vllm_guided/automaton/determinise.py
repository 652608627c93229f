"""Subset construction, minimisation and canonical numbering of every rule's automaton.

One compiled call works through all rules of a grammar. The alphabet of a rule is: intervals of bytes
between which its edges do not differ, calls, and special tokens. Where the subset construction would
multiply the states, the rule keeps its nondeterminism (only epsilon edges are removed): the runtime
follows sets of states anyway, so this costs speed, never correctness.

A rule's automaton never accepts the empty string: nullable calls were given an epsilon edge beside
them, so the frame only has to know the other strings.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.automaton.minimise import equivalence_classes
from vllm_guided.automaton.nfa import CALL, EPSILON, RULE_MASK, STRICT, TOKEN
from vllm_guided.numba_setup import jit

_ints = types.int32[::1]
_bools = types.boolean[::1]

#: A rule is made deterministic while it needs at most this many states for each one it had ...
BLOW_UP = 8
#: ... or at most this many in all.
ALWAYS_ALLOWED = 4096


@jit(_ints(_ints))
def _doubled(values):
    grown = np.empty(2 * values.size + 16, np.int32)
    grown[: values.size] = values
    return grown


@jit(_ints(_ints, types.int64))
def _cut(values, count):
    return values[:count].copy()


@jit(types.boolean(types.int64, _bools))
def _is_dead_call(label, productive):
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


@jit(types.Tuple((_ints, _ints, _ints, _bools, types.int64))(
    types.int32, types.int32, types.int32, types.int32, _ints, _ints, _ints, _bools, _bools,
    _ints, _ints, types.int64,
))  # fmt: skip
def _subsets(first, past, start, accept, offsets, labels, targets, nullable, productive,
             members, stamp, limit):  # fmt: skip
    """Tails, labels, heads, accepting of the subset automaton (state 0 starts); its size, or -1."""
    bound = np.zeros(257, np.bool_)
    important = np.zeros(past - first, np.bool_)
    for state in range(first, past):
        for k in range(offsets[state], offsets[state + 1]):
            label = labels[k]
            if label == EPSILON:
                continue
            if label < CALL:
                bound[label & 255] = True
                bound[(label >> 8) + 1] = True
                important[state - first] = True
            elif label >= TOKEN or productive[label & RULE_MASK]:
                important[state - first] = True
    important[accept - first] = True
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
    sets = 0
    used = 0
    tails = np.empty(256, np.int32)
    out_labels = np.empty(256, np.int32)
    heads = np.empty(256, np.int32)
    edge_count = 0
    accepting = np.zeros(256, np.bool_)
    pairs = np.empty(256, np.int64)
    # The start set; a marker keeps it apart from an equal set that accepts.
    mark = stamp[stamp.size - 1] + 1
    members[0] = start
    stamp[start] = mark
    count = _closure(members, 1, offsets, labels, targets, nullable, stamp, mark)
    kept = 0
    accepts_empty = False
    for i in range(count):
        if members[i] == accept:
            accepts_empty = True
        if important[members[i] - first]:
            members[kept] = members[i]
            kept += 1
    members[:kept].sort()
    pool[:kept] = members[:kept]
    used = kept
    if accepts_empty:
        pool[used] = -1
        used += 1
    set_first[1] = used
    sets = 1
    if not accepts_empty:
        key = np.uint64(14695981039346656037)
        for i in range(kept):
            key = (key ^ np.uint64(members[i])) * np.uint64(1099511628211)
        table[np.int64((key ^ (key >> np.uint64(29))) & np.uint64(511))] = 0
    here = 0
    while here < sets:
        # All labelled moves of the set, by label.
        moves = 0
        for i in range(set_first[here], set_first[here + 1]):
            state = pool[i]
            if state < 0:
                continue
            for k in range(offsets[state], offsets[state + 1]):
                label = labels[k]
                if label == EPSILON or _is_dead_call(label, productive):
                    continue
                if label >= CALL and label < TOKEN:
                    label = label & ~STRICT
                low = np.int64(label)
                high = low
                if label < CALL:
                    low = np.int64(interval_of[label & 255])
                    high = np.int64(interval_of[label >> 8])
                if moves + high - low + 1 > pairs.size:
                    grown = np.empty(2 * pairs.size + 512, np.int64)
                    grown[:moves] = pairs[:moves]
                    pairs = grown
                for symbol in range(low, high + 1):
                    pairs[moves] = (symbol << 32) | targets[k]
                    moves += 1
        pairs[:moves].sort()
        at = 0
        while at < moves:
            symbol = pairs[at] >> 32
            mark += 1
            count = 0
            while at < moves and pairs[at] >> 32 == symbol:
                target = pairs[at] & 0xFFFFFFFF
                if stamp[target] != mark:
                    stamp[target] = mark
                    members[count] = target
                    count += 1
                at += 1
            count = _closure(members, count, offsets, labels, targets, nullable, stamp, mark)
            kept = 0
            for i in range(count):
                if important[members[i] - first]:
                    members[kept] = members[i]
                    kept += 1
            if kept == 0:
                continue
            members[:kept].sort()
            key = np.uint64(14695981039346656037)
            for i in range(kept):
                key = (key ^ np.uint64(members[i])) * np.uint64(1099511628211)
            slot = np.int64((key ^ (key >> np.uint64(29))) & np.uint64(table.size - 1))
            found = -1
            while table[slot] >= 0:
                other = table[slot]
                low = np.int64(set_first[other])
                if set_first[other + 1] - low == kept:
                    same = True
                    for i in range(kept):
                        if pool[low + i] != members[i]:
                            same = False
                            break
                    if same:
                        found = other
                        break
                slot = (slot + 1) & (table.size - 1)
            if found < 0:
                if sets >= limit:
                    return tails, out_labels, heads, accepting, -1
                found = sets
                table[slot] = sets
                while used + kept > pool.size:
                    pool = _doubled(pool)
                pool[used : used + kept] = members[:kept]
                used += kept
                sets += 1
                if sets + 1 > set_first.size:
                    set_first = _doubled(set_first)
                set_first[sets] = used
                if 2 * sets > table.size:
                    table = np.full(2 * table.size, -1, np.int32)
                    for other in range(sets):
                        low = np.int64(set_first[other])
                        if accepts_empty and other == 0:
                            continue
                        key = np.uint64(14695981039346656037)
                        for i in range(low, set_first[other + 1]):
                            key = (key ^ np.uint64(pool[i])) * np.uint64(1099511628211)
                        slot = np.int64((key ^ (key >> np.uint64(29))) & np.uint64(table.size - 1))
                        while table[slot] >= 0:
                            slot = (slot + 1) & (table.size - 1)
                        table[slot] = other
            if edge_count == tails.size:
                tails = _doubled(tails)
                out_labels = _doubled(out_labels)
                heads = _doubled(heads)
            tails[edge_count] = here
            if symbol < CALL:
                out_labels[edge_count] = interval_label[symbol]
            else:
                out_labels[edge_count] = symbol
            heads[edge_count] = found
            edge_count += 1
        here += 1
    accepting = np.zeros(sets, np.bool_)
    for s in range(1 if accepts_empty else 0, sets):
        for i in range(set_first[s], set_first[s + 1]):
            if pool[i] == accept:
                accepting[s] = True
                break
    stamp[stamp.size - 1] = mark
    return _cut(tails, edge_count), _cut(out_labels, edge_count), _cut(heads, edge_count), accepting, sets


@jit(types.Tuple((_ints, _ints, _ints, _bools, types.int64))(
    types.int32, types.int32, types.int32, types.int32, _ints, _ints, _ints, _bools, _bools,
    _ints, _ints,
))  # fmt: skip
def _without_epsilon(first, past, start, accept, offsets, labels, targets, nullable, productive,
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
                if label == EPSILON or _is_dead_call(label, productive):
                    continue
                if edge_count == tails.size:
                    tails = _doubled(tails)
                    out_labels = _doubled(out_labels)
                    heads = _doubled(heads)
                if label >= CALL and label < TOKEN:
                    label = label & ~STRICT
                tails[edge_count] = tail
                out_labels[edge_count] = label
                heads[edge_count] = targets[k] - first + 1
                edge_count += 1
    stamp[stamp.size - 1] = mark
    return _cut(tails, edge_count), _cut(out_labels, edge_count), _cut(heads, edge_count), accepting, size + 1


@jit(types.Tuple((_ints, _ints, _ints, _bools, types.int64))(types.int64, _ints, _ints, _ints, _bools))
def _trimmed(states, tails, labels, heads, accepting):
    """Without the states that state 0 does not reach or that reach no accepting state; 0 stays 0."""
    count = tails.size
    forward = np.zeros(states, np.bool_)
    backward = np.zeros(states, np.bool_)
    offsets = np.zeros(states + 1, np.int32)
    for k in range(count):
        offsets[tails[k] + 1] += 1
    for s in range(states):
        offsets[s + 1] += offsets[s]
    fill = offsets.copy()
    outgoing = np.empty(count, np.int32)
    for k in range(count):
        outgoing[fill[tails[k]]] = k
        fill[tails[k]] += 1
    queue = np.empty(states + 1, np.int32)
    queue[0] = 0
    forward[0] = True
    head = 0
    tail = 1
    while head < tail:
        s = queue[head]
        head += 1
        for j in range(offsets[s], offsets[s + 1]):
            t = heads[outgoing[j]]
            if not forward[t]:
                forward[t] = True
                queue[tail] = t
                tail += 1
    offsets[:] = 0
    for k in range(count):
        offsets[heads[k] + 1] += 1
    for s in range(states):
        offsets[s + 1] += offsets[s]
    fill = offsets.copy()
    for k in range(count):
        outgoing[fill[heads[k]]] = k
        fill[heads[k]] += 1
    head = 0
    tail = 0
    for s in range(states):
        if accepting[s]:
            backward[s] = True
            queue[tail] = s
            tail += 1
    while head < tail:
        s = queue[head]
        head += 1
        for j in range(offsets[s], offsets[s + 1]):
            t = tails[outgoing[j]]
            if not backward[t]:
                backward[t] = True
                queue[tail] = t
                tail += 1
    number = np.full(states, -1, np.int32)
    kept = 0
    for s in range(states):
        if (forward[s] and backward[s]) or s == 0:
            number[s] = kept
            kept += 1
    new_accepting = np.zeros(kept, np.bool_)
    for s in range(states):
        if number[s] >= 0:
            new_accepting[number[s]] = accepting[s]
    at = 0
    for k in range(count):
        a = number[tails[k]]
        b = number[heads[k]]
        if a >= 0 and b >= 0 and forward[tails[k]] and backward[heads[k]]:
            tails[at] = a
            labels[at] = labels[k]
            heads[at] = b
            at += 1
    return tails[:at].copy(), labels[:at].copy(), heads[:at].copy(), new_accepting, kept


@jit(types.Tuple((_ints, _ints, _ints, _bools, types.int64))(types.int64, _ints, _ints, _ints, _bools))
def _canonical(states, tails, labels, heads, accepting):
    """States numbered breadth-first by label from state 0, edges sorted, adjacent ranges joined."""
    count = tails.size
    order = np.argsort(labels, kind="mergesort")
    offsets = np.zeros(states + 1, np.int32)
    for k in range(count):
        offsets[tails[k] + 1] += 1
    for s in range(states):
        offsets[s + 1] += offsets[s]
    fill = offsets.copy()
    outgoing = np.empty(count, np.int32)
    for j in range(count):
        k = order[j]
        outgoing[fill[tails[k]]] = k
        fill[tails[k]] += 1
    number = np.full(states, -1, np.int32)
    queue = np.empty(states + 1, np.int32)
    queue[0] = 0
    number[0] = 0
    head = 0
    tail = 1
    new_tails = np.empty(count, np.int32)
    new_labels = np.empty(count, np.int32)
    new_heads = np.empty(count, np.int32)
    at = 0
    while head < tail:
        s = queue[head]
        begin = at
        # Byte ranges first, by their first byte: the label's low byte decides.
        width = offsets[s + 1] - offsets[s]
        keys = np.empty(width, np.int64)
        for j in range(width):
            k = outgoing[offsets[s] + j]
            label = np.int64(labels[k])
            name = label
            if label < CALL:
                name = ((label & 255) << 8) | (label >> 8)
            keys[j] = (name << 32) | k
        keys.sort()
        for j in range(width):
            k = keys[j] & 0xFFFFFFFF
            t = heads[k]
            if number[t] < 0:
                number[t] = tail
                queue[tail] = t
                tail += 1
            label = np.int64(labels[k])
            if at > begin and label < CALL and new_heads[at - 1] == number[t]:
                previous = np.int64(new_labels[at - 1])
                if previous < CALL and (previous >> 8) + 1 >= (label & 255):
                    last = max(previous >> 8, label >> 8)
                    new_labels[at - 1] = (previous & 255) | last << 8
                    continue
            if at > begin and label == new_labels[at - 1] and new_heads[at - 1] == number[t]:
                continue
            new_tails[at] = head
            new_labels[at] = label
            new_heads[at] = number[t]
            at += 1
        head += 1
    new_accepting = np.zeros(tail, np.bool_)
    for i in range(tail):
        new_accepting[i] = accepting[queue[i]]
    return new_tails[:at].copy(), new_labels[:at].copy(), new_heads[:at].copy(), new_accepting, tail


@jit(types.Tuple((_ints, _ints, _ints, _ints, types.uint8[::1], types.int64))(
    _ints, _ints, _ints, _ints, _ints, _ints, _ints, _bools, _bools, types.int64,
))  # fmt: skip
def determinise(rule_first, starts, accepts, offsets, labels, targets, bodies, nullable, productive,
                state_limit):  # fmt: skip
    """Every rule's automaton, minimised and canonically numbered.

    Returns:
        rule_offsets [rules + 1]: rule ``r`` owns the new states ``rule_offsets[r]:rule_offsets[r + 1]``
        and starts in the first of them (counters and unproductive rules own none);
        edge_offsets [states + 1], edge labels, edge targets (numbered over all rules),
        accepting [states]; and the number of states, or -1 where ``state_limit`` was passed.
    """
    rules = starts.size
    states = offsets.size - 1
    members = np.empty(states + 1, np.int32)
    stamp = np.zeros(states + 1, np.int32)
    rule_offsets = np.zeros(rules + 1, np.int32)
    edge_offsets = np.zeros(1025, np.int32)
    out_labels = np.empty(1024, np.int32)
    out_targets = np.empty(1024, np.int32)
    accepting = np.zeros(1024, np.uint8)
    total = 0
    edges = 0
    for r in range(rules):
        rule_offsets[r] = total
        if bodies[r] >= 0 or not productive[r]:
            continue
        first = rule_first[r]
        past = rule_first[r + 1]
        limit = max(ALWAYS_ALLOWED, BLOW_UP * (past - first))
        d_tails, d_labels, d_heads, d_accepting, size = _subsets(
            first, past, starts[r], accepts[r], offsets, labels, targets, nullable, productive,
            members, stamp, limit,
        )  # fmt: skip
        deterministic = size >= 0
        if not deterministic:
            d_tails, d_labels, d_heads, d_accepting, size = _without_epsilon(
                first, past, starts[r], accepts[r], offsets, labels, targets, nullable, productive,
                members, stamp,
            )  # fmt: skip
        d_tails, d_labels, d_heads, d_accepting, size = _trimmed(
            size, d_tails, d_labels, d_heads, d_accepting
        )
        if deterministic and size > 1:
            classes = equivalence_classes(size, d_tails, d_labels, d_heads, d_accepting)
            # One state of each class speaks for it; the start's class becomes 0.
            swap = classes[0]
            blocks = 0
            for s in range(size):
                if classes[s] == swap:
                    classes[s] = 0
                elif classes[s] == 0:
                    classes[s] = swap
                blocks = max(blocks, classes[s] + 1)
            speaker = np.full(blocks, -1, np.int32)
            merged_accepting = np.zeros(blocks, np.bool_)
            for s in range(size):
                if speaker[classes[s]] < 0:
                    speaker[classes[s]] = s
                    merged_accepting[classes[s]] = d_accepting[s]
            at = 0
            for k in range(d_tails.size):
                if speaker[classes[d_tails[k]]] == d_tails[k]:
                    head = classes[d_heads[k]]
                    tail = classes[d_tails[k]]
                    d_tails[at] = tail
                    d_labels[at] = d_labels[k]
                    d_heads[at] = head
                    at += 1
            d_tails = d_tails[:at].copy()
            d_labels = d_labels[:at].copy()
            d_heads = d_heads[:at].copy()
            d_accepting = merged_accepting
            size = blocks
        d_tails, d_labels, d_heads, d_accepting, size = _canonical(
            size, d_tails, d_labels, d_heads, d_accepting
        )
        if total + size > state_limit:
            return rule_offsets, edge_offsets, out_labels, out_targets, accepting, -1
        while total + size + 1 > edge_offsets.size:
            edge_offsets = _doubled(edge_offsets)
        while total + size > accepting.size:
            grown = np.zeros(2 * accepting.size, np.uint8)
            grown[: accepting.size] = accepting
            accepting = grown
        while edges + d_labels.size > out_labels.size:
            out_labels = _doubled(out_labels)
            out_targets = _doubled(out_targets)
        k = 0
        for s in range(size):
            accepting[total + s] = 1 if d_accepting[s] else 0
            while k < d_tails.size and d_tails[k] == s:
                out_labels[edges] = d_labels[k]
                out_targets[edges] = d_heads[k] + total
                edges += 1
                k += 1
            edge_offsets[total + s + 1] = edges
        total += size
    rule_offsets[rules] = total
    return (
        rule_offsets,
        edge_offsets[: total + 1].copy(),
        out_labels[:edges].copy(),
        out_targets[:edges].copy(),
        accepting[:total].copy(),
        total,
    )
