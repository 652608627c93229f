"""An automaton without some of its special tokens: what is left when a vocabulary lacks them.

A grammar may name tokens that a vocabulary does not have. Their moves are taken out when the two meet,
and with them every move that then leads nowhere, so that no mask ever points into a dead end.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import xxhash

from vllm_guided.automaton.alive import alive_states
from vllm_guided.automaton.automaton import TAIL, Automaton, writable
from vllm_guided.automaton.bags import MEMBER_ARRAYS
from vllm_guided.errors import InvalidConstraint

Bools = npt.NDArray[np.bool_]
_READ = (
    "rule_offsets", "counter_body", "accepting", "edge_offsets", "edge_target", "call_offsets", "call_rule",
    "call_return", "token_offsets", "token_target", "bag_rule", "bag_minimum", "bag_groups", "bag_wanted",
    "bag_word_offsets", "bag_required", "bag_offsets", "member_rule", "member_rest", "member_own",
    "member_wanted",
)  # fmt: skip


def without_symbols(automaton: Automaton, removed: set[int]) -> Automaton:
    """``automaton`` without the tokens ``symbols[i]`` for ``i`` in ``removed``; states keep their numbers.

    Raises:
        InvalidConstraint: nothing is left.
    """
    kept_tokens = ~np.isin(automaton.token_symbol, sorted(removed))
    arrays = {name: writable(getattr(automaton, name)) for name in _READ}
    alive, rules = alive_states(kept_tokens, *arrays.values())
    if automaton.start >= 0 and not rules[automaton.start] and not automaton.nullable:
        names = sorted({name for i in removed for name in automaton.symbols[i].names})
        raise InvalidConstraint(
            "no output can satisfy this constraint with this vocabulary, which lacks the special tokens "
            + (", ".join(map(repr, names)) or "that it asks for")
        )
    edges = alive[automaton.edge_target]
    returns = automaton.call_return
    calls = rules[automaton.call_rule] & ((returns == TAIL) | alive[returns])
    tokens = kept_tokens & alive[automaton.token_target]
    members = rules[automaton.member_rule] & ((automaton.member_rest < 0) | rules[automaton.member_rest])
    mark = repr(sorted(removed)).encode()
    start = automaton.start
    if start >= 0 and not rules[start]:
        start = -1
    return replace(
        automaton,
        edge_offsets=_offsets(automaton.edge_offsets, edges),
        edge_low=automaton.edge_low[edges],
        edge_high=automaton.edge_high[edges],
        edge_target=automaton.edge_target[edges],
        call_offsets=_offsets(automaton.call_offsets, calls),
        call_rule=automaton.call_rule[calls],
        call_return=returns[calls],
        token_offsets=_offsets(automaton.token_offsets, tokens),
        token_symbol=automaton.token_symbol[tokens],
        token_target=automaton.token_target[tokens],
        bag_offsets=_offsets(automaton.bag_offsets, members),
        **{name: getattr(automaton, name)[members] for name in MEMBER_ARRAYS},
        rule_keys=tuple(xxhash.xxh3_128(key + mark).digest() for key in automaton.rule_keys),
        start=start,
    )


def _offsets(offsets: npt.NDArray[np.int32], kept: Bools) -> npt.NDArray[np.int32]:
    before = np.zeros(len(kept) + 1, np.int32)
    np.cumsum(kept, out=before[1:])
    return before[offsets]
