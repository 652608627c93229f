"""Rules in their own terms to the arrays of one automaton."""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs, disable-error-code="assignment"

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.automaton.labels import CALL, TAIL, TOKEN
from vllm_guided.numba_setup import jit

_ints = types.int32[::1]
_bytes = types.uint8[::1]
_table = types.int32[:, ::1]

#: Rows of ``Bundle.table``; those of ``OwnRules.counters`` are the last three of these.
STATES, CALLEES, COUNTED, LEAST, MOST = range(5)


@jit(types.Tuple((
    _ints, _ints, _ints, _ints, _ints, _bytes, _bytes, _ints, _ints, _ints, _ints, _ints, _ints, _ints,
    _bytes,
))(
    _ints, _ints, _ints, _ints, _ints, _ints, _bytes, _ints, _ints, _table, _table, _ints, _ints, _ints,
    _bytes, _ints,
))  # fmt: skip
def spliced(
    own, numbers, rule_offsets, edge_offsets, labels, targets, accepting, callee_offsets, callees, counters,
    bundled, b_degrees, b_labels, b_targets, b_accepting, b_callees,
):  # fmt: skip
    """The arrays of an automaton of some rules, and a bundle of fragments behind them.

    Args:
        own: int32, ascending, which of the rules to take.
        numbers: int32 [rules], the automaton's number of each rule.
        rule_offsets, …, callees: the rules, as ``determinise`` returns them.
        counters: int32 [3, rules], counted rule (-1: none), least, most.
        bundled, …: see ``Bundle``.

    Returns:
        rule_offsets, counter_body, counter_minimum, counter_maximum, edge_offsets, edge_low, edge_high,
        edge_target, call_offsets, call_rule, call_return, token_offsets, token_symbol, token_target,
        accepting of the automaton.
    """
    rules = own.size + bundled.shape[1]
    new_rule_offsets = np.zeros(rules + 1, np.int32)
    body = np.empty(rules, np.int32)
    minimum = np.empty(rules, np.int32)
    maximum = np.empty(rules, np.int32)
    # Own rules' moves by kind first, so that all is written in one pass.
    states = 0
    moves = 0
    calls = 0
    tokens = 0
    for i in range(own.size):
        first, past = rule_offsets[own[i]], rule_offsets[own[i] + 1]
        states += past - first
        new_rule_offsets[i + 1] = states
        moves += edge_offsets[past] - edge_offsets[first]
        for k in range(edge_offsets[first], edge_offsets[past]):
            if labels[k] >= TOKEN:
                tokens += 1
            elif labels[k] >= CALL:
                calls += 1
        counted = counters[0, own[i]]
        body[i] = numbers[counted] if counted >= 0 else np.int32(-1)
        minimum[i] = counters[1, own[i]]
        maximum[i] = counters[2, own[i]]
    for i in range(bundled.shape[1]):
        rule = own.size + i
        states += bundled[STATES, i]
        new_rule_offsets[rule + 1] = states
        body[rule] = own.size + bundled[COUNTED, i] if bundled[COUNTED, i] >= 0 else np.int32(-1)
        minimum[rule] = bundled[LEAST, i]
        maximum[rule] = bundled[MOST, i]
    moves += b_labels.size
    for k in range(b_labels.size):
        if b_labels[k] >= TOKEN:
            tokens += 1
        elif b_labels[k] >= CALL:
            calls += 1
    new_edge_offsets = np.empty(states + 1, np.int32)
    call_offsets = np.empty(states + 1, np.int32)
    token_offsets = np.empty(states + 1, np.int32)
    edge_low = np.empty(moves - calls - tokens, np.uint8)
    edge_high = np.empty(moves - calls - tokens, np.uint8)
    edge_target = np.empty(moves - calls - tokens, np.int32)
    call_rule = np.empty(calls, np.int32)
    call_return = np.empty(calls, np.int32)
    token_symbol = np.empty(tokens, np.int32)
    token_target = np.empty(tokens, np.int32)
    new_accepting = np.empty(states, np.uint8)
    edge = 0
    call = 0
    token = 0
    state = 0
    b_state = 0
    b_move = 0
    b_callee = 0
    for rule in range(rules):
        first = new_rule_offsets[rule]
        size = new_rule_offsets[rule + 1] - first
        is_own = rule < own.size
        if is_own:
            old = rule_offsets[own[rule]]
            callee = callee_offsets[own[rule]]
        else:
            old = np.int32(b_state)
            callee = np.int32(b_callee)
        for s in range(size):
            new_edge_offsets[state] = edge
            call_offsets[state] = call
            token_offsets[state] = token
            if is_own:
                new_accepting[state] = accepting[old + s]
                k = np.int64(edge_offsets[old + s])
                past_move = np.int64(edge_offsets[old + s + 1])
            else:
                new_accepting[state] = b_accepting[b_state]
                k = np.int64(b_move)
                past_move = k + b_degrees[b_state]
                b_move = past_move
                b_state += 1
            state += 1
            while k < past_move:
                label = labels[k] if is_own else b_labels[k]
                target = targets[k] if is_own else b_targets[k]
                k += 1
                if label < CALL:
                    edge_low[edge] = label & 255
                    edge_high[edge] = label >> 8
                    edge_target[edge] = first + target
                    edge += 1
                elif label < TOKEN:
                    if is_own:
                        call_rule[call] = numbers[callees[callee + (label - CALL)]]
                    else:
                        call_rule[call] = own.size + b_callees[callee + (label - CALL)]
                    call_return[call] = TAIL if target == TAIL else first + target
                    call += 1
                else:
                    token_symbol[token] = label - TOKEN
                    token_target[token] = first + target
                    token += 1
        if not is_own:
            b_callee += bundled[CALLEES, rule - own.size]
    new_edge_offsets[states] = edge
    call_offsets[states] = call
    token_offsets[states] = token
    return (
        new_rule_offsets, body, minimum, maximum, new_edge_offsets, edge_low, edge_high, edge_target,
        call_offsets, call_rule, call_return, token_offsets, token_symbol, token_target, new_accepting,
    )  # fmt: skip
