"""Grammar IR to :class:`Automaton`: the passes in order, and the budgets.

Rules that this process has compiled before come out of the cache of fragments and are left out of all
passes but the last; those that this grammar brings in go there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vllm_guided.automaton.analysis import adjacency, left_calls, nullable_and_productive
from vllm_guided.automaton.assemble import assembled
from vllm_guided.automaton.automaton import Automaton
from vllm_guided.automaton.determinise import determinise
from vllm_guided.automaton.fragments import FRAGMENTS, PROGRAM_BYTES, Environment, Fragment
from vllm_guided.automaton.left_recursion import recursive_groups, remove_left_recursion
from vllm_guided.automaton.nfa import Nfa, build_nfa
from vllm_guided.automaton.own_rules import OwnRules
from vllm_guided.automaton.program import Program, write_program
from vllm_guided.automaton.ready_automaton import ready_automaton
from vllm_guided.automaton.thompson import ACCEPT, BODY, FIRST, MINIMUM, START
from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint
from vllm_guided.grammar import ir
from vllm_guided.grammar.expansion import expanded

#: No constraint may need more states than this.
STATE_LIMIT = 1_000_000

Ints = npt.NDArray[np.int32]
_NO_STATES: tuple[Ints, Ints, Ints] = np.zeros(1, np.int32), np.empty(0, np.int32), np.empty(0, np.int32)
Found = dict[str, tuple[Environment, Fragment]]


def build_automaton(grammar: ir.Grammar) -> Automaton:
    """Compile ``grammar``.

    The result depends on the grammar alone, not on what this process compiled before.

    Raises:
        InvalidConstraint: nothing satisfies it, or a rule is missing.
        ConstraintTooComplex: a budget ran out.
    """
    return _build(grammar, {}, True)[0]


def _build(grammar: ir.Grammar, given: Found, apart: bool) -> tuple[Automaton, Found]:
    """The automaton, and by name the fragments that are in it.

    Args:
        given: fragments that are known already.
        apart: whether rules that can be fragments are compiled by themselves where there is left recursion.
    """
    found: Found = dict(given)

    def compiled(name: str) -> Fragment | None:
        known = found.get(name) or FRAGMENTS.find(grammar.rules, name)
        if known is None:
            return None
        found[name] = known
        return known[1]

    program = write_program(grammar, compiled)
    if not program.ops and (automaton := ready_automaton(program, STATE_LIMIT)) is not None:
        return automaton, found
    nfa = build_nfa(program)
    facts = _Facts(nfa)
    groups = recursive_groups(len(nfa.names), facts.left) if len(facts.left) else []
    if groups and nfa.ready:
        # What left corners make of rules is said of rules that have states.
        return _build(expanded(grammar), found, apart)
    recursive = {rule for group in groups for rule in group}
    closed = _closed_rules(program, nfa, facts, recursive)
    if groups:
        if closed and apart:
            # What the removal of left recursion makes of a rule depends on the others.
            together = ir.Choice(tuple(ir.Ref(program.names[rule]) for rule in closed))
            name = _unused_name(grammar)
            part = ir.Grammar({**grammar.rules, name: ir.Rule(together)}, name)
            return _build(grammar, _build(part, found, False)[1], False)
        closed = []
        if any(facts.bodies[rule] >= 0 for rule in recursive):
            nfa = build_nfa(program, counters=False)
            facts = _Facts(nfa)
            groups = recursive_groups(len(nfa.names), facts.left)
        nfa = remove_left_recursion(nfa, groups, facts.adjacency, facts.nullable)
        facts = _Facts(nfa)
    if not facts.productive[0]:
        raise InvalidConstraint("no output can satisfy this constraint")
    rules = _determinised(nfa, facts)
    numbers = nfa.number_of.tolist()
    made = rules.made_fragments([numbers[rule] for rule in closed])
    for rule in closed:
        name = program.names[rule]
        fragment, nbytes = made[numbers[rule]]
        environment = _environment(grammar, program, rule, found)
        found[name] = environment, fragment
        body = grammar.rules[name].body
        nbytes += PROGRAM_BYTES * program.length(rule)
        if type(body) is ir.ByteGraph:
            nbytes += len(body.moves)
        FRAGMENTS.keep(body, environment, fragment, nbytes)
    return assembled(rules), found


def _unused_name(grammar: ir.Grammar) -> str:
    name = "shared rules"
    while name in grammar.rules:
        name += "'"
    return name


def _closed_rules(program: Program, nfa: Nfa, facts: _Facts, recursive: set[int]) -> list[int]:
    """The rules that fragments can be made of: shared, productive, and referring to such rules only.

    Args:
        recursive: rules of the NFA that are left recursive, which keeps a rule from being a fragment.
    """
    if not program.refs:
        return []
    numbers = nfa.number_of.tolist()
    closed = {
        rule
        for rule in program.refs
        if program.plain[rule]
        and numbers[rule] >= 0
        and facts.productive[numbers[rule]]
        and numbers[rule] not in recursive
    }
    while True:
        outside = [
            rule
            for rule in closed
            if not all(ref in closed or ref in program.compiled for ref in program.refs[rule])
        ]
        if not outside:
            return sorted(closed)
        closed.difference_update(outside)


def _environment(grammar: ir.Grammar, program: Program, rule: int, found: Found) -> Environment:
    """The bodies of the rules that a closed rule refers to, at any depth; itself only if it does."""
    environment: Environment = {}
    waiting = list(program.refs[rule])
    for ref in waiting:  # grows while it is read
        name = program.names[ref]
        if name not in environment:
            environment[name] = grammar.rules[name].body
            if ref in program.compiled:
                environment.update(found[name][0])
            else:
                waiting.extend(program.refs[ref])
    return environment


class _Facts:
    """What the passes need to know of an NFA, by rule."""

    def __init__(self, nfa: Nfa) -> None:
        rules = len(nfa.table)
        columns = np.ascontiguousarray(nfa.table.T)
        self.first = np.zeros(rules + 1, np.int32)
        if nfa.states:
            self.first[:-1], self.first[-1] = columns[FIRST], nfa.states
        self.starts, self.accepts = columns[START], columns[ACCEPT]
        self.bodies, self.minima = columns[BODY], columns[MINIMUM]
        self.left: Ints
        nullable, productive = np.zeros(rules, np.bool_), np.zeros(rules, np.bool_)
        for rule, fragment in nfa.compiled.items():
            nullable[rule], productive[rule] = fragment.nullable, True
        productive[list(nfa.ready)] = True
        if not nfa.states:
            self.adjacency = _NO_STATES
            self.nullable, self.productive, self.left = nullable, productive, _NO_STATES[1]
            return
        self.adjacency = adjacency(nfa.states, nfa.edges)
        self.nullable, self.productive = nullable_and_productive(
            self.starts, self.accepts, *self.adjacency, self.bodies, self.minima, nullable, productive
        )
        self.left = left_calls(self.starts, *self.adjacency, self.bodies, self.nullable, self.productive)


def _determinised(nfa: Nfa, facts: _Facts) -> OwnRules:
    stateless = facts.starts < 0
    stateless[[nfa.number_of[bag.rule] for bag in nfa.bags]] = True
    ready_at = np.full(len(nfa.table), -1, np.int32)
    ready_at[list(nfa.ready)] = list(nfa.ready.values())
    *arrays, states = determinise(
        facts.first, facts.starts, facts.accepts, *facts.adjacency, stateless, facts.nullable,
        facts.productive, STATE_LIMIT, ready_at, nfa.ready_ops, nfa.blob, nfa.number_of,
    )  # fmt: skip
    if states < 0:
        raise ConstraintTooComplex(
            f"the constraint needs more than {STATE_LIMIT:,} automaton states; use smaller repetitions, "
            "alternatives or patterns"
        )
    return OwnRules(nfa, facts.nullable, facts.productive, *arrays)
