"""How large the nodes of a program are when written out, and which rules are written in place of a call."""

# Compiled functions have numba signatures instead of annotations, and numba's rules for integers.
# mypy: allow-untyped-defs, disable-error-code="assignment,operator"

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.automaton.components import grouped, strong_components
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

#: A repetition is written out while copies x size stays below this; beyond, it becomes a counter.
UNROLL_LIMIT = 400
#: A rule used more than once is inlined while its size stays below this.
INLINE_LIMIT = 24
#: A rule used once is inlined while its size stays below this.
INLINE_ONCE_LIMIT = 2_000


@jit(types.UniTuple(types.int64, 2)(_ints, types.int64))
def _head(ops, at):
    """How many numbers the node at ``at`` has before its parts, and how many parts."""
    kind = ops[at]
    if kind == LITERAL:
        return 3, 0
    if kind in (SEQUENCE, CHOICE):
        return 2, np.int64(ops[at + 1])
    if kind == REPEAT:
        return 3, 1
    if kind == GRAPH:
        return 6 + np.int64(ops[at + 4]) + 3 * np.int64(ops[at + 1]), np.int64(ops[at + 5])
    return 2, 0


@jit(types.void(_ints, _ints, types.int64, types.int64, _ints, _bools, _longs, _ints, _longs, _ints))
def _measure(ops, nodes, first, past, wide, inline, rule_size, end, size, stack):
    """Size and end of each of the nodes ``nodes[first:past]`` (a rule's), parts before what they are in."""
    held = 0
    for i in range(past - 1, first - 1, -1):
        at = nodes[i]
        kind = ops[at]
        head, parts = _head(ops, at)
        behind = np.int32(at + head)
        total = np.int64(1)
        if kind == LITERAL:
            total = np.int64(ops[at + 2])
        elif kind == SET:
            total = np.int64(wide[ops[at + 1]])
        elif kind == REF and inline[ops[at + 1]]:
            total = rule_size[ops[at + 1]]
        if kind == GRAPH:
            for k in range(at + 7 + ops[at + 4], at + head, 3):
                total += size[stack[held - 1 - ops[k]]]
        elif parts > 0:
            for k in range(held - parts, held):
                total += size[stack[k]]
        held -= parts
        if parts > 0:
            behind = end[stack[held]]
        if kind == REPEAT:
            copies = np.int64(ops[at + 1] if ops[at + 2] < 0 else ops[at + 2])
            unrolled = total * max(copies, 1)
            total = unrolled if unrolled <= UNROLL_LIMIT or copies < 2 else 1
        end[at] = behind
        size[at] = total
        stack[held] = at
        held += 1


@jit(types.Tuple((_ints, _longs, _bools))(_ints, _ints, _ints, _bools))
def measured(ops, begins, wide, shared):
    """What the writing of rules needs to know of their programs.

    Args:
        begins: where each rule's program begins; -1 for a rule without one.
        wide: about how many edges a set writes.
        shared: rules that are never inlined.

    Returns:
        end: by position of a node, where the next one begins that is not part of it;
        size: by position of a node, about how many edges it writes (a call 1, an inlined rule its size);
        inline: by rule, whether it is written in place of its calls.
    """
    rules = begins.size
    nodes = np.empty(ops.size, np.int32)
    rule_first = np.zeros(rules + 1, np.int32)
    pairs = np.empty(ops.size + 2, np.int32)
    uses = np.zeros(rules, np.int64)
    loops = np.zeros(rules, np.bool_)
    # Rules' programs lie one behind the other in the order of their numbers.
    count = 0
    pair = 0
    last = np.int64(ops.size)
    past = np.empty(rules, np.int64)
    for r in range(rules - 1, -1, -1):
        past[r] = last
        if begins[r] >= 0:
            last = np.int64(begins[r])
    for r in range(rules):
        rule_first[r] = count
        if begins[r] < 0:
            continue
        at = np.int64(begins[r])
        while at < past[r]:
            nodes[count] = at
            count += 1
            kind = ops[at]
            if kind in (REF, CALLED):
                callee = ops[at + 1]
                # A call that cannot be inlined keeps the rule, so that inlining it elsewhere makes two of it.
                uses[callee] += 1 if kind == REF else 2
                loops[callee] |= callee == r
                pairs[pair] = r
                pairs[pair + 1] = callee
                pair += 2
            at += _head(ops, at)[0]
    rule_first[rules] = count
    offsets, successors = grouped(rules, pairs[:pair])
    order, component = strong_components(offsets, successors)
    members = np.zeros(rules, np.int32)
    for r in range(rules):
        members[component[r]] += 1
    end = np.zeros(ops.size, np.int32)
    size = np.zeros(ops.size, np.int64)
    stack = np.empty(count + 1, np.int32)
    inline = np.zeros(rules, np.bool_)
    rule_size = np.ones(rules, np.int64)
    for r in order:
        if begins[r] < 0:
            continue
        _measure(ops, nodes, rule_first[r], rule_first[r + 1], wide, inline, rule_size, end, size, stack)
        own = size[begins[r]]
        rule_size[r] = own
        if shared[r] or members[component[r]] > 1 or loops[r]:
            continue
        inline[r] = own <= INLINE_LIMIT or (uses[r] == 1 and own <= INLINE_ONCE_LIMIT)
    return end, size, inline
