"""The step of an output: as ``configurations.step``, and distinct items are compared.

What is read while a distinct item is open goes on the configuration's tape, so such configurations differ by
their text and their transitions are not memoised. Two things end an item's reading: it is complete and its
text is used already (``bags.expand_bag`` does not go on behind it), or all ways to complete it are used. The
second is looked for here, and only where what was read has the critical beginning of a used text
(``critical.py``).
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import (
    BAG,
    DEAD,
    ESCAPE,
    FINAL,
    PLAIN,
    RECORDING,
    TRUE,
    UNION_DEPTH,
    arena_type,
)
from vllm_guided.runtime.collecting import add, begin
from vllm_guided.runtime.configurations import (
    closure,
    collect,
    collect_plain,
    intern,
    place_of,
    plain,
)
from vllm_guided.runtime.critical import look_at_used
from vllm_guided.runtime.memory import clear, with_room
from vllm_guided.runtime.stacks import intern_stack, mode_of
from vllm_guided.runtime.texts import (
    EMPTY,
    begins,
    first_begun,
    is_blank,
    is_used,
    longer,
    next_bytes,
    text_from,
)

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]
_bool = types.boolean
_states = types.int64[::1]

#: Beginnings of used texts that are looked at for a way out; beyond, there is taken to be none.
_VIABLE_LIMIT = 1 << 12


@jit(types.void(arena_type))
def begin_visit(arena):
    """Begin to visit sets of stacks, each once: they share what lies below, so the ways to it are many."""
    arena.visit += 1
    if arena.visit > 2_000_000_000:
        arena.visit_known = 0
        arena.visit = 1
    if arena.visit_known < arena.stack_count:
        arena.visit_mark = with_room(arena.visit_mark, arena.stack_count)
        arena.visit_value = with_room(arena.visit_value, arena.stack_count)
        clear(arena.visit_mark, arena.visit_known, arena.stack_count - arena.visit_known)
        arena.visit_known = arena.stack_count


@jit(types.Tuple((_states, _int))(arena_type, _int, _int, _states, _int, _int), apart=True)
def situations(arena, stack, mode, found, count, depth):
    """Append the situations of bags on ``stack`` that compare items, each once (after ``begin_visit``).

    ``mode``: TRUE for all, RECORDING for those whose item is being read.
    """
    if arena.stack_mode[stack] & mode == 0 or depth >= UNION_DEPTH:
        return found, count
    if arena.visit_mark[stack] == arena.visit:
        return found, count
    arena.visit_mark[stack] = arena.visit
    for k in range(arena.stack_offsets[stack], arena.stack_offsets[stack + 1]):
        top = np.int64(arena.stack_state[k])
        if top >= BAG and arena.situation_used[top - BAG] >= 0 and mode_of(arena, top) & mode:
            known = False
            for j in range(count):
                known |= found[j] == top
            if not known:
                found = with_room(found, count + 1)
                found[count] = top
                count += 1
        found, count = situations(arena, np.int64(arena.stack_below[k]), mode, found, count, depth + 1)
    return found, count


@jit(_bool(arena_type, _int, _int), apart=True)
def _is_critical(arena, state, tape):
    """Whether the item that ``state`` reads, ``tape`` has its text, has a used one's critical beginning."""
    used = np.int64(arena.situation_used[state - BAG])
    text = text_from(arena, tape, np.int64(arena.situation_from[state - BAG]))
    entry = first_begun(arena, used, text)
    if entry == 0:
        return False
    look_at_used(arena, used, np.int64(arena.situation_bag[state - BAG]))
    while entry > 0:
        if arena.text_length[arena.used_critical[entry]] <= arena.text_length[text] and begins(
            arena, np.int64(arena.used_text[entry]), text
        ):
            return True
        entry = np.int64(arena.used_parent[entry])
    return False


