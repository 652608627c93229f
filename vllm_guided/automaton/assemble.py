"""Rules and fragments to the arrays of one automaton.

The automaton's rules are those that have no fragment, in their order, and then fragments in the order of
their keys, so that it makes no difference which of them were compiled before.
"""

from __future__ import annotations

import numpy as np

from vllm_guided.automaton.automaton import Automaton
from vllm_guided.automaton.bundles import bundle_of
from vllm_guided.automaton.fragments import Fragment
from vllm_guided.automaton.own_rules import OwnRules
from vllm_guided.automaton.splice import spliced


def assembled(rules: OwnRules) -> Automaton:
    """The automaton whose start is rule 0."""
    nfa, fragment_of = rules.nfa, rules.fragment_of
    count = len(nfa.names)
    own = [rule for rule in range(count) if rule not in fragment_of] if fragment_of else list(range(count))
    # By key, as different rules may be one fragment: it, and its first name.
    roots: dict[bytes, tuple[Fragment, str]] = {}
    callees = rules.called.tolist()
    if len(fragment_of) > len(nfa.compiled):
        # Rules that have become fragments call others, too.
        offsets = rules.call_offsets.tolist()
        callees = [callee for rule in own for callee in callees[offsets[rule] : offsets[rule + 1]]]
    for callee in fragment_of.keys() & set(callees):
        fragment = fragment_of[callee]
        roots[fragment.key] = fragment, nfa.names[callee]
    bundle = bundle_of(tuple([roots[key][0] for key in sorted(roots)]))
    # The automaton's number of each rule; that of a fragment nothing calls does not matter.
    numbers = [0] * count
    for number, rule in enumerate(own):
        numbers[rule] = number
    for rule, fragment in fragment_of.items():
        numbers[rule] = len(own) + bundle.number_of.get(fragment.key, 0)
    (
        rule_offsets, counter_body, counter_minimum, counter_maximum, edge_offsets, edge_low, edge_high,
        edge_target, call_offsets, call_rule, call_return, token_offsets, token_symbol, token_target,
        accepting,
    ) = spliced(
        np.array(own, np.int32), np.array(numbers, np.int32), rules.rule_offsets, rules.edge_offsets,
        rules.labels, rules.targets, rules.accepting, rules.callee_offsets, rules.callees, rules.counters,
        bundle.table, bundle.degrees, bundle.labels, bundle.targets, bundle.accepting, bundle.callees,
    )  # fmt: skip
    # A start rule that leads nowhere derives only the empty string.
    leads = (
        counter_body[0] >= 0 or 0 in rules.bags.rules or edge_offsets[1] + call_offsets[1] + token_offsets[1]
    )
    names = nfa.names
    return Automaton(
        rule_offsets=rule_offsets,
        rule_keys=(*[rules.keys[rule] for rule in own], *bundle.keys),
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
        **rules.bags.arrays(numbers),
        symbols=tuple(nfa.symbols),
        start=0 if leads else -1,
        nullable=bool(rules.nullable[0]),
        names=(*[names[rule] for rule in own], *[roots[key][1] for key in sorted(roots)], *bundle.names),
    )
