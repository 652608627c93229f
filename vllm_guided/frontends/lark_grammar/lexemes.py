"""Lexemes that commit: llguidance's ``lazy``, ``suffix`` and ``stop`` on rules.

A rule with one of these attributes is one lexeme: a regular language that ends at its first match. While
such a lexeme may be under way, nothing else may run past the place where it is complete: in

    start: tool* TAIL
    tool: head "..."
    head[lazy]: TEXT "<tool>"
    TAIL: /(.|\\n)*/

the tail is text without ``<tool>``. Which lexemes can be under way together is decided by the sets of
lexemes that may come next: the subset construction over the grammar's terminals, as in a parser's states.
"""

from __future__ import annotations

import re
from typing import Any

from lark import Token, Tree
from lark.grammar import Symbol

from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends import regular
from vllm_guided.frontends.lark_grammar.dialect import Attribute, PlainText
from vllm_guided.frontends.lark_grammar.loader import LarkTree
from vllm_guided.frontends.lark_grammar.terminals import Terminals
from vllm_guided.grammar import ir

MAX_STATES = 2_000

_REFUSED = {
    "max_tokens": "counts tokens, which a grammar over text cannot; bound the text, as in /.{0,200}/",
    "temperature": "changes sampling, which this package never does; set it in the request",
}
_CAPTURE_NAME = re.compile(r'"[A-Za-z0-9_.-]+"')
_HARMLESS = frozenset({"capture", "stop_capture"})  # they name parts of the output, they change none


class Lexemes:
    """The lexemes of one grammar. ``committed`` holds the rules that are one, by name."""

    def __init__(self, plain: PlainText, definitions: dict[str, Any], terminals: Terminals) -> None:
        self.plain = plain
        self.definitions = definitions
        self.terminals = terminals
        self.committed: dict[str, ir.Node] = {}
        self.rivals: dict[str, set[str]] = {}
        self.literals: dict[int, ir.Node] = {}
        for name, attributes in plain.attributes.items():
            if name in definitions:
                self.attributed(name, attributes)

    def attributed(self, name: str, attributes: dict[str, Attribute]) -> None:
        """Check a rule's attributes and build its lexeme if they make it one."""
        for key, attribute in attributes.items():
            where = self.plain.where(attribute.offset)
            if key in _REFUSED:
                if attribute.kind != "number":
                    raise InvalidConstraint(f"the attribute {key} is a number", where=where)
                raise UnsupportedConstraint(f"the attribute {key} {_REFUSED[key]}", where=where)
            if key in _HARMLESS:
                if attribute.kind == "string" and not _CAPTURE_NAME.fullmatch(attribute.value):
                    raise InvalidConstraint(
                        f"the name of a {key} is made of letters, digits, '_', '-' and '.'", where=where
                    )
                if attribute.kind not in ("string", *(("flag",) if key == "capture" else ())):
                    raise InvalidConstraint(f"the attribute {key} is a string", where=where)
                if key == "stop_capture" and not {"stop", "suffix"} & attributes.keys():
                    raise InvalidConstraint("stop_capture belongs to stop or suffix", where=where)
            elif key == "lazy":
                if attribute.kind != "flag":
                    raise InvalidConstraint("lazy takes no value", where=where)
            elif key not in ("suffix", "stop"):
                raise UnsupportedConstraint(f"the attribute {key} is not known", where=where)
        if "suffix" in attributes and "stop" in attributes:
            raise InvalidConstraint(
                "stop and suffix are two names for one thing; give one",
                where=self.plain.where(attributes["stop"].offset),
            )
        marker = attributes.get("suffix") or attributes.get("stop")
        if marker is None and "lazy" not in attributes:
            return
        body = self.body(self.definitions[name].tree)
        if marker is not None:
            end = self.marker(marker, "suffix" in attributes)
            if end is None:
                return
            body = ir.sequence(body, end)
        self.committed[name] = regular.node(regular.shortest(regular.dfa(body)))

    def marker(self, attribute: Attribute, suffix: bool) -> ir.Node | None:
        """What ends the lexeme; None for ``stop=""``: nothing does."""
        where = self.plain.where(attribute.offset)
        if attribute.kind == "name":
            return self.terminals.node(self.terminals.named(Symbol(attribute.value)), where)
        if attribute.kind not in ("string", "regexp"):
            raise InvalidConstraint("stop and suffix are a string, a regexp or a terminal", where=where)
        if attribute.value.startswith('""'):
            if suffix:
                raise InvalidConstraint("an empty suffix ends nothing; leave it out", where=where)
            return None
        token = Token(attribute.kind.upper(), attribute.value)
        return self.terminals.node(Tree("literal", [token]), where)

    def body(self, tree: LarkTree) -> ir.Node:
        """A rule's tree read as a terminal: it may use terminals, not rules."""
        match str(tree.data):
            case "expansions":
                return ir.choice(*(self.body(child) for child in tree.children))
            case "alias":
                return self.body(tree.children[0])
            case "expansion":
                return ir.sequence(*(self.body(child) for child in tree.children))
            case "maybe":
                return ir.optional(self.body(tree.children[0]))
            case "expr":
                minimum, maximum = self.terminals.counts(tree)
                return ir.Repeat(self.body(tree.children[0]), minimum, maximum)
        item = tree.children[0]
        if isinstance(item, Symbol):
            return self.terminals.node(self.terminals.named(item))
        return self.terminals.node(item)

    def literal(self, tree: LarkTree) -> ir.Node:
        """The node of a literal or range in a rule, less what rivals leave of it."""
        node = self.terminals.node(tree)
        return self.restricted(f"%{id(tree)}", node)

    def restricted(self, lexeme: str, node: ir.Node) -> ir.Node:
        """``node`` without the strings in which a rival would have been complete before."""
        rivals = self.rivals.get(lexeme)
        if not rivals:
            return node
        automaton = regular.dfa(node)
        for rival in sorted(rivals):
            complete = regular.followed_by_anything(regular.dfa(self.committed[rival]))
            automaton = regular.difference(automaton, complete)
        return regular.node(automaton)

    def analyse(self, start: str) -> None:
        """Find the rivals of every lexeme; nothing to do where none commits."""
        if not self.committed:
            return
        positions = _Positions(self.definitions, self.committed, self.plain)
        first = positions.first(start)
        seen = {first}
        queue = [first]
        for state in queue:
            names = {positions.lexeme[position] for position in state}
            committed = {name for name in names if name in self.committed}
            for name in names - committed:
                self.rivals.setdefault(name, set()).update(committed)
            for name in names:
                following = frozenset(
                    after
                    for position in state
                    if positions.lexeme[position] == name
                    for after in positions.follow.get(position, ())
                )
                if following not in seen:
                    if len(seen) >= MAX_STATES:
                        raise ConstraintTooComplex(
                            "too many combinations of terminals beside lazy rules; use fewer lazy rules"
                        )
                    seen.add(following)
                    queue.append(following)


class _Positions:
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
        here = frozenset([number])
        return False, here, here

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
        return UnsupportedConstraint(
            f"{name}: templates and parametric rules cannot stand in one grammar with lazy, suffix or stop"
        )
