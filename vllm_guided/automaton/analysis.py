"""Facts about the rules of an NFA that later passes need: which are nullable, productive, left-called.

A rule is *nullable* if it derives the empty string, *productive* if it derives anything. Rule ``b``
is *left-called* by ``a`` if ``a`` can enter ``b`` before it has consumed anything; a cycle of left
calls is left recursion.
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


@jit(types.Tuple((_ints, _ints, _ints))(types.int64, _ints))
def adjacency(states, edges):
    """Edges ``(source, label, target)`` grouped by source: offsets ``[states + 1]``, labels, targets."""
    count = edges.size // 3
    offsets = np.zeros(states + 1, np.int32)
    for k in range(count):
        offsets[edges[3 * k] + 1] += 1
    for s in range(states):
        offsets[s + 1] += offsets[s]
    fill = offsets.copy()
    labels = np.empty(count, np.int32)
    targets = np.empty(count, np.int32)
    for k in range(count):
        at = fill[edges[3 * k]]
        fill[edges[3 * k]] += 1
        labels[at] = edges[3 * k + 1]
        targets[at] = edges[3 * k + 2]
    return offsets, labels, targets


@jit(types.boolean(
    types.int64, types.int64, types.boolean, _ints, _ints, _ints, _bools, _ints, _ints, types.int32,
))  # fmt: skip
def _reaches(start, accept, empty_only, offsets, labels, targets, passable, queue, stamp, mark):
    """Whether ``accept`` is reachable, through calls of ``passable`` rules and, unless ``empty_only``,
    through bytes and tokens."""
    queue[0] = start
    stamp[start] = mark
    head = 0
    tail = 1
    while head < tail:
        state = queue[head]
        head += 1
        if state == accept:
            return True
        for k in range(offsets[state], offsets[state + 1]):
            label = labels[k]
            if label == EPSILON:
                through = True
            elif label >= TOKEN or label < CALL:
                through = not empty_only
            else:
                through = passable[label & RULE_MASK] and (label & STRICT == 0 or not empty_only)
            if through and stamp[targets[k]] != mark:
                stamp[targets[k]] = mark
                queue[tail] = targets[k]
                tail += 1
    return False


@jit(types.Tuple((_bools, _bools))(_ints, _ints, _ints, _ints, _ints, _ints, _ints, _bools, _bools))
def nullable_and_productive(
    starts, accepts, offsets, labels, targets, bodies, minima, known_nullable, known_productive
):
    """Two bool arrays by rule. ``bodies[r]`` is the counted rule of a counter, -1 for other rules.

    Rules without states that are no counters (``starts[r]`` is -1) are what the known arrays say.
    """
    rules = starts.size
    states = offsets.size - 1
    nullable = known_nullable.copy()
    productive = known_productive.copy()
    queue = np.empty(states + 1, np.int32)
    stamp = np.full(states + 1, -1, np.int32)
    mark = np.int32(0)
    for turn in range(2):
        found = nullable if turn == 0 else productive
        changed = True
        while changed:
            changed = False
            for r in range(rules - 1, -1, -1):
                if found[r] or (starts[r] < 0 and bodies[r] < 0):
                    continue
                mark += np.int32(1)
                if bodies[r] >= 0:
                    yes = minima[r] == 0 or found[bodies[r]]
                else:
                    yes = _reaches(
                        starts[r], accepts[r], turn == 0, offsets, labels, targets, found, queue, stamp, mark
                    )
                if yes:
                    found[r] = True
                    changed = True
    return nullable, productive


@jit(_ints(_ints, _ints, _ints, _ints, _ints, _bools, _bools))
def left_calls(starts, offsets, labels, targets, bodies, nullable, productive):
    """Pairs ``caller, callee`` flattened: the calls each rule can make before it consumes anything."""
    rules = starts.size
    states = offsets.size - 1
    queue = np.empty(states + 1, np.int32)
    stamp = np.full(states + 1, -1, np.int32)
    called = np.full(rules, -1, np.int32)
    pairs = np.empty(2 * (labels.size + rules), np.int32)
    count = 0
    for r in range(rules):
        if bodies[r] >= 0:
            pairs[count] = r
            pairs[count + 1] = bodies[r]
            count += 2
            continue
        if starts[r] < 0:
            continue
        queue[0] = starts[r]
        stamp[starts[r]] = r
        head = 0
        tail = 1
        while head < tail:
            state = queue[head]
            head += 1
            for k in range(offsets[state], offsets[state + 1]):
                label = labels[k]
                through = label == EPSILON
                if label >= CALL and label < TOKEN:
                    callee = label & RULE_MASK
                    if productive[callee] and called[callee] != r:
                        called[callee] = r
                        pairs[count] = r
                        pairs[count + 1] = callee
                        count += 2
                    through = nullable[callee] and label & STRICT == 0
                if through and stamp[targets[k]] != r:
                    stamp[targets[k]] = r
                    queue[tail] = targets[k]
                    tail += 1
    return pairs[:count].copy()
