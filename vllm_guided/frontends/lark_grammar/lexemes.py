"""Lexemes that commit: llguidance's ``lazy``, ``suffix`` and ``stop`` on rules.

A rule with one of these attributes is one lexeme: a regular language that ends at its first match. While
such a lexeme may be under way, nothing else may run past the place where it is complete, or end while either
could go on (the longest match counts, as in a lexer): in

    start: tool* TAIL
    tool: head "..."
    head[lazy]: TEXT "<tool>"
    TAIL: /(.|\\n)*/

the tail is text without ``<tool>``. Which lexemes can be under way together is decided by the sets of
lexemes that may come next: the subset construction over the grammar's terminals, as in a parser's states.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from lark import Token, Tree
from lark.grammar import Symbol

from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends import regular
from vllm_guided.frontends.first import first_of
from vllm_guided.frontends.lark_grammar.loader import LarkTree
from vllm_guided.frontends.lark_grammar.occurrences import Occurrences
from vllm_guided.frontends.lark_grammar.plain_text import Attribute, PlainText
from vllm_guided.frontends.lark_grammar.terminals import Terminals
from vllm_guided.grammar import ir

logger = logging.getLogger(__name__)

MAX_STATES = 2_000

NO_SAMPLING = (
    "the attribute temperature of the rule %s says how to sample, not what may be written: it has no effect"
    " here, set the temperature in the request"
)

_CAPTURE_NAME = re.compile(r'"[A-Za-z0-9_.-]+"')
_HARMLESS = frozenset({"capture", "stop_capture"})  # they name parts of the output, they change none
KNOWN = "capture, lazy, max_tokens, stop, stop_capture, suffix, temperature"


class Lexemes:
    """The lexemes of one grammar. ``committed`` holds the rules that are one, by name."""

    def __init__(self, plain: PlainText, definitions: dict[str, Any], terminals: Terminals) -> None:
        self.plain = plain
        self.definitions = definitions
        self.terminals = terminals
        self.committed: dict[str, ir.Node] = {}
        self.bounded: dict[str, ir.Node] = {}
        # by the id of the tree of one occurrence: the committed lexemes beside it, and the bytes behind it
        self.rivals: dict[int, set[str]] = {}
        self.following: dict[int, int] = {}
        for name, attributes in plain.attributes.items():
            if name in definitions:
                self.attributed(name, attributes)

    def attributed(self, name: str, attributes: dict[str, Attribute]) -> None:
        """Check a rule's attributes and build its lexeme if they make it one."""
        for key, attribute in attributes.items():
            where = self.plain.where(attribute.offset)
            if key == "temperature":
                if attribute.kind != "number" or float(attribute.value) < 0:
                    raise InvalidConstraint("the attribute temperature is a number from 0 on", where=where)
                logger.warning(NO_SAMPLING, name)
                continue
            if key == "max_tokens":
                self.limit(attribute)
                continue
            if key in _HARMLESS:
                if attribute.kind == "string" and not _CAPTURE_NAME.fullmatch(attribute.value):
                    raise InvalidConstraint(
                        f"the name of a {key} is made of letters, digits, '_', '-' and '.'", where=where
                    )
                if attribute.kind not in ("string", *(("flag",) if key == "capture" else ())):
                    raise InvalidConstraint(f"the attribute {key} is a string", where=where)
                if key == "stop_capture" and not {"stop", "suffix"} & attributes.keys():
                    raise InvalidConstraint(
                        "stop_capture belongs to stop or suffix; give one of them, too", where=where
                    )
            elif key == "lazy":
                if attribute.kind != "flag":
                    raise InvalidConstraint("lazy takes no value; write [lazy]", where=where)
            elif key not in ("suffix", "stop"):
                raise UnsupportedConstraint(
                    f"the attribute {key} is not known; known are {KNOWN}", where=where
                )
        if "suffix" in attributes and "stop" in attributes:
            raise InvalidConstraint(
                "stop and suffix are two names for one thing; give one",
                where=self.plain.where(attributes["stop"].offset),
            )
        marker = attributes.get("suffix") or attributes.get("stop")
        end = self.marker(marker, "suffix" in attributes) if marker is not None else None
        lazy = end is not None or "lazy" in attributes
        limit = attributes.get("max_tokens")
        if not lazy and limit is None:
            return
        body = self.body(self.definitions[name].tree)
        try:
            automaton = regular.dfa(body if end is None else ir.sequence(body, end))
            if lazy:
                automaton = regular.shortest(automaton)
                self.committed[name] = regular.node(automaton)
            if limit is not None:
                # a token has at least one byte: so many bytes are no more tokens
                self.bounded[name] = regular.node(regular.at_most(automaton, self.limit(limit)))
        except ConstraintTooComplex as error:
            place = (limit or next(iter(attributes.values()))).offset
            raise ConstraintTooComplex(error.message, where=self.plain.where(place)) from None

    def limit(self, attribute: Attribute) -> int:
        """The number that ``max_tokens`` gives."""
        if attribute.kind != "number" or not re.fullmatch(r"[0-9]{1,9}", attribute.value):
            raise InvalidConstraint(
                "the attribute max_tokens is a whole number", where=self.plain.where(attribute.offset)
            )
        return int(attribute.value)

    def emitted(self, name: str) -> ir.Node | None:
        """The text of a rule that is one lexeme; None for any other."""
        return self.bounded.get(name) or self.committed.get(name)

    def marker(self, attribute: Attribute, suffix: bool) -> ir.Node | None:
        """What ends the lexeme; None for ``stop=""``: nothing does."""
        where = self.plain.where(attribute.offset)
        if attribute.kind == "name":
            if attribute.value not in self.definitions:
                raise InvalidConstraint(f"{attribute.value} is used but not defined; define it", where=where)
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

    def restricted(self, occurrence: LarkTree, node: ir.Node) -> ir.Node:
        """``node`` at one place of the grammar, without what rivals there take from it."""
        rivals = self.rivals.get(id(occurrence))
        if not rivals:
            return node
        automaton = regular.dfa(node)
        for rival in sorted(rivals):
            complete = regular.followed_by_anything(regular.dfa(self.committed[rival]))
            automaton = regular.difference(automaton, complete)
        following = self.following.get(id(occurrence))
        if following is not None:
            others = [regular.dfa(self.committed[rival]) for rival in sorted(rivals)]
            automaton = regular.ending_before(automaton, others, following)
        return regular.node(automaton)

    def analyse(self, start: str) -> None:
        """Find the rivals of every occurrence of a terminal; nothing to do where no rule commits."""
        if not self.committed:
            return
        for name in self.bounded.keys() - self.committed.keys():
            raise UnsupportedConstraint(
                "beside rules that are lazy or have a suffix, max_tokens is for such rules only; bound the"
                " text of this one instead, as in /.{0,200}/",
                where=self.plain.where(self.plain.attributes[name]["max_tokens"].offset),
            )
        found = Occurrences(self.definitions, self.committed, self.plain)
        first = found.first(start)
        seen = {first}
        queue = [first]
        beside: dict[str, set[str]] = {}
        for state in queue:
            names = {found.lexeme[position] for position in state}
            committed = {name for name in names if name in self.committed}
            for position in state:
                if found.lexeme[position] not in committed:
                    self.rivals.setdefault(id(found.trees[position]), set()).update(committed)
            for name in committed:
                beside.setdefault(name, set()).update(committed - {name})
            for name in names:
                after = frozenset(
                    later
                    for position in state
                    if found.lexeme[position] == name
                    for later in found.follow.get(position, ())
                )
                if after not in seen:
                    if len(seen) >= MAX_STATES:
                        raise ConstraintTooComplex(
                            "too many combinations of terminals beside lazy rules; use fewer lazy rules"
                        )
                    seen.add(after)
                    queue.append(after)
        self._look_behind(found, start)
        self._order(beside)

    def _look_behind(self, found: Occurrences, start: str) -> None:
        """What may follow each occurrence with rivals, where the text cannot end there."""
        for position, tree in enumerate(found.trees):
            behind = found.behind(position, start)
            if behind is None or not self.rivals.get(id(tree)):
                continue
            firsts = [self.first_bytes(found.trees[later], found.lexeme[later]) for later in behind]
            if None not in firsts:
                mask = 0
                for first in firsts:
                    mask |= first or 0
                self.following[id(tree)] = mask

    def _order(self, beside: dict[str, set[str]]) -> None:
        """Of two lexemes that commit, the one that is complete first is taken."""
        whole = {name: regular.dfa(node) for name, node in self.committed.items()}
        for name, others in beside.items():
            automaton = whole[name]
            for other in sorted(others):
                longer = regular.followed_by_anything(whole[other], by_something=True)
                automaton = regular.difference(automaton, longer)
            if others:
                self.committed[name] = regular.node(automaton)

    def first_bytes(self, tree: LarkTree, name: str) -> int | None:
        """What the lexeme at a position begins with; None for a special token, which is no text."""
        if name in self.committed:
            node = self.committed[name]
        elif name in self.definitions:
            if self.definitions[name].tree is None:
                return None
            node = self.terminals.node(self.definitions[name].tree)
        else:
            item = tree.children[0]
            extension = self.plain.extension(str(item.children[0])) if item.data == "literal" else None
            if extension is not None:
                return None if extension.kind == "special" else (1 << 256) - 1
            node = self.terminals.node(item)
        nullable, mask = first_of(node, {})
        return (1 << 256) - 1 if nullable else mask
