"""Mask rows of requests that need more than a state: one after another, through their grammars.

Such are requests with stop tokens of their own, those that have failed, and those whose reasoning must not
contain some tokens. Every position of a request is filled, then its draft is accepted, and in the end
all drafts are rolled back. All others: :mod:`vllm_guided.vllm.rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vllm_guided.vllm import engine
from vllm_guided.vllm.grammar import GuidedGrammar
from vllm_guided.vllm.selection import logger

Bitmask = NDArray[np.int32]


@dataclass
class Walk:
    """One request on its way through its rows.

    Args:
        grammar: its grammar.
        row: the row of its first position.
        drafts: the tokens proposed after each of its rows but the last; -1 is padding.
        grammar_start: the first draft that is fed to the grammar.
        constraint_start: the first row that is constrained.
        masked_ids: tokens that unconstrained rows of a reasoning model must not allow.
    """

    grammar: GuidedGrammar
    row: int
    drafts: Sequence[int] = ()
    grammar_start: int = 0
    constraint_start: int = 0
    masked_ids: tuple[int, ...] = ()
    accepted: int = 0
    padded: bool = False
    refused: bool = False

    def is_constrained(self, position: int) -> bool:
        return not self.padded and position >= self.constraint_start


def fill(walks: Sequence[Walk], bitmask: Bitmask) -> None:
    """Fill every row of these requests; each grammar is afterwards where it was before.

    Args:
        walks: the requests; their rows must not overlap.
        bitmask: int32 [rows, words].
    """
    pending = walks
    position = 0
    try:
        while pending:
            _fill_position(pending, position, bitmask)
            pending = [walk for walk in pending if position < len(walk.drafts)]
            for walk in pending:
                _accept_draft(walk, position)
            position += 1
    finally:
        for walk in walks:
            if walk.accepted:
                walk.grammar.rollback(walk.accepted)
            # The same rows may be asked for again.
            walk.accepted, walk.padded, walk.refused = 0, False, False


def _fill_position(walks: Sequence[Walk], position: int, bitmask: Bitmask) -> None:
    """Fill the rows of one position of all requests that have it."""
    grammars: list[GuidedGrammar] = []
    rows: list[int] = []
    for walk in walks:
        row = walk.row + position
        if walk.refused:
            bitmask[row] = bitmask[row - 1]
        elif not walk.is_constrained(position):
            _allow_all(bitmask, row, () if walk.padded else walk.masked_ids)
        elif walk.grammar.failed:
            bitmask[row].fill(-1)
        else:
            grammars.append(walk.grammar)
            rows.append(row)
    if grammars:
        _fill_constrained(grammars, rows, bitmask)


def _fill_constrained(grammars: list[GuidedGrammar], rows: list[int], bitmask: Bitmask) -> None:
    """One call for all of them; if it fails, one by one, so that the culprit fails alone."""
    empty: list[int] = []
    try:
        empty = engine.fill_rows([grammar.matcher for grammar in grammars], bitmask, rows)
        done = True
    except Exception as fault:
        logger.warning("vllm_guided: a step's masks are filled one by one, as all at once failed: %r", fault)
        done = False
    for position in empty:
        # Filling it alone raises, with the reason; the request then fails alone.
        grammars[position].fill_row(bitmask, rows[position])
    for grammar, row in zip(grammars, rows, strict=True):
        if not done:
            grammar.fill_row(bitmask, row)
        elif grammar.extra_stop_ids:
            grammar.finish_row(bitmask, row)


def _accept_draft(walk: Walk, position: int) -> None:
    """Advance a request by the draft token after this position."""
    token = walk.drafts[position]
    if token < 0:
        walk.padded = True
    elif not walk.padded and not walk.refused and position >= walk.grammar_start:
        if not walk.grammar.is_terminated() and walk.grammar.accept_tokens("", [token]):
            walk.accepted += 1
        elif not walk.grammar.failed:
            walk.refused = True
            report_refused(walk.grammar, token)


def _allow_all(bitmask: Bitmask, row: int, masked_ids: tuple[int, ...]) -> None:
    words = bitmask[row].view(np.uint32)
    words.fill(0xFFFFFFFF)
    for token in masked_ids:
        words[token >> 5] &= ~np.uint32(1 << (token & 31))


def report_refused(grammar: GuidedGrammar, token: int) -> None:
    """Log that a draft token is refused; vLLM shows us its drafts before it schedules them."""
    logger.error(
        "vllm_guided: draft token %d of request %s was validated before, but is refused now.",
        token,
        grammar.request_id,
    )
