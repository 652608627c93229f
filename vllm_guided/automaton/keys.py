"""Content keys of rules: hashes of all that a rule can do, equal wherever the rule is the same.

A rule's key is the hash of its own content and of its callees' keys. Rules that call one another in a
circle have no order to do that in; they are told apart by colour refinement: each begins with its own
content's colour, and takes its callees' colours in until that tells no more rules apart. One round more, and
the set of colours and the number of rounds as part of the key, make the keys of two circles that do not
behave alike differ: equal sets after equally many rounds mean that refining both at once would have
ended there, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain

import numpy as np
from xxhash import xxh3_128_digest as digest

from vllm_guided.automaton.components import strong_components

#: Rules in a circle that take more rounds are named by their order instead, which differs between grammars.
MAX_ROUNDS = 24


def rule_keys(
    contents: Sequence[bytes], called: Sequence[Sequence[int]], known: Mapping[int, bytes]
) -> list[bytes]:
    """The keys of all rules.

    Args:
        contents: what each rule is, its callees left out.
        called: the callees of each rule, in an order that its content decides.
        known: the keys of rules that are known already; they have no content and no callees here.
    """
    count = len(contents)
    keys = [known.get(rule, b"") for rule in range(count)]
    order, component = strong_components(
        np.array([0, *accumulate(map(len, called))], np.int32),
        np.array([*chain.from_iterable(called)], np.int32),
    )
    components: list[list[int]] = [[] for _ in range(count)]
    for rule, number in zip(order.tolist(), component[order].tolist(), strict=True):
        components[number].append(rule)
    for members in components:
        if not members:
            break
        rule = members[0]
        if rule in known:
            continue
        if len(members) > 1 or rule in called[rule]:
            _circle(members, contents, called, keys)
        else:
            keys[rule] = digest(contents[rule] + b"".join([keys[callee] for callee in called[rule]]))
    return keys


def _circle(
    members: list[int], contents: Sequence[bytes], called: Sequence[Sequence[int]], keys: list[bytes]
) -> None:
    """Write the keys of rules that call one another."""
    inside = set(members)
    own = {
        rule: digest(
            contents[rule]
            + b"".join(b"circle" if callee in inside else keys[callee] for callee in called[rule])
        )
        for rule in members
    }
    colours, told_apart = own, len(set(own.values()))
    for rounds in range(MAX_ROUNDS):
        colours = {
            rule: digest(
                colours[rule] + b"".join(colours[callee] for callee in called[rule] if callee in inside)
            )
            for rule in members
        }
        before, told_apart = told_apart, len(set(colours.values()))
        if told_apart == before:
            whole = digest(b"%d" % rounds + b"".join(sorted(set(colours.values()))))
            break
    else:
        place = {rule: b"%d," % number for number, rule in enumerate(sorted(members))}
        colours = {
            rule: digest(own[rule] + b"".join(place[callee] for callee in called[rule] if callee in inside))
            + place[rule]
            for rule in members
        }
        whole = digest(b"order" + b"".join(colours[rule] for rule in sorted(members)))
    for rule in members:
        keys[rule] = digest(whole + colours[rule])
