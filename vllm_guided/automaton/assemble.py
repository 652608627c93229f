"""Rules and fragments to the arrays of one automaton.

The automaton's rules are those that have no fragment, in their order, and then fragments in the order in
which they are called, so that it makes no difference which of them were compiled before.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from vllm_guided.automaton.automaton import Automaton
from vllm_guided.automaton.fragments import Fragment
from vllm_guided.automaton.own_rules import OwnRules
from vllm_guided.automaton.splice import spliced

Ints = npt.NDArray[np.int32]

_SPLICED = (
    "edge_offsets", "edge_low", "edge_high", "edge_target", "call_offsets", "call_rule", "call_return",
    "token_offsets", "token_symbol", "token_target",
)  # fmt: skip


def assembled(rules: OwnRules) -> Automaton:
    """The automaton whose start is rule 0."""
    nfa, fragment_of = rules.nfa, rules.fragment_of
    own = [rule for rule in range(len(nfa.names)) if rule not in fragment_of]
    fragments, number_of, names = _fragments_in_order(rules, own)
    # The automaton's number of each rule; that of a fragment nothing calls does not matter.
    numbers = [0] * len(nfa.names)
    for number, rule in enumerate(own):
        numbers[rule] = number
    for rule, fragment in fragment_of.items():
        numbers[rule] = number_of.get(fragment.key, 0)
    place = np.array(numbers, np.int32)

    sizes = rules.rule_offsets[1:] - rules.rule_offsets[:-1]
    widths = rules.callee_offsets[1:] - rules.callee_offsets[:-1]
    taken = np.array(own, np.int32)
    columns = [rules.degrees, rules.labels, rules.targets, rules.accepting, rules.callees]
    if len(fragment_of) > len(nfa.compiled):
        # Rules that have become fragments are in the way.
        is_own = np.ones(len(nfa.names), np.bool_)
        is_own[list(fragment_of)] = False
        states = np.repeat(is_own, sizes)
        moves = np.repeat(states, rules.degrees)
        chosen = (states, moves, moves, states, np.repeat(is_own, widths))
        columns = [column[mask] for column, mask in zip(columns, chosen, strict=True)]
    degrees, labels, targets, accepting, callees = columns
    called = [number_of[callee.key] for each in fragments for callee in each.callees]
    rule_offsets = _offsets([*sizes[taken].tolist(), *(len(each.degrees) for each in fragments)])
    moves_by_kind = spliced(
        rule_offsets,
        np.concatenate([degrees, *(each.degrees for each in fragments)]),
        np.concatenate([labels, *(each.labels for each in fragments)]),
        np.concatenate([targets, *(each.targets for each in fragments)]),
        _offsets([*widths[taken].tolist(), *(len(each.callees) for each in fragments)]),
        np.concatenate([place[callees], np.array(called, np.int32)]),
    )
    bodies = rules.bodies[taken]
    bodies = np.where(bodies >= 0, place[bodies], np.int32(-1))
    counted = [number_of[each.callees[0].key] if each.counter else -1 for each in fragments]
    arrays: dict[str, Any] = dict(zip(_SPLICED, moves_by_kind, strict=True)) | rules.bags.arrays(numbers)
    arrays |= {
        "rule_offsets": rule_offsets,
        "accepting": np.concatenate([accepting, *(each.accepting for each in fragments)]),
        "counter_body": _joined(bodies, counted),
        "counter_minimum": _joined(rules.minima[taken], [each.minimum for each in fragments]),
        "counter_maximum": _joined(rules.maxima[taken], [each.maximum for each in fragments]),
    }
    # A start rule that leads nowhere derives only the empty string.
    leads = bodies[0] >= 0 or 0 in rules.bags.rules or (sizes[0] > 0 and degrees[0] > 0)
    return Automaton(
        **arrays,
        rule_keys=(*(rules.keys[rule] for rule in own), *(each.key for each in fragments)),
        symbols=tuple(nfa.symbols),
        start=0 if leads else -1,
        nullable=bool(rules.nullable[0]),
        names=(*(nfa.names[rule] for rule in own), *names),
    )


def _fragments_in_order(
    rules: OwnRules, own: list[int]
) -> tuple[list[Fragment], dict[bytes, int], list[str]]:
    """The fragments that are called, the automaton's numbers of them by their keys, and their names."""
    fragment_of, names = rules.fragment_of, rules.nfa.names
    waiting = [
        (fragment_of[callee], names[callee])
        for rule in own
        for callee in rules.called[rule]
        if callee in fragment_of
    ]
    order: dict[bytes, tuple[Fragment, str]] = {}
    for fragment, name in waiting:  # grows while it is read
        if fragment.key not in order:
            order[fragment.key] = fragment, name
            waiting.extend((callee, callee.name) for callee in fragment.callees)
    numbers = {key: len(own) + number for number, key in enumerate(order)}
    return [each for each, _ in order.values()], numbers, [name for _, name in order.values()]


def _joined(own: Ints, others: list[int]) -> Ints:
    return np.concatenate([own, np.array(others, np.int32)])


def _offsets(sizes: list[int]) -> Ints:
    return np.array([0, *accumulate(sizes)], np.int32)
