"""Grammar IR to :class:`Automaton`: the passes in order, the budgets, and the content keys of rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from vllm_guided.automaton.analysis import adjacency, left_calls, nullable_and_productive
from vllm_guided.automaton.automaton import TAIL, Automaton
from vllm_guided.automaton.bags import bag_arrays, bag_content, called_by_bag
from vllm_guided.automaton.components import strong_components
from vllm_guided.automaton.determinise import determinise
from vllm_guided.automaton.labels import CALL, RULE_MASK, TOKEN
from vllm_guided.automaton.left_recursion import recursive_groups, remove_left_recursion
from vllm_guided.automaton.nfa import Nfa, build_nfa
from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint
from vllm_guided.grammar import ir

#: No constraint may need more states than this.
STATE_LIMIT = 1_000_000

Ints = npt.NDArray[np.int32]


def build_automaton(grammar: ir.Grammar) -> Automaton:
    """Compile ``grammar``.

    Raises:
        InvalidConstraint: nothing satisfies it, or a rule is missing.
        ConstraintTooComplex: a budget ran out.
    """
    nfa = build_nfa(grammar)
    facts = _analyse(nfa)
    groups = recursive_groups(len(nfa.names), facts.left.tolist())
    if groups:
        counters = {counter.rule for counter in nfa.counters}
        if any(rule in counters for group in groups for rule in group):
            nfa = build_nfa(grammar, counters=False)
            facts = _analyse(nfa)
            groups = recursive_groups(len(nfa.names), facts.left.tolist())
        nfa = remove_left_recursion(nfa, groups, facts.adjacency, facts.nullable)
        facts = _analyse(nfa)
    if not facts.productive[0]:
        raise InvalidConstraint("no output can satisfy this constraint")
    return _assemble(nfa, facts)


class _Facts:
    """What the passes need to know of an NFA."""

    def __init__(self, nfa: Nfa) -> None:
        rules = len(nfa.names)
        self.bodies = np.full(rules, -1, np.int32)
        self.minima = np.zeros(rules, np.int32)
        self.maxima = np.full(rules, -1, np.int32)
        for counter in nfa.counters:
            self.bodies[counter.rule] = counter.body
            self.minima[counter.rule] = counter.minimum
            self.maxima[counter.rule] = -1 if counter.maximum is None else counter.maximum
        self.first = np.array(nfa.rule_first, np.int32)
        self.starts = np.array(nfa.rule_start, np.int32)
        self.accepts = np.array(nfa.rule_accept, np.int32)
        edges = np.frombuffer(nfa.edges, np.int32) if nfa.edges else np.zeros(0, np.int32)
        # A view of read-only memory has another numba type: take the array's own copy.
        self.adjacency = adjacency(nfa.states, edges.copy())
        self.nullable, self.productive = nullable_and_productive(
            self.starts, self.accepts, *self.adjacency, self.bodies, self.minima
        )
        self.left: Ints = left_calls(
            self.starts, *self.adjacency, self.bodies, self.nullable, self.productive
        )


def _analyse(nfa: Nfa) -> _Facts:
    return _Facts(nfa)


def _assemble(nfa: Nfa, facts: _Facts) -> Automaton:
    bags = bag_arrays(nfa.bags, facts.productive, facts.nullable)
    stateless = facts.bodies.copy()
    stateless[bags["bag_rule"]] = 0
    rule_offsets, offsets, labels, targets, accepting, states = determinise(
        facts.first, facts.starts, facts.accepts, *facts.adjacency, stateless, facts.nullable,
        facts.productive, STATE_LIMIT,
    )  # fmt: skip
    if states < 0:
        raise ConstraintTooComplex(
            f"the constraint needs more than {STATE_LIMIT:,} automaton states; use smaller repetitions, "
            "alternatives or patterns"
        )
    is_byte = labels < CALL
    is_token = labels >= TOKEN
    is_call = ~is_byte & ~is_token
    call_offsets, call_target = _selected(is_call, offsets, targets)
    call_rule = (labels[is_call] & RULE_MASK).astype(np.int32)
    edge_offsets, edge_target = _selected(is_byte, offsets, targets)
    token_offsets, token_target = _selected(is_token, offsets, targets)
    byte_labels = labels[is_byte]
    call_return = _returns(
        call_offsets, call_rule, call_target, offsets, labels, targets, accepting, rule_offsets
    )
    arrays: dict[str, Any] = {
        "rule_offsets": rule_offsets,
        "counter_body": facts.bodies,
        "counter_minimum": _counter_minimum(facts),
        "counter_maximum": facts.maxima,
        "edge_offsets": edge_offsets,
        "edge_low": (byte_labels & 255).astype(np.uint8),
        "edge_high": (byte_labels >> 8).astype(np.uint8),
        "edge_target": edge_target,
        "call_offsets": call_offsets,
        "call_rule": call_rule,
        "call_return": call_return,
        "token_offsets": token_offsets,
        "token_symbol": (labels[is_token] & (TOKEN - 1)).astype(np.int32),
        "token_target": token_target,
        "accepting": accepting,
        **bags,
    }
    # A start rule with no state derives only the empty string.
    empty_only = stateless[0] < 0 and not _leads_anywhere(arrays, 0)
    return Automaton(
        **arrays,
        rule_keys=_rule_keys(arrays, nfa),
        symbols=tuple(nfa.symbols),
        start=-1 if empty_only else 0,
        nullable=bool(facts.nullable[0]),
        names=tuple(nfa.names),
    )


def _leads_anywhere(arrays: dict[str, Any], rule: int) -> bool:
    state = arrays["rule_offsets"][rule]
    return any(
        arrays[name][state + 1] > arrays[name][state]
        for name in ("edge_offsets", "call_offsets", "token_offsets")
    )


def _selected(chosen: npt.NDArray[np.bool_], offsets: Ints, targets: Ints) -> tuple[Ints, Ints]:
    """Offsets by state and targets of the chosen edges."""
    before = np.zeros(len(chosen) + 1, np.int32)
    np.cumsum(chosen, out=before[1:])
    return before[offsets], targets[chosen]


def _counter_minimum(facts: _Facts) -> Ints:
    """A counter's frame never counts an empty body, so a nullable body only has a lower bound of 1."""
    minima = facts.minima.copy()
    counters = np.flatnonzero(facts.bodies >= 0)
    body_nullable = facts.nullable[facts.bodies[counters]]
    minima[counters] = np.where(body_nullable, 1, np.maximum(minima[counters], 1))
    return minima


