"""A list of texts, one of which is the output: list of strings to the grammar IR.

A short list becomes a choice of literals. A long one becomes a tree of common prefixes (a trie with forced
bytes folded into one label), so that the automaton is built from each shared byte once.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_guided.errors import InvalidConstraint
from vllm_guided.grammar import ir

TRIE_FROM = 64
"""Number of choices from which on prefixes are shared."""


def choice_grammar(choices: Sequence[str]) -> ir.Grammar:
    """The grammar of exactly the texts in ``choices``, UTF-8 encoded.

    Empty texts, duplicates and choices that begin with one another are all right.

    Raises:
        InvalidConstraint: the list is empty, or holds something that is not a text.
    """
    if isinstance(choices, str | bytes) or not isinstance(choices, Sequence):
        raise InvalidConstraint(
            f'choices must be a list of strings, not {type(choices).__name__}: write ["a", "b"]',
            where="choice",
        )
    if not choices:
        raise InvalidConstraint("the list of choices is empty: give at least one string", where="choice")
    texts = sorted({_encoded(text, index) for index, text in enumerate(choices)})
    if len(texts) < TRIE_FROM:
        body = ir.choice(*(ir.text(text) for text in texts))
    else:
        body = _trie(texts)
    return ir.Grammar({"start": ir.Rule(body)}, "start")


def _encoded(text: object, index: int) -> bytes:
    where = f"choice[{index}]"
    if not isinstance(text, str):
        raise InvalidConstraint(
            f"a choice must be a string, not {type(text).__name__}: quote it", where=where
        )
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidConstraint(
            "half a surrogate pair cannot be generated: write the whole character", where=where
        ) from None


def _trie(texts: list[bytes]) -> ir.Graph:
    """The prefix tree of sorted, distinct ``texts``: one edge for each run of bytes without a fork."""
    edges: list[tuple[int, ir.Node, int]] = []
    accepting: set[int] = set()
    # (first, past the last of the texts below, how many bytes they share, node)
    stack = [(0, len(texts), 0, 0)]
    count = 1
    while stack:
        first, last, depth, node = stack.pop()
        if len(texts[first]) == depth:
            accepting.add(node)
            first += 1
        while first < last:
            byte = texts[first][depth]
            limit = _end_of_run(texts, first, last, depth, byte)
            low, high = texts[first], texts[limit - 1]
            shared = depth + 1
            while shared < len(low) and shared < len(high) and low[shared] == high[shared]:
                shared += 1
            edges.append((node, ir.Literal(low[depth:shared]), count))
            stack.append((first, limit, shared, count))
            count += 1
            first = limit
    return ir.Graph(tuple(edges), frozenset(accepting), 0)


def _end_of_run(texts: list[bytes], first: int, last: int, depth: int, byte: int) -> int:
    """Where, from ``first`` on, the texts with ``byte`` at ``depth`` end (binary search)."""
    low, high = first + 1, last
    while low < high:
        middle = (low + high) // 2
        if texts[middle][depth] == byte:
            low = middle + 1
        else:
            high = middle
    return low
