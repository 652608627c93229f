"""What a node can begin with: nullable, and the set of first bytes (the FIRST of the textbooks).

In: a node and the rules it refers to. Out: whether it derives the empty string, and a 256-bit mask of the
bytes its other strings begin with. Special tokens begin with no byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_guided.frontends.utf8 import utf8_sequences
from vllm_guided.grammar import ir
from vllm_guided.grammar.expansion import expanded_rule

First = tuple[bool, int]


def first_of(node: ir.Node, rules: Mapping[str, ir.Rule]) -> First:
    """``(nullable, mask)`` of ``node``."""
    return _Finder(rules).solve(node)


@dataclass(slots=True)
class _Finder:
    rules: Mapping[str, ir.Rule]
    known: dict[str, First] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)

    def solve(self, node: ir.Node) -> First:
        """Least fixpoint: rules start empty and grow until nothing changes."""
        answer = self.look(node)
        while True:
            pending = list(self.missing)
            self.missing.clear()
            for name in pending:
                self.known.setdefault(name, (False, 0))
            changed = bool(pending)
            for name in list(self.known):
                new = self.look(self.rules[name].body)
                if new != self.known[name]:
                    self.known[name] = new
                    changed = True
            if not changed and not self.missing:
                return answer
            answer = self.look(node)

    def look(self, node: ir.Node) -> First:
        match node:
            case ir.Literal(data):
                return (False, 1 << data[0]) if data else (True, 0)
            case ir.ByteSet(mask):
                return False, mask
            case ir.CharSet(ranges):
                mask = 0
                for low, high in ranges:
                    for sequence in utf8_sequences(low, high):
                        mask |= (2 << sequence[0][1]) - (1 << sequence[0][0])
                return False, mask
            case ir.SpecialToken():
                return False, 0
            case ir.Ref(name):
                if name not in self.known:
                    self.missing.add(name)
                return self.known.get(name, (False, 0))
            case ir.Sequence(items):
                mask = 0
                for item in items:
                    nullable, first = self.look(item)
                    mask |= first
                    if not nullable:
                        return False, mask
                return True, mask
            case ir.Choice(options):
                looks = [self.look(option) for option in options]
                mask = 0
                for _, first in looks:
                    mask |= first
                return any(nullable for nullable, _ in looks), mask
            case ir.Repeat(item, minimum, maximum):
                nullable, mask = self.look(item)
                return nullable or minimum == 0, 0 if maximum == 0 else mask
            case ir.Graph(edges, accepting, start):
                reached, mask = {start}, 0
                stack = [start]
                while stack:
                    state = stack.pop()
                    for source, label, target in edges:
                        if source == state:
                            nullable, first = self.look(label)
                            mask |= first
                            if nullable and target not in reached:
                                reached.add(target)
                                stack.append(target)
                return bool(reached & accepting), mask
            case ir.Bag(entries, _, required, minimum, maximum):
                mask = 0
                for entry in entries if maximum != 0 else ():
                    mask |= self.look(entry.item)[1] if entry.first == 0 else 0
                return minimum == 0 and not required, mask
            case _:  # rules of JSON, which only their own frontend writes
                return self.look(expanded_rule(node))