@jit(_int(arena_type, _int, _int, _int), apart=True)
def _cut(arena, stack, state, depth):
    """The parts of the stacks above ``state``, on the unknown stack; -1 where ``state`` is not among them.

    (After ``begin_visit``.)
    """
    if arena.stack_mode[stack] & RECORDING == 0 or depth >= UNION_DEPTH:
        return np.int64(-1)
    if arena.visit_mark[stack] == arena.visit:
        return np.int64(arena.visit_value[stack])
    low = np.int64(arena.stack_offsets[stack])
    high = np.int64(arena.stack_offsets[stack + 1])
    keys = np.empty(high - low, np.int64)
    count = 0
    flags = np.int64(0)
    for k in range(low, high):
        top = np.int64(arena.stack_state[k])
        if top == state:
            flags = np.int64(ESCAPE)
            continue
        below = _cut(arena, np.int64(arena.stack_below[k]), state, depth + 1)
        if below >= 0:
            keys[count] = top << 32 | below
            count += 1
    made = np.int64(-1)
    if count > 0 or flags != 0:
        made = intern_stack(arena, keys, count, flags)
    arena.visit_mark[stack] = arena.visit
    arena.visit_value[stack] = made
    return made


@jit(_int(arena_type, _int, _int, _int), apart=True)
def _without(arena, stack, state, depth):
    """The stacks without those that hold ``state``; -1 where none is left (after ``begin_visit``)."""
    if arena.stack_mode[stack] & RECORDING == 0 or depth >= UNION_DEPTH:
        return stack
    if arena.visit_mark[stack] == arena.visit:
        return np.int64(arena.visit_value[stack])
    low = np.int64(arena.stack_offsets[stack])
    high = np.int64(arena.stack_offsets[stack + 1])
    keys = np.empty(high - low, np.int64)
    count = 0
    for k in range(low, high):
        top = np.int64(arena.stack_state[k])
        if top == state:
            continue
        below = _without(arena, np.int64(arena.stack_below[k]), state, depth + 1)
        if below >= 0:
            keys[count] = top << 32 | below
            count += 1
    flags = np.int64(arena.stack_flags[stack])
    made = np.int64(-1)
    if count > 0 or flags != 0:
        made = intern_stack(arena, keys, count, flags)
    arena.visit_mark[stack] = arena.visit
    arena.visit_value[stack] = made
    return made


@jit(types.Tuple((_states, _int))(arena_type, _int), apart=True)
def _near_situations(arena, tape):
    """The situations in the collected pairs whose item begins as a used one does."""
    found = np.empty(8, np.int64)
    number = np.int64(0)
    begin_visit(arena)
    for k in range(arena.work_count):
        found, number = situations(
            arena, np.int64(arena.work_stack[k]), np.int64(RECORDING), found, number, np.int64(0)
        )
    near = np.int64(0)
    for j in range(number):
        here = found[j] - BAG
        used = np.int64(arena.situation_used[here])
        if used > 0 and first_begun(
            arena, used, text_from(arena, tape, np.int64(arena.situation_from[here]))
        ):
            found[near] = found[j]
            near += 1
    return found, near