def _returns(
    call_offsets: Ints, call_rule: Ints, target: Ints, offsets: Ints, labels: Ints, targets: Ints,
    accepting: npt.NDArray[np.uint8], rule_offsets: Ints,
) -> Ints:  # fmt: skip
    """Return states, with TAIL where the calling frame has nothing of its own left to do.

    That is so where the return state accepts and has no moves, and where a rule calls itself, comes
    back to an accepting state, and each of its accepting states can make all of that state's moves:
    what may follow the inner string then is what may follow the outer one. The second keeps
    ``expr: expr "+" expr | NUM`` from piling up a frame for every operator.
    """
    returns = target.copy()
    returns[(accepting[target] == 1) & (offsets[target + 1] == offsets[target])] = TAIL
    caller_state = np.repeat(np.arange(len(call_offsets) - 1, dtype=np.int32), np.diff(call_offsets))
    caller_rule = np.searchsorted(rule_offsets, caller_state, side="right") - 1
    for k in np.flatnonzero((caller_rule == call_rule) & (accepting[target] == 1) & (returns != TAIL)):
        first, past = rule_offsets[call_rule[k]], rule_offsets[call_rule[k] + 1]
        wanted = _moves(target[k], offsets, labels, targets)
        ends = first + np.flatnonzero(accepting[first:past])
        if all(_includes(_moves(end, offsets, labels, targets), wanted) for end in ends):
            returns[k] = TAIL
    return returns


