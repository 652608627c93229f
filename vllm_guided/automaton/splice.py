"""Rules in their own terms to the arrays of one automaton."""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.automaton.labels import CALL, TAIL, TOKEN
from vllm_guided.numba_setup import jit

_ints = types.int32[::1]
_bytes = types.uint8[::1]


@jit(types.Tuple((_ints, _bytes, _bytes, _ints, _ints, _ints, _ints, _ints, _ints, _ints))(
    _ints, _ints, _ints, _ints, _ints, _ints,
))  # fmt: skip
def spliced(rule_offsets, degrees, labels, targets, callee_offsets, callees):
    """Moves by kind, in the numbers of the whole automaton.

    Args:
        rule_offsets: int32 [rules + 1], the states of each rule.
        degrees: int32 [states], the number of moves of each.
        labels, targets: of each move, as ``determinise`` returns them.
        callee_offsets, callees: which rules the calls of each rule count.

    Returns:
        edge_offsets, edge_low, edge_high, edge_target, call_offsets, call_rule, call_return, token_offsets,
        token_symbol, token_target of the automaton.
    """
    states = degrees.size
    edge_offsets = np.empty(states + 1, np.int32)
    call_offsets = np.empty(states + 1, np.int32)
    token_offsets = np.empty(states + 1, np.int32)
    calls = 0
    tokens = 0
    for k in range(labels.size):
        if labels[k] >= TOKEN:
            tokens += 1
        elif labels[k] >= CALL:
            calls += 1
    edges = labels.size - calls - tokens
    edge_low = np.empty(edges, np.uint8)
    edge_high = np.empty(edges, np.uint8)
    edge_target = np.empty(edges, np.int32)
    call_rule = np.empty(calls, np.int32)
    call_return = np.empty(calls, np.int32)
    token_symbol = np.empty(tokens, np.int32)
    token_target = np.empty(tokens, np.int32)
    edge = 0
    call = 0
    token = 0
    k = 0
    for r in range(rule_offsets.size - 1):
        first = rule_offsets[r]
        for state in range(first, rule_offsets[r + 1]):
            edge_offsets[state] = edge
            call_offsets[state] = call
            token_offsets[state] = token
            for _ in range(degrees[state]):
                label = labels[k]
                target = targets[k]
                k += 1
                if label < CALL:
                    edge_low[edge] = label & 255
                    edge_high[edge] = label >> 8
                    edge_target[edge] = first + target
                    edge += 1
                elif label < TOKEN:
                    call_rule[call] = callees[callee_offsets[r] + (label - CALL)]
                    call_return[call] = TAIL if target == TAIL else first + target
                    call += 1
                else:
                    token_symbol[token] = label - TOKEN
                    token_target[token] = first + target
                    token += 1
    edge_offsets[states] = edge
    call_offsets[states] = call
    token_offsets[states] = token
    return (
        edge_offsets, edge_low, edge_high, edge_target, call_offsets, call_rule, call_return, token_offsets,
        token_symbol, token_target,
    )  # fmt: skip
