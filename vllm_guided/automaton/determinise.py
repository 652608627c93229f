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

from vllm_guided.automaton.acyclic import acyclic_classes
from vllm_guided.automaton.labels import CALL, RULE_MASK, TAIL, TOKEN
from vllm_guided.automaton.minimise import equivalence_classes
from vllm_guided.automaton.ready import ready_size, write_ready
from vllm_guided.automaton.subsets import doubled, name_of, sort, subsets, without_epsilon
from vllm_guided.numba_setup import jit

_ints = types.int32[::1]
_bools = types.boolean[::1]

#: A rule is made deterministic while it needs at most this many states for each one it had ...
BLOW_UP = 8
#: ... or at most this many in all.
ALWAYS_ALLOWED = 4096


@jit(types.Tuple((_ints, _ints, _ints, _bools, types.int64))(types.int64, _ints, _ints, _ints, _bools))
def _trimmed(states, offsets, labels, heads, accepting):
    """Without the states that state 0 does not reach or that reach no accepting state; 0 stays 0."""
    forward = np.zeros(states, np.bool_)
    backward = np.zeros(states, np.bool_)
    queue = np.empty(states + 1, np.int32)
    queue[0] = 0
    forward[0] = True
    head = 0
    tail = 1
    while head < tail:
        s = queue[head]
        head += 1
        for k in range(offsets[s], offsets[s + 1]):
            t = heads[k]
            if not forward[t]:
                forward[t] = True
                queue[tail] = t
                tail += 1
    reached = tail
    in_offsets = np.zeros(states + 1, np.int32)
    for k in range(heads.size):
        in_offsets[heads[k] + 1] += 1
    for s in range(states):
        in_offsets[s + 1] += in_offsets[s]
    fill = in_offsets.copy()
    incoming = np.empty(heads.size, np.int32)
    for s in range(states):
        for k in range(offsets[s], offsets[s + 1]):
            incoming[fill[heads[k]]] = s
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
        for j in range(in_offsets[s], in_offsets[s + 1]):
            t = incoming[j]
            if not backward[t]:
                backward[t] = True
                queue[tail] = t
                tail += 1
    if reached == states and tail == states:
        return offsets, labels, heads, accepting, states
    number = np.full(states, -1, np.int32)
    kept = 0
    for s in range(states):
        if (forward[s] and backward[s]) or s == 0:
            number[s] = kept
            kept += 1
    new_accepting = np.zeros(kept, np.bool_)
    new_offsets = np.zeros(kept + 1, np.int32)
    at = 0
    for s in range(states):
        if number[s] < 0:
            continue
        new_accepting[number[s]] = accepting[s]
        if backward[s]:
            for k in range(offsets[s], offsets[s + 1]):
                if number[heads[k]] >= 0 and backward[heads[k]]:
                    labels[at] = labels[k]
                    heads[at] = number[heads[k]]
                    at += 1
        new_offsets[number[s] + 1] = at
    return new_offsets, labels[:at].copy(), heads[:at].copy(), new_accepting, kept


@jit(types.Tuple((_ints, _ints, _ints, _bools, types.int64))(
    types.int64, _ints, _ints, _ints, _bools, _ints,
))  # fmt: skip
def _canonical(states, offsets, labels, heads, accepting, classes):
    """One state for each class, numbered breadth-first by label; edges sorted, adjacent ranges joined."""
    speaker = np.full(states, -1, np.int32)
    for s in range(states):
        if speaker[classes[s]] < 0:
            speaker[classes[s]] = s
    number = np.full(states, -1, np.int32)
    queue = np.empty(states + 1, np.int32)
    queue[0] = 0
    number[classes[0]] = 0
    head = 0
    tail = 1
    new_offsets = np.zeros(states + 1, np.int32)
    new_labels = np.empty(heads.size, np.int32)
    new_heads = np.empty(heads.size, np.int32)
    keys = np.empty(256, np.int64)
    at = 0
    while head < tail:
        s = queue[head]
        begin = at
        low = np.int64(offsets[s])
        width = np.int64(offsets[s + 1]) - low
        if width > keys.size:
            keys = np.empty(2 * width, np.int64)
        for j in range(width):
            keys[j] = (name_of(np.int64(labels[low + j])) << 32) | j
        sort(keys, width)
        for j in range(width):
            k = low + (keys[j] & 0xFFFFFFFF)
            t = classes[heads[k]]
            if number[t] < 0:
                number[t] = tail
                queue[tail] = speaker[t]
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
            new_labels[at] = label
            new_heads[at] = number[t]
            at += 1
        head += 1
        new_offsets[head] = at
    new_accepting = np.zeros(tail, np.bool_)
    for i in range(tail):
        new_accepting[i] = accepting[queue[i]]
    return new_offsets[: tail + 1].copy(), new_labels[:at].copy(), new_heads[:at].copy(), new_accepting, tail