def _moves(state: int, offsets: Ints, labels: Ints, targets: Ints) -> list[tuple[int, int]]:
    low, high = offsets[state], offsets[state + 1]
    return list(zip(labels[low:high].tolist(), targets[low:high].tolist(), strict=True))


def _includes(moves: list[tuple[int, int]], wanted: list[tuple[int, int]]) -> bool:
    """Whether each wanted move is among ``moves``, as it is or as part of a wider byte range."""
    for label, target in wanted:
        if (label, target) in moves:
            continue
        if label >= CALL or not any(
            other < CALL and to == target and other & 255 <= label & 255 and other >> 8 >= label >> 8
            for other, to in moves
        ):
            return False
    return True


def _rule_keys(arrays: dict[str, Any], nfa: Nfa) -> tuple[bytes, ...]:
    """A hash of each rule's content, callees included, equal between grammars that share the rule."""
    rules = len(nfa.names)
    rule_offsets = arrays["rule_offsets"].tolist()
    bodies = arrays["counter_body"].tolist()
    call_bounds = arrays["call_offsets"][arrays["rule_offsets"]].tolist()
    call_rule = arrays["call_rule"].tolist()
    bags = {rule: number for number, rule in enumerate(arrays["bag_rule"].tolist())}
    successors: dict[str, list[str]] = {}
    for rule in range(rules):
        if rule in bags:
            called = called_by_bag(arrays, bags[rule])
        elif bodies[rule] >= 0:
            called = [bodies[rule]]
        else:
            called = call_rule[call_bounds[rule] : call_bounds[rule + 1]]
        successors[str(rule)] = [str(callee) for callee in dict.fromkeys(called)]
    keys: list[bytes] = [b""] * rules
    for component in strong_components(list(successors), successors):
        members = sorted(int(name) for name in component)
        place = {rule: position for position, rule in enumerate(members)}
        recursive = len(members) > 1 or str(members[0]) in successors[str(members[0])]
        own = []
        for rule in members:
            digest = xxhash.xxh3_128()
            if rule in bags:
                digest.update(bag_content(arrays, bags[rule]))
                called = called_by_bag(arrays, bags[rule])
            elif bodies[rule] >= 0:
                digest.update(
                    b"counter %d %d" % (arrays["counter_minimum"][rule], arrays["counter_maximum"][rule])
                )
                called = [bodies[rule]]
            else:
                first, past = rule_offsets[rule], rule_offsets[rule + 1]
                for kind in ("edge", "call", "token"):
                    bounds = arrays[f"{kind}_offsets"]
                    low, high = bounds[first], bounds[past]
                    digest.update((bounds[first : past + 1] - low).tobytes())
                    if kind == "call":
                        returns = arrays["call_return"][low:high]
                        digest.update(np.where(returns == TAIL, TAIL, returns - first).tobytes())
                        called = call_rule[low:high]
                    else:
                        digest.update((arrays[f"{kind}_target"][low:high] - first).tobytes())
                        if kind == "edge":
                            digest.update(arrays["edge_low"][low:high].tobytes())
                            digest.update(arrays["edge_high"][low:high].tobytes())
                        else:
                            for symbol in arrays["token_symbol"][low:high].tolist():
                                named = nfa.symbols[symbol]
                                text = repr((sorted(named.names), named.ids, named.negated))
                                digest.update(text.encode())
                digest.update(arrays["accepting"][first:past].tobytes())
            for callee in called:
                digest.update(b"%d," % place[callee] if callee in place else keys[callee])
            own.append(digest.digest())
        if recursive:
            whole = xxhash.xxh3_128(b"".join(own)).digest()
            for rule, key in zip(members, own, strict=True):
                keys[rule] = xxhash.xxh3_128(whole + key + b"%d" % place[rule]).digest()
        else:
            keys[members[0]] = own[0]
    return tuple(keys)
