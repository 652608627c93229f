"""The least automaton with the same language: Hopcroft's refinement, for partial transition tables.

Comes in: rows of targets by class (-1: none) and accepting states, start 0. Goes out: the same, without
states that lead nowhere, equivalent ones made one, numbered in order of first visit, start 0.
Hopcroft 1971; partial tables after Valmari and Lehtinen 2008 (every block splits once at the beginning).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Rows = list[list[int]]


def minimised(rows: Sequence[Sequence[int]], accepting: Iterable[int]) -> tuple[Rows, set[int]]:
    """The minimal automaton; one state without transitions where the language is empty."""
    final = set(accepting)
    live = _productive(rows, final)
    if 0 not in live:
        return [[-1] * (len(rows[0]) if rows else 0)], set()
    block_of = _blocks(rows, final, live)
    return _numbered(rows, final, live, block_of)


def _productive(rows: Sequence[Sequence[int]], final: set[int]) -> set[int]:
    """The states from which an accepting one can be reached."""
    sources: list[list[int]] = [[] for _ in rows]
    for state, row in enumerate(rows):
        for target in set(row):
            if target >= 0:
                sources[target].append(state)
    live = set(final)
    queue = list(final)
    for state in queue:
        for source in sources[state]:
            if source not in live:
                live.add(source)
                queue.append(source)
    return live


def _blocks(rows: Sequence[Sequence[int]], final: set[int], live: set[int]) -> list[int]:
    """The block of equivalent states that each live state belongs to."""
    width = len(rows[0])
    inverse: list[dict[int, list[int]]] = [{} for _ in range(width)]
    for state in live:
        for label, target in enumerate(rows[state]):
            if target in live:
                inverse[label].setdefault(target, []).append(state)
    blocks = [block for block in (final & live, live - final) if block]
    block_of = [-1] * len(rows)
    for number, block in enumerate(blocks):
        for state in block:
            block_of[state] = number
    waiting = set(range(len(blocks)))
    while waiting:
        splitter = list(blocks[waiting.pop()])
        for sources in inverse:
            touched: dict[int, list[int]] = {}
            for state in splitter:
                for source in sources.get(state, ()):
                    touched.setdefault(block_of[source], []).append(source)
            for number, members in touched.items():
                block = blocks[number]
                if len(members) == len(block):
                    continue
                moved = set(members)
                kept = block - moved
                if len(moved) > len(kept):
                    moved, kept = kept, moved
                blocks[number] = kept
                for state in moved:
                    block_of[state] = len(blocks)
                waiting.add(len(blocks))
                blocks.append(moved)
    return block_of


def _numbered(
    rows: Sequence[Sequence[int]], final: set[int], live: set[int], block_of: list[int]
) -> tuple[Rows, set[int]]:
    """Blocks as states, in the order in which the start meets them."""
    numbers = {block_of[0]: 0}
    order = [0]
    result: Rows = []
    accepting: set[int] = set()
    for number, state in enumerate(order):
        row = [-1] * len(rows[state])
        for label, target in enumerate(rows[state]):
            if target in live:
                block = block_of[target]
                found = numbers.get(block)
                if found is None:
                    found = numbers[block] = len(order)
                    order.append(target)
                row[label] = found
        result.append(row)
        if state in final:
            accepting.add(number)
    return result, accepting
