"""States with equal futures are one state, whichever rules they belong to.

What follows after a property name has left the names that an object declares is the same in every object: the
rest of a string. Rules are shared by content when they are bound (``binding.py``); this shares their
states, and with them their masks. States are looked up in order of what they lead to, cycle by cycle: a
state that is in no cycle by its moves, one in a cycle by colour refinement (as in Moore's minimisation, over
a table that outlives it), and each match is checked move by move before it is used.
"""

# Compiled functions have numba signatures instead of annotations, and numba's rules for integers.
# mypy: allow-untyped-defs, disable-error-code="assignment"

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import BRANCHES, CALLS, LEAVES, MANY, SIMPLE, VIRTUAL, arena_type
from vllm_guided.runtime.hash_tables import begin_larger, step_numbers
from vllm_guided.runtime.memory import mixed, with_room

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]
_codes = types.uint64[::1]

#: Cycles of more states are not looked up: their refinement would take longer than it may save.
CYCLE_LIMIT = 64
#: MANY: a state takes at least so many bytes.
MANY_BYTES = 64


@jit(types.Tuple((_ints, _ints))(_ints, _ints, _ints, _ints, _ints, _ints, _ints))
def cycles(edge_offsets, edge_target, call_offsets, call_start, call_return, tok_offsets, tok_target):
    """Strongly connected components of states (Tarjan 1972), those that others lead to or call first.

    Returns:
        the states by component, and where each component begins in that list (with the end).
    """
    count = edge_offsets.size - 1
    order = np.empty(count, np.int32)
    starts = np.zeros(count + 1, np.int32)
    index = np.full(count, -1, np.int32)
    low = np.zeros(count, np.int32)
    on_stack = np.zeros(count, np.uint8)
    stack = np.empty(count, np.int32)
    frames = np.empty(count, np.int32)
    place = np.zeros(count, np.int32)
    found = 0
    listed = 0
    parts = 0
    held = 0
    for root in range(count):
        if index[root] >= 0:
            continue
        frames[0] = root
        depth = 1
        index[root] = low[root] = found
        found += 1
        stack[held] = root
        held += 1
        on_stack[root] = 1
        while depth > 0:
            state = frames[depth - 1]
            edges = edge_offsets[state + 1] - edge_offsets[state]
            calls = call_offsets[state + 1] - call_offsets[state]
            toks = tok_offsets[state + 1] - tok_offsets[state]
            k = place[state]
            if k < edges + 2 * calls + toks:
                place[state] = k + 1
                if k < edges:
                    target = edge_target[edge_offsets[state] + k]
                elif k < edges + calls:
                    target = call_return[call_offsets[state] + k - edges]
                elif k < edges + 2 * calls:
                    target = np.int32(-2 - call_start[call_offsets[state] + k - edges - calls])
                else:
                    target = tok_target[tok_offsets[state] + k - edges - 2 * calls]
                if target < 0:
                    continue
                if index[target] < 0:
                    index[target] = low[target] = found
                    found += 1
                    stack[held] = target
                    held += 1
                    on_stack[target] = 1
                    frames[depth] = target
                    depth += 1
                elif on_stack[target]:
                    low[state] = min(low[state], index[target])
                continue
            depth -= 1
            if depth > 0:
                low[frames[depth - 1]] = min(low[frames[depth - 1]], low[state])
            if low[state] == index[state]:
                starts[parts] = listed
                parts += 1
                while True:
                    held -= 1
                    member = stack[held]
                    on_stack[member] = 0
                    order[listed] = member
                    listed += 1
                    if member == state:
                        break
    starts[parts] = listed
    return order, starts[: parts + 1]


@jit(types.uint64(types.uint64, _int))
def _more(code, value):
    """A hash with one more value."""
    return mixed(np.int64(code >> np.uint64(1)), value)


@jit(_int(arena_type, types.uint64))
def _known_state(arena, code):
    """A state of the arena with this code, or -1."""
    table = arena.state_table
    size = arena.state_slots
    slot = size | np.int64(code) & (size - 1)
    while table[slot] >= 0:
        if arena.state_code[table[slot]] == code:
            return np.int64(table[slot])
        slot = size | (slot + 1) & (size - 1)
    return np.int64(-1)


@jit(types.void(arena_type, _int))
def _enter_states(arena, first):
    """Remember the arena's states from ``first`` on by their codes (0: not), for those that come later."""
    for state in range(first, arena.state_count):
        code = arena.state_code[state]
        if code == 0:
            continue
        count = arena.state_entries
        size = arena.state_slots
        arena.state_table = begin_larger(arena.state_table, 1, size, count)
        table = arena.state_table
        slot = size | np.int64(code) & (size - 1)
        while table[slot] >= 0:
            slot = size | (slot + 1) & (size - 1)
        table[slot] = state
        arena.state_slots = step_numbers(table, size, arena.state_code, 1, count, state)
        arena.state_entries = count + 1