@jit(_int(arena_type, _int), apart=True)
def finish(arena, flags):
    """Close and intern the collected pairs; ``flags`` are added to those the closure finds.

    What reads an item that cannot become a new one is taken out. To find that, its reading is cut out of the
    stacks and stepped on over the beginnings of used texts, breadth first: only where all ways are used ones'
    is there anything to search. Distinct items inside of it are compared, too: so this calls itself.
    """
    flags |= closure(arena)
    mode = np.int64(0)
    if arena.distinct_count > 0:
        for k in range(arena.work_count):
            mode |= np.int64(arena.stack_mode[arena.work_stack[k]])
    if mode & RECORDING == 0:
        return intern(arena, flags)
    tape = np.int64(arena.tape)
    found, near = _near_situations(arena, tape)
    if near == 0:
        return intern(arena, flags)
    work = np.int64(arena.work_count)
    states = np.empty(work, np.int64)
    stacks = np.empty(work, np.int64)
    for k in range(work):
        states[k] = arena.work_state[k]
        stacks[k] = arena.work_stack[k]
    following = np.empty(256, np.uint8)
    for j in range(near):
        state = found[j]
        if not _is_critical(arena, state, tape):
            continue
        used = np.int64(arena.situation_used[state - BAG])
        begin(arena)
        begin_visit(arena)
        for k in range(work):
            if stacks[k] >= 0:
                above = _cut(arena, stacks[k], state, np.int64(0))
                if above >= 0:
                    add(arena, states[k], above)
        arena.tape = tape
        configs = np.empty(64, np.int64)
        texts = np.empty(64, np.int64)
        configs[0] = finish(arena, np.int64(0))
        texts[0] = text_from(arena, tape, np.int64(arena.situation_from[state - BAG]))
        count = 1 if configs[0] != DEAD else 0
        head = 0
        viable = False
        while head < count and count < _VIABLE_LIMIT and not viable:
            config = configs[head]
            text = texts[head]
            head += 1
            if arena.config_flags[config] & ESCAPE and not is_used(arena, used, text):
                viable = True
                break
            next_bytes(arena, used, text, following)
            for place in range(512):
                # What no used text goes on with comes first.
                byte = np.int64(place & 255)
                leads_on = following[byte] != 0 or is_blank(arena, text, byte)
                if leads_on != (place >= 256):
                    continue
                collect(arena, config, byte)
                if arena.work_count == 0:
                    continue
                arena.tape = np.int64(EMPTY)
                if arena.config_flags[config] & RECORDING:
                    arena.tape = longer(arena, np.int64(arena.config_tape[config]), byte)
                target = finish(arena, np.int64(0))
                if target == DEAD:
                    continue
                if not leads_on:
                    viable = True
                    break
                after = longer(arena, text, byte)
                known = False
                for k in range(count):
                    known |= configs[k] == target and texts[k] == after
                if not known:
                    configs = with_room(configs, count + 1)
                    texts = with_room(texts, count + 1)
                    configs[count] = target
                    texts[count] = after
                    count += 1
        if not viable:
            begin_visit(arena)
            for k in range(work):
                if stacks[k] >= 0:
                    stacks[k] = _without(arena, stacks[k], state, np.int64(0))
    begin(arena)
    for k in range(work):
        if stacks[k] >= 0:
            add(arena, states[k], stacks[k])
    arena.tape = tape
    return intern(arena, flags)


@jit(_int(arena_type, _int, _int), apart=True)
def step_true(arena, config, byte):
    """The configuration after one more byte of an output; DEAD where the byte breaks the constraint."""
    if config <= 1:
        return DEAD
    flags = np.int64(arena.config_flags[config])
    is_memoised = flags & TRUE == 0
    if is_memoised:
        known = np.int64(-1)
        if arena.config_row[config] >= 0:
            known = np.int64(arena.next[place_of(arena, config, byte)])
        elif arena.config_byte[config] == byte:
            known = np.int64(arena.config_after[config])
        if known >= 0 and arena.config_flags[known] & PLAIN == 0:
            return known
    target = DEAD
    if is_memoised and collect_plain(arena, config, byte):
        if arena.work_count > 0:
            arena.tape = np.int64(EMPTY)
            target = intern(arena, np.int64(0))
    else:
        collect(arena, config, byte)
        if arena.work_count > 0:
            tape = np.int64(EMPTY)
            if flags & RECORDING:
                tape = longer(arena, np.int64(arena.config_tape[config]), byte)
            arena.tape = tape
            target = finish(arena, np.int64(0))
    if is_memoised:
        after = plain(arena, target)
        if arena.config_row[config] < 0 and arena.config_byte[config] < 0:
            # Most configurations of an output are left by one byte only: that needs no row.
            arena.config_byte[config] = byte
            arena.config_after[config] = after
        else:
            arena.next[place_of(arena, config, byte)] = after
    return target


@jit(types.UniTuple(_int, 2)(
    _int, _bytes, _int, _int, _ints, _bytes, _bytes, _ints, _ints, _ints, _ints,
))  # fmt: skip
def _follow_known(
    config, data, low, high, moves, classes, flags, config_row, config_map, only_byte, only_after,
):  # fmt: skip
    """Follow known transitions over ``data[low:high]``: the configuration and where it stopped."""
    while low < high and config != DEAD:
        row = np.int64(config_row[config])
        if row >= 0:
            target = np.int64(moves[row + classes[256 * np.int64(config_map[config]) + data[low]]])
        elif only_byte[config] == data[low]:
            target = np.int64(only_after[config])
        else:
            break
        if target < 0 or flags[target] & PLAIN:
            break
        config = target
        low += 1
    return config, low


