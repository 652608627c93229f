"""Which states of an automaton can still be completed when some of its tokens are gone."""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.automaton.bags import WANTED_BITS
from vllm_guided.automaton.labels import TAIL
from vllm_guided.numba_setup import jit

_ints = types.int32[::1]
_bools = types.boolean[::1]


@jit(types.boolean(
    types.int64, _bools, _ints, types.int64, types.int64, types.int64, types.int64[::1], _ints, _ints,
    _ints, _ints,
))  # fmt: skip
def _bag_is_alive(
    bag, rules_alive, offsets, minimum, groups, wanted, required, member_rule, member_rest, member_own,
    member_wanted,
):  # fmt: skip
    """Whether a bag's required flags can be set by members that derive anything."""
    seen = np.zeros(groups, np.bool_)
    owns = 0
    free = False
    for k in range(offsets[bag], offsets[bag + 1]):
        if not rules_alive[member_rule[k]] or (member_rest[k] >= 0 and not rules_alive[member_rest[k]]):
            continue
        wanted &= ~np.int64(member_wanted[k])
        if member_own[k] < 0:
            free = True
        elif not seen[member_own[k]]:
            seen[member_own[k]] = True
            owns += 1
    if wanted != 0 or not (free or owns >= max(minimum, 1)):
        return False
    for own in range(groups):
        bit = WANTED_BITS + own
        if not seen[own] and (required[bit // 64] >> (bit % 64)) & 1:
            return False
    return True


@jit(types.UniTuple(_bools, 2)(
    _bools, _ints, _ints, types.uint8[::1], _ints, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _ints,
    _ints, _ints, _ints, types.int64[::1], _ints, _ints, _ints, _ints, _ints,
))  # fmt: skip
def alive_states(
    kept_tokens, rule_offsets, counter_body, accepting, edge_offsets, edge_target, call_offsets, call_rule,
    call_return, token_offsets, token_target, bag_rule, bag_minimum, bag_groups, bag_wanted, bag_word_offsets,
    bag_required, bag_offsets, member_rule, member_rest, member_own, member_wanted,
):  # fmt: skip
    """The states from which their rule can be completed, and the rules that derive anything (a least fixed
    point). ``kept_tokens``: of each token move, whether it is there; all else as in ``Automaton``."""
    rules = counter_body.size
    alive = np.zeros(accepting.size, np.bool_)
    rules_alive = np.zeros(rules, np.bool_)
    bag_of = np.full(rules, -1, np.int32)
    for bag in range(bag_rule.size):
        bag_of[bag_rule[bag]] = bag
    changed = True
    while changed:
        changed = False
        for r in range(rules - 1, -1, -1):
            for state in range(rule_offsets[r + 1] - 1, rule_offsets[r] - 1, -1):
                if alive[state]:
                    continue
                found = accepting[state] != 0
                for k in range(edge_offsets[state], edge_offsets[state + 1]):
                    found |= alive[edge_target[k]]
                for k in range(token_offsets[state], token_offsets[state + 1]):
                    found |= kept_tokens[k] and alive[token_target[k]]
                for k in range(call_offsets[state], call_offsets[state + 1]):
                    back = call_return[k]
                    found |= rules_alive[call_rule[k]] and (back == TAIL or alive[back])
                if found:
                    alive[state] = True
                    changed = True
            if rules_alive[r]:
                continue
            bag = bag_of[r]
            if counter_body[r] >= 0:
                found = rules_alive[counter_body[r]]
            elif bag >= 0:
                found = _bag_is_alive(
                    np.int64(bag), rules_alive, bag_offsets, np.int64(bag_minimum[bag]),
                    np.int64(bag_groups[bag]), np.int64(bag_wanted[bag]),
                    bag_required[bag_word_offsets[bag] : bag_word_offsets[bag + 1]], member_rule, member_rest,
                    member_own, member_wanted,
                )  # fmt: skip
            else:
                found = rule_offsets[r] < rule_offsets[r + 1] and alive[rule_offsets[r]]
            if found:
                rules_alive[r] = True
                changed = True
    return alive, rules_alive
