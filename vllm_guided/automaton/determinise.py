"""Subset construction, minimisation and canonical numbering of every rule's automaton.

One compiled call works through all rules of a grammar. Where the subset construction would multiply
the states, the rule keeps its nondeterminism (only epsilon edges are removed): the runtime follows sets
of states anyway, so this costs speed, never correctness.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.automaton.labels import CALL
from vllm_guided.automaton.minimise import equivalence_classes
from vllm_guided.automaton.subsets import doubled, sort, subsets, without_epsilon
from vllm_guided.numba_setup import jit

_ints = types.int32[::1]
_bools = types.boolean[::1]

#: A rule is made deterministic while it needs at most this many states for each one it had ...
BLOW_UP = 8
#: ... or at most this many in all.
ALWAYS_ALLOWED = 4096


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
        sort(keys, width)
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
        d_tails, d_labels, d_heads, d_accepting, size = subsets(
            first, past, starts[r], accepts[r], offsets, labels, targets, nullable, productive,
            members, stamp, limit,
        )  # fmt: skip
        deterministic = size >= 0
        if not deterministic:
            d_tails, d_labels, d_heads, d_accepting, size = without_epsilon(
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
            edge_offsets = doubled(edge_offsets)
        while total + size > accepting.size:
            grown = np.zeros(2 * accepting.size, np.uint8)
            grown[: accepting.size] = accepting
            accepting = grown
        while edges + d_labels.size > out_labels.size:
            out_labels = doubled(out_labels)
            out_targets = doubled(out_targets)
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