@jit(types.int64(types.int64, types.int64, _ints, _ints, _ints, types.int64, _ints, _ints, types.int64))
def _localised(first, past, offsets, labels, local_of, mark, d_labels, callees, used):
    """Name the calls in ``d_labels`` by the callees' places in a list of the rule's own.

    The list is in the order of the calls before the rule was made deterministic, which depends on the rule's
    content only, not on how a grammar numbers its rules; it goes into ``callees[used:]``. ``local_of`` holds
    ``mark + place`` for what is met. Returns the end of the list.
    """
    needed = mark - 1  # below all places
    for k in range(d_labels.size):
        if d_labels[k] >= CALL and d_labels[k] < TOKEN:
            local_of[d_labels[k] & RULE_MASK] = needed
    count = 0
    for k in range(offsets[first], offsets[past]):
        label = labels[k]
        if label >= CALL and label < TOKEN and local_of[label & RULE_MASK] == needed:
            local_of[label & RULE_MASK] = mark + count
            callees[used + count] = label & RULE_MASK
            count += 1
    for k in range(d_labels.size):
        if d_labels[k] >= CALL and d_labels[k] < TOKEN:
            d_labels[k] = CALL | (local_of[d_labels[k] & RULE_MASK] - mark)
    return used + count


@jit(types.boolean(types.int64, types.int64, _ints, _ints, _ints))
def _includes(state, wanted, offsets, labels, heads):
    """Whether ``state`` has all moves of ``wanted``, each as it is or as part of a wider byte range."""
    for k in range(offsets[wanted], offsets[wanted + 1]):
        found = False
        for j in range(offsets[state], offsets[state + 1]):
            if heads[j] != heads[k]:
                continue
            found = labels[j] == labels[k]
            if labels[j] < CALL and labels[k] < CALL:
                found = labels[j] & 255 <= labels[k] & 255 and labels[j] >> 8 >= labels[k] >> 8
            if found:
                break
        if not found:
            return False
    return True


@jit(_ints(types.int64, _ints, _ints, _ints, _bools, _ints))
def _with_tail_calls(rule, offsets, labels, heads, accepting, callees):
    """The heads, with TAIL where after a call the frame has nothing of its own left to do.

    That is so where the return state accepts and has no moves, and where a rule calls itself, comes
    back to an accepting state, and each of its accepting states can make all of that state's moves:
    what may follow the inner string then is what may follow the outer one. The second keeps
    ``expr: expr "+" expr | NUM`` from piling up a frame for every operator.
    """
    returns = heads.copy()
    for k in range(labels.size):
        if labels[k] < CALL or labels[k] >= TOKEN or not accepting[heads[k]]:
            continue
        tail = offsets[heads[k] + 1] == offsets[heads[k]]
        if not tail and callees[labels[k] - CALL] == rule:
            tail = True
            for state in range(accepting.size):
                if accepting[state] and not _includes(state, np.int64(heads[k]), offsets, labels, heads):
                    tail = False
                    break
        if tail:
            returns[k] = TAIL
    return returns


