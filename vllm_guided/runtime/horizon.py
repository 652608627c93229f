"""States that no text of up to so many bytes can tell apart.

Where a pattern has a largest length, or counts words, each count is a state of its own, and far from the
limits they all do the same: one of them stands for the others (``state_like``) where masks are computed, as a
counter without limits does for counters (``twins.py``).

In: the states of a rule. Out: a state that stands for each, and how long the texts are that do not tell them
apart. This is Moore's refinement (1956), stopped after so many rounds. A round looks only at states that lead
to one that the last round has set apart, so that it costs what there is near the limits.
"""

# Compiled functions have numba signatures instead of annotations, and numba's rules for integers.
# mypy: allow-untyped-defs, disable-error-code="assignment"

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.memory import with_room

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]

#: How many bytes the texts have that do not tell states apart: what is below a token's first bytes mostly
#: goes no deeper than NEAR, and few tokens are longer than FAR.
NEAR, MIDDLE, FAR = 12, 18, 24
#: Where a rule has fewer states of free text, they are not looked at: their masks cost less.
LEAST_STATES = 64
#: A state of free text takes at least so many bytes.
LEAST_BYTES = 20


@jit()
def _mixed(code, value):
    code = (code ^ np.uint64(value)) * np.uint64(0x9E3779B97F4A7C15)
    return code ^ (code >> np.uint64(29))


@jit(types.uint64(_int, _ints, _bytes, _bytes, _ints, _bytes, _ints))
def _code(state, offsets, low, high, target, accepting, kinds):
    """A hash of a state's kind and moves, by the kinds of their targets."""
    code = _mixed(np.uint64(accepting[state]), kinds[state])
    for k in range(offsets[state], offsets[state + 1]):
        move = np.int64(low[k]) << 8 | np.int64(high[k])
        code = _mixed(code, move << 32 | np.int64(kinds[target[k]]))
    return code


@jit(types.boolean(_int, _int, _ints, _bytes, _bytes, _ints, _bytes, _ints))
def _alike(one, other, offsets, low, high, target, accepting, kinds):
    """Whether two states have the same kind and the same moves, by the kinds of their targets."""
    a = np.int64(offsets[one])
    b = np.int64(offsets[other])
    count = np.int64(offsets[one + 1]) - a
    if (
        kinds[one] != kinds[other]
        or accepting[one] != accepting[other]
        or np.int64(offsets[other + 1]) - b != count
    ):
        return False
    for k in range(count):
        if (
            low[a + k] != low[b + k]
            or high[a + k] != high[b + k]
            or kinds[target[a + k]] != kinds[target[b + k]]
        ):
            return False
    return True


@jit(types.UniTuple(_ints, 2)(_int, _ints, _ints, _ints))
def _sources(count, chosen, offsets, target):
    """The chosen states that lead to each state: where they begin in a list, and the list."""
    starts = np.zeros(count + 2, np.int32)
    for state in chosen:
        for k in range(offsets[state], offsets[state + 1]):
            starts[target[k] + 2] += 1
    for state in range(count):
        starts[state + 2] += starts[state + 1]
    sources = np.empty(starts[count + 1], np.int32)
    for state in chosen:
        for k in range(offsets[state], offsets[state + 1]):
            place = starts[target[k] + 1]
            sources[place] = state
            starts[target[k] + 1] = place + 1
    return starts[: count + 1], sources


