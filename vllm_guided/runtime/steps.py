"""Whole steps of an engine: all its requests, and all their draft tokens, in one call each.

A state is a number, so nothing here changes a matcher: states come in, states or masks go out. Requests of
two runtimes meet in one step only while an arena is being replaced; then each runtime gets a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from vllm_guided.runtime import entry
from vllm_guided.runtime.binding import Runtime
from vllm_guided.runtime.matcher import GrammarMatcher, as_bitmask, fill_states
from vllm_guided.runtime.row_table import RowTable

Integers = npt.NDArray[np.int32]
Matchers = Sequence[GrammarMatcher]


def groups(matchers: Matchers) -> Iterator[tuple[Runtime, npt.NDArray[np.int64]]]:
    """Each runtime, and the positions of its matchers, ascending."""
    runtimes = [matcher._runtime for matcher in matchers]
    distinct = dict.fromkeys(runtimes)
    if len(distinct) == 1:
        yield runtimes[0], np.arange(len(runtimes))
        return
    for runtime in distinct:
        yield runtime, np.array([i for i, own in enumerate(runtimes) if own is runtime], np.int64)


def states_of(matchers: Matchers) -> Integers:
    """Where the matchers stand, int32 [matchers]."""
    return np.array([matcher._history[-1] for matcher in matchers], np.int32)


def next_states(matchers: Matchers, tokens: Integers, offsets: Integers) -> Integers:
    """The state after each token of each matcher; DEAD from the first that is not allowed.

    Args:
        matchers: they stay where they are.
        tokens: int32 [all tokens]; matcher r has those from ``offsets[r]`` to ``offsets[r + 1]``.
        offsets: int32 [matchers + 1].

    Returns:
        int32 [all tokens].
    """
    states = states_of(matchers)
    found = np.empty(len(tokens), np.int32)
    for runtime, chosen in groups(matchers):
        some, own = (offsets, slice(None)) if len(chosen) == len(matchers) else _part(offsets, chosen)
        out = np.empty(int(some[-1]), np.int32)
        with runtime.lock:
            entry.advance_many(runtime.address, states[chosen], tokens[own], some, out)
        found[own] = out
    return found


def draft_states(
    matchers: Matchers, drafts: Integers, offsets: Integers, fed_from: Integers, masked_from: Integers
) -> tuple[Integers, Integers]:
    """The states whose masks belong to the positions of requests with draft tokens.

    A request has one position before each of its drafts and one after the last. A position's state is -1
    (everything is allowed) before ``masked_from``, and after a padding draft (negative), as it cannot be
    sampled. A draft is fed to the grammar from ``fed_from`` on; after one that the grammar refuses, the
    state is that of the position before it.

    Args:
        matchers: they stay where they are.
        drafts: int32 [all drafts]; matcher r has those from ``offsets[r]`` to ``offsets[r + 1]``.
        offsets: int32 [matchers + 1].
        fed_from: int32 [matchers].
        masked_from: int32 [matchers].

    Returns:
        int32 [all drafts + matchers], and int32 [matchers]: the draft that was refused, or -1.
    """
    states = states_of(matchers)
    found = np.empty(len(drafts) + len(matchers), np.int32)
    refused = np.empty(len(matchers), np.int32)
    for runtime, chosen in groups(matchers):
        some, own = (offsets, slice(None)) if len(chosen) == len(matchers) else _part(offsets, chosen)
        out = np.empty(int(some[-1]) + len(chosen), np.int32)
        wrong = np.empty(len(chosen), np.int32)
        with runtime.lock:
            entry.walk_drafts(
                runtime.address, states[chosen], drafts[own], some, fed_from[chosen], masked_from[chosen],
                out, wrong,
            )  # fmt: skip
        rows = (
            slice(None)
            if len(chosen) == len(matchers)
            else _part(offsets + np.arange(len(offsets)), chosen)[1]
        )
        found[rows] = out
        refused[chosen] = wrong
    return found, refused


def _part(
    offsets: npt.NDArray[np.integer], chosen: npt.NDArray[np.int64]
) -> tuple[Integers, npt.NDArray[np.int64]]:
    """The offsets of some of the matchers, and where their entries lie."""
    lengths = (offsets[1:] - offsets[:-1])[chosen]
    some = np.zeros(len(chosen) + 1, np.int32)
    np.cumsum(lengths, out=some[1:])
    own = np.repeat(offsets[:-1][chosen] - some[:-1], lengths) + np.arange(some[-1])
    return some, own.astype(np.int64)


def number_states(matchers: Matchers, states: Integers, table: RowTable) -> Integers | None:
    """The row number of the mask of each state; see :meth:`RowTable.number`.

    Args:
        matchers: whose state each is, by position.
        states: int32 [matchers].
        table: begun for this step.
    """
    found = np.empty(len(states), np.int32)
    for runtime, chosen in groups(matchers):
        numbers = table.number(runtime, states[chosen])
        if numbers is None:
            return None
        found[chosen] = numbers
    return found


def fill_masks(
    matchers: Matchers, states: Integers, bitmask: npt.NDArray[np.int32], places: npt.NDArray[np.int64]
) -> list[int]:
    """Write the mask of each state to its row; the positions of those that have no bit.

    Args:
        matchers: whose state each is, by position.
        states: int32 [matchers]; negative: an all-ones row.
        bitmask: int32 [rows, words].
        places: int64 [matchers], rows.
    """
    empty: list[int] = []
    for runtime, chosen in groups(matchers):
        if fill_states(runtime, states[chosen], bitmask, places[chosen]):
            array = as_bitmask(bitmask, 0)
            empty.extend(i for i in chosen.tolist() if not array[places[i]].any())
    return empty
