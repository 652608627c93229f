"""The rules of one grammar after they were made deterministic, each in its own terms, with their keys.

In: what :mod:`.determinise` returns, and the NFA, whose numbers the rules have here. Out: their keys
(:mod:`.keys`), and fragments of those that other grammars may have, too (:mod:`.fragments`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from vllm_guided.automaton.bags import Bags
from vllm_guided.automaton.fragments import Fragment
from vllm_guided.automaton.keys import rule_keys
from vllm_guided.automaton.labels import TOKEN
from vllm_guided.automaton.nfa import Nfa
from vllm_guided.automaton.thompson import BODY, MAXIMUM, MINIMUM

Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


class OwnRules:
    """Rules in the numbers of their NFA.

    Attributes:
        bodies, minima, maxima: counted rule (-1: no counter), least and most (-1: any number).
        bags: those of the rules that are bags.
        rule_offsets, edge_offsets, labels, targets, accepting, callee_offsets, callees: as ``determinise``
            returns them; degrees: moves by state.
        called: the callees of each rule, whatever it is.
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
        self.degrees = edge_offsets[1:] - edge_offsets[:-1]
        self.bodies, self.maxima = nfa.table[:, BODY], nfa.table[:, MAXIMUM]
        # A counter's frame never counts an empty body, so a nullable body only has a lower bound of 1.
        at_least_one = np.where(nullable[self.bodies], 1, np.maximum(nfa.table[:, MINIMUM], 1))
        self.minima = np.where(self.bodies >= 0, at_least_one, 0).astype(np.int32)
        self.bags = Bags(nfa.bags, nfa.number_of.tolist(), productive.tolist(), nullable.tolist())
        self.fragment_of: dict[int, Fragment] = dict(nfa.compiled)
        self.called: list[list[int]] = []
        self.keys = self._keys()

    def _keys(self) -> list[bytes]:
        shape = (2 * self.degrees + self.accepting).astype(np.int32).tobytes()
        labels, targets = self.labels.tobytes(), self.targets.tobytes()
        states = (4 * self.rule_offsets).tolist()
        moves = (4 * self.edge_offsets[self.rule_offsets]).tolist()
        callee_offsets, callees = self.callee_offsets.tolist(), self.callees.tolist()
        bodies, minima, maxima = self.bodies.tolist(), self.minima.tolist(), self.maxima.tolist()
        bags = {rule: number for number, rule in enumerate(self.bags.rules)}
        contents: list[bytes] = []
        for rule, body in enumerate(bodies):
            if body >= 0:
                content, called = b"counter %d %d" % (minima[rule], maxima[rule]), [body]
            elif rule in bags:
                content, called = self.bags.contents[bags[rule]], self.bags.called[bags[rule]]
            else:
                first, past, low, high = states[rule], states[rule + 1], moves[rule], moves[rule + 1]
                content = b"%d %d " % (past - first, high - low)
                content += shape[first:past] + labels[low:high] + targets[low:high]
                if self.nfa.symbols:
                    content += self._symbols(low // 4, high // 4)
                called = callees[callee_offsets[rule] : callee_offsets[rule + 1]]
            contents.append(content)
            self.called.append(called)
        return rule_keys(
            contents, self.called, {rule: fragment.key for rule, fragment in self.fragment_of.items()}
        )

    def _symbols(self, low: int, high: int) -> bytes:
        """The special tokens of the moves from ``low`` to ``high``."""
        labels = self.labels[low:high]
        named = [self.nfa.symbols[label - TOKEN] for label in labels[labels >= TOKEN].tolist()]
        return repr([(sorted(each.names), each.ids, each.negated) for each in named]).encode()

    def made_fragments(self, rules: Iterable[int]) -> dict[int, tuple[Fragment, int]]:
        """Fragments of ``rules``, each with the bytes of what was made for it; all it calls gets one, too."""
        by_key = {fragment.key: fragment for fragment in self.fragment_of.values()}
        return {rule: self._made_fragment(rule, by_key) for rule in rules}

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
                waiting.extend(self.called[each])
            self.fragment_of[each] = known
        for each in made:
            self.fragment_of[each].callees = tuple(self.fragment_of[callee] for callee in self.called[each])
        return self.fragment_of[rule], sum(self.fragment_of[each].nbytes for each in made)

    def _cut(self, rule: int) -> Fragment:
        low, high = self.rule_offsets[rule : rule + 2]
        first, past = self.edge_offsets[low], self.edge_offsets[high]
        return Fragment(
            name=self.nfa.names[rule],
            key=self.keys[rule],
            nullable=bool(self.nullable[rule]),
            counter=bool(self.bodies[rule] >= 0),
            minimum=int(self.minima[rule]),
            maximum=int(self.maxima[rule]),
            degrees=self.degrees[low:high].copy(),
            labels=self.labels[first:past].copy(),
            targets=self.targets[first:past].copy(),
            accepting=self.accepting[low:high].copy(),
        )