@jit(types.Tuple((_ints, _bytes))(_ints, _ints, _bytes, _bytes, _ints, _bytes))
def like_states(chosen, offsets, low, high, target, accepting):
    """A state that texts of NEAR bytes do not tell from each, and how long they may be; int32[n], uint8[n].

    Told apart are states that such a text leads from one of them alone, or to an accepting state from one of
    them alone; or behind which other bytes may follow then.

    Args:
        chosen: the states that are looked at, ascending; each of the others is taken to be like itself alone.
        offsets: int32[n + 1], the moves of each state, which ascend. low, high: their bytes. target: states.
    """
    count = np.int64(accepting.size)
    starts, sources = _sources(count, chosen, offsets, target)
    kinds = np.arange(1, count + 1).astype(np.int32)
    for state in chosen:
        kinds[state] = 0
    members = np.ones(count + 1, np.int32)
    members[0] = chosen.size
    seen = np.zeros(count + 1, np.int32)
    largest = np.empty(count + 1, np.int32)
    fresh = count + 1
    room = 16
    while room < 2 * chosen.size:
        room *= 2
    table = np.full(room, -1, np.int32)
    slots = np.empty(count, np.int32)
    firsts = np.empty(count, np.int32)
    group = np.empty(count, np.int32)
    size = np.zeros(count, np.int32)
    named = np.empty(count, np.int32)
    kind = np.empty(count, np.int32)
    marks = np.full(count, -1, np.int32)
    looked_at = np.empty(count, np.int32)
    looked_at[: chosen.size] = chosen
    some = np.int64(chosen.size)
    near = kinds
    middle = kinds
    for turn in range(FAR + 1):
        used = 0
        for i in range(some):
            state = np.int64(looked_at[i])
            slot = np.int64(_code(state, offsets, low, high, target, accepting, kinds) & np.uint64(room - 1))
            while table[slot] >= 0 and not _alike(
                np.int64(table[slot]), state, offsets, low, high, target, accepting, kinds
            ):
                slot = (slot + 1) & (room - 1)
            if table[slot] < 0:
                table[slot] = state
                slots[used] = slot
                firsts[used] = state
                used += 1
                size[state] = 0
            group[state] = table[slot]
            size[table[slot]] += 1
        for i in range(used):
            table[slots[i]] = -1
        # Those that were not looked at keep their number; where there are none, the largest group does.
        members = with_room(members, fresh + used)
        seen = with_room(seen, fresh + used)
        largest = with_room(largest, fresh + used)
        for i in range(used):
            first = firsts[i]
            before = kinds[first]
            if seen[before] == 0 or size[first] > size[largest[before]]:
                largest[before] = first
            seen[before] += size[first]
        for i in range(used):
            first = firsts[i]
            before = kinds[first]
            if seen[before] == members[before] and largest[before] == first:
                named[first] = before
            else:
                named[first] = fresh
                members[fresh] = 0
                seen[fresh] = 0
                fresh += 1
        for i in range(used):
            seen[kinds[firsts[i]]] = 0
        for i in range(some):
            kind[looked_at[i]] = named[group[looked_at[i]]]
        changed = 0
        for i in range(some):
            state = looked_at[i]
            if kind[state] != kinds[state]:
                members[kinds[state]] -= 1
                members[kind[state]] += 1
                kinds[state] = kind[state]
                looked_at[changed] = state
                changed += 1
        if turn == NEAR:
            near = kinds.copy()
        elif turn == MIDDLE:
            middle = kinds.copy()
        if changed == 0:
            if turn < NEAR:
                near = kinds
            if turn < MIDDLE:
                middle = kinds
            break
        if turn == 0:
            looked_at[: chosen.size] = chosen
            some = np.int64(chosen.size)
            continue
        apart = looked_at[:changed].copy()
        some = 0
        for i in range(changed):
            for k in range(starts[apart[i]], starts[apart[i] + 1]):
                source = sources[k]
                if marks[source] != turn and members[kinds[source]] > 1:
                    marks[source] = turn
                    looked_at[some] = source
                    some += 1
    # Some of each kind keep their number: of those that are alike near by, the first that kept it to the end
    # stands for all.
    first_of = np.full(fresh, -1, np.int32)
    for state in range(count):
        if first_of[kinds[state]] < 0:
            first_of[kinds[state]] = state
    like = np.empty(count, np.int32)
    reach = np.empty(count, np.uint8)
    for state in range(count):
        number = near[state]
        like[state] = first_of[number]
        reach[state] = FAR if kinds[state] == number else MIDDLE if middle[state] == number else NEAR
    return like, reach