@jit(types.Tuple((_ints, _ints, _ints, _ints, types.uint8[::1], _ints, _ints, types.int64))(
    _ints, _ints, _ints, _ints, _ints, _ints, _bools, _bools, _bools, types.int64, _ints, _ints,
    types.uint8[::1], _ints,
))  # fmt: skip
def determinise(rule_first, starts, accepts, offsets, labels, targets, stateless, nullable, productive,
                state_limit, ready_at, ready, blob, number_of):  # fmt: skip
    """Every rule's automaton, minimised and canonically numbered.

    Everything of a rule is said in its own terms, so that it is the same in every grammar: targets are
    numbered from the rule's first state, calls are ``CALL | place`` in the rule's list of callees.

    Args:
        ready_at: by rule, where in ``ready`` it is described, if it needs no construction; else -1.
        ready, blob, number_of: see ``ready.py``; the rules' numbers here by those that ``ready`` uses.

    Returns:
        rule_offsets [rules + 1]: rule ``r`` owns the new states ``rule_offsets[r]:rule_offsets[r + 1]``
        and starts in the first of them (stateless and unproductive rules own none);
        edge_offsets [states + 1]; edge labels; edge targets (of calls perhaps TAIL); accepting [states];
        callee_offsets [rules + 1] and callees; and the number of states, or -1 where ``state_limit`` was
        passed.
    """
    rules = starts.size
    states = offsets.size - 1
    members = np.empty(states + 1, np.int32)
    stamp = np.zeros(states + 1, np.int32)
    rule_offsets = np.zeros(rules + 1, np.int32)
    callee_offsets = np.zeros(rules + 1, np.int32)
    callees = np.empty(labels.size + ready.size + 6, np.int32)  # a rule has fewer callees than numbers
    local_of = np.full(rules, -1, np.int32)
    mark = 1
    edge_offsets = np.zeros(1025, np.int32)
    out_labels = np.empty(1024, np.int32)
    out_targets = np.empty(1024, np.int32)
    accepting = np.zeros(1024, np.uint8)
    total = 0
    edges = 0
    called = 0
    for r in range(rules):
        rule_offsets[r] = total
        callee_offsets[r] = called
        if ready_at[r] >= 0:
            more_states, more_edges = ready_size(np.int64(ready_at[r]), ready, blob)
            if total + more_states > state_limit:
                total = -1
                break
            while total + more_states + 1 > edge_offsets.size:
                edge_offsets = doubled(edge_offsets)
            while total + more_states > accepting.size:
                grown = np.zeros(2 * accepting.size, np.uint8)
                grown[: accepting.size] = accepting
                accepting = grown
            while edges + more_edges > out_labels.size:
                out_labels = doubled(out_labels)
                out_targets = doubled(out_targets)
            total, edges, called = write_ready(
                np.int64(ready_at[r]), ready, blob, number_of, total, edges, called, edge_offsets, out_labels,
                out_targets, accepting, callees,
            )  # fmt: skip
            continue
        if stateless[r] or not productive[r]:
            continue
        first = rule_first[r]
        past = rule_first[r + 1]
        limit = max(ALWAYS_ALLOWED, BLOW_UP * (past - first))
        d_offsets, d_labels, d_heads, d_accepting, size = subsets(
            first, past, starts[r], accepts[r], offsets, labels, targets, nullable, productive,
            members, stamp, limit,
        )  # fmt: skip
        deterministic = size >= 0
        if not deterministic:
            d_offsets, d_labels, d_heads, d_accepting, size = without_epsilon(
                first, past, starts[r], accepts[r], offsets, labels, targets, nullable, productive,
                members, stamp,
            )  # fmt: skip
        d_offsets, d_labels, d_heads, d_accepting, size = _trimmed(
            size, d_offsets, d_labels, d_heads, d_accepting
        )
        classes = np.arange(size).astype(np.int32)
        if deterministic and not acyclic_classes(size, d_offsets, d_labels, d_heads, d_accepting, classes):
            classes = equivalence_classes(size, d_offsets, d_labels, d_heads, d_accepting)
        past_called = _localised(first, past, offsets, labels, local_of, mark, d_labels, callees, called)
        mark += past_called - called + 1
        own_offsets, d_labels, d_heads, d_accepting, size = _canonical(
            size, d_offsets, d_labels, d_heads, d_accepting, classes
        )
        if total + size > state_limit:
            return rule_offsets, edge_offsets, out_labels, out_targets, accepting, callee_offsets, callees, -1
        while total + size + 1 > edge_offsets.size:
            edge_offsets = doubled(edge_offsets)
        while total + size > accepting.size:
            grown = np.zeros(2 * accepting.size, np.uint8)
            grown[: accepting.size] = accepting
            accepting = grown
        while edges + d_labels.size > out_labels.size:
            out_labels = doubled(out_labels)
            out_targets = doubled(out_targets)
        for s in range(size):
            accepting[total + s] = 1 if d_accepting[s] else 0
            edge_offsets[total + s + 1] = edges + own_offsets[s + 1]
        returns = _with_tail_calls(
            r, own_offsets, d_labels, d_heads, d_accepting, callees[called:past_called]
        )
        out_labels[edges : edges + d_labels.size] = d_labels
        out_targets[edges : edges + d_labels.size] = returns
        edges += d_labels.size
        called = past_called
        total += size
    if total < 0:
        return rule_offsets, edge_offsets, out_labels, out_targets, accepting, callee_offsets, callees, -1
    rule_offsets[rules] = total
    callee_offsets[rules] = called
    return (
        rule_offsets,
        edge_offsets[: total + 1].copy(),
        out_labels[:edges].copy(),
        out_targets[:edges].copy(),
        accepting[:total].copy(),
        callee_offsets,
        callees[:called].copy(),
        total,
    )
