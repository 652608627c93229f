"""Rules: Lark's rule trees as IR rules, every use of a template or of a parameter a rule of its own.

In: the loader's definitions. Out: the grammar. Aliases, ``?``, ``!``, ``_`` and priorities shape Lark's
trees, not its language, so they leave nothing behind here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lark import Token
from lark.grammar import Symbol

from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends import regular
from vllm_guided.frontends.embedding import embed
from vllm_guided.frontends.first import first_of
from vllm_guided.frontends.lark_grammar import parametric
from vllm_guided.frontends.lark_grammar.lalr.watches import Watches
from vllm_guided.frontends.lark_grammar.lexemes import Lexemes
from vllm_guided.frontends.lark_grammar.loader import Definitions, LarkTree
from vllm_guided.frontends.lark_grammar.outlooks import Outlook, Outlooks
from vllm_guided.frontends.lark_grammar.plain_text import Extension, PlainText
from vllm_guided.frontends.lark_grammar.skips import Skips
from vllm_guided.frontends.lark_grammar.terminals import Terminals, structured_regex
from vllm_guided.frontends.lark_grammar.watched import watched
from vllm_guided.frontends.wide import is_wide
from vllm_guided.grammar import ir

MAX_RULES = 5_000
MAX_NESTED = 8

Argument = Symbol | ir.Node
Key = tuple[str, int | None, tuple[Argument, ...]]


@dataclass(frozen=True, slots=True)
class _Scope:
    """What names mean inside one use of a rule."""

    key: Key
    names: dict[str, Argument]

    @property
    def number(self) -> int | None:
        return self.key[1]


class Rules:
    """Converts what ``start`` reaches."""

    def __init__(
        self,
        plain: PlainText,
        definitions: Definitions,
        depth: int = 0,
        imports: Mapping[str, str] | None = None,
    ) -> None:
        self.plain = plain
        self.definitions = definitions.by_name
        self.depth = depth
        self.imports = imports or {}
        self.terminals = Terminals(plain, self.definitions)
        self.lexemes = Lexemes(plain, self.definitions, self.terminals)
        self.out: dict[str, ir.Rule] = {}
        self.names: dict[Key, str] = {}
        self.pending: list[tuple[Key, str]] = []
        self.bodies: dict[str, ir.Node] = {}
        self.tokens: dict[tuple[str, ir.Node], ir.Node] = {}
        self.embedded = 0
        self.outlooks = Outlooks(Watches())
        self.looking: dict[str, Outlook] = {}
        self.looked = ""  # the place of one of them
        ignored = [self.ignored(name) for name in definitions.ignored]
        self.skips = Skips(ignored, self.out)
        if self.skips.groups and plain.options.get("allow_initial_skip") is False:
            raise UnsupportedConstraint(
                "with allow_initial_skip false, what %ignore names could not stand before the first token;"
                " here it always can: leave the option out",
                where=plain.where(0),
            )

    def grammar(self, start: str) -> ir.Grammar:
        """The grammar of everything ``start`` derives."""
        grammar = self.unwatched(start)
        if not self.looking:
            return grammar
        try:
            return watched(grammar, self.looking, self.outlooks)
        except GrammarError as error:
            names = re.findall(r"\w+", error.message)
            where = next(filter(None, map(self.where, names)), self.looked)
            raise type(error)(error.message, where=where) from None

    def unwatched(self, start: str) -> ir.Grammar:
        """The same with terminals that look around as what they match by themselves."""
        definition = self.definitions.get(start)
        if definition is None or definition.is_term:
            raise InvalidConstraint(
                f"there is no rule {start!r} to start from; define it, or name another start rule",
                where=self.plain.where(0),
            )
        if start in self.plain.parametric or definition.params:
            raise InvalidConstraint(
                f"{start!r} has parameters and cannot be the start rule; start from a rule that uses it",
                where=self.where(start),
            )
        self.lexemes.analyse(start)
        root = self.use((start, None, ()))
        self._convert_pending()
        begin = "%start"
        self.out[begin] = ir.Rule(self.skips.behind(root))
        return ir.Grammar(self.out, begin)

    def convert_all(self) -> None:
        """Convert the rules that the start does not reach, too."""
        for name, definition in self.definitions.items():
            if not (definition.is_term or definition.params or name in self.plain.parametric):
                self.use((name, None, ()))
        self._convert_pending()

    def _convert_pending(self) -> None:
        while self.pending:
            key, name = self.pending.pop()
            self.out[name] = self.rule(key)

    def where(self, name: str) -> str:
        """The place of the first mention of a name."""
        places = self.plain.names.get(name)
        return self.plain.where(places[0]) if places else ""

    def use(self, key: Key) -> ir.Ref:
        """A reference to the rule for ``key``, which is converted later."""
        name = self.names.get(key)
        if name is None:
            if len(self.names) >= MAX_RULES:
                raise ConstraintTooComplex(
                    f"with templates and parameters written out these are more than {MAX_RULES:,} rules;"
                    " use fewer",
                    where=self.where(key[0]),
                )
            name = key[0]
            if key[1] is not None:
                name += f"::{key[1]}"
            if key[2]:
                name += f"{{{len(self.names)}}}"
            self.names[key] = name
            self.pending.append((key, name))
        return ir.Ref(name)

    def rule(self, key: Key) -> ir.Rule:
        """The IR rule of one use of a rule."""
        definition = self.definitions[key[0]]
        if definition.tree is None:
            raise InvalidConstraint(
                f"the rule {key[0]} is declared but never defined; define it", where=self.where(key[0])
            )
        lexeme = self.lexemes.emitted(key[0])
        if lexeme is not None:
            body = self.skips.before(lexeme, first_of(lexeme, {}), lexeme)
            return ir.Rule(body, shared=is_wide(lexeme))
        scope = _Scope(key, dict(zip(definition.params, key[2], strict=True)))
        return ir.Rule(self.expansions(definition.tree, scope))

    def expansions(self, tree: LarkTree, scope: _Scope) -> ir.Node:
        options = []
        for child in tree.children:
            if child.data == "alias":
                child = child.children[0]
            options.append(self.expression(child, scope))
        return ir.choice(*options)

    def expansion(self, tree: LarkTree, scope: _Scope) -> ir.Node:
        items: list[ir.Node] = []
        kinds = [self.terminals.operator(child) for child in tree.children]
        for child, kind in zip(tree.children, kinds, strict=True):
            if kind == "condition" and self.expression(child, scope) == ir.NOTHING:
                return ir.NOTHING
        for child, kind in zip(tree.children, kinds, strict=True):
            if kind in ("and", "not"):
                raise InvalidConstraint(
                    "& and ~ join terminals; give what they join a terminal's name (in capitals)",
                    where=self.place(child),
                )
            items.append(self.expression(child, scope))
        return ir.sequence(*items)

    def place(self, tree: LarkTree) -> str:
        """The place of the first literal in a tree."""
        token = next(tree.scan_values(lambda value: isinstance(value, Token)), None)
        if token is None:
            return ""
        extension = self.plain.extension(token) if token.type == "STRING" else None
        return self.plain.where(extension.offset) if extension else self.terminals.where(token)

    def expression(self, tree: LarkTree, scope: _Scope) -> ir.Node:
        match str(tree.data):
            case "expansions":
                return self.expansions(tree, scope)
            case "expansion":
                return self.expansion(tree, scope)
            case "maybe":
                return ir.optional(self.expansions(tree.children[0], scope))
            case "expr":
                minimum, maximum = self.terminals.counts(tree)
                return ir.Repeat(self.expression(tree.children[0], scope), minimum, maximum)
            case "value":
                argument = self.argument(tree, scope)
                return self.symbol(argument, tree) if isinstance(argument, Symbol) else argument
            case _:
                raise AssertionError(tree.data)

    def argument(self, tree: LarkTree, scope: _Scope) -> Argument:
        """A ``value``: a symbol (which may be used as a template), or a node."""
        item = tree.children[0]
        if isinstance(item, Symbol):
            return scope.names.get(item.name, item)
        if item.data == "template_usage":
            return self.template(item, scope)
        if item.data == "literal":
            extension = self.plain.extension(item.children[0])
            if extension is not None:
                return self.extension(extension, scope)
        body = self.terminals.node(item)
        outlook = self.outlook(item, "the terminal", self.place(item))
        if outlook is not None:
            return self.look(outlook, body, tree, "the terminal")
        return self.token(self.lexemes.restricted(tree, body))

    def symbol(self, symbol: Symbol, occurrence: LarkTree) -> ir.Node:
        definition = self.definitions.get(symbol.name)
        if definition is None:
            raise InvalidConstraint(
                f"{symbol.name} is used but not defined; define it", where=self.where(symbol.name)
            )
        if definition.is_term:
            return self.terminal(symbol.name, occurrence)
        if symbol.name in self.plain.parametric:
            raise InvalidConstraint(
                f"the rule {symbol.name} is parametric, but no parameter is given: {symbol.name}::0",
                where=self.where(symbol.name),
            )
        if definition.params:
            raise InvalidConstraint(
                f"the template {symbol.name} is used without arguments: write {symbol.name}{{...}}",
                where=self.where(symbol.name),
            )
        return self.use((symbol.name, None, ()))

    def template(self, tree: LarkTree, scope: _Scope) -> ir.Node:
        symbol = tree.children[0]
        name = symbol.name
        if name in scope.names:
            target = scope.names[name]
            if not isinstance(target, Symbol):
                raise InvalidConstraint(
                    f"{name} is used as a template, but is none; pass the name of one", where=self.where(name)
                )
            name = target.name
        definition = self.definitions.get(name)
        arguments = tuple(self.argument(child, scope) for child in tree.children[1:])
        if definition is None or definition.is_term or len(definition.params) != len(arguments):
            raise InvalidConstraint(
                f"{name} is not a template with {len(arguments)} parameters; give as many as it has",
                where=self.where(symbol.name),
            )
        return self.use((name, None, arguments))

    def terminal_body(self, symbol: Symbol) -> ir.Node:
        """The regular node of a terminal used by name."""
        body = self.bodies.get(symbol.name)
        if body is None:
            body = self.terminals.node(self.terminals.named(symbol), self.where(symbol.name))
            self.bodies[symbol.name] = body
        return body

    def ignored(self, name: str) -> ir.Node:
        """The regular node of a terminal that is ignored."""
        body = self.terminal_body(Symbol(name))
        tree = self.terminals.named(Symbol(name))
        where = self.where(name) or self.place(tree)
        called = "the terminal" if name.startswith("__IGNORE") else name
        outlook = self.outlook(tree, called, where)
        if outlook is not None and not self.outlooks.settled(outlook, regular.dfa(body)):
            raise UnsupportedConstraint(
                f"{called} is ignored and looks at the text around it (a lookaround, ^, $ or \\b at its end"
                " or beginning); write it without",
                where=where,
            )
        return body

    def outlook(self, tree: LarkTree, name: str, where: str) -> Outlook | None:
        """How a terminal looks at the text around it; None for those that do not."""
        pattern = self.terminals.pattern(tree)
        if pattern is None:
            return None
        try:
            return self.outlooks.of(pattern, name)
        except GrammarError as error:
            raise type(error)(f"{name} looks at the text around it: {error.message}", where=where) from None

    def look(self, outlook: Outlook, body: ir.Node, occurrence: LarkTree, name: str) -> ir.Node:
        """A use of a terminal that looks around: a rule that :mod:`watched` puts the terminal in for."""
        if self.lexemes.rivals.get(id(occurrence)):
            raise UnsupportedConstraint(
                f"{name} looks at the text around it, which terminals beside lazy rules cannot; write it"
                " without",
                where=self.where(name) or self.place(occurrence),
            )
        rule = f"%look{outlook.number}"
        self.looking[rule] = outlook
        self.looked = self.looked or self.where(name) or self.place(occurrence)
        self.out[rule] = ir.Rule(body)
        return self.skips.before(ir.Ref(rule), first_of(body, {}), None)

    def terminal(self, name: str, occurrence: LarkTree) -> ir.Node:
        """A use of a terminal: a rule of its own, behind whatever is ignored."""
        if self.definitions[name].tree is None:
            special = ir.SpecialToken(frozenset([name]))
            return self.skips.before(special, (False, 0), None)
        body = self.terminal_body(Symbol(name))
        outlook = self.outlook(self.definitions[name].tree, name, self.where(name))
        if outlook is not None:
            return self.look(outlook, body, occurrence, name)
        body = self.lexemes.restricted(occurrence, body)
        key = (name, body)
        if key not in self.tokens:
            rule = name if name not in self.out else f"{name}%{len(self.tokens)}"
            self.out[rule] = ir.Rule(body, shared=is_wide(body))
            self.tokens[key] = self.skips.before(ir.Ref(rule), first_of(body, {}), body)
        return self.tokens[key]

    def token(self, node: ir.Node) -> ir.Node:
        """A literal, range or regexp that stands in a rule."""
        if is_wide(node):
            name = f"%literal{len(self.out)}"
            self.out[name] = ir.Rule(node, shared=True)
            return self.skips.before(ir.Ref(name), first_of(node, {}), node)
        return self.skips.before(node, first_of(node, {}), node)

    def extension(self, extension: Extension, scope: _Scope) -> ir.Node:
        where = self.plain.where(extension.offset)
        match extension.kind:
            case "condition":
                if scope.number is None:
                    raise InvalidConstraint(
                        "%if stands in parametric rules (name::_) only; leave it out", where=where
                    )
                return ir.EMPTY if parametric.holds(extension.value, scope.number) else ir.NOTHING
            case "call":
                return self.call(extension, scope, where)
            case "special":
                kind, value = extension.value
                if kind == "name":
                    node = ir.SpecialToken(frozenset([value]))
                else:
                    node = ir.SpecialToken(ids=value[0], negated=value[1] or not value[0])
                return self.skips.before(node, (False, 0), None)
            case "regex":
                node_ = structured_regex(extension, where)
                return self.skips.before(node_, first_of(node_, {}), node_)
            case "json" | "lark":
                return self.embed(extension, where)
        raise AssertionError(extension.kind)

    def call(self, extension: Extension, scope: _Scope, where: str) -> ir.Node:
        name, argument = extension.value
        if name not in self.definitions:
            raise InvalidConstraint(f"{name} is used but not defined; define it as {name}::_", where=where)
        if name not in self.plain.parametric:
            raise InvalidConstraint(f"the rule {name} is not parametric; leave the :: out", where=where)
        if scope.number is None and parametric.needs_parameter(argument):
            raise InvalidConstraint(
                f"{scope.key[0]} is not parametric and has no number to pass on; write {name}::0",
                where=where,
            )
        return self.use((name, parametric.value(argument, scope.number or 0), ()))

    def embed(self, extension: Extension, where: str) -> ir.Node:
        """``%json`` and ``%lark``: a whole grammar in the place of a token."""
        try:
            if extension.kind == "json":
                from vllm_guided.frontends.lark_grammar.guidance import json_grammar

                grammar = json_grammar(extension.value)
            else:
                from vllm_guided.frontends.lark import nested_lark_grammar

                if self.depth >= MAX_NESTED:
                    raise ConstraintTooComplex(f"%lark is nested more than {MAX_NESTED} times; use rules")
                grammar = nested_lark_grammar(extension.value, self.depth + 1, self.imports)
        except GrammarError as error:
            inner = f"{error.where}: {error.message}" if error.where else error.message
            raise type(error)(f"in %{extension.kind}: {inner}", where=where) from None
        self.embedded += 1
        node = embed(self.out, grammar, f"%{extension.kind}{self.embedded}/")
        return self.skips.before(node, first_of(node, self.out) if self.skips.groups else (False, 0), None)
