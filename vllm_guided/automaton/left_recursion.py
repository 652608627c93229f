"""Exact removal of left recursion from the rules' automata.

Take a strongly connected set G of rules under "can be called before anything is consumed". What
stands to the left of a string of ``A`` in G is a chain of left corners: it begins with something that
is not a left call into G, which completes some rule ``B0``; ``B0`` is the left corner of ``B1``, whose
rest follows and completes ``B1``; and so on up to ``A``. That chain is regular over the alphabet of
bytes and calls (Rosenkrantz and Lewis 1970, left-corner form; Moore 2000), so each ``A`` becomes one
automaton with a state "``B`` is complete" for each ``B`` in G, and without any left call into G.
"""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

from vllm_guided.automaton.components import grouped, strong_components
from vllm_guided.automaton.labels import CALL, EPSILON, RULE_MASK, STRICT, TOKEN
from vllm_guided.automaton.nfa import Nfa
from vllm_guided.automaton.thompson import ACCEPT, BODY, FIRST, START
from vllm_guided.errors import UnsupportedConstraint

Ints = npt.NDArray[np.int32]
Adjacency = tuple[Ints, Ints, Ints]


def recursive_groups(rules: int, pairs: Ints) -> list[list[int]]:
    """The sets of rules that call one another from the left; ``pairs`` is caller, callee, ..."""
    order, component = strong_components(*grouped(rules, pairs))
    loops = pairs[::2][pairs[::2] == pairs[1::2]]
    if not loops.size and component[order[-1]] == rules - 1:
        return []  # as many components as rules
    sizes = np.bincount(component, minlength=1)
    found = sizes > 1
    found[component[loops]] = True
    return [np.flatnonzero(component == number).tolist() for number in np.flatnonzero(found)]


def remove_left_recursion(
    nfa: Nfa, groups: list[list[int]], adjacency: Adjacency, nullable: npt.NDArray[np.bool_]
) -> Nfa:
    """The same languages without left calls inside a group. No group may hold a counter."""
    return _Rewriter(nfa, groups, adjacency, nullable).rewrite()


class _Rewriter:
    def __init__(
        self, nfa: Nfa, groups: list[list[int]], adjacency: Adjacency, nullable: npt.NDArray[np.bool_]
    ) -> None:
        self.old = nfa
        self.old_table: list[list[int]] = nfa.table.tolist()
        self.group_of = {rule: group for group in groups for rule in group}
        offsets, labels, targets = adjacency
        self.offsets: list[int] = offsets.tolist()
        self.labels: list[int] = labels.tolist()
        self.targets: list[int] = targets.tolist()
        self.nullable: list[bool] = nullable.tolist()
        self.number: dict[int, int] = {}
        self.queue: list[int] = []
        self.table: list[list[int]] = []
        self.edges: array[int] = array("i")
        self.states = 0

    def rewrite(self) -> Nfa:
        old = self.old
        bags = {int(old.number_of[bag.rule]) for bag in old.bags}
        self._rule(0)
        for number, rule in enumerate(self.queue):  # grows while it is read
            row = self.table[number]
            row[FIRST] = self.states
            if row[BODY] >= 0:
                row[BODY] = self._rule(row[BODY])
            elif row[START] >= 0:
                row[START], row[ACCEPT] = self._state(), self._state()
                if rule not in self.group_of:
                    self._copied(rule, number)
                elif rule in bags:
                    raise UnsupportedConstraint(
                        "members in any order whose first member begins with the whole again"
                    )
                else:
                    self._left_corners(rule, number)
        number_of = np.array([self.number.get(rule, -1) for rule in old.number_of.tolist()], np.int32)
        return Nfa(
            names=[old.names[rule] for rule in self.queue],
            table=np.array(self.table, np.int32),
            edges=np.array(self.edges, np.int32),
            states=self.states,
            bags=[bag for bag in old.bags if number_of[bag.rule] >= 0],
            number_of=number_of,
            compiled={self.number[rule]: each for rule, each in old.compiled.items() if rule in self.number},
            symbols=old.symbols,
            ready={},
            ready_ops=old.ready_ops,
            blob=old.blob,
        )

    def _rule(self, old: int) -> int:
        number = self.number.get(old)
        if number is None:
            number = self.number[old] = len(self.queue)
            self.table.append(list(self.old_table[old]))
            self.queue.append(old)
        return number

    def _state(self) -> int:
        self.states += 1
        return self.states - 1

    def _relabelled(self, label: int) -> int:
        if CALL <= label < TOKEN:
            return CALL | (label & STRICT) | self._rule(label & RULE_MASK)
        return label

    def _copy_states(self, rule: int) -> int:
        """Copy a rule's states and edges; what to add to an old state to get the new one."""
        first = self.old_table[rule][FIRST]
        past = self.old_table[rule + 1][FIRST] if rule + 1 < len(self.old_table) else self.old.states
        shift = self.states - first
        self.states += past - first
        edges = self.edges
        for state in range(first, past):
            for k in range(self.offsets[state], self.offsets[state + 1]):
                edges.extend((state + shift, self._relabelled(self.labels[k]), self.targets[k] + shift))
        return shift

    def _copied(self, rule: int, number: int) -> None:
        shift = self._copy_states(rule)
        row, old = self.table[number], self.old_table[rule]
        self.edges.extend((row[START], EPSILON, old[START] + shift))
        self.edges.extend((old[ACCEPT] + shift, EPSILON, row[ACCEPT]))

    def _left_corners(self, rule: int, number: int) -> None:
        edges = self.edges
        start, accept = self.table[number][START], self.table[number][ACCEPT]
        group = self.group_of[rule]
        complete = {member: self._state() for member in group}
        for member in group:
            shift = self._copy_states(member)
            edges.extend((self.old_table[member][ACCEPT] + shift, EPSILON, complete[member]))
            for state in self._initial(member):
                for k in range(self.offsets[state], self.offsets[state + 1]):
                    label, target = self.labels[k], self.targets[k] + shift
                    if label == EPSILON:
                        continue
                    if CALL <= label < TOKEN:
                        callee = label & RULE_MASK
                        if callee in complete:
                            edges.extend((complete[callee], EPSILON, target))
                        else:
                            # The empty string of the callee is among the initial states already;
                            # taken again here it would bring the left call back.
                            edges.extend((start, CALL | STRICT | self._rule(callee), target))
                    else:
                        edges.extend((start, label, target))
        edges.extend((complete[rule], EPSILON, accept))
        if self.nullable[rule]:
            edges.extend((start, EPSILON, accept))

    def _initial(self, rule: int) -> list[int]:
        """The states of a rule that are reached before anything is consumed."""
        found = [self.old_table[rule][START]]
        seen = set(found)
        for state in found:
            for k in range(self.offsets[state], self.offsets[state + 1]):
                label = self.labels[k]
                through = label == EPSILON
                if CALL <= label < TOKEN:
                    through = self.nullable[label & RULE_MASK] and not label & STRICT
                if through and self.targets[k] not in seen:
                    seen.add(self.targets[k])
                    found.append(self.targets[k])
        return found
