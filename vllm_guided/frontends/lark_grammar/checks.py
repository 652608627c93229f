"""What Lark's loader leaves to later steps, or says less clearly: aliases and uses that terminals have not.

In: definitions as Lark's loader has them (:class:`~.loader.Definitions`), and the text they come from. Out:
an error with a place, or nothing.
"""

from __future__ import annotations

from typing import Any

from lark import Tree
from lark.grammar import Symbol

from vllm_guided.errors import InvalidConstraint
from vllm_guided.frontends.lark_grammar.plain_text import PlainText


def refuse_aliases(definitions: dict[str, Any], plain: PlainText) -> None:
    """Refuse the aliases that Lark takes for uses of rules: those in terminals and in parentheses."""
    for definition in definitions.values():
        if definition.tree is None:
            continue
        allowed = () if definition.is_term else definition.tree.children
        for alias in definition.tree.find_data("alias"):
            name = alias.children[-1].name
            if name not in definitions and not any(alias is option for option in allowed):
                place = "a terminal" if definition.is_term else "parentheses"
                raise InvalidConstraint(
                    f"an alias (-> {name}) has no place in {place}; leave it out",
                    where=plain.where((plain.names.get(name) or [0])[0]),
                )


def check_terminals(definitions: dict[str, Any], plain: PlainText) -> None:
    """Refuse terminals that use rules, or themselves."""
    uses = {
        name: symbols(definition.tree)
        for name, definition in definitions.items()
        if definition.is_term and definition.tree is not None
    }
    done: set[str] = set()
    for first in uses:
        path: list[tuple[str, list[Any]]] = [(first, list(uses[first]))]
        under_way = {first}
        while path:
            name, rest = path[-1]
            if not rest:
                path.pop()
                under_way.discard(name)
                done.add(name)
                continue
            used = rest.pop()
            places = plain.names.get(used.name) or [0]
            if not definitions[used.name].is_term:
                user = "%ignore" if name.startswith("__IGNORE") else f"the terminal {name}"
                message = f"{user} cannot use the rule {used.name}; write what it needs as terminals"
                raise InvalidConstraint(message, where=plain.where(places[0]))
            if used.name in under_way:
                message = f"the terminal {used.name} uses itself; only rules (in small letters) can"
                raise InvalidConstraint(message, where=plain.where(places[0]))
            if used.name in uses and used.name not in done:
                under_way.add(used.name)
                path.append((used.name, list(uses[used.name])))


def symbols(tree: Any) -> list[Any]:
    """The names of rules and terminals in a tree of Lark's."""
    found: list[Any] = []
    stack = [tree]
    seen: set[int] = set()
    while stack:
        item = stack.pop()
        if isinstance(item, Symbol):
            found.append(item)
        elif isinstance(item, Tree) and id(item) not in seen:
            seen.add(id(item))
            stack.extend(item.children)
    return found
