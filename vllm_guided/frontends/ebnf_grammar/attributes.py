"""Rule attributes of xgrammar's EBNF: ``lazy``, ``max_chars`` and ``max_tokens`` change the language.

Captures and ``temperature`` do not. ``max_tokens`` bounds the bytes: there are at least as many as tokens.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Container, Mapping
from typing import Any

from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends import regular
from vllm_guided.grammar import ir

logger = logging.getLogger(__name__)

MAX_INLINED = 2_000

_HARMLESS = frozenset({"capture", "capture_hidden_suffix_bytes", "capture_hidden_stop_bytes", "stop_capture"})
_LIMITS = ("max_chars", "max_tokens")
KNOWN = ", ".join(sorted(_HARMLESS | {"lazy", *_LIMITS, "temperature"}))

NO_SAMPLING = (
    "the attribute temperature of the rule %s says how to sample, not what may be written: it has no effect"
    " here, set the temperature in the request"
)


def applied(
    name: str,
    attributes: dict[str, Any],
    bodies: Mapping[str, ir.Node],
    asserting: Container[str] = (),
) -> ir.Node:
    """The body of rule ``name`` with its attributes carried out; the rules ``asserting`` look ahead.

    Raises:
        InvalidConstraint, UnsupportedConstraint: without a place, which the caller adds.
    """
    body = bodies[name]
    for key, value in attributes.items():
        if key == "temperature":
            logger.warning(NO_SAMPLING, name)
            continue
        if key not in _HARMLESS and key != "lazy" and key not in _LIMITS:
            raise UnsupportedConstraint(f"the attribute {key} is not known; known are {KNOWN}")
        if key == "lazy" and value is not True:
            raise InvalidConstraint("lazy takes no value; write [lazy]")
    if "lazy" in attributes:
        body = regular.node(regular.shortest(regular.dfa(regular_body(name, bodies, asserting))))
    for key in _LIMITS:
        if key not in attributes:
            continue
        limit = str(attributes[key])
        if not re.fullmatch(r"[0-9]{1,6}", limit):
            raise InvalidConstraint(f"{key} is a whole number, at most 999999")
        regular_ = body if body is not bodies[name] else regular_body(name, bodies, asserting)
        count = regular.characters_at_most if key == "max_chars" else regular.at_most
        body = regular.node(count(regular.dfa(regular_), int(limit)))
    return body


def regular_body(name: str, bodies: Mapping[str, ir.Node], asserting: Container[str] = ()) -> ir.Node:
    """The rule as a regular node: rules it uses are put in place, recursion is allowed at the end only."""
    return _Inliner(bodies, asserting, "a rule with lazy, max_chars or max_tokens").rule(name, ())


def regular_assertion(node: ir.Node, bodies: Mapping[str, ir.Node], asserting: Container[str]) -> ir.Node:
    """What a look-ahead asks for as a regular node, in the same way."""
    return _Inliner(bodies, asserting, "a look-ahead (= ...)").inline(node, ("",))


class _Inliner:
    def __init__(self, bodies: Mapping[str, ir.Node], asserting: Container[str], what: str) -> None:
        self.bodies = bodies
        self.asserting = asserting
        self.what = what
        self.budget = MAX_INLINED

    def rule(self, name: str, under_way: tuple[str, ...]) -> ir.Node:
        """A right-linear rule as a graph: node 0 begins it, node 1 ends it."""
        if name in under_way:
            raise UnsupportedConstraint(
                f"{self.what} is a regular language, but {name} calls itself in the middle; "
                "write the part that matters without recursion"
            )
        if under_way and name in self.asserting:
            raise UnsupportedConstraint(
                f"{self.what} cannot use {name}, which has a look-ahead of its own; use a rule without one"
            )
        self.spend(name)
        edges: list[tuple[int, ir.Node, int]] = []
        body = self.bodies[name]
        for option in body.options if isinstance(body, ir.Choice) else (body,):
            items = option.items if isinstance(option, ir.Sequence) else (option,)
            loops = bool(items) and items[-1] == ir.Ref(name)
            kept = items[:-1] if loops else items
            node = ir.sequence(*(self.inline(item, (*under_way, name)) for item in kept))
            edges.append((0, node, 0 if loops else 1))
        return ir.Graph(tuple(edges), frozenset([1]))

    def spend(self, name: str) -> None:
        self.budget -= 1
        if self.budget < 0:
            raise ConstraintTooComplex(
                f"the rule {name} grows too large where it is put in place; {self.what} wants small rules"
            )

    def inline(self, node: ir.Node, under_way: tuple[str, ...]) -> ir.Node:
        match node:
            case ir.Ref(name):
                return self.rule(name, under_way)
            case ir.SpecialToken():
                raise UnsupportedConstraint(
                    f"{self.what} cannot hold special tokens; leave them to the rules around it"
                )
            case _:
                return ir.mapped(node, lambda part: self.inline(part, under_way))
