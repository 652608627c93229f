"""The nondeterministic automata of a program's rules, and what the passes over them need to know."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vllm_guided.automaton.bag_rules import BagRule, PlainBag
from vllm_guided.automaton.fragments import Fragment
from vllm_guided.automaton.inlining import measured
from vllm_guided.automaton.program import Program, as_array
from vllm_guided.automaton.thompson import EDGE_LIMIT, ORIGIN, thompson
from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.grammar import ir

Ints = npt.NDArray[np.int32]


@dataclass(slots=True)
class Nfa:
    """Rules as automata; ``table`` has a row for each, its columns are those of ``thompson.py``.

    Attributes:
        edges: ``source, label, target`` flattened.
        ready: where ``ready_ops`` describes each of the rules that need no construction.
        bags: in the numbers of the program's rules; ``number_of`` has the number here by those (-1: none).
        compiled: rules without states here, since they are compiled already.
    """

    names: list[str]
    table: Ints
    edges: Ints
    states: int
    bags: list[BagRule | PlainBag]
    number_of: Ints
    compiled: dict[int, Fragment]
    symbols: list[ir.SpecialToken]
    ready: dict[int, int]
    ready_ops: Ints
    blob: npt.NDArray[np.uint8]


def build_nfa(program: Program, *, counters: bool = True) -> Nfa:
    """The automata of all rules that rule 0 needs.

    Args:
        counters: False writes every repetition out (needed where left recursion passes through one).

    Raises:
        ConstraintTooComplex: more than ``EDGE_LIMIT`` edges.
    """
    ready_ops, blob = program.ready_array(), np.array(program.blob, np.uint8)
    if not program.ops:
        # Everything is compiled already, or needs no construction.
        count = len(program.names)
        return Nfa(
            names=program.names,
            table=np.full((count, 7), -1, np.int32),
            edges=np.empty(0, np.int32),
            states=0,
            bags=program.bags,
            number_of=np.arange(count, dtype=np.int32),
            compiled=program.compiled,
            symbols=[],
            ready=program.ready,
            ready_ops=ready_ops,
            blob=blob,
        )
    ops = as_array(program.ops)
    begins = np.array(program.begins, np.int32)
    inner = np.array(program.set_inner, np.int32)
    # About how many edges: code points beyond ASCII take more.
    wide = np.where(inner > 0, np.int32(8), np.int32(1))
    end, size, inline = measured(ops, begins, wide, np.array(program.shared, np.bool_))
    edges, table, states = thompson(
        ops, end, size, inline, blob, begins, np.array(program.set_offsets, np.int32), inner,
        np.array(program.set_edges, np.int32), counters, np.array(program.needed, np.int32),
    )  # fmt: skip
    if states < 0:
        raise ConstraintTooComplex(
            f"the constraint needs more than {EDGE_LIMIT:,} transitions; make repetitions or "
            "alternatives smaller"
        )
    names, known = program.names, program.compiled
    origins = table[:, ORIGIN].tolist()
    number_of = np.full(len(names), -1, np.int32)
    for number, rule in enumerate(origins):
        if rule >= 0:
            number_of[rule] = number
    return Nfa(
        names=[
            names[rule] if rule >= 0 else ("repeated item" if rule == -1 else "repetition")
            for rule in origins
        ],
        table=table,
        edges=edges,
        states=int(states),
        bags=[bag for bag in program.bags if number_of[bag.rule] >= 0],
        number_of=number_of,
        compiled={number: known[rule] for number, rule in enumerate(origins) if rule in known},
        symbols=program.symbols,
        ready={int(number_of[rule]): at for rule, at in program.ready.items()},
        ready_ops=ready_ops,
        blob=blob,
    )
