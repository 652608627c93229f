"""Text of which parts may be special tokens: the tags of tool calls.

``<tool_call>`` is five tokens of text to one model and one added token to the next, special or not; what
wrote the structural tag means both. So a tag's text is read for what could be a token's name (in angle or
square brackets, between bars), and each such part may be spelt, or be the token if the vocabulary has it.
"""

from __future__ import annotations

import re

from vllm_guided.grammar import ir

MAX_VARIANTS = 8

Symbol = str | ir.SpecialToken  # one character, or one token

_INNER = re.compile(r"\|[^|\s<>]{1,60}\||｜[^｜\s<>]{1,60}｜")
_NAME = re.compile(r"\]<\]minimax\[>\[|<[^<>\s]{1,80}>|\[/?[A-Z][A-Z_]{1,40}\]|｜[^｜\s<>]{1,60}｜")


def token(name: str) -> ir.SpecialToken:
    """The token of this name, if the vocabulary has it."""
    return ir.SpecialToken(frozenset([name]), optional=True)


def spelled(text: str) -> ir.Node:
    """``text``, where every part that could be a token's name may be that token."""
    items: list[ir.Node] = []
    position = 0
    for match in _NAME.finditer(text):
        name = match.group()
        items.append(ir.text(text[position : match.start()]))
        options = [ir.text(name), token(name)]
        inner = _INNER.search(name)
        if inner and inner.group() != name:
            begin, end = inner.span()
            options.append(ir.sequence(ir.text(name[:begin]), token(inner.group()), ir.text(name[end:])))
        items.append(ir.choice(*options))
        position = match.end()
    items.append(ir.text(text[position:]))
    return ir.sequence(*(item for item in items if item != ir.EMPTY)) if text else ir.EMPTY


def variants(text: str) -> list[tuple[Symbol, ...]]:
    """``text`` as characters, and with its possible tokens in their places."""
    found: list[tuple[Symbol, ...]] = [()]
    position = 0
    matches = list(_NAME.finditer(text))
    for match in matches:
        name = match.group()
        before = tuple(text[position : match.start()])
        options: list[tuple[Symbol, ...]] = [tuple(name), (token(name),)]
        inner = _INNER.search(name)
        if inner and inner.group() != name:
            begin, end = inner.span()
            options.append((*name[:begin], token(inner.group()), *name[end:]))
        if len(found) * len(options) > MAX_VARIANTS:
            # all text, or all tokens
            found = [(*found[0], *before, *options[0]), (*found[-1], *before, *options[1])]
        else:
            found = [(*start, *before, *option) for start in found for option in options]
        position = match.end()
    return [(*start, *text[position:]) for start in found]
