"""The rules of one grammar after they were made deterministic, each in its own terms, with their keys.

In: what :mod:`.determinise` returns, and the NFA, whose numbers the rules have here. Out: their keys
(:mod:`.keys`), and fragments of those that other grammars may have, too (:mod:`.fragments`).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128_digest as digest

from vllm_guided.automaton.bags import Bags
from vllm_guided.automaton.fragments import Fragment
from vllm_guided.automaton.keys import contents_and_calls, rule_keys
from vllm_guided.automaton.labels import TOKEN
from vllm_guided.automaton.nfa import Nfa
from vllm_guided.automaton.thompson import BODY, MAXIMUM, MINIMUM

Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


class OwnRules:
    """Rules in the numbers of their NFA.

    Attributes:
        counters: int32 [3, rules], counted rule (-1: no counter), least and most (-1: any number) of each.
        bags: those of the rules that are bags.
        rule_offsets, edge_offsets, labels, targets, accepting, callee_offsets, callees: as ``determinise``
            returns them.
        call_offsets, called: the callees of each rule, whatever it is.
        keys: the content key of each rule.
        fragment_of: the fragments of rules that have one, those that this grammar brings in included.
    """

    def __init__(
        self,
        nfa: Nfa,
        nullable: Bools,
        productive: Bools,
        rule_offsets: Ints,
        edge_offsets: Ints,
        labels: Ints,
        targets: Ints,
        accepting: npt.NDArray[np.uint8],
        callee_offsets: Ints,
        callees: Ints,
    ) -> None:
        self.nfa = nfa
        self.nullable = nullable
        self.rule_offsets, self.edge_offsets = rule_offsets, edge_offsets
        self.labels, self.targets, self.accepting = labels, targets, accepting
        self.callee_offsets, self.callees = callee_offsets, callees
        # A counter's frame never counts an empty body, so a nullable body only has a lower bound of 1.
        self.counters = np.full((3, len(nfa.table)), -1, np.int32)
        self.counters[1] = 0
        if nfa.states:
            self.counters[0], self.counters[2] = nfa.table[:, BODY], nfa.table[:, MAXIMUM]
            for rule in np.flatnonzero(self.counters[0] >= 0).tolist():
                body, minimum = nfa.table[rule, BODY], nfa.table[rule, MINIMUM]
                self.counters[1, rule] = 1 if nullable[body] else max(minimum, 1)
        self.bags = bags = Bags(nfa.bags, nfa.number_of.tolist(), productive, nullable)
        contents, self.call_offsets, self.called = contents_and_calls(
            rule_offsets, edge_offsets, labels, targets, accepting, callee_offsets, callees, self.counters,
            *bags.contents_and_calls(),
        )  # fmt: skip
        if nfa.symbols:
            self._take_in_symbols(contents)
        self.fragment_of: dict[int, Fragment] = dict(nfa.compiled)
        self.keys = rule_keys(
            contents,
            self.call_offsets,
            self.called,
            {rule: fragment.key for rule, fragment in nfa.compiled.items()},
        )

    def _take_in_symbols(self, contents: npt.NDArray[np.uint64]) -> None:
        """Labels only number special tokens: which ones they are is part of what a rule is."""
        moves = self.edge_offsets[self.rule_offsets].tolist()
        for rule, (low, high) in enumerate(pairwise(moves)):
            labels = self.labels[low:high]
            named = [self.nfa.symbols[label - TOKEN] for label in labels[labels >= TOKEN].tolist()]
            if named:
                text = repr([(sorted(each.names), each.ids, each.negated) for each in named]).encode()
                contents[rule] = np.frombuffer(digest(contents[rule].tobytes() + text), np.uint64)

    def made_fragments(self, rules: Iterable[int]) -> dict[int, tuple[Fragment, int]]:
        """Fragments of ``rules``, each with the bytes of what was made for it; all it calls gets one, too."""
        by_key = {fragment.key: fragment for fragment in self.fragment_of.values()}
        return {rule: self._made_fragment(rule, by_key) for rule in rules}

    def callees_of(self, rule: int) -> list[int]:
        """The rules that a rule calls."""
        callees: list[int] = self.called[self.call_offsets[rule] : self.call_offsets[rule + 1]].tolist()
        return callees

    def _made_fragment(self, rule: int, by_key: dict[bytes, Fragment]) -> tuple[Fragment, int]:
        waiting = [rule]
        made: list[int] = []
        for each in waiting:  # grows while it is read
            if each in self.fragment_of:
                continue
            known = by_key.get(self.keys[each])
            if known is None:
                known = by_key[self.keys[each]] = self._cut(each)
                made.append(each)
                waiting.extend(self.callees_of(each))
            self.fragment_of[each] = known
        for each in made:
            self.fragment_of[each].callees = tuple(
                self.fragment_of[callee] for callee in self.callees_of(each)
            )
        return self.fragment_of[rule], sum(self.fragment_of[each].nbytes for each in made)

    def _cut(self, rule: int) -> Fragment:
        low, high = self.rule_offsets[rule : rule + 2]
        first, past = self.edge_offsets[low], self.edge_offsets[high]
        return Fragment(
            name=self.nfa.names[rule],
            key=self.keys[rule],
            nullable=bool(self.nullable[rule]),
            counter=bool(self.counters[0, rule] >= 0),
            minimum=int(self.counters[1, rule]),
            maximum=int(self.counters[2, rule]),
            degrees=self.edge_offsets[low + 1 : high + 1] - self.edge_offsets[low:high],
            labels=self.labels[first:past].copy(),
            targets=self.targets[first:past].copy(),
            accepting=self.accepting[low:high].copy(),
        )