@jit(_int(arena_type, types.uint64, _ints))
def _new_state(arena, code, table):
    """A state with this code in a table of those that are appended at once, or -1."""
    size = np.int64(table.size - 1)
    slot = np.int64(code) & size
    while table[slot] >= 0:
        if arena.state_code[table[slot]] == code:
            return np.int64(table[slot])
        slot = (slot + 1) & size
    return np.int64(-1)


@jit(types.void(arena_type, _int, _ints))
def _enter_new(arena, state, table):
    """Enter a state by its code into the table of those that are appended at once."""
    size = np.int64(table.size - 1)
    slot = np.int64(arena.state_code[state]) & size
    while table[slot] >= 0:
        slot = (slot + 1) & size
    table[slot] = state


@jit(types.boolean(
    arena_type, _int, _int, _ints, _bytes, _bytes, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _bytes,
    _ints,
))  # fmt: skip
def _same(
    arena, known, state, edge_offsets, edge_low, edge_high, edge_target, call_offsets, call_start,
    call_return, tok_offsets, tok_set, tok_target, accepting, chosen,
):  # fmt: skip
    """Whether ``known`` of the arena has the moves of the new ``state``, targets by ``chosen``."""
    first, past = edge_offsets[state], edge_offsets[state + 1]
    low = arena.edge_offsets[known]
    if accepting[state] != arena.accepting[known] or arena.edge_offsets[known + 1] - low != past - first:
        return False
    for k in range(past - first):
        if (
            arena.edge_low[low + k] != edge_low[first + k] or arena.edge_high[low + k] != edge_high[first + k]
            or arena.edge_target[low + k] != chosen[edge_target[first + k]]
        ):  # fmt: skip
            return False
    first, past = call_offsets[state], call_offsets[state + 1]
    low = arena.call_offsets[known]
    if arena.call_offsets[known + 1] - low != past - first:
        return False
    for k in range(past - first):
        back = call_return[first + k]
        if arena.call_start[low + k] != call_start[first + k] or arena.call_return[low + k] != (
            chosen[back] if back >= 0 else back
        ):
            return False
    first, past = tok_offsets[state], tok_offsets[state + 1]
    low = arena.tok_offsets[known]
    if arena.tok_offsets[known + 1] - low != past - first:
        return False
    for k in range(past - first):
        if (
            arena.tok_set[low + k] != tok_set[first + k]
            or arena.tok_target[low + k] != (chosen[tok_target[first + k]])
        ):
            return False
    return True


@jit(types.boolean(_int, _ints, _ints, _ints, _ints, _ints, _bytes))
def _only_calls(state, edge_offsets, call_offsets, call_start, call_return, tok_offsets, accepting):
    """Whether all that ``state`` does is a tail call of a rule whose start is a numbered state."""
    first = call_offsets[state]
    return (
        accepting[state] == 0
        and edge_offsets[state + 1] == edge_offsets[state]
        and tok_offsets[state + 1] == tok_offsets[state]
        and call_offsets[state + 1] - first == 1
        and call_return[first] < 0
        and 0 <= call_start[first] < VIRTUAL
    )


@jit(_int(arena_type, _int))
def kind_of(arena, state):
    """What moves ``state`` has (SIMPLE, LEAVES, MANY, CALLS, BRANCHES)."""
    taken = np.int64(0)
    last = np.int64(-1)
    branches = False
    for k in range(arena.edge_offsets[state], arena.edge_offsets[state + 1]):
        low, high = np.int64(arena.edge_low[k]), np.int64(arena.edge_high[k])
        branches |= low <= last
        last = high
        taken += high - low + 1
    kind = np.int64(MANY if taken >= MANY_BYTES else 0)
    if branches:
        kind |= BRANCHES
    if arena.call_offsets[state + 1] > arena.call_offsets[state]:
        return kind | CALLS
    if arena.tok_offsets[state + 1] > arena.tok_offsets[state]:
        return kind
    if branches:
        return kind
    return kind | (LEAVES if arena.accepting[state] else SIMPLE)


