"""From a loaded grammar to the grammar of what Lark's LALR parser with its contextual lexer parses."""

from __future__ import annotations

from vllm_guided.errors import GrammarError, InvalidConstraint
from vllm_guided.frontends.lark_grammar.lalr.contexts import Contexts
from vllm_guided.frontends.lark_grammar.lalr.lexers import Lexers
from vllm_guided.frontends.lark_grammar.lalr.productions import Compiled
from vllm_guided.frontends.lark_grammar.lalr.tables import Production, Tables
from vllm_guided.frontends.lark_grammar.lalr.views import Views
from vllm_guided.frontends.lark_grammar.lalr.watches import Watches
from vllm_guided.frontends.lark_grammar.loader import Definitions
from vllm_guided.frontends.lark_grammar.plain_text import PlainText
from vllm_guided.grammar import ir


def lalr_grammar(plain: PlainText, definitions: Definitions, start: str) -> ir.Grammar:
    """The texts that ``lark.Lark(text, parser="lalr")`` parses.

    Raises:
        InvalidConstraint: not LALR(1), or nothing that stock Lark reads.
        UnsupportedConstraint: a terminal whose matches depend on the text before it.
        ConstraintTooComplex: larger than the limits.
    """
    if plain.additions:
        raise InvalidConstraint(
            "this is llguidance's addition to Lark, which Lark itself does not read; write plain Lark, or"
            " leave parser='lalr' out",
            where=plain.where(plain.additions[0]),
        )
    for name, definition in definitions.by_name.items():
        if definition.is_term and definition.tree is None:
            places = plain.names.get(name) or [0]
            raise InvalidConstraint(
                f"{name} is declared (%declare), not defined, so Lark's own lexer never finds it; leave"
                " parser='lalr' out, or define it",
                where=plain.where(places[0]),
            )
    try:
        return _grammar(Compiled(definitions.by_name, definitions.ignored, start), start)
    except GrammarError as error:
        if error.where:
            raise
        raise type(error)(error.message, where=_place(error.message, plain)) from None


def _place(message: str, plain: PlainText) -> str:
    """The place of the first name in the message that the grammar has."""
    words = message.replace(":", " ").replace(",", " ").split()
    places = next((plain.names[word] for word in words if word in plain.names), [0])
    return plain.where(places[0])


def _grammar(compiled: Compiled, start: str) -> ir.Grammar:
    terminals = [terminal.name for terminal in compiled.terminals]
    end = len(terminals)
    left = sorted({rule.origin.name for rule in compiled.rules})
    names = [*terminals, "the end of the text", *left, "%root"]
    number = {name: i for i, name in enumerate(terminals)}
    nonterminal = {name: end + 1 + i for i, name in enumerate(left)}
    productions = [Production(len(names) - 1, (nonterminal[start],))]
    for rule in compiled.rules:
        right = tuple(
            number[symbol.name] if symbol.is_term else nonterminal[symbol.name] for symbol in rule.expansion
        )
        productions.append(Production(nonterminal[rule.origin.name], right, rule.options.priority or 0))
    tables = Tables(productions, end + 1, end, names)
    watches = Watches()
    lexers = Lexers(compiled.terminals, frozenset(compiled.ignored), watches)
    return Contexts(tables, Views(lexers), watches).grammar()
