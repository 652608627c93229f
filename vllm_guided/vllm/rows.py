"""The masks of one step, for all requests at once.

In: the requests of the step that have a grammar, with their draft tokens. Out: the rows, in the layout the
worker expects, or their numbers where the workers hold a table (:mod:`vllm_guided.vllm.shipping`). vLLM's own
loop calls a backend once per request; here the states behind all draft tokens are one call, and the masks
of all states another, whatever the number of requests.

Rows of a request: one before each draft token and one after the last. A row is unconstrained (all ones)
while the model still reasons, and after a draft position that speculation has given up (-1): those
positions cannot be sampled. After a draft that the grammar refuses, the last good row is repeated. No
grammar is advanced and rolled back for it: a state is a number, and the next one another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_guided.runtime import steps
from vllm_guided.runtime.row_table import EVERYTHING, NOTHING
from vllm_guided.vllm.grammar import GuidedGrammar
from vllm_guided.vllm.row_numbers import RowNumbers
from vllm_guided.vllm.special_rows import Walk, fill, report_refused

Integers = NDArray[np.int32]
Places = NDArray[np.int64]
Bitmask = NDArray[np.int32]

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


@dataclass
class Plan:
    """Which state belongs to which row of a step.

    Args:
        grammars: whose rows they are, one for each state.
        states: int32 [states]; negative: everything is allowed.
        places: int64 [states], the row of each.
        row_count: rows in use.
        special: requests whose rows are more than a state's mask.
    """

    grammars: list[GuidedGrammar]
    states: Integers
    places: Places
    row_count: int
    special: list[Walk]


def plan(
    requests: dict[str, Any],
    request_ids: Sequence[str],
    drafts: dict[str, list[int]],
    stride: int,
    layout: Layout,
    may_reason: bool,
) -> Plan:
    """Find the state of every row.

    Args:
        requests: by id; each has a ready :class:`GuidedGrammar`.
        request_ids: the requests that need rows, in the order of their rows.
        drafts: draft tokens by request id.
        stride: rows per request in a strided layout.
        layout: of this vLLM.
        may_reason: is there a reasoning parser whose tokens are not constrained?

    Raises:
        TypeError: a request's grammar is not ours.
    """
    outputs = [requests[request_id].structured_output_request for request_id in request_ids]
    # Where a request is scheduled its grammar is there; the property, which looks for it, takes its time.
    grammars = [output._grammar for output in outputs]
    if not {type(grammar) for grammar in grammars} <= {GuidedGrammar}:
        raise TypeError(f"grammars of other types: {sorted({type(made).__name__ for made in grammars})}")
    reasoning = may_reason and not all([output.reasoning_ended for output in outputs])
    if not drafts and not reasoning and all([grammar.is_plain for grammar in grammars]):
        row_step = stride if layout.strided else 1
        states = steps.states_of([grammar.matcher for grammar in grammars])
        places = np.arange(0, len(grammars) * row_step, row_step, dtype=np.int64)
        return Plan(grammars, states, places, len(grammars) * row_step, [])

    walks: list[Walk] = []
    row = 0
    for index, (request_id, grammar) in enumerate(zip(request_ids, grammars, strict=True)):
        tokens = drafts.get(request_id, ())
        walk = Walk(grammar, index * stride if layout.strided else row, tokens)
        if reasoning and not outputs[index].reasoning_ended:
            request = requests[request_id]
            walk.grammar_start, walk.constraint_start = layout.bounds(request, _without_padding(tokens))
            if walk.constraint_start:
                walk.masked_ids = layout.masked_ids(request)
        walks.append(walk)
        row += 1 + len(tokens)
    plain = [walk for walk in walks if walk.grammar.is_plain and not walk.masked_ids]
    special = [walk for walk in walks if not walk.grammar.is_plain or walk.masked_ids]
    owners, states, places = _follow(plain)
    return Plan(owners, states, places, len(walks) * stride if layout.strided else row, special)


def _follow(walks: list[Walk]) -> tuple[list[GuidedGrammar], Integers, Places]:
    """Whose each row is, its state, and its place."""
    grammars = [walk.grammar for walk in walks]
    lengths = np.array([len(walk.drafts) for walk in walks], np.int32)
    offsets = np.zeros(len(walks) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    states, refused = steps.draft_states(
        [grammar.matcher for grammar in grammars],
        np.array([token for walk in walks for token in walk.drafts], np.int32),
        offsets,
        np.array([walk.grammar_start for walk in walks], np.int32),
        np.array([walk.constraint_start for walk in walks], np.int32),
    )
    for number in np.flatnonzero(refused >= 0).tolist():
        report_refused(grammars[number], walks[number].drafts[int(refused[number])])
    owners = np.repeat(np.arange(len(walks)), lengths + 1)
    first = np.array([walk.row for walk in walks], np.int64)
    position = np.arange(len(states)) - (offsets[:-1] + np.arange(len(walks)))[owners]
    return [grammars[owner] for owner in owners.tolist()], states, first[owners] + position


def fill_rows(plan: Plan, bitmask: Bitmask) -> Bitmask:
    """The rows themselves.

    Args:
        plan: what to fill.
        bitmask: int32 [rows, words], written to.

    Returns:
        Its first rows, as many as are in use.
    """
    empty = steps.fill_masks(
        [grammar.matcher for grammar in plan.grammars], plan.states, bitmask, plan.places
    )
    for position in empty:
        _fail(plan.grammars[position])
        bitmask[plan.places[position]] = -1
    fill(plan.special, bitmask)
    return bitmask[: plan.row_count]


def number_rows(plan: Plan, bitmask: Bitmask, table: Any) -> Bitmask:
    """The numbers of the rows, with those that are new; the rows themselves where they are too many.

    Args:
        plan: what to fill.
        bitmask: int32 [rows, words], scratch for rows that are made one by one.
        table: a ``shipping.ShippedTable``.
    """
    table.begin()
    numbers = np.full(plan.row_count, EVERYTHING, np.int32)
    found = steps.number_states([grammar.matcher for grammar in plan.grammars], plan.states, table.index)
    if found is not None:
        for position in np.flatnonzero(found == NOTHING).tolist():
            _fail(plan.grammars[position])
            found[position] = EVERYTHING
        numbers[plan.places] = found
        if not plan.special or _number_special(plan.special, bitmask, table.index, numbers):
            return RowNumbers.of(numbers, table.number, *table.index.added())
    table.index.forget_added()
    return fill_rows(plan, bitmask)


def _number_special(walks: list[Walk], bitmask: Bitmask, index: Any, numbers: Integers) -> bool:
    """Number the rows of special requests; whether there was room for all."""
    fill(walks, bitmask)
    for walk in walks:
        for row in range(walk.row, walk.row + 1 + len(walk.drafts)):
            number = index.number_row(bitmask[row])
            if number is None:
                return False
            numbers[row] = number
    return True


def _fail(grammar: GuidedGrammar) -> None:
    """Let a request fail that the engine cannot follow any further; the log has the reason."""
    if not grammar.failed:
        grammar.fill_row(np.zeros((1, grammar.matcher.words), np.int32), 0)
        if not grammar.failed:
            grammar.fail("the masks of a step", RuntimeError("no token is allowed"))


def _without_padding(tokens: Sequence[int]) -> list[int]:
    """The draft tokens before the first padding."""
    kept: list[int] = []
    for token in tokens:
        if token < 0:
            break
        kept.append(token)
    return kept
