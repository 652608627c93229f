"""The texts of member names that are not declared.

In: a class of names and the names declared beside it. Out: an IR node for the quoted name. No spelling of a
declared name gets in: as long as a name reads like the beginning of a declared one, its printable ASCII
characters stand for themselves; every other character has all its spellings.
"""

from __future__ import annotations

from functools import lru_cache

from vllm_guided.bounded import bounded_cache
from vllm_guided.frontends.json_schema import spelling
from vllm_guided.frontends.json_schema import strings as string_sets
from vllm_guided.frontends.json_schema.string_text import string_node
from vllm_guided.frontends.json_schema.strings import Strings
from vllm_guided.grammar import ir

_QUOTE = ir.text('"')
_ASCII = sum(1 << code for code in range(0x20, 0x80) if code not in (0x22, 0x5C))
_BEYOND: spelling.Ranges = (
    (0, 0x1F),
    (0x22, 0x22),
    (0x5C, 0x5C),
    (0x80, 0xD7FF),
    (0xE000, ir.MAX_CODE_POINT),
)

_REST, _PLAIN_REST = ir.Ref("name_rest"), ir.Ref("plain_name_rest")
_ANY_BEYOND, _PLAIN_BEYOND = ir.Ref("name_beyond"), ir.Ref("plain_name_beyond")


def _rules(plain: bool) -> dict[str, ir.Rule]:
    encode = spelling.encode_plain if plain else spelling.encode
    rest, beyond = (_PLAIN_REST, _PLAIN_BEYOND) if plain else (_REST, _ANY_BEYOND)
    body = ir.sequence(ir.star(encode(spelling.ALL)), _QUOTE)
    return {
        rest.name: ir.Rule(body, shared=True),
        beyond.name: ir.Rule(ir.sequence(encode(_BEYOND), body), shared=True),
    }


RULES = {plain: _rules(plain) for plain in (False, True)}
"""What the trie of declared names is left for, by ``plain``: any name's rest, and the same behind a character
that is not one ASCII byte. They are rules of their own so that each state of a trie has few moves."""

_LABELS: dict[str, tuple[ir.Node | None, ir.Node | None]] = {
    chr(code): (ir.ByteSet(1 << code), ir.ByteSet(_ASCII & ~(1 << code)))
    for code in range(0x80)
    if _ASCII >> code & 1
}
"""Of the characters that are one ASCII byte: themselves, and all others of them. Of none: all of them."""
_LABELS[""] = (None, ir.ByteSet(_ASCII))
_UNLABELLED = (None, None)
_NO_TARGET = ("", 0)


def name_node(names: Strings, declared: tuple[str, ...], plain: bool = False) -> ir.Node:
    """The quoted names of the class that are not declared; ``ir.NOTHING`` if there are none.

    With ``plain`` each has one spelling. Where ``names`` are all names, it may refer to ``RULES[plain]``.
    """
    if names == string_sets.ANY:
        return any_name_but(declared, plain) if declared or plain else string_node(names)
    taken = tuple(name for name in declared if string_sets.accepts(names, name))
    if taken:
        rest = string_sets.intersect(names, Strings(negative=(("in", taken),)))
        if rest is None or string_sets.is_empty(rest):
            return ir.NOTHING
        names = rest
    return string_node(names, plain=True)


NAMES_KEPT = 256
"""Sets of declared names whose tries are kept; each has about five objects a character."""


@bounded_cache(NAMES_KEPT, 8 << 20)
def any_name_but(declared: tuple[str, ...], plain: bool) -> ir.Node:
    """Every quoted name but the declared ones: a trie of them that is left at the first other character.

    With ``plain`` each in its usual spelling only. It refers to ``RULES[plain]``.
    """
    encode = spelling.encode_plain if plain else spelling.encode
    children: list[dict[str, int]] = [{}]
    terminal: set[int] = set()
    for name in declared:
        node = 0
        for character in name:
            targets = children[node]
            following = targets.get(character)
            if following is None:
                following = targets[character] = len(children)
                children.append({})
            node = following
        terminal.add(node)
    end, free = len(children), len(children) + 1
    rest, beyond = (_PLAIN_REST, _PLAIN_BEYOND) if plain else (_REST, _ANY_BEYOND)
    edges: list[tuple[int, ir.Node, int]] = [(free, rest, end)]
    for node, targets in enumerate(children):
        if node not in terminal:
            edges.append((node, _QUOTE, end))
        if len(targets) <= 1:
            character, target = next(iter(targets.items()), _NO_TARGET)
            label, others_label = _LABELS.get(character, _UNLABELLED)
            if others_label is not None:
                if label is not None:
                    edges.append((node, label, target))
                edges.append((node, others_label, free))
                edges.append((node, beyond, end))
                continue
        taken, others = 0, []
        for character, target in targets.items():
            label = _LABELS.get(character, _UNLABELLED)[0]
            if label is None:
                others.append(ord(character))
                label = ir.text(spelling.literal(character)[1:-1])
            else:
                taken |= 1 << ord(character)
            edges.append((node, label, target))
        edges.append((node, _ascii_but(taken), free))
        if others:
            edges.append((node, encode(_beyond_but(sorted(others))), free))
        else:
            edges.append((node, beyond, end))
    return ir.sequence(_QUOTE, ir.Graph(tuple(edges), frozenset([end]), 0))


@lru_cache(maxsize=1024)
def _ascii_but(taken: int) -> ir.Node:
    return ir.ByteSet(_ASCII & ~taken)


def _beyond_but(codes: list[int]) -> spelling.Ranges:
    """The characters that are not written as one ASCII byte, less ``codes``."""
    gaps: list[tuple[int, int]] = []
    for low, high in _BEYOND:
        for code in codes:
            if low <= code <= high:
                gaps.append((low, code - 1))
                low = code + 1
        gaps.append((low, high))
    return tuple(span for span in gaps if span[0] <= span[1])
