"""Bodies of rules that say a whole JSON object, array or choice of values at once.

Most schemas are made of little else, and written out as sequences, choices, graphs and bags each of them is
dozens of nodes. Compiled code writes their automata as they are (:mod:`vllm_guided.automaton.ready`), and
:func:`vllm_guided.grammar.expansion.expanded` says what they stand for in general nodes.

They refer to other rules by name. Whoever builds one sees to it that each of these derives something, and
never the empty string. ``BLANKS``, ``SEPARATOR``, ``STRING``, ``NAME_REST`` and ``NAME_BEYOND`` are rules
that must be there where they are needed; those that have ``compact`` set need the first two not, or not with
blanks in it.
"""

from __future__ import annotations

from dataclasses import dataclass

BLANKS, SEPARATOR, STRING = "blanks", "separator", "string"
NAME_REST, NAME_BEYOND = "name_rest", "name_beyond"
"""What a name that is not declared may go on with (its closing quote included), and the same behind a
character that is not one byte of printable ASCII."""


@dataclass(unsafe_hash=True, slots=True)
class JsonObject:
    """An object's members, in any order or those with declared names first and in their order.

    Attributes:
        names: the JSON text of each declared name, quotes included; no two are the same.
        values: the rule of the value of each of these.
        required: places in ``names`` of those that must be there.
        other: the rule of the value of every other member; ``None``: there are no others. Where there are,
            the declared names are printable ASCII without quotes and backslashes.
        compact: without white space.
        least: 1 if there must be a member where none is required.
        ordered: in their order; where there are no names, it makes no difference.
    """

    names: tuple[bytes, ...]
    values: tuple[str, ...]
    required: frozenset[int]
    other: str | None = None
    compact: bool = False
    least: int = 0
    ordered: bool = False


@dataclass(unsafe_hash=True, slots=True)
class JsonArray:
    """An array of any number of items of one rule, or of at least one (``least`` 1)."""

    item: str
    least: int = 0
    compact: bool = False


@dataclass(unsafe_hash=True, slots=True)
class JsonValue:
    """One of some texts (not empty, sorted, no two the same), or what one of some rules derives."""

    texts: tuple[bytes, ...] = ()
    rules: tuple[str, ...] = ()


JsonRule = JsonObject | JsonArray | JsonValue


def json_references(rule: JsonRule) -> tuple[str, ...]:
    """The names of the rules of values that a rule refers to."""
    if isinstance(rule, JsonObject):
        return rule.values if rule.other is None else (*rule.values, rule.other)
    return (rule.item,) if isinstance(rule, JsonArray) else rule.rules


JSON_RULES = frozenset((JsonObject, JsonArray, JsonValue))
