"""Lexers that cannot be told apart, as one.

In: the sets of terminals that the parser's states accept. Out: views. A view says with which automaton each
terminal is matched; lexers share one as long as they match what they have in common alike. Most differences
between the lexers of a grammar are of no consequence, and contexts that differ in nothing else are one.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_guided.frontends.lark_grammar.lalr.lexers import Lexers
from vllm_guided.frontends.lark_grammar.lalr.watches import union


@dataclass(slots=True)
class View:
    """Numbers of machines: by terminal, and those of what is ignored."""

    machines: dict[int, int]
    ignored: tuple[int, ...]


class Views:
    """The views of one grammar, by number."""

    def __init__(self, lexers: Lexers) -> None:
        self.lexers = lexers
        self.views: list[View] = []
        self.known: dict[frozenset[int], tuple[int, int]] = {}

    def of(self, accepted: frozenset[int]) -> tuple[int, int]:
        """The view of a set of terminals, and the mask of bytes that its texts can begin with."""
        found = self.known.get(accepted)
        if found is None:
            found = self.known[accepted] = self._of(accepted)
        return found

    def _of(self, accepted: frozenset[int]) -> tuple[int, int]:
        lexer = self.lexers.lexer(accepted)
        machines = {terminal: self.lexers.machine(lexer, terminal) for terminal in sorted(accepted)}
        ignored = tuple(
            sorted({self.lexers.machine(lexer, i, ignored=True) for i in sorted(self.lexers.ignored)})
        )
        first = union(self.lexers.machines[number].first_bytes() for number in (*machines.values(), *ignored))
        for number, view in enumerate(self.views):
            if view.ignored == ignored and all(
                view.machines.get(terminal, machine) == machine for terminal, machine in machines.items()
            ):
                view.machines.update(machines)
                return number, first
        self.views.append(View(machines, ignored))
        return len(self.views) - 1, first
