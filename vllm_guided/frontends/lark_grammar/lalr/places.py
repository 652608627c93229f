"""Nonterminals at the parser's states, equal ones together.

What a nonterminal derives depends on the state it begins at, for the states its tokens lead to are not the
same everywhere, nor are their lexers. Most of them behave alike: partition refinement (Moore) over the
pairs of state and nonterminal finds those whose productions go through the same tokens, into lexers that
look the same, with the same lookaheads lost to conflicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_guided.frontends.lark_grammar.lalr.tables import Tables

#: A symbol of a production as a step: a terminal and the label of the state behind it, or (the first is -1)
#: the number of a place.
Step = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Way:
    """One production at a place: its steps, and the mask of terminals that may not follow its end."""

    steps: tuple[Step, ...]
    lost: int


class Places:
    """``ways[place]`` are the productions at each place, ``start`` is the place to begin at."""

    def __init__(self, tables: Tables, labels: Sequence[int]) -> None:
        pairs = [
            (number, symbol)
            for number, state in enumerate(tables.states)
            for symbol in state.transitions
            if symbol >= tables.terminals
        ]
        index = {pair: number for number, pair in enumerate(pairs)}
        rows: list[tuple[Way, ...]] = []
        for state, left in pairs:
            ways: list[Way] = []
            for production in tables.by_left[left]:
                steps: list[Step] = []
                at = state
                for symbol in tables.productions[production].right:
                    after = tables.states[at].transitions[symbol]
                    terminal = symbol < tables.terminals
                    steps.append((symbol, labels[after]) if terminal else (-1, index[at, symbol]))
                    at = after
                ways.append(Way(tuple(steps), tables.states[at].lost.get(production, 0)))
            rows.append(tuple(ways))
        classes = [left for _, left in pairs]
        count = len(set(classes))
        while True:
            names: dict[object, int] = {}
            classes = [
                names.setdefault((classes[place], _over(row, classes)), len(names))
                for place, row in enumerate(rows)
            ]
            if len(names) == count:
                break
            count = len(names)
        self.ways: list[tuple[Way, ...]] = [()] * count
        self.names = [""] * count
        for place, row in enumerate(rows):
            self.ways[classes[place]] = _over(row, classes)
            self.names[classes[place]] = tables.names[pairs[place][1]]
        self.start = classes[index[0, tables.productions[0].right[0]]]


def _over(row: tuple[Way, ...], classes: Sequence[int]) -> tuple[Way, ...]:
    """The productions of a place over classes of places."""
    return tuple(
        dict.fromkeys(
            Way(tuple((s, n if s >= 0 else classes[n]) for s, n in way.steps), way.lost) for way in row
        )
    )
