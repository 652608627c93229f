"""Lark's own compiler, from its definitions to terminals and plain rules, kept from growing without end.

Which tokens a contextual lexer looks for depends on the parser's states, and those on how Lark writes
optional and repeated parts out. So Lark does that itself here; what would take it long is refused before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lark.exceptions import LarkError
from lark.grammar import NonTerminal, Symbol
from lark.load_grammar import Grammar
from lark.tree import Tree

from vllm_guided.errors import ConstraintTooComplex, InvalidConstraint
from vllm_guided.frontends.lark_grammar.advice import advised
from vllm_guided.frontends.lark_grammar.loader import LarkTree

MAX_EXPANSIONS = 20_000
MAX_SYMBOLS = 200_000
_LONG_REPEAT = 50  # from here on Lark writes repetition as rules of its own


class Compiled:
    """``terminals`` (Lark's TerminalDef), ``rules`` (Lark's Rule) and the names of the ``ignored`` ones."""

    def __init__(self, definitions: dict[str, Any], ignored: Sequence[str], start: str) -> None:
        for name, definition in definitions.items():
            if not definition.is_term and definition.tree is not None:
                count, symbols = _written_out(definition.tree)
                if count > MAX_EXPANSIONS or symbols > MAX_SYMBOLS:
                    raise ConstraintTooComplex(
                        f"the rule {name} has {count:,} alternatives once its optional parts are written out,"
                        " as LALR wants them; give some of its parts a rule of their own"
                    )
        rules, terminals = [], []
        for name, definition in definitions.items():
            if definition.is_term:
                terminals.append((name, (_resolved(definition.tree, definitions), definition.options)))
            else:
                rules.append((name, definition.params, definition.tree, definition.options))
        try:
            compiled = Grammar(rules, terminals, list(ignored)).compile([start], set())  # type: ignore[no-untyped-call]
        except (LarkError, AssertionError, ValueError, SyntaxError) as error:
            message = advised(str(error).split("\n\n")[0])
            raise InvalidConstraint(f"Lark cannot compile the grammar: {message}") from None
        except ImportError as error:
            raise InvalidConstraint(
                f"with parser='lalr', \\p{{...}} has no place in terminals: {error}"
            ) from None
        self.terminals, self.rules, self.ignored = compiled
        undefined = {
            symbol.name for rule in self.rules for symbol in rule.expansion if isinstance(symbol, NonTerminal)
        } - {rule.origin.name for rule in self.rules}
        if undefined:
            raise InvalidConstraint(f"{', '.join(sorted(undefined))}: used, but not defined; define it")


def _resolved(tree: LarkTree, definitions: dict[str, Any]) -> LarkTree:
    """A terminal's tree with the terminals that it uses in the places of their names."""
    if isinstance(tree, Symbol):
        return _resolved(definitions[tree.name].tree, definitions)
    if not isinstance(tree, Tree):
        return tree
    return Tree(tree.data, [_resolved(child, definitions) for child in tree.children], tree.meta)


def _written_out(tree: LarkTree) -> tuple[int, int]:
    """How many alternatives a rule's tree becomes, and how many symbols they have together."""
    match str(tree.data):
        case "expansions":
            counts = [_written_out(child) for child in tree.children]
            return min(sum(c for c, _ in counts), _MANY), min(sum(s for _, s in counts), _MANY)
        case "alias":
            return _written_out(tree.children[0])
        case "expansion":
            count, symbols = 1, 0
            for child in tree.children:
                inner, inside = _written_out(child)
                count, symbols = min(count * inner, _MANY), min(symbols * inner + inside * count, _MANY)
            return count, symbols
        case "maybe":
            count, symbols = _written_out(tree.children[0])
            return count + 1, symbols
        case "expr":
            count, symbols = _written_out(tree.children[0])
            operator, *numbers = (str(child) for child in tree.children[1:])
            if operator == "~":
                low, high = int(numbers[0]), int(numbers[-1])
                if high >= _LONG_REPEAT:
                    return 1 + count, symbols + 10
                powers = [min(count**number, _MANY) for number in range(low, high + 1)]
                total = min(sum(powers), _MANY)
                return total, min(total * high * max(symbols // max(count, 1), 1), _MANY)
            if count > MAX_EXPANSIONS:
                return count, symbols
            return (2, 1) if operator == "*" else (1, 1) if operator == "+" else (count + 1, symbols)
        case _:
            return 1, 1


_MANY = 10**9
