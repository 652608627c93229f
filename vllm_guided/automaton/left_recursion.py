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
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from vllm_guided.automaton.bag_rules import BagRule, write_bag_states
from vllm_guided.automaton.components import strong_components
from vllm_guided.automaton.labels import CALL, EPSILON, RULE_MASK, STRICT, TOKEN
from vllm_guided.automaton.nfa import Counter, Nfa
from vllm_guided.errors import UnsupportedConstraint

Adjacency = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]


def recursive_groups(rules: int, pairs: list[int]) -> list[list[int]]:
    """The sets of rules that call one another from the left; ``pairs`` is caller, callee, ..."""
    successors: dict[str, list[str]] = {}
    loops = set()
    for caller, callee in zip(pairs[::2], pairs[1::2], strict=True):
        if caller == callee:
            loops.add(caller)
        successors.setdefault(str(caller), []).append(str(callee))
    groups = []
    for component in strong_components(list(successors), successors):
        members = sorted(int(name) for name in component)
        if len(members) > 1 or members[0] in loops:
            groups.append(members)
    return groups


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
        self.group_of = {rule: group for group in groups for rule in group}
        offsets, labels, targets = adjacency
        self.offsets: list[int] = offsets.tolist()
        self.labels: list[int] = labels.tolist()
        self.targets: list[int] = targets.tolist()
        self.nullable: list[bool] = nullable.tolist()
        self.new = Nfa(symbols=nfa.symbols)
        self.number: dict[int, int] = {}
        self.queue: list[int] = []
        self.counter_of = {counter.rule: counter for counter in nfa.counters}
        self.bag_of = {bag.rule: bag for bag in nfa.bags}

    def rewrite(self) -> Nfa:
        new = self.new
        self._rule(0)
        done = 0
        while done < len(self.queue):
            rule = self.queue[done]
            number = self.number[rule]
            done += 1
            new.rule_first[number] = new.states
            new.rule_start[number] = self._state()
            new.rule_accept[number] = self._state()
            counter = self.counter_of.get(rule)
            if counter is not None:
                body = self._rule(counter.body)
                new.counters.append(Counter(number, body, counter.minimum, counter.maximum))
            elif rule in self.bag_of:
                self._bag(self.bag_of[rule], number)
            elif rule in self.group_of:
                self._left_corners(rule, number)
            else:
                self._copied(rule, number)
        new.rule_first.append(new.states)
        return new

    def _rule(self, old: int) -> int:
        number = self.number.get(old)
        if number is None:
            number = self.number[old] = len(self.new.names)
            self.new.names.append(self.old.names[old])
            for column in (self.new.rule_first, self.new.rule_start, self.new.rule_accept):
                column.append(0)
            self.queue.append(old)
        return number

    def _bag(self, bag: BagRule, number: int) -> None:
        if bag.rule in self.group_of:
            raise UnsupportedConstraint("members in any order whose first member begins with the whole again")
        members = [
            member._replace(
                rule=self._rule(member.rule), rest=-1 if member.rest < 0 else self._rule(member.rest)
            )
            for member in bag.members
        ]
        moved = replace(bag, rule=number, separator=self._rule(bag.separator), members=members)
        self.new.bags.append(moved)
        new = self.new
        write_bag_states(moved, new.rule_start[number], new.rule_accept[number], new.edges, self._state)

    def _state(self) -> int:
        self.new.states += 1
        return self.new.states - 1

    def _relabelled(self, label: int) -> int:
        if CALL <= label < TOKEN:
            return CALL | (label & STRICT) | self._rule(label & RULE_MASK)
        return label

    def _copy_states(self, rule: int) -> int:
        """Copy a rule's states and edges; what to add to an old state to get the new one."""
        first, past = self.old.rule_first[rule], self.old.rule_first[rule + 1]
        shift = self.new.states - first
        self.new.states += past - first
        edges: array[int] = self.new.edges
        for state in range(first, past):
            for k in range(self.offsets[state], self.offsets[state + 1]):
                edges.extend((state + shift, self._relabelled(self.labels[k]), self.targets[k] + shift))
        return shift

    def _copied(self, rule: int, number: int) -> None:
        shift = self._copy_states(rule)
        new = self.new
        new.edges.extend((new.rule_start[number], EPSILON, self.old.rule_start[rule] + shift))
        new.edges.extend((self.old.rule_accept[rule] + shift, EPSILON, new.rule_accept[number]))

    def _left_corners(self, rule: int, number: int) -> None:
        new, edges = self.new, self.new.edges
        start = new.rule_start[number]
        group = self.group_of[rule]
        complete = {member: self._state() for member in group}
        for member in group:
            shift = self._copy_states(member)
            edges.extend((self.old.rule_accept[member] + shift, EPSILON, complete[member]))
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
        edges.extend((complete[rule], EPSILON, new.rule_accept[number]))
        if self.nullable[rule]:
            edges.extend((start, EPSILON, new.rule_accept[number]))

    def _initial(self, rule: int) -> list[int]:
        """The states of a rule that are reached before anything is consumed."""
        found = [self.old.rule_start[rule]]
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
