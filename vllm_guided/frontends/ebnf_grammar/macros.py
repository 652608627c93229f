"""xgrammar's macros: what ``Regex(...)``, ``Substring(...)``, ``TagDispatch(...)`` and ``Token(...)`` mean.

In: the macro's name with its arguments (values and ``name=value`` pairs). Out: a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm_guided.errors import InvalidConstraint, UnsupportedConstraint
from vllm_guided.frontends import free_text, regular
from vllm_guided.frontends.substring import substring_node
from vllm_guided.grammar import ir

MACROS = frozenset(
    {"Regex", "Substring", "TagDispatch", "Token", "ExcludeToken", "TokenTagDispatch", "AnyText"}
)


def expand(name: str, values: list[Any], options: dict[str, Any]) -> ir.Node:
    """The node of a macro call; strings are ``str``, numbers ``int``, rule names ``ir.Ref``, lists tuples.

    Raises:
        InvalidConstraint: arguments the macro does not take; without a place, which the parser adds.
    """
    match name:
        case "Regex":
            return _regex(values, options)
        case "Substring":
            _known(name, options, ())
            if not all(isinstance(value, str) for value in values):
                raise InvalidConstraint('Substring takes strings, as in Substring("a", "b")')
            return substring_node(values)
        case "TagDispatch":
            return _tag_dispatch(values, options)
        case "Token" | "ExcludeToken":
            _known(name, options, ())
            return tokens(values, negated=name == "ExcludeToken")
        case "TokenTagDispatch":
            return _token_tag_dispatch(values, options)
        case "AnyText":
            _known(name, options, ("excludes",))
            return free_text.text_without(_strings(options.get("excludes", ())))
    raise AssertionError(f"{name} is among the macros, but is not expanded")


def _known(name: str, options: dict[str, Any], known: tuple[str, ...]) -> None:
    for key in options:
        if key not in known:
            raise UnsupportedConstraint(f"{name} has no option {key}; it has {', '.join(known) or 'none'}")


def _strings(value: Any) -> list[str]:
    values = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(item, str) for item in values):
        raise InvalidConstraint('a list of strings is expected here, as in ("a", "b")')
    return list(values)


def _boolean(options: dict[str, Any], key: str, default: bool) -> bool:
    value = options.get(key, default)
    if not isinstance(value, bool):
        raise InvalidConstraint(f"{key} is true or false")
    return value


def _regex(values: list[Any], options: dict[str, Any]) -> ir.Node:
    """Regexps of ECMA-262 that ignore case in ASCII only; without flags a dot is any character."""
    from vllm_guided.frontends.regex import regex_node

    _known("Regex", options, ("flags", "json_string"))
    if len(values) != 1 or not isinstance(values[0], str):
        raise InvalidConstraint('Regex takes one string, as in Regex("a+")')
    flags = options.get("flags", "s")
    if not isinstance(flags, str) or set(flags) - set("isu"):
        raise UnsupportedConstraint("the flags of Regex are made of i, s and u")
    pattern = values[0]
    if pattern.startswith("(?i)"):
        pattern, flags = pattern[4:], flags + "i"
    letters = "".join(sorted(set(flags) - {"u"}))
    try:  # Python's flag a is what ignores case in ASCII only
        node = regex_node(pattern, dialect="python", flags=letters + "a") if "i" in letters else None
    except InvalidConstraint:
        node = None
    if node is None:
        node = regex_node(pattern, dialect="ecma", flags=letters)
    if _boolean(options, "json_string", False):
        safe = ir.char_set([(0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, ir.MAX_CODE_POINT)])
        node = regular.node(regular.intersection(regular.dfa(node), regular.dfa(ir.star(safe))))
    return node


def tokens(values: list[Any] | tuple[Any, ...], *, negated: bool) -> ir.Node:
    """One token among (or, negated, beside) those given by id or name."""
    names = frozenset(value for value in values if isinstance(value, str))
    ids = tuple((value, value) for value in values if isinstance(value, int) and not isinstance(value, bool))
    if len(names) + len(ids) != len(set(values)) or any(low < 0 for low, _ in ids):
        raise InvalidConstraint(
            "a token is given by its id, a number from 0, or by its name, a string; each once"
        )
    if not values and not negated:
        raise InvalidConstraint("at least one token is expected here, as in Token(5)")
    return ir.SpecialToken(names, ids, negated)


def _pairs(name: str, values: list[Any]) -> list[tuple[Any, ir.Ref]]:
    for value in values:
        if not isinstance(value, tuple) or len(value) != 2 or not isinstance(value[1], ir.Ref):
            raise InvalidConstraint(f"{name} takes pairs (trigger, rule), the rule by its name")
    return [(value[0], value[1]) for value in values]


def _tag_dispatch(values: list[Any], options: dict[str, Any]) -> ir.Node:
    _known("TagDispatch", options, ("loop_after_dispatch", "excludes"))
    pairs = _pairs("TagDispatch", values)
    if not all(isinstance(trigger, str) for trigger, _ in pairs):
        raise InvalidConstraint("the triggers of TagDispatch are strings; for tokens use TokenTagDispatch")
    loop = _boolean(options, "loop_after_dispatch", True)
    return free_text.dispatch(free_text.Dispatch(pairs, _strings(options.get("excludes", ())), loop))


def _token_tag_dispatch(values: list[Any], options: dict[str, Any]) -> ir.Node:
    _known("TokenTagDispatch", options, ("loop_after_dispatch", "excludes"))
    pairs = _pairs("TokenTagDispatch", values)
    excludes = options.get("excludes", ())
    excludes = excludes if isinstance(excludes, tuple) else (excludes,)
    overlap = {trigger for trigger, _ in pairs} & set(excludes)
    if overlap:
        raise InvalidConstraint(
            f"{min(map(str, overlap))} is a trigger and excluded; leave it out of excludes"
        )
    loop = _boolean(options, "loop_after_dispatch", True)
    return token_dispatch(pairs, excludes, loop=loop)


def token_dispatch(
    pairs: Sequence[tuple[Any, ir.Node]], excludes: tuple[Any, ...] | list[Any], *, loop: bool
) -> ir.Node:
    """Any tokens; where one is a trigger, its node follows. The free part has no token of ``excludes``."""
    triggers = [trigger for trigger, _ in pairs]
    free = tokens([*triggers, *excludes], negated=True)
    hops = [
        (0, ir.sequence(tokens([trigger], negated=False), node), 0 if loop else 1) for trigger, node in pairs
    ]
    return ir.Graph(((0, free, 0), *hops), frozenset((0,) if loop else (0, 1)))
