"""The mask rows of one step, filled in as few calls as possible.

In: the requests of the step that have a grammar, with their draft tokens. Out: the rows, in the layout
the worker expects. vLLM's own loop calls a backend once per request; here all rows of a step without
drafts are one call, and a step with drafts is one call per draft position: every request's row for that
position is filled, then its draft is accepted, and in the end all drafts are rolled back.

Rows of a request: one before each draft token and one after the last. A row is unconstrained (all ones)
while the model still reasons, and after a draft position that speculation has given up (-1): those
positions cannot be sampled. After a draft that the grammar refuses, the last good row is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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


def fill_plain(requests: dict[str, Any], request_ids: Sequence[str], bitmask: Bitmask, stride: int) -> int:
    """The common case, without drafts and without reasoning: one row per request, ``stride`` rows apart.

    Args:
        requests: by id; each has a ready :class:`GuidedGrammar`.
        request_ids: the requests that need a row, in the order of their rows.
        bitmask: int32 [rows, words].

    Returns:
        The number of rows in use.

    Raises:
        TypeError: a request's grammar is not ours.
    """
    grammars = [requests[request_id].structured_output_request.grammar for request_id in request_ids]
    if not {type(grammar) for grammar in grammars} <= {GuidedGrammar}:
        raise TypeError(
            f"grammars of other types: {sorted({type(grammar).__name__ for grammar in grammars})}"
        )
    count = len(grammars) * stride
    rows = list(range(0, count, stride))
    if any([grammar.failed for grammar in grammars]):
        for grammar, row in zip(grammars, rows, strict=True):
            if grammar.failed:
                bitmask[row].fill(-1)
        rows = [row for grammar, row in zip(grammars, rows, strict=True) if not grammar.failed]
        grammars = [grammar for grammar in grammars if not grammar.failed]
    if grammars:
        _fill_constrained(grammars, rows, bitmask)
    return count


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
            logger.error(
                "vllm_guided: draft token %d of request %s was validated before, but is refused now.",
                token,
                walk.grammar.request_id,
            )


def _allow_all(bitmask: Bitmask, row: int, masked_ids: tuple[int, ...]) -> None:
    words = bitmask[row].view(np.uint32)
    words.fill(0xFFFFFFFF)
    for token in masked_ids:
        words[token >> 5] &= ~np.uint32(1 << (token & 31))


Bounds = Callable[[Any, Sequence[int]], tuple[int, int]]


@dataclass(frozen=True)
class Layout:
    """How a version of vLLM lays out the rows of a step.

    Args:
        strided: every request owns the same number of rows (0.33), not just those it needs (0.30 to 0.32).
        bounds: ``(request, drafts) -> (grammar_start, constraint_start)`` for a request that may reason.
        masked_ids: ``request -> token ids`` that its reasoning rows must not allow (0.33).
    """

    strided: bool
    bounds: Bounds
    masked_ids: Callable[[Any], tuple[int, ...]]


def plan(
    requests: dict[str, Any],
    request_ids: Sequence[str],
    drafts: dict[str, list[int]],
    stride: int,
    layout: Layout,
    may_reason: bool,
) -> tuple[list[Walk], int]:
    """Where each request's rows go.

    Args:
        requests: by id; each has a ready :class:`GuidedGrammar`.
        request_ids: the requests that need rows, in the order of their rows.
        drafts: draft tokens by request id.
        stride: rows per request in a strided layout.
        layout: of this vLLM.
        may_reason: is there a reasoning parser whose tokens are not constrained?

    Returns:
        The walks, and the number of rows in use.

    Raises:
        TypeError: a request's grammar is not ours.
    """
    walks: list[Walk] = []
    row = 0
    for index, request_id in enumerate(request_ids):
        request = requests[request_id]
        grammar = request.structured_output_request.grammar
        if type(grammar) is not GuidedGrammar:
            raise TypeError(f"the grammar of request {request_id} is a {type(grammar).__name__}")
        tokens = drafts.get(request_id, ())
        if layout.strided:
            row = index * stride
        walk = Walk(grammar, row, tokens)
        if may_reason:
            walk.grammar_start, walk.constraint_start = layout.bounds(request, _without_padding(tokens))
            if walk.constraint_start:
                walk.masked_ids = layout.masked_ids(request)
        walks.append(walk)
        row += 1 + len(tokens)
    return walks, len(request_ids) * stride if layout.strided else row


def _without_padding(tokens: Sequence[int]) -> list[int]:
    """The draft tokens before the first padding."""
    kept: list[int] = []
    for token in tokens:
        if token < 0:
            break
        kept.append(token)
    return kept
