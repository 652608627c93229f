"""Substrings of a list of chunks: any run of consecutive ones, the empty run included.

In: the chunks. Out: a graph, one node a place between chunks, that may be entered and left anywhere. Size
is linear in the text; determinising it is the automaton's business (a suffix automaton has at most twice
as many states, Blumer et al. 1985).
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.grammar import ir

MAX_CHUNKS = 20_000


class _SuffixAutomaton:
    """Blumer's construction over whole chunks: deterministic, at most ``2 * len(chunks)`` states."""

    def __init__(self) -> None:
        self.moves: list[dict[str, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        self.last = 0

    def extend(self, chunk: str) -> None:
        new = len(self.moves)
        self.moves.append({})
        self.length.append(self.length[self.last] + 1)
        self.link.append(0)
        place = self.last
        while place >= 0 and chunk not in self.moves[place]:
            self.moves[place][chunk] = new
            place = self.link[place]
        if place >= 0:
            target = self.moves[place][chunk]
            if self.length[target] == self.length[place] + 1:
                self.link[new] = target
            else:
                clone = len(self.moves)
                self.moves.append(dict(self.moves[target]))
                self.length.append(self.length[place] + 1)
                self.link.append(self.link[target])
                while place >= 0 and self.moves[place].get(chunk) == target:
                    self.moves[place][chunk] = clone
                    place = self.link[place]
                self.link[target] = self.link[new] = clone
        self.last = new


def substring_node(chunks: Sequence[str]) -> ir.Node:
    """Any run of consecutive ``chunks``, put together; empty chunks do not count.

    Raises:
        ConstraintTooComplex: more than ``MAX_CHUNKS`` chunks.
    """
    chunks = [chunk for chunk in chunks if chunk]
    if len(chunks) > MAX_CHUNKS:
        raise ConstraintTooComplex(f"a substring of more than {MAX_CHUNKS:,} chunks; take larger chunks")
    if not chunks:
        return ir.EMPTY
    automaton = _SuffixAutomaton()
    for chunk in chunks:
        automaton.extend(chunk)
    edges = tuple(
        (state, ir.text(chunk), target)
        for state, moves in enumerate(automaton.moves)
        for chunk, target in moves.items()
    )
    return ir.Graph(edges, frozenset(range(len(automaton.moves))))
