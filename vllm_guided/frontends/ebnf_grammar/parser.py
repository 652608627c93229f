"""EBNF tokens to IR rules: recursive descent over one rule after another.

    rule     = name [attributes] "::=" choice [ "(=" choice ")" ]
    choice   = sequence { "|" sequence }
    sequence = { element [ "*" | "+" | "?" | "{m,n}" ] }
    element  = string | class | "." | name | "(" choice ")" | macro "(" arguments ")" | <token>

A rule ends where the next one's ``name ::=`` begins, so line ends mean nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint
from vllm_guided.frontends.ebnf_grammar.lexer import Lexeme, Lexer
from vllm_guided.frontends.ebnf_grammar.macros import MACROS, expand, tokens
from vllm_guided.frontends.positions import line_and_column
from vllm_guided.grammar import ir

MAX_DEPTH = 150
MAX_COUNT = 1_000_000


@dataclass(slots=True)
class Parsed:
    """Bodies, attributes and look-ahead by rule name, and where each rule and each reference stands."""

    bodies: dict[str, ir.Node] = field(default_factory=dict)
    attributes: dict[str, dict[str, Any]] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    references: dict[str, int] = field(default_factory=dict)
    assertions: dict[str, ir.Node] = field(default_factory=dict)


class Parser:
    """Parses one grammar text."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lexer = Lexer(source)
        self.position = 0
        self.result = Parsed()
        self.depth = 0
        self.lexemes: list[Lexeme] = []
        self.headers: set[int] = set()

    def parse(self) -> Parsed:
        """All rules of the text."""
        self.lexemes = self.lexer_tokens()
        if len(self.lexemes) == 1:
            raise self.fail("the grammar has no rules; write one as root ::= ...", self.lexemes[0])
        while self.here.kind != "end":
            self.rule()
        for name, offset in self.result.references.items():
            if name not in self.result.bodies:
                raise InvalidConstraint(
                    f"the rule {name} is used but not defined; add {name} ::= ...",
                    where=line_and_column(self.source, offset),
                )
        return self.result

    def lexer_tokens(self) -> list[Lexeme]:
        """The tokens, with the attribute list behind a rule's name told from a character class."""
        out: list[Lexeme] = []
        position = self.lexer.skip(0)
        while position < len(self.source):
            token = self.lexer.token(position)
            after = self.lexer.skip(token.end)
            if token.kind in ("name", "number"):
                attributes, behind = self.header(after)
                if behind:
                    self.headers.add(len(out))
                    out.append(Lexeme("header", (token.value, attributes), position, behind))
                    position = self.lexer.skip(behind)
                    continue
            out.append(token)
            position = after
        out.append(Lexeme("end", "", position, position))
        defined = {token.value[0] for token in out if token.kind == "header"}
        return [part for token in out for part in _parts(token, defined)]

    def header(self, position: int) -> tuple[dict[str, Any], int]:
        """Attributes and the offset behind ``::=`` where a rule's head goes on; else 0."""
        if self.source.startswith("::=", position):
            return {}, position + 3
        if not self.source.startswith("[", position):
            return {}, 0
        try:
            attributes, after = self.attributes(position)
        except InvalidConstraint:
            closing = self.source.find("]", position)
            if closing >= 0 and self.source.startswith("::=", self.lexer.skip(closing + 1)):
                raise
            return {}, 0
        after = self.lexer.skip(after)
        return (attributes, after + 3) if self.source.startswith("::=", after) else ({}, 0)

    def attributes(self, position: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        position = self.lexer.skip(position + 1)
        while True:
            key = self.lexer.token(position)
            position = self.lexer.skip(key.end)
            value: Any = True
            if key.kind != "name":
                raise self.lexer.fail("an attribute begins with its name, as in [lazy]", key.start)
            if key.value in found:
                raise self.lexer.fail(f"the attribute {key.value} is given twice; keep one", key.start)
            if self.source.startswith("=", position):
                token = self.lexer.token(self.lexer.skip(position + 1))
                if token.kind not in ("string", "number", "name"):
                    raise self.lexer.fail("the value of an attribute is a string or a number", token.start)
                value = token.value
                position = self.lexer.skip(token.end)
            found[key.value] = value
            if self.source.startswith("]", position):
                return found, position + 1
            if not self.source.startswith(",", position):
                raise self.lexer.fail("attributes are separated by commas and closed by ]", position)
            position = self.lexer.skip(position + 1)

    @property
    def here(self) -> Lexeme:
        return self.lexemes[self.position]

    def fail(self, message: str, token: Lexeme) -> InvalidConstraint:
        return InvalidConstraint(message, where=line_and_column(self.source, token.start))

    def take(self, kind: str = "") -> Lexeme:
        token = self.here
        if kind and token.kind != kind:
            raise self.fail(f"expected {kind!r} here, not {self.shown(token)}", token)
        self.position += 1
        return token

    def shown(self, token: Lexeme) -> str:
        if token.kind == "end":
            return "the end of the grammar"
        if token.kind == "header":
            return f"the next rule ({token.value[0]})"
        return repr(self.source[token.start : token.end][:30])

    def rule(self) -> None:
        token = self.here
        if token.kind != "header":
            raise self.fail(f"expected a rule, name ::= ..., not {self.shown(token)}", token)
        self.take()
        name, attributes = token.value
        if name in self.result.bodies:
            raise self.fail(f"the rule {name} is defined twice; join the two with |", token)
        if self.here.kind in ("header", "end"):
            raise self.fail(f'the rule {name} has no body; the empty string is written ""', token)
        self.result.places[name] = token.start
        body = self.choice()
        if self.here.kind == "(=":
            self.take()
            self.result.assertions[name] = self.choice()
            self.take(")")
        if self.here.kind not in ("header", "end"):
            raise self.fail(
                f"{self.shown(self.here)} is not expected here, where the rule has ended; leave it out",
                self.here,
            )
        self.result.bodies[name] = body
        if attributes:
            self.result.attributes[name] = attributes

    def choice(self) -> ir.Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ConstraintTooComplex(
                f"parentheses are nested more than {MAX_DEPTH} deep; name the inner parts",
                where=line_and_column(self.source, self.here.start),
            )
        options = [self.sequence()]
        while self.here.kind == "|":
            self.take()
            options.append(self.sequence())
        self.depth -= 1
        return ir.choice(*options)

    def sequence(self) -> ir.Node:
        items: list[ir.Node] = []
        while self.here.kind not in ("|", ")", "(=", "end", "header"):
            items.append(self.quantified())
        return ir.sequence(*items)

    def quantified(self) -> ir.Node:
        item = self.element()
        token = self.here
        match token.kind:
            case "*":
                item = ir.star(item)
            case "+":
                item = ir.plus(item)
            case "?":
                item = ir.optional(item)
            case "count":
                low, high = token.value
                if high is not None and high < low:
                    raise self.fail(
                        f"the repetition {low} to {high} is the wrong way round; write {{{high},{low}}}",
                        token,
                    )
                if max(low, high or 0) > MAX_COUNT:
                    raise self.fail(f"a repetition count is at most {MAX_COUNT:,}", token)
                item = ir.Repeat(item, low, high)
            case _:
                return item
        self.take()
        if self.here.kind in ("*", "+", "?", "count"):
            raise self.fail(
                "one repetition stands behind another; put parentheses around the inner", self.here
            )
        return item

    def element(self) -> ir.Node:
        token = self.take()
        match token.kind:
            case "string":
                return ir.text(token.value)
            case "class":
                node: ir.Node = token.value
                return node
            case ".":
                return ir.ANY_CHAR
            case "special":
                return tokens([token.value], negated=False)
            case "!":
                return tokens([self.take("special").value], negated=True)
            case "(":
                inner = self.choice()
                if self.here.kind == "(=":
                    raise self.fail(
                        "a look-ahead (= ...) stands at the end of a rule; give this part a rule of its own",
                        self.here,
                    )
                self.take(")")
                return inner
            case "name" | "number":
                if self.here.kind in ("(", "(=") and token.value in MACROS and self.here.start == token.end:
                    return self.macro(token)
                self.result.references.setdefault(token.value, token.start)
                return ir.Ref(token.value)
        hint = "a string, a class, a name or ( can stand here"
        if token.kind == ",":
            hint = "parts of a sequence stand side by side, leave it out"
        raise self.fail(f"{self.shown(token)} is not expected here; {hint}", token)

    def macro(self, name: Lexeme) -> ir.Node:
        values, options = self.arguments()
        try:
            return expand(name.value, values, options)
        except GrammarError as error:
            message = f"{error.where}: {error.message}" if error.where else error.message
            place = line_and_column(self.source, name.start)
            raise type(error)(f"in {name.value}: {message}", where=place) from None

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        self.take("(")
        values: list[Any] = []
        options: dict[str, Any] = {}
        while self.here.kind != ")":
            if self.here.kind == "name" and self.lexemes[self.position + 1].kind == "=":
                key = self.take()
                if key.value in options:
                    raise self.fail(f"the option {key.value} is given twice; keep one", key)
                self.take("=")
                options[key.value] = self.argument()
            else:
                values.append(self.argument())
            if self.here.kind != ")":
                self.take(",")
        self.take(")")
        return values, options

    def argument(self) -> Any:
        token = self.take()
        match token.kind:
            case "string":
                return token.value
            case "number":
                if not token.value.lstrip("+-").isdigit():
                    raise self.fail("a whole number is expected here", token)
                return int(token.value)
            case "name":
                if token.value in ("true", "false"):
                    return token.value == "true"
                self.result.references.setdefault(token.value, token.start)
                return ir.Ref(token.value)
            case "(":
                self.position -= 1
                self.depth += 1
                if self.depth > MAX_DEPTH:
                    raise self.fail(
                        "the arguments are nested too deeply; write them without needless parentheses", token
                    )
                values, options = self.arguments()
                self.depth -= 1
                if options:
                    raise self.fail("a list of values is expected here, without name=value in it", token)
                return tuple(values)
        raise self.fail(
            f"{self.shown(token)} is not an argument: give a string, a number, true, false, a name or (...)",
            token,
        )


def _parts(token: Lexeme, defined: set[str]) -> list[Lexeme]:
    """A name with dots, if no rule has it, as llama.cpp reads it: names, and dots for any character."""
    if token.kind != "name" or "." not in token.value or token.value in defined:
        return [token]
    pieces = re.findall(r"\.|[^.]+", token.value)
    if not all(piece == "." or piece in defined for piece in pieces):
        return [token]
    parts, start = [], token.start
    for piece in pieces:
        parts.append(Lexeme("." if piece == "." else "name", piece, start, start + len(piece)))
        start += len(piece)
    return parts