@jit(types.void(
    arena_type, _int, _ints, _bytes, _bytes, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _bytes, _ints,
))  # fmt: skip
def _append(
    arena, state, edge_offsets, edge_low, edge_high, edge_target, call_offsets, call_start, call_return,
    tok_offsets, tok_set, tok_target, accepting, chosen,
):  # fmt: skip
    """Append the moves of the new ``state``, targets by ``chosen``, as the arena's next state.

    There must be room in the arrays of moves.
    """
    number = arena.state_count
    edges = np.int64(arena.edge_count)
    for k in range(edge_offsets[state], edge_offsets[state + 1]):
        arena.edge_low[edges] = edge_low[k]
        arena.edge_high[edges] = edge_high[k]
        arena.edge_target[edges] = chosen[edge_target[k]]
        edges += 1
    calls = np.int64(arena.call_count)
    for k in range(call_offsets[state], call_offsets[state + 1]):
        arena.call_start[calls] = call_start[k]
        arena.call_return[calls] = chosen[call_return[k]] if call_return[k] >= 0 else call_return[k]
        calls += 1
    toks = np.int64(arena.tok_count)
    for k in range(tok_offsets[state], tok_offsets[state + 1]):
        arena.tok_set[toks] = tok_set[k]
        arena.tok_target[toks] = chosen[tok_target[k]]
        toks += 1
    arena.edge_offsets[number + 1] = edges
    arena.call_offsets[number + 1] = calls
    arena.tok_offsets[number + 1] = toks
    arena.accepting[number] = accepting[state]
    arena.state_map[number] = -1
    arena.state_tier1[number] = -1
    arena.state_part[number] = -1
    arena.state_like[number] = -1
    arena.state_kind[number] = kind_of(arena, number)
    arena.edge_count = edges
    arena.call_count = calls
    arena.tok_count = toks
    arena.state_count = number + 1


