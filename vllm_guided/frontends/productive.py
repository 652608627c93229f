"""A grammar from which no text can be derived, and which rule is to blame.

In: a grammar. Out: nothing, or an error that names a rule: one whose own parts have no text (a pattern that
nothing matches), or one that every way through it uses again.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from vllm_guided.errors import InvalidConstraint
from vllm_guided.frontends.embedding import references
from vllm_guided.frontends.json_schema.productivity import derives, unproductive
from vllm_guided.grammar import ir


def refuse_empty(grammar: ir.Grammar, where: Callable[[str], str]) -> None:
    """Raise InvalidConstraint if the grammar's language is empty; ``where`` is the place of a rule's name."""
    if derives(grammar.rules[grammar.start].body, grammar.rules):
        dead = unproductive(grammar.rules)
        if grammar.start not in dead:
            return
    else:
        dead = {grammar.start}
    order = [grammar.start]
    for name in order:
        order.extend(sorted(n for n in references(grammar.rules[name].body) if n in dead and n not in order))
    for name in order:
        if not derives(grammar.rules[name].body, grammar.rules):
            raise InvalidConstraint(
                f"no output can satisfy this grammar: {_called(name)} has a part that matches no text (a"
                " class without characters, or a pattern that contradicts itself); mend it, or give another"
                " option",
                where=where(_base(name)),
            )
    looping = next(name for name in reversed(order) if _base(name))
    raise InvalidConstraint(
        f"no output can satisfy this grammar: each way through {_called(looping)} comes back to a rule under"
        " way, so it never ends; add an option that does not",
        where=where(_base(looping)),
    )


def _base(name: str) -> str:
    """The name as the grammar's author wrote it, without what was added to tell its uses apart."""
    found = re.match(r"[^%@{:]*", name)
    return found[0] if found else ""


def _called(name: str) -> str:
    return f"the rule {_base(name)}" if _base(name) else "it"
