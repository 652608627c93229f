"""Content keys of rules: hashes of all that a rule can do, equal wherever the rule is the same.

A rule's key is the hash of its own content and of its callees' keys. Rules that call one another in a
circle have no order to do that in; they are told apart by colour refinement: each begins with its own
content's colour, and takes its callees' colours in until that tells no more rules apart. One round more, and
the set of colours and the number of rounds as part of the key, make the keys of two circles that do not
behave alike differ: equal sets after equally many rounds mean that refining both at once would have
ended there, too.

Hashes have 128 bits: two lanes of multiplications and shifts over 32-bit words, each lane with constants of
its own (those of the finalizers of MurmurHash3 and SplitMix64).
"""

# Compiled functions have numba signatures instead of annotations, and numba's rules for integers.
# mypy: allow-untyped-defs, disable-error-code="assignment,operator"

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from numba import types
from xxhash import xxh3_128_digest as digest

from vllm_guided.automaton.components import strong_components
from vllm_guided.numba_setup import jit

#: Rules in a circle that take more rounds are named by their order instead, which differs between grammars.
MAX_ROUNDS = 24

Ints = npt.NDArray[np.int32]
_ints = types.int32[::1]
_words = types.uint64[:, ::1]


@jit(types.void(types.uint64[::1], types.uint64))
def _mix(state, word):
    first = (state[0] ^ word) * np.uint64(0xFF51AFD7ED558CCD)
    state[0] = first ^ (first >> np.uint64(32))
    second = (state[1] + word) * np.uint64(0xBF58476D1CE4E5B9)
    state[1] = second ^ (second >> np.uint64(29))


@jit(types.void(types.uint64[::1]))
def _finish(state):
    """Each lane takes the other in."""
    first, second = state[0], state[1]
    _mix(state, second)
    _mix(state, first)
    _mix(state, np.uint64(0x94D049BB133111EB))


@jit(types.Tuple((_words, _ints, _ints))(
    _ints, _ints, _ints, _ints, types.uint8[::1], _ints, _ints, types.int32[:, ::1], _ints, _words, _ints,
    _ints,
))  # fmt: skip
def contents_and_calls(
    rule_offsets, edge_offsets, labels, targets, accepting, callee_offsets, callees, counters, bag_rules,
    bag_contents, bag_offsets, bag_called,
):  # fmt: skip
    """A hash of each rule's own content, and what it calls.

    Args:
        rule_offsets, …, callees: as ``determinise`` returns them.
        counters: int32 [3, rules]: counted rule (-1: none), least and most of each.
        bag_rules: the rules that are bags; their contents are ``bag_contents`` (uint64 [bags, 2]), and they
            call ``bag_called[bag_offsets[b]:bag_offsets[b + 1]]``.

    Returns:
        uint64 [rules, 2]; offsets [rules + 1] and callees of all rules.
    """
    rules = rule_offsets.size - 1
    bag_of = np.full(rules, -1, np.int32)
    for b in range(bag_rules.size):
        bag_of[bag_rules[b]] = b
    found = np.empty((rules, 2), np.uint64)
    offsets = np.zeros(rules + 1, np.int32)
    called = np.empty(callees.size + bag_called.size + rules, np.int32)
    used = 0
    state = np.empty(2, np.uint64)
    for r in range(rules):
        state[0] = np.uint64(14695981039346656037)
        state[1] = np.uint64(0x9E3779B97F4A7C15)
        if counters[0, r] >= 0:
            _mix(state, np.uint64(1))
            _mix(state, np.uint64(np.uint32(counters[1, r])))
            _mix(state, np.uint64(np.uint32(counters[2, r])))
            called[used] = counters[0, r]
            used += 1
        elif bag_of[r] >= 0:
            b = bag_of[r]
            _mix(state, np.uint64(2))
            _mix(state, bag_contents[b, 0])
            _mix(state, bag_contents[b, 1])
            for k in range(bag_offsets[b], bag_offsets[b + 1]):
                called[used] = bag_called[k]
                used += 1
        else:
            first, past = rule_offsets[r], rule_offsets[r + 1]
            _mix(state, np.uint64(3))
            _mix(state, np.uint64(past - first))
            for s in range(first, past):
                degree = edge_offsets[s + 1] - edge_offsets[s]
                _mix(state, np.uint64(2 * degree + accepting[s]))
            for k in range(edge_offsets[first], edge_offsets[past]):
                _mix(
                    state, np.uint64(np.uint32(labels[k])) | np.uint64(np.uint32(targets[k])) << np.uint64(32)
                )
            for k in range(callee_offsets[r], callee_offsets[r + 1]):
                called[used] = callees[k]
                used += 1
        _finish(state)
        found[r, 0] = state[0]
        found[r, 1] = state[1]
        offsets[r + 1] = used
    return found, offsets, called[:used].copy()


