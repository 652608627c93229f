"""An automaton without some of its special tokens: what is left when a vocabulary lacks them.

A grammar may name tokens that a vocabulary does not have. Their moves are taken out when the two meet,
and with them every move that then leads nowhere, so that no mask ever points into a dead end.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import xxhash

from vllm_guided.automaton.automaton import TAIL, Automaton
from vllm_guided.automaton.bags import MEMBER_ARRAYS, WANTED_BITS
from vllm_guided.errors import InvalidConstraint

Bools = npt.NDArray[np.bool_]


def without_symbols(automaton: Automaton, removed: set[int]) -> Automaton:
    """``automaton`` without the tokens ``symbols[i]`` for ``i`` in ``removed``; states keep their numbers.

    Raises:
        InvalidConstraint: nothing is left.
    """
    kept_tokens = ~np.isin(automaton.token_symbol, sorted(removed))
    alive = _alive_states(automaton, kept_tokens)
    if automaton.start >= 0 and not _rule_alive(automaton, automaton.start, alive) and not automaton.nullable:
        names = sorted({name for i in removed for name in automaton.symbols[i].names})
        raise InvalidConstraint(
            "no output can satisfy this constraint with this vocabulary, which lacks the special tokens "
            + (", ".join(map(repr, names)) or "that it asks for")
        )
    edges = alive[automaton.edge_target]
    returns = automaton.call_return
    calls = np.array(
        [
            _rule_alive(automaton, int(rule), alive) and (back == TAIL or alive[back])
            for rule, back in zip(automaton.call_rule, returns, strict=True)
        ],
        dtype=bool,
    )
    tokens = kept_tokens & alive[automaton.token_target]
    members = np.array(
        [
            _rule_alive(automaton, int(rule), alive)
            and (rest < 0 or _rule_alive(automaton, int(rest), alive))
            for rule, rest in zip(automaton.member_rule, automaton.member_rest, strict=True)
        ],
        dtype=bool,
    )
    mark = repr(sorted(removed)).encode()
    start = automaton.start
    if start >= 0 and not _rule_alive(automaton, start, alive):
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


def _rule_alive(automaton: Automaton, rule: int, alive: Bools) -> bool:
    """Whether a rule derives anything: its start is alive, or its counted rule is."""
    while automaton.counter_body[rule] >= 0:
        rule = int(automaton.counter_body[rule])
    bag = np.flatnonzero(automaton.bag_rule == rule)
    if len(bag):
        return _bag_alive(automaton, int(bag[0]), alive)
    first = automaton.rule_offsets[rule]
    return bool(first < automaton.rule_offsets[rule + 1] and alive[first])


def _bag_alive(automaton: Automaton, bag: int, alive: Bools) -> bool:
    """Whether a bag's required flags can be set by members that derive anything."""
    missing = {own for own in range(automaton.bag_groups[bag]) if _is_required(automaton, bag, own)}
    wanted = int(automaton.bag_wanted[bag])
    owns: set[int] = set()
    for k in range(automaton.bag_offsets[bag], automaton.bag_offsets[bag + 1]):
        rest = int(automaton.member_rest[k])
        if not _rule_alive(automaton, int(automaton.member_rule[k]), alive):
            continue
        if rest >= 0 and not _rule_alive(automaton, rest, alive):
            continue
        owns.add(int(automaton.member_own[k]))
        wanted &= ~int(automaton.member_wanted[k])
    enough = -1 in owns or len(owns) >= max(int(automaton.bag_minimum[bag]), 1)
    return enough and missing <= owns and not wanted


def _is_required(automaton: Automaton, bag: int, own: int) -> bool:
    bit = WANTED_BITS + own
    word = int(automaton.bag_required[automaton.bag_word_offsets[bag] + bit // 64])
    return bool(word >> (bit % 64) & 1)


def _alive_states(automaton: Automaton, kept_tokens: Bools) -> Bools:
    """The states from which their rule can be completed (a least fixed point)."""
    alive = automaton.accepting.astype(bool)
    edge_source = np.repeat(np.arange(automaton.state_count), np.diff(automaton.edge_offsets))
    token_source = np.repeat(np.arange(automaton.state_count), np.diff(automaton.token_offsets))
    call_source = np.repeat(np.arange(automaton.state_count), np.diff(automaton.call_offsets))
    while True:
        before = int(alive.sum())
        alive[edge_source[alive[automaton.edge_target]]] = True
        alive[token_source[kept_tokens & alive[automaton.token_target]]] = True
        for source, rule, back in zip(call_source, automaton.call_rule, automaton.call_return, strict=True):
            if not alive[source] and (back == TAIL or alive[back]):
                alive[source] = _rule_alive(automaton, int(rule), alive)
        if int(alive.sum()) == before:
            return alive
