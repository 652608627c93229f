"""States with equal futures are one state, whichever rules they belong to.

What follows after a property name has left the names that an object declares is the same in every object: the
rest of a string. Rules are shared by content when they are bound (``binding.py``); this shares their
states, and with them their masks. States are looked up in order of what they lead to, cycle by cycle: a
state that is in no cycle by its moves, one in a cycle by colour refinement (as in Moore's minimisation, over
a table that outlives it), and each match is checked move by move before it is used.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import arena_type, with_room
from vllm_guided.runtime.stacks import mixed

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]
_codes = types.uint64[::1]

#: Cycles of more states are not looked up: their refinement would take longer than it may save.
CYCLE_LIMIT = 64


@jit(types.Tuple((_ints, _ints))(_ints, _ints, _ints, _ints, _ints, _ints))
def cycles(edge_offsets, edge_target, call_offsets, call_return, tok_offsets, tok_target):
    """Strongly connected components of states (Tarjan 1972), those that others lead to first.

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
            if k < edges + calls + toks:
                place[state] = k + 1
                if k < edges:
                    target = edge_target[edge_offsets[state] + k]
                elif k < edges + calls:
                    target = call_return[call_offsets[state] + k - edges]
                else:
                    target = tok_target[tok_offsets[state] + k - edges - calls]
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


@jit(types.void(arena_type))
def _rehash(arena):
    table = np.full(2 * arena.state_table.size, -1, np.int32)
    size = np.uint64(table.size - 1)
    for k in range(arena.state_table.size):
        state = arena.state_table[k]
        if state < 0:
            continue
        slot = np.int64(arena.state_code[state] & size)
        while table[slot] >= 0:
            slot = (slot + 1) & np.int64(size)
        table[slot] = state
    arena.state_table = table


@jit(_int(arena_type, types.uint64))
def _known_state(arena, code):
    """A state of the arena with this code, or -1."""
    size = np.uint64(arena.state_table.size - 1)
    slot = np.int64(code & size)
    while arena.state_table[slot] >= 0:
        if arena.state_code[arena.state_table[slot]] == code:
            return np.int64(arena.state_table[slot])
        slot = (slot + 1) & np.int64(size)
    return np.int64(-1)


@jit(types.void(arena_type, types.uint64, _int))
def enter_state(arena, code, state):
    """Remember a state of the arena by its code, for those that are bound later."""
    if 2 * (arena.state_entries + 1) > arena.state_table.size:
        _rehash(arena)
    arena.state_code = with_room(arena.state_code, state + 1)
    arena.state_code[state] = code
    size = np.uint64(arena.state_table.size - 1)
    slot = np.int64(code & size)
    while arena.state_table[slot] >= 0:
        slot = (slot + 1) & np.int64(size)
    arena.state_table[slot] = state
    arena.state_entries += 1


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


@jit(types.Tuple((_ints, _ints, _codes))(
    arena_type, _int, _ints, _bytes, _bytes, _ints, _ints, _ints, _ints, _ints, _ints, _ints, _bytes, _bytes,
))  # fmt: skip
def merge(
    arena, base, edge_offsets, edge_low, edge_high, edge_target, call_offsets, call_start, call_return,
    tok_offsets, tok_set, tok_target, accepting, is_start,
):  # fmt: skip
    """Find for each of n new states the state of the arena that it is equal to, or number it anew.

    Args:
        base: the number that the first new state gets. Calls of rules that are new themselves have
            ``call_start`` -2 and keep a state from being equal to any.
        *_offsets: int32[n + 1], by state; targets are new states. is_start: uint8[n], states where rules
            start, which stay apart.

    Returns:
        int32[n], each state's number in the arena; the new states that are to be appended, in order; the
        codes of these by which ``enter_state`` remembers them (0: they cannot be looked up).
    """
    count = edge_offsets.size - 1
    order, starts = cycles(edge_offsets, edge_target, call_offsets, call_return, tok_offsets, tok_target)
    chosen = np.full(count, -1, np.int32)
    kept = np.empty(count, np.int32)
    codes = np.zeros(count, np.uint64)
    code_of = np.zeros(count, np.uint64)
    outside = np.zeros(count, np.uint64)
    inside = np.zeros(count, np.uint8)
    kept_count = 0
    for part in range(starts.size - 1):
        members = order[starts[part] : starts[part + 1]]
        size = members.size
        looked_up = size <= CYCLE_LIMIT
        stays_apart = False
        for j in range(size):
            state = members[j]
            inside[state] = 1
            for k in range(call_offsets[state], call_offsets[state + 1]):
                looked_up &= call_start[k] != -2
            stays_apart |= is_start[state] != 0
        if looked_up:
            # Moves that leave the cycle, or everything of a state that is in none.
            is_cycle = False
            for j in range(size):
                state = members[j]
                code = mixed(np.int64(size), np.int64(accepting[state]))
                for k in range(edge_offsets[state], edge_offsets[state + 1]):
                    code = _more(code, np.int64(edge_low[k]) << 8 | np.int64(edge_high[k]))
                    within = inside[edge_target[k]]
                    is_cycle |= within != 0
                    code = _more(code, np.int64(-1 if within else chosen[edge_target[k]]))
                code = _more(code, np.int64(-2))
                for k in range(call_offsets[state], call_offsets[state + 1]):
                    back = call_return[k]
                    within = back >= 0 and inside[back] != 0
                    is_cycle |= within
                    code = _more(code, np.int64(call_start[k]))
                    code = _more(code, np.int64(-1 if within else chosen[back] if back >= 0 else -3))
                code = _more(code, np.int64(-2))
                for k in range(tok_offsets[state], tok_offsets[state + 1]):
                    within = inside[tok_target[k]]
                    is_cycle |= within != 0
                    code = _more(code, np.int64(tok_set[k]))
                    code = _more(code, np.int64(-1 if within else chosen[tok_target[k]]))
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
            found = not stays_apart
            for j in range(size):
                known = _known_state(arena, code_of[members[j]])
                # What this very call numbers is not in the arena yet, and is not compared.
                found &= 0 <= known < base
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
            state = members[j]
            inside[state] = 0
            chosen[state] = base + kept_count
            kept[kept_count] = state
            if not looked_up:
                code_of[state] = 0
            kept_count += 1
    for k in range(kept_count):
        codes[k] = code_of[kept[k]]
    return chosen, kept[:kept_count], codes[:kept_count]