@jit(types.UniTuple(_int, 2)(_int, _bytes, _int, _int, _ints, _bytes, _bytes, _ints, _bytes, _ints))
def _follow_edges(state, data, low, high, offsets, edge_low, edge_high, targets, accepting, calls):
    """Follow edges over ``data[low:high]``: the state and where it stopped.

    That is where a byte has no edge, or more than one, or one that leads to a state that calls or returns.
    """
    while low < high:
        byte = data[low]
        target = np.int64(-1)
        for k in range(offsets[state], offsets[state + 1]):
            if edge_low[k] <= byte and byte <= edge_high[k]:
                if target >= 0:
                    return state, low
                target = np.int64(targets[k])
        if target < 0 or accepting[target] or calls[target + 1] > calls[target]:
            break
        state = target
        low += 1
    return state, low


@jit(_int(arena_type, _int, _bytes, _int, _int), apart=True)
def step_range(arena, config, data, low, high):
    """The configuration after ``data[low:high]``, or DEAD."""
    while True:
        config, low = _follow_known(
            config, data, low, high, arena.next, arena.map_class, arena.config_flags, arena.config_row,
            arena.config_map, arena.config_byte, arena.config_after,
        )  # fmt: skip
        if low == high or config == DEAD:
            return config
        first = np.int64(arena.config_offsets[config])
        if arena.config_offsets[config + 1] == first + 1 and arena.config_flags[config] & TRUE == 0:
            # Most bytes are those of literals, names and strings: what lies between a token's ends needs no
            # configuration.
            state, reached = _follow_edges(
                np.int64(arena.item_state[first]), data, low, high, arena.edge_offsets, arena.edge_low,
                arena.edge_high, arena.edge_target, arena.accepting, arena.call_offsets,
            )  # fmt: skip
            if reached > low + 1:
                arena.work_state[0] = state
                arena.work_stack[0] = arena.item_stack[first]
                arena.work_count = 1
                arena.tape = np.int64(EMPTY)
                config = intern(arena, np.int64(0))
                low = reached
                continue
        config = step_true(arena, config, np.int64(data[low]))
        low += 1


@jit(_int(arena_type, _int, types.uint8[::1]))
def step_bytes(arena, config, data):
    """The configuration after ``data``, or DEAD."""
    return step_range(arena, config, data, 0, data.size)


@jit(types.boolean(arena_type, _int, _int))
def in_set(arena, number, token):
    """Whether ``token`` is in token set ``number`` (ids ascend)."""
    low = np.int64(arena.set_offsets[number])
    high = np.int64(arena.set_offsets[number + 1])
    while low < high:
        middle = (low + high) >> 1
        if arena.set_tokens[middle] < token:
            low = middle + 1
        else:
            high = middle
    return low < arena.set_offsets[number + 1] and arena.set_tokens[low] == token


@jit(_int(arena_type, _int, _int), apart=True)
def step_token(arena, config, token):
    """The configuration after ``token``, as text and as a special token; DEAD if neither is allowed."""
    spelt = DEAD
    low = arena.token_offsets[token]
    high = arena.token_offsets[token + 1]
    if high > low:
        spelt = step_range(arena, config, arena.token_data, low, high)
    if arena.tok_count == 0 or config <= 1:
        return spelt
    begin(arena)
    for item in range(arena.config_offsets[config], arena.config_offsets[config + 1]):
        state = arena.item_state[item]
        for k in range(arena.tok_offsets[state], arena.tok_offsets[state + 1]):
            if in_set(arena, np.int64(arena.tok_set[k]), token):
                add(arena, np.int64(arena.tok_target[k]), np.int64(arena.item_stack[item]))
    if arena.work_count == 0:
        return spelt
    flags = np.int64(0)
    tape = np.int64(arena.config_tape[config])
    if spelt != DEAD:
        flags = np.int64(arena.config_flags[spelt]) & (FINAL | ESCAPE)
        tape = np.int64(arena.config_tape[spelt])
        for item in range(arena.config_offsets[spelt], arena.config_offsets[spelt + 1]):
            add(arena, np.int64(arena.item_state[item]), np.int64(arena.item_stack[item]))
    arena.tape = tape
    return finish(arena, flags)
