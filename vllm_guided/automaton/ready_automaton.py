"""Automata of grammars in which all is compiled already or needs no construction: one compiled call.

In: a program without nodes. Out: what :mod:`.build` would make of it in its passes, of which nothing but the
last is left to do.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.automaton.automaton import Automaton
from vllm_guided.automaton.bags import Bags
from vllm_guided.automaton.bundles import bundle_of
from vllm_guided.automaton.components import strong_components
from vllm_guided.automaton.determinise import determinise
from vllm_guided.automaton.keys import contents_and_calls, keys_in_order
from vllm_guided.automaton.program import Program
from vllm_guided.automaton.splice import spliced
from vllm_guided.numba_setup import jit

_ints = types.int32[::1]
_bytes = types.uint8[::1]
_table = types.int32[:, ::1]
_words = types.uint64[:, ::1]


@jit(types.Tuple((
    types.int64, _words, _ints, _ints, _ints, _ints, _ints, _bytes, _bytes, _ints, _ints, _ints, _ints, _ints,
    _ints, _ints, _bytes,
))(
    _ints, _ints, _bytes, _ints, _words, _ints, _words, _ints, _ints, _ints, _ints, types.int64, _table,
    _ints, _ints, _ints, _bytes, _ints,
))  # fmt: skip
def _written(
    ready_at, ready, blob, known, known_keys, bag_rules, bag_contents, bag_offsets, bag_called, own, numbers,
    state_limit, bundled, degrees, labels, targets, accepting, callees,
):  # fmt: skip
    """Keys and arrays, behind how far the keys came (see ``keys_in_order``), or -1 for too many states."""
    rules = ready_at.size
    none = np.full(rules, -1, np.int32)
    nothing = np.zeros(0, np.int32)
    is_known = np.zeros(rules, np.bool_)
    own_rules = determinise(
        np.zeros(rules + 1, np.int32), none, none, np.zeros(1, np.int32), nothing, nothing,
        np.ones(rules, np.bool_), is_known, is_known, state_limit, ready_at, ready, blob,
        np.arange(rules).astype(np.int32),
    )  # fmt: skip
    counters = np.full((3, rules), -1, np.int32)
    counters[1, :] = 0
    contents, offsets, called = contents_and_calls(
        own_rules[0], own_rules[1], own_rules[2], own_rules[3], own_rules[4], own_rules[5], own_rules[6],
        counters, bag_rules, bag_contents, bag_offsets, bag_called,
    )  # fmt: skip
    keys = np.zeros((rules, 2), np.uint64)
    for i in range(known.size):
        is_known[known[i]] = True
        keys[known[i], 0] = known_keys[i, 0]
        keys[known[i], 1] = known_keys[i, 1]
    order, component = strong_components(offsets, called)
    reached = keys_in_order(0, order, component, offsets, called, is_known, contents, keys)
    if own_rules[7] < 0:
        reached = -1
    found = spliced(
        own, numbers, own_rules[0], own_rules[1], own_rules[2], own_rules[3], own_rules[4], own_rules[5],
        own_rules[6], counters, bundled, degrees, labels, targets, accepting, callees,
    )  # fmt: skip
    return (
        reached, keys, found[0], found[1], found[2], found[3], found[4], found[5], found[6], found[7],
        found[8], found[9], found[10], found[11], found[12], found[13], found[14],
    )  # fmt: skip


def ready_automaton(program: Program, state_limit: int) -> Automaton | None:
    """The automaton of a program that has no nodes; ``None`` where rules call one another in a circle, or
    there are more states than ``state_limit``."""
    names, compiled = program.names, program.compiled
    count = len(names)
    own = [rule for rule in range(count) if rule not in compiled]
    by_key = {fragment.key: (fragment, names[rule]) for rule, fragment in compiled.items()}
    order = sorted(by_key)
    bundle = bundle_of(tuple([by_key[key][0] for key in order]))
    numbers = [0] * count
    for number, rule in enumerate(own):
        numbers[rule] = number
    for rule, fragment in compiled.items():
        numbers[rule] = len(own) + bundle.number_of[fragment.key]
    ready_at = np.full(count, -1, np.int32)
    ready_at[list(program.ready)] = list(program.ready.values())
    nullable = [False] * count
    for rule, fragment in compiled.items():
        nullable[rule] = fragment.nullable
    bags = Bags(program.bags, range(count), nullable, nullable)
    known_keys = b"".join([fragment.key for fragment in compiled.values()])
    (
        reached, keys, rule_offsets, counter_body, counter_minimum, counter_maximum, edge_offsets,
        edge_low, edge_high, edge_target, call_offsets, call_rule, call_return, token_offsets,
        token_symbol, token_target, accepting,
    ) = _written(
        ready_at, program.ready_array(), np.frombuffer(program.blob or bytearray(1), np.uint8),
        np.array(list(compiled), np.int32), np.frombuffer(bytearray(known_keys), np.uint64).reshape(-1, 2),
        *bags.contents_and_calls(), np.array(own, np.int32), np.array(numbers, np.int32), state_limit,
        bundle.table, bundle.degrees, bundle.labels, bundle.targets, bundle.accepting, bundle.callees,
    )  # fmt: skip
    if reached < count:
        return None
    data = keys.tobytes()
    return Automaton(
        rule_offsets=rule_offsets,
        rule_keys=(*[data[16 * rule : 16 * rule + 16] for rule in own], *bundle.keys),
        counter_body=counter_body,
        counter_minimum=counter_minimum,
        counter_maximum=counter_maximum,
        edge_offsets=edge_offsets,
        edge_low=edge_low,
        edge_high=edge_high,
        edge_target=edge_target,
        call_offsets=call_offsets,
        call_rule=call_rule,
        call_return=call_return,
        token_offsets=token_offsets,
        token_symbol=token_symbol,
        token_target=token_target,
        accepting=accepting,
        **bags.arrays(numbers),
        symbols=(),
        start=0,
        nullable=False,
        names=(*[names[rule] for rule in own], *[by_key[key][1] for key in order], *bundle.names),
    )