@jit(_ints(
    arena_type, _ints, _bytes, _bytes, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _bytes,
))  # fmt: skip
def append_states(
    arena, edge_offsets, edge_low, edge_high, edge_target, call_offsets, call_start, call_return, tok_offsets,
    tok_set, tok_target, accepting,
):  # fmt: skip
    """Append n automaton states, but for those that have their equal in the arena.

    A state that does nothing but call a rule, and ends with it, is the state where that rule starts.

    Args:
        *_offsets: int32[n + 1], which moves belong to each state; targets are these states, returns too
            (negative: a tail call). call_start: a state of the arena, or -2 - s for the new state s.

    Returns:
        int32[n], the number of each in the arena.
    """
    count = edge_offsets.size - 1
    order, starts = cycles(
        edge_offsets, edge_target, call_offsets, call_start, call_return, tok_offsets, tok_target
    )
    call_start = call_start.copy()
    chosen = np.full(count, -1, np.int32)
    first_call = np.int64(arena.call_count)
    states = arena.state_count + count
    arena.edge_offsets = with_room(arena.edge_offsets, states + 1)
    arena.call_offsets = with_room(arena.call_offsets, states + 1)
    arena.tok_offsets = with_room(arena.tok_offsets, states + 1)
    arena.accepting = with_room(arena.accepting, states)
    arena.state_map = with_room(arena.state_map, states)
    arena.state_kind = with_room(arena.state_kind, states)
    arena.state_tier1 = with_room(arena.state_tier1, states)
    arena.state_part = with_room(arena.state_part, states)
    arena.state_like = with_room(arena.state_like, states)
    arena.state_reach = with_room(arena.state_reach, states)
    arena.state_code = with_room(arena.state_code, states)
    arena.edge_low = with_room(arena.edge_low, arena.edge_count + edge_low.size)
    arena.edge_high = with_room(arena.edge_high, arena.edge_count + edge_low.size)
    arena.edge_target = with_room(arena.edge_target, arena.edge_count + edge_low.size)
    arena.call_start = with_room(arena.call_start, arena.call_count + call_start.size)
    arena.call_return = with_room(arena.call_return, arena.call_count + call_start.size)
    arena.tok_set = with_room(arena.tok_set, arena.tok_count + tok_set.size)
    arena.tok_target = with_room(arena.tok_target, arena.tok_count + tok_set.size)
    # What leads to a new state is like no state but another new one: the table of those stays in the cache.
    first_new = np.int64(arena.state_count)
    room = 16
    while room < 2 * count:
        room *= 2
    new_table = np.full(room, -1, np.int32)
    codes = np.zeros(count, np.uint64)
    code_of = np.zeros(count, np.uint64)
    outside = np.zeros(count, np.uint64)
    inside = np.zeros(count, np.uint8)
    for part in range(starts.size - 1):
        members = order[starts[part] : starts[part + 1]]
        size = members.size
        looked_up = size <= CYCLE_LIMIT
        for j in range(size):
            state = members[j]
            inside[state] = 1
            for k in range(call_offsets[state], call_offsets[state + 1]):
                if call_start[k] <= -2 and chosen[-2 - call_start[k]] >= 0:
                    call_start[k] = chosen[-2 - call_start[k]]
                # What calls a rule that is not numbered yet is in a recursion with it.
                looked_up &= call_start[k] >= -1
        if size == 1 and _only_calls(
            np.int64(members[0]), edge_offsets, call_offsets, call_start, call_return, tok_offsets, accepting
        ):
            state = members[0]
            inside[state] = 0
            chosen[state] = call_start[call_offsets[state]]
            continue
        if looked_up:
            # Moves that leave the cycle, or everything of a state that is in none.
            is_cycle = False
            latest = np.int64(-1)  # of the states that others of this cycle lead to
            for j in range(size):
                state = members[j]
                code = mixed(np.int64(size), np.int64(accepting[state]))
                for k in range(edge_offsets[state], edge_offsets[state + 1]):
                    target = np.int64(-1)
                    if inside[edge_target[k]]:
                        is_cycle = True
                    else:
                        target = np.int64(chosen[edge_target[k]])
                        latest = max(latest, target)
                    code = _more(
                        code, (np.int64(edge_low[k]) << 8 | np.int64(edge_high[k])) << 32 ^ (target + 2)
                    )
                code = _more(code, np.int64(-2))
                for k in range(call_offsets[state], call_offsets[state + 1]):
                    back = np.int64(call_return[k])
                    target = np.int64(-3)
                    if back >= 0 and inside[back]:
                        is_cycle = True
                        target = np.int64(-1)
                    elif back >= 0:
                        target = np.int64(chosen[back])
                        latest = max(latest, target)
                    if call_start[k] < VIRTUAL:
                        latest = max(latest, np.int64(call_start[k]))
                    code = _more(code, np.int64(call_start[k]) << 32 ^ (target + 3))
                code = _more(code, np.int64(-2))
                for k in range(tok_offsets[state], tok_offsets[state + 1]):
                    target = np.int64(-1)
                    if inside[tok_target[k]]:
                        is_cycle = True
                    else:
                        target = np.int64(chosen[tok_target[k]])
                        latest = max(latest, target)
                    code = _more(code, np.int64(tok_set[k]) << 32 ^ (target + 2))
                outside[state] = code
                code_of[state] = code
            # Two cycles of n states each are told apart within 2 n moves.
            for _ in range(2 * size if is_cycle else 0):
                for j in range(size):
                    state = members[j]
                    code = outside[state]
                    for k in range(edge_offsets[state], edge_offsets[state + 1]):
                        if inside[edge_target[k]]:
                            code = _more(code, np.int64(code_of[edge_target[k]] >> np.uint64(1)))
                    for k in range(call_offsets[state], call_offsets[state + 1]):
                        if call_return[k] >= 0 and inside[call_return[k]]:
                            code = _more(code, np.int64(code_of[call_return[k]] >> np.uint64(1)))
                    for k in range(tok_offsets[state], tok_offsets[state + 1]):
                        if inside[tok_target[k]]:
                            code = _more(code, np.int64(code_of[tok_target[k]] >> np.uint64(1)))
                    codes[j] = code
                for j in range(size):
                    code_of[members[j]] = codes[j]
            found = True
            for j in range(size):
                code = max(code_of[members[j]], np.uint64(1))  # 0 means none
                code_of[members[j]] = code
                known = np.int64(-1)
                if latest < first_new:
                    known = _known_state(arena, code)
                if known < 0:
                    known = _new_state(arena, code, new_table)
                found &= known >= 0
                chosen[members[j]] = known
            if found:
                for j in range(size):
                    found &= _same(
                        arena, np.int64(chosen[members[j]]), np.int64(members[j]), edge_offsets, edge_low,
                        edge_high, edge_target, call_offsets, call_start, call_return, tok_offsets, tok_set,
                        tok_target, accepting, chosen,
                    )  # fmt: skip
            if found:
                for j in range(size):
                    inside[members[j]] = 0
                continue
        for j in range(size):
            chosen[members[j]] = arena.state_count + j
        for j in range(size):
            state = np.int64(members[j])
            inside[state] = 0
            _append(
                arena, state, edge_offsets, edge_low, edge_high, edge_target, call_offsets, call_start,
                call_return, tok_offsets, tok_set, tok_target, accepting, chosen,
            )  # fmt: skip
            arena.state_code[chosen[state]] = code_of[state] if looked_up else np.uint64(0)
            if looked_up:
                _enter_new(arena, np.int64(chosen[state]), new_table)
    _enter_states(arena, first_new)
    # Calls of rules that were not numbered yet.
    for k in range(first_call, arena.call_count):
        if arena.call_start[k] <= -2:
            arena.call_start[k] = chosen[-2 - arena.call_start[k]]
    return chosen
