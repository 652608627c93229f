"""Terminals: Lark's trees of strings, ranges and regexps as regular IR nodes.

As in Lark, a terminal is one Python regexp put together from its parts, so a lookbehind sees the part
before it. Where llguidance's ``&``, ``~`` or ``%regex`` come in, the parts are combined as automata.

The language is every match: where Python would stop at the first of several alternatives, longer ones
count as well. Only a lazy quantifier says something about the text behind it: a terminal with one ends at
its first match, which is what makes ``/\\*.*?\\*/`` a comment and ``"[^\\n]*?"`` a string.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from lark import Token, Tree
from lark import load_grammar as stock
from lark.exceptions import GrammarError as LarkGrammarError
from lark.grammar import Symbol

from vllm_guided.errors import ConstraintTooComplex, GrammarError, InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends import regular
from vllm_guided.frontends.lark_grammar.dialect import UNBOUNDED, check_counts
from vllm_guided.frontends.lark_grammar.loader import LarkTree
from vllm_guided.frontends.lark_grammar.plain_text import Extension, PlainText
from vllm_guided.frontends.lark_grammar.regexps import is_lazy, regexp, unkept
from vllm_guided.frontends.substring import substring_node
from vllm_guided.grammar import ir

MAX_PATTERN = 200_000
MAX_ITEMS = 20_000
_BRACED = re.compile(r"((?:^|[^\\])(?:\\\\)*)\\u\{([0-9a-fA-F]{1,8})\}")
_BACKSPACE = re.compile(r"\\.", re.DOTALL)
_END = r"(?![\s\S])"  # the end of the text, in Python's syntax and in ECMA-262's


class Terminals:
    """Turns the terminal trees of one grammar into nodes; places come from ``plain``."""

    def __init__(self, plain: PlainText, definitions: dict[str, Any]) -> None:
        self.plain = plain
        self.definitions = definitions
        self.patterns: dict[int, str | None] = {}
        self.nodes: dict[str, ir.Node] = {}

    def where(self, token: Any) -> str:
        """The place of a token of Lark's tree."""
        offset = getattr(token, "start_pos", None)
        return self.plain.token_where(offset) if offset is not None else ""

    def node(self, tree: LarkTree, where: str = "") -> ir.Node:
        """The language of a terminal's tree (``expansions``, or a literal or range standing in a rule)."""
        try:
            return self._node(tree)
        except GrammarError as error:
            if error.where.startswith("line"):
                raise
            place = where or self._place(tree)
            message = f"{error.where}: {error.message}" if error.where else error.message
            raise type(error)(message, where=place) from None

    def _place(self, tree: LarkTree) -> str:
        token = next(tree.scan_values(lambda value: isinstance(value, Token)), None)
        return self.where(token) if token is not None else ""

    def _node(self, tree: LarkTree) -> ir.Node:
        if isinstance(tree, Symbol):
            node = self.nodes.get(tree.name)
            if node is None:
                node = self.nodes[tree.name] = self._node(self.named(tree))
            return node
        if tree.data == "expansions" and len(tree.children) > 1:
            return ir.choice(*(self._node(child) for child in tree.children))
        string = self._plain_string(tree)
        if string is not None:
            return ir.text(string)
        pattern = self.pattern(tree)
        if pattern is not None:
            return regexp(pattern)
        match str(tree.data):
            case "expansions" | "value":
                return self._node(tree.children[0])
            case "expansion":
                return self._expansion(tree.children)
            case "maybe":
                return ir.optional(self._node(tree.children[0]))
            case "expr":
                minimum, maximum = self.counts(tree)
                return ir.Repeat(self._node(tree.children[0]), minimum, maximum)
            case "literal":
                return self._extension(tree.children[0])
        raise AssertionError(tree.data)

    def _plain_string(self, tree: LarkTree) -> str | None:
        """The string that the tree is, where it is no more than that."""
        while tree.data in ("expansions", "expansion", "value") and len(tree.children) == 1:
            tree = tree.children[0]
            if not isinstance(tree, Tree):
                return None
        if tree.data == "literal" and tree.children[0].type == "STRING":
            token = tree.children[0]
            if not token.endswith("i") and self.plain.extension(token) is None:
                return self.string(token)
        return None

    def string(self, token: Token) -> str:
        """The characters of a string literal."""
        return joined_surrogates(self._literal(token).value, self.where(token))

    def _literal(self, token: Token) -> Any:
        if token.type == "REGEXP" and "\\u{" in token:  # ECMA-262's and Rust's spelling of a code point
            token = Token.new_borrow_pos(token.type, _BRACED.sub(_code_point, token), token)
        if token.type == "STRING" and "\\b" in token:  # a backspace, as JSON and llguidance spell it
            token = Token.new_borrow_pos(token.type, _BACKSPACE.sub(_backspace, token), token)
        try:
            return stock._literal_to_pattern(token)  # type: ignore[no-untyped-call]
        except (LarkGrammarError, SyntaxError, ValueError, AssertionError):
            raise InvalidConstraint(
                f"{token} is not a literal Lark can read; check its escapes, flags and line ends",
                where=self.where(token),
            ) from None

    def pattern(self, tree: Any) -> str | None:
        """The regexp of the tree, or None where an addition of llguidance's is in it."""
        key = id(tree)
        if key not in self.patterns:
            self.patterns[key] = self._pattern(tree)
            if len(self.patterns[key] or "") > MAX_PATTERN:
                raise ConstraintTooComplex(
                    f"a terminal grows beyond {MAX_PATTERN:,} characters of regexp; make it a rule"
                )
        return self.patterns[key]

    def _pattern(self, tree: Any) -> str | None:
        if isinstance(tree, Symbol):
            return self.pattern(self.named(tree))
        match str(tree.data):
            case "literal":
                return self._literal_pattern(tree.children[0])
            case "range":
                low, high = (self._range_end(token) for token in tree.children)
                if low > high:
                    raise InvalidConstraint(
                        f'the range is the wrong way round; write "{high}".."{low}"',
                        where=self.where(tree.children[0]),
                    )
                return f"[{re.escape(low)}-{re.escape(high)}]"
            case "alias":
                raise InvalidConstraint(
                    "an alias (->) has no place in a terminal", where=self.where(tree.children[-1])
                )
            case "template_usage":
                raise InvalidConstraint(
                    "a template has no place in a terminal; make it a rule", where=self._place(tree)
                )
        parts = [self.pattern(child) if isinstance(child, Tree | Symbol) else "" for child in tree.children]
        if any(part is None for part in parts):
            return None
        texts = [part or "" for part in parts]
        match str(tree.data):
            case "expansions":
                return texts[0] if len(texts) == 1 else f"(?:{'|'.join(texts)})"
            case "maybe":
                return f"(?:{texts[0]})?"
            case "expr":
                minimum, maximum = self.counts(tree)
                if minimum == 0 and maximum == 1:
                    return f"(?:{texts[0]})?"
                return f"(?:{texts[0]}){{{minimum},{'' if maximum is None else maximum}}}"
            case "expansion":
                return texts[0] if len(texts) == 1 else "".join(map(_grouped, texts))
        return "".join(texts)

    def _literal_pattern(self, token: Token) -> str | None:
        if self.plain.extension(token) is not None:
            return None
        literal = self._literal(token)
        if "l" in literal.flags:
            raise InvalidConstraint("the flag l is for bytes; leave it out", where=self.where(token))
        if token.type == "STRING":
            literal.value = joined_surrogates(literal.value, self.where(token))
        return str(literal.to_regexp())

    def _range_end(self, token: Token) -> str:
        value = self.string(token) if token.endswith('"') else ""
        if len(value) != 1:
            raise InvalidConstraint(
                f"the ends of a range are one character each, without flags, not {token}",
                where=self.where(token),
            )
        return value

    def named(self, symbol: Symbol) -> LarkTree:
        """The tree of a terminal used by name."""
        definition = self.definitions.get(symbol.name)
        places = self.plain.names.get(symbol.name)
        where = self.plain.where(places[0]) if places else ""
        if definition is None:
            raise InvalidConstraint(f"{symbol.name} is used but not defined; define it", where=where)
        if not definition.is_term:
            raise InvalidConstraint(
                f"a terminal, or a rule that is lazy or has a suffix, cannot use the rule {symbol.name}",
                where=where,
            )
        if definition.tree is None:
            raise InvalidConstraint(
                f"{symbol.name} is a special token; terminals are text: use it in a rule", where=where
            )
        tree: LarkTree = definition.tree
        return tree

    def counts(self, tree: LarkTree) -> tuple[int, int | None]:
        """The counts of an ``expr``: its operator, or the numbers behind ``~``."""
        operator, *numbers = tree.children[1:]
        match str(operator):
            case "?":
                return 0, 1
            case "*":
                return 0, None
            case "+":
                return 1, None
        minimum, maximum = int(numbers[0]), int(numbers[-1])
        check_counts(minimum, maximum, self.where(numbers[0]))
        return minimum, None if maximum == UNBOUNDED else maximum

    def _expansion(self, items: list[Any]) -> ir.Node:
        """A sequence, in which placeholders for ``&`` part conjuncts and one for ``~`` negates an item."""
        conjuncts: list[list[tuple[bool, Any]]] = [[]]
        negate = False
        for item in items:
            kind = self.operator(item)
            if kind == "and":
                conjuncts.append([])
            elif kind == "not":
                negate = not negate
            else:
                conjuncts[-1].append((negate, item))
                negate = False
        if negate or (len(conjuncts) > 1 and not all(conjuncts)):
            raise InvalidConstraint("& stands between two terminals, ~ before one")
        pattern = self._conjunction(conjuncts)
        if pattern is not None:
            with suppress(GrammarError):  # what it says, it says of a pattern that nobody wrote
                return unkept(pattern)
        nodes = [
            ir.sequence(*(self._negated(item) if negated else self._node(item) for negated, item in conjunct))
            for conjunct in conjuncts
        ]
        if any(isinstance(node, ir.Sequence) and len(node.items) > MAX_ITEMS for node in nodes):
            raise ConstraintTooComplex(f"a terminal grows beyond {MAX_ITEMS:,} parts; make it a rule")
        if len(nodes) == 1:
            return nodes[0]
        automaton = regular.dfa(nodes[0])
        for node in nodes[1:]:
            automaton = regular.intersection(automaton, regular.dfa(node))
        return regular.node(automaton)

    def _conjunction(self, conjuncts: list[list[tuple[bool, Any]]]) -> str | None:
        """The conjuncts as one regexp with lookahead, whose automaton reads characters, not bytes.

        None where there is nothing to join, or where a part has no regexp, or one with lazy quantifiers.
        """
        parts = []
        for conjunct in conjuncts:
            negated = conjunct[0][0] if len(conjunct) == 1 else False
            if any(flag for flag, _ in conjunct) != negated:
                return None
            patterns = [self.pattern(item) for _, item in conjunct]
            repeated = negated and isinstance(conjunct[0][1], Tree) and conjunct[0][1].data == "expr"
            if repeated or any(pattern is None or is_lazy(pattern) for pattern in patterns):
                return None
            parts.append((negated, "".join(f"(?:{pattern})" for pattern in patterns)))
        if len(parts) == 1 and not parts[0][0]:
            return None
        looks = [f"(?{'!' if negated else '='}{pattern}{_END})" for negated, pattern in parts]
        return "".join(looks) + r"[\s\S]*"

    def _negated(self, item: Any) -> ir.Node:
        """``~A``; in ``~A*`` it is the complement that is repeated."""
        if isinstance(item, Tree) and item.data == "expr":
            minimum, maximum = self.counts(item)
            return ir.Repeat(self._negated(item.children[0]), minimum, maximum)
        inner = regular.dfa(self._node(item))
        return regular.node(regular.difference(regular.dfa(regular.TEXT_NODE), inner))

    def operator(self, item: Any) -> str:
        """The kind of addition an item of a sequence is; empty for anything else."""
        while isinstance(item, Tree) and item.data == "value":
            item = item.children[0]
        if isinstance(item, Tree) and item.data == "literal":
            extension = self.plain.extension(str(item.children[0]))
            return extension.kind if extension else ""
        return ""

    def _extension(self, token: Token) -> ir.Node:
        extension = self.plain.extension(token)
        assert extension is not None
        where = self.plain.where(extension.offset)
        if extension.kind == "regex":
            return structured_regex(extension, where)
        if extension.kind == "condition":
            raise InvalidConstraint("%if has no place in a terminal; make it a rule", where=where)
        what = {"special": "special tokens", "call": "parametric rules"}.get(extension.kind)
        raise InvalidConstraint(
            f"{what or '%' + extension.kind} cannot be used in terminals; name it in small letters",
            where=where,
        )


