"""Occurrences of terminals in a grammar's rules, and which may follow which.

In: the rules' trees. Out: Glushkov's (1961) first, last and follow sets, with rules taken as macros: what
follows one use of a rule follows every use. Only grammars with lazy rules need them.
"""

from __future__ import annotations

from typing import Any

from lark.grammar import Symbol

from vllm_guided.errors import UnsupportedConstraint
from vllm_guided.frontends.lark_grammar.plain_text import PlainText
from vllm_guided.grammar import ir


class Occurrences:
    """Glushkov's positions of terminals in the rules, with what may follow each (rules taken as macros)."""

    def __init__(self, definitions: dict[str, Any], committed: dict[str, ir.Node], plain: PlainText) -> None:
        self.definitions = definitions
        self.committed = committed
        self.plain = plain
        self.lexeme: list[str] = []
        self.follow: dict[int, set[int]] = {}
        # per rule: nullable, first positions, last positions; a fixpoint over recursion
        self.known: dict[str, tuple[bool, frozenset[int], frozenset[int]]] = {}
        self.leaf: dict[int, int] = {}
        self.trees: list[Any] = []

    def first(self, start: str) -> frozenset[int]:
        """The positions a text can begin at; fills ``follow`` on the way."""
        while True:
            before = (dict(self.known), sum(map(len, self.follow.values())))
            self.known.setdefault(start, (False, frozenset(), frozenset()))
            for name in list(self.known):
                self.known[name] = self.look(self.definitions[name].tree)
            if before == (self.known, sum(map(len, self.follow.values()))):
                return self.known[start][1]

    def position(self, tree: Any, name: str) -> tuple[bool, frozenset[int], frozenset[int]]:
        number = self.leaf.get(id(tree))
        if number is None:
            number = self.leaf[id(tree)] = len(self.lexeme)
            self.lexeme.append(name)
            self.trees.append(tree)
        here = frozenset([number])
        return False, here, here

    def behind(self, position: int, start: str) -> set[int] | None:
        """The positions that may follow; None if the text may end behind this one."""
        return None if position in self.known[start][2] else self.follow.get(position, set())

    def connect(self, last: frozenset[int], first: frozenset[int]) -> None:
        for position in last:
            self.follow.setdefault(position, set()).update(first)

    def look(self, tree: Any) -> tuple[bool, frozenset[int], frozenset[int]]:
        empty: frozenset[int] = frozenset()
        match str(tree.data):
            case "expansions":
                looks = [self.look(child) for child in tree.children]
                firsts = empty.union(*(look[1] for look in looks))
                return any(look[0] for look in looks), firsts, empty.union(*(look[2] for look in looks))
            case "alias":
                return self.look(tree.children[0])
            case "expansion":
                nullable, first, last = True, empty, empty
                for child in tree.children:
                    inner, begins, ends = self.look(child)
                    self.connect(last, begins)
                    first = first | begins if nullable else first
                    last = last | ends if inner else ends
                    nullable = nullable and inner
                return nullable, first, last
            case "maybe":
                return True, *self.look(tree.children[0])[1:]
            case "expr":
                nullable, first, last = self.look(tree.children[0])
                operator = str(tree.children[1])
                if operator != "?":
                    self.connect(last, first)
                lowest = {"?": 0, "*": 0, "+": 1}.get(operator)
                if lowest is None:
                    lowest = int(tree.children[2])
                return nullable or lowest == 0, first, last
        return self.value(tree)

    def value(self, tree: Any) -> tuple[bool, frozenset[int], frozenset[int]]:
        item = tree.children[0]
        if isinstance(item, Symbol):
            definition = self.definitions.get(item.name)
            if definition is None or definition.is_term or item.name in self.committed:
                return self.position(tree, item.name)
            if definition.params or item.name in self.plain.parametric:
                raise self.mixed(item.name)
            return self.known.setdefault(item.name, (False, frozenset(), frozenset()))
        if item.data == "template_usage":
            raise self.mixed(item.children[0].name)
        if item.data == "literal":
            extension = self.plain.extension(item.children[0])
            if extension is not None and extension.kind in ("call", "condition"):
                raise self.mixed("a parametric rule")
        return self.position(tree, f"%{id(item)}")

    def mixed(self, name: str) -> UnsupportedConstraint:
        places = self.plain.names.get(name, [0])
        return UnsupportedConstraint(
            f"{name}: templates and parametric rules cannot stand in one grammar with lazy, suffix or stop;"
            " write the rules out",
            where=self.plain.where(places[0]),
        )