@jit(types.int64(types.int64, _ints, _ints, _ints, _ints, types.boolean[::1], _words, _words))
def keys_in_order(at, order, component, offsets, called, known, contents, keys):
    """Write keys from ``order[at]`` on, what is called first; where a circle begins, or the end."""
    state = np.empty(2, np.uint64)
    while at < order.size:
        r = order[at]
        if known[r]:
            at += 1
            continue
        if at + 1 < order.size and component[order[at + 1]] == component[r]:
            return at
        for k in range(offsets[r], offsets[r + 1]):
            if called[k] == r:
                return at
        state[0] = contents[r, 0]
        state[1] = contents[r, 1]
        for k in range(offsets[r], offsets[r + 1]):
            _mix(state, keys[called[k], 0])
            _mix(state, keys[called[k], 1])
        _finish(state)
        keys[r, 0] = state[0]
        keys[r, 1] = state[1]
        at += 1
    return at


def rule_keys(
    contents: npt.NDArray[np.uint64], offsets: Ints, called: Ints, known: Mapping[int, bytes]
) -> list[bytes]:
    """The keys of all rules, 16 bytes each.

    Args:
        contents: uint64 [rules, 2], hashes of what each rule is, its callees left out.
        offsets, called: the callees of each rule, in an order that its content decides.
        known: the keys of rules that are known already; they have no content and no callees here.
    """
    keys = np.zeros(contents.shape, np.uint64)
    is_known = np.zeros(len(contents), np.bool_)
    for rule, key in known.items():
        is_known[rule] = True
        keys[rule] = np.frombuffer(key, np.uint64)
    order, component = strong_components(offsets, called)
    at = 0
    while True:
        at = keys_in_order(at, order, component, offsets, called, is_known, contents, keys)
        if at == len(order):
            break
        members = order[component[order] == component[order[at]]].tolist()
        own = {rule: contents[rule].tobytes() for rule in members}
        callees = {rule: called[offsets[rule] : offsets[rule + 1]].tolist() for rule in members}
        outside = {
            callee: keys[callee].tobytes()
            for each in callees.values()
            for callee in each
            if callee not in own
        }
        for rule, key in _circle(own, callees, outside).items():
            keys[rule] = np.frombuffer(key, np.uint64)
        at += len(members)
    data = keys.tobytes()
    return [data[first : first + 16] for first in range(0, len(data), 16)]


def _circle(
    contents: Mapping[int, bytes], called: Mapping[int, Sequence[int]], keys: Mapping[int, bytes]
) -> dict[int, bytes]:
    """The keys of rules that call one another; ``keys`` are those of the others that they call."""
    members = contents.keys()
    own = {
        rule: digest(
            contents[rule]
            + b"".join([b"circle" if callee in members else keys[callee] for callee in called[rule]])
        )
        for rule in members
    }
    inside = {rule: [callee for callee in called[rule] if callee in members] for rule in members}
    colours, told_apart = own, len(set(own.values()))
    for rounds in range(MAX_ROUNDS):
        colours = {
            rule: digest(colours[rule] + b"".join([colours[callee] for callee in inside[rule]]))
            for rule in members
        }
        before, told_apart = told_apart, len(set(colours.values()))
        if told_apart == before:
            whole = digest(b"%d" % rounds + b"".join(sorted(set(colours.values()))))
            break
    else:
        place = {rule: b"%d," % number for number, rule in enumerate(sorted(members))}
        colours = {
            rule: digest(own[rule] + b"".join([place[callee] for callee in inside[rule]])) + place[rule]
            for rule in members
        }
        whole = digest(b"order" + b"".join([colours[rule] for rule in sorted(members)]))
    return {rule: digest(whole + colours[rule]) for rule in members}