def _code_point(match: re.Match[str]) -> str:
    code = int(match[2], 16)
    return f"{match[1]}\\U{code:08x}" if code <= ir.MAX_CODE_POINT else match[0]


def _backspace(match: re.Match[str]) -> str:
    return r"\x08" if match[0] == r"\b" else match[0]


def _grouped(pattern: str) -> str:
    """The pattern, safe to stand in a sequence."""
    return f"(?:{pattern})" if "|" in pattern else pattern


def structured_regex(extension: Extension, where: str) -> ir.Node:
    """``%regex { "substring_words": "..." }`` and its relatives."""
    fields: dict[str, Any] = extension.value
    kinds = ("substring_chars", "substring_words", "substring_chunks")
    for key in fields:
        if key not in kinds:
            raise UnsupportedConstraint(
                f"the field {key!r} of %regex is not known; known are {', '.join(kinds)}", where=where
            )
    if len(fields) != 1:
        raise InvalidConstraint(f"%regex takes exactly one of {', '.join(kinds)}", where=where)
    ((kind, value),) = fields.items()
    if kind == "substring_chunks":
        if not isinstance(value, list) or not all(isinstance(chunk, str) for chunk in value):
            raise InvalidConstraint('substring_chunks is an array of strings; write ["..."]', where=where)
        return substring_node([joined_surrogates(chunk, where) for chunk in value])
    if not isinstance(value, str):
        raise InvalidConstraint(f"{kind} is a string; quote it", where=where)
    value = joined_surrogates(value, where)
    return substring_node(list(value) if kind == "substring_chars" else re.findall(r"\s+|\w+|[^\w\s]", value))


def joined_surrogates(text: str, where: str) -> str:
    """``text`` with surrogate pairs joined, as JSON spells characters beyond U+FFFF."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise InvalidConstraint(
            "the string contains half a surrogate pair; write the whole character", where=where
        ) from None
