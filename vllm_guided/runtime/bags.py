"""Bags at run time: what a bag has had, as an interned situation, and what it may call next.

A situation is (bag, phase, members so far, flags set, distinct items used, where on the tape the item being
read begins), so a bag with n members costs the situations that are met, not 2**n states. It never leads
into a dead end: a member is only taken if those still required fit behind it.

Distinct items make transitions depend on every byte read. They are kept apart: a situation whose list of
used items is -1 does not compare (PLAIN); masks are computed with such ones, cached as everything is, and
then corrected for the tokens that complete a used item (``distinct.py``).
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.automaton.bags import WANTED_BITS
from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import AFTER, BAG, BEFORE, arena_type
from vllm_guided.runtime.collecting import add, return_to
from vllm_guided.runtime.hash_tables import begin_larger, slot_of, step_numbers, step_records
from vllm_guided.runtime.memory import mixed, with_room
from vllm_guided.runtime.stacks import push
from vllm_guided.runtime.texts import is_used, text_from, used_and

_int = types.int64
_bool = types.boolean
_words = types.int64[::1]

#: Numbers that an entry of ``choice_table`` has: its key (situation << 32 | stack), and where its members
#: begin in ``choice_start`` << 32 | how many they are.
CHOICE = 2

_NEVER = 1 << 30
#: ``bag_free``: some members may stand any number of times; at any position, too.
SOME, ALWAYS = 1, 2


@jit(_int(arena_type, _words, _int), apart=True)
def flagset(arena, words, count):
    """The number of a set of flags given as ``words[:count]``."""
    code = mixed(count, np.int64(3))
    for k in range(count):
        code = mixed(np.int64(code >> np.uint64(1)), words[k])
    size = np.uint64(arena.flagset_table.size - 1)
    slot = np.int64(code & size)
    while arena.flagset_table[slot] >= 0:
        found = np.int64(arena.flagset_table[slot])
        low = np.int64(arena.flagset_offsets[found])
        if arena.flagset_offsets[found + 1] - low == count:
            k = 0
            while k < count and arena.flagset_words[low + k] == words[k]:
                k += 1
            if k == count:
                return found
        slot = (slot + 1) & np.int64(size)
    made = arena.flagset_count
    used = np.int64(arena.flagset_offsets[made])
    arena.flagset_offsets = with_room(arena.flagset_offsets, made + 2)
    arena.flagset_words = with_room(arena.flagset_words, used + count)
    for k in range(count):
        arena.flagset_words[used + k] = words[k]
    arena.flagset_offsets[made + 1] = used + count
    arena.flagset_count = made + 1
    arena.flagset_table[slot] = made
    if 2 * (made + 1) > arena.flagset_table.size:
        table = np.full(2 * arena.flagset_table.size, -1, np.int32)
        size = np.uint64(table.size - 1)
        for number in range(made + 1):
            low = np.int64(arena.flagset_offsets[number])
            past = np.int64(arena.flagset_offsets[number + 1])
            code = mixed(past - low, np.int64(3))
            for k in range(low, past):
                code = mixed(np.int64(code >> np.uint64(1)), arena.flagset_words[k])
            slot = np.int64(code & size)
            while table[slot] >= 0:
                slot = (slot + 1) & np.int64(size)
            table[slot] = number
        arena.flagset_table = table
    return made


@jit(types.uint64(_int, _int, _int, _int, _int, _int))
def _code(bag, phase, members, flags, used, start):
    code = mixed(bag << 32 | phase, members)
    code = mixed(np.int64(code >> np.uint64(1)), flags)
    return mixed(np.int64(code >> np.uint64(1)), (used + 1) << 32 | start)


@jit(_int(arena_type, _int, _int, _int, _int, _int, _int), apart=True)
def _new_situation(arena, bag, phase, members, flags, used, start):
    made = arena.situation_count
    arena.situation_bag = with_room(arena.situation_bag, made + 1)
    arena.situation_phase = with_room(arena.situation_phase, made + 1)
    arena.situation_members = with_room(arena.situation_members, made + 1)
    arena.situation_flags = with_room(arena.situation_flags, made + 1)
    arena.situation_used = with_room(arena.situation_used, made + 1)
    arena.situation_from = with_room(arena.situation_from, made + 1)
    arena.situation_then = with_room(arena.situation_then, made + 1)
    arena.situation_code = with_room(arena.situation_code, made + 1)
    arena.situation_bag[made] = bag
    arena.situation_phase[made] = phase
    arena.situation_members[made] = members
    arena.situation_flags[made] = flags
    arena.situation_used[made] = used
    arena.situation_from[made] = start
    arena.situation_then[made] = -1
    arena.situation_count = made + 1
    return made


@jit(_int(arena_type, _int, _int, _int, _int, _int, _int), apart=True)
def situation(arena, bag, phase, members, flags, used, start):
    """The state that stands for this situation of a bag."""
    code = np.int64(_code(bag, phase, members, flags, used, start) & np.uint64(0x7FFFFFFF))
    table = arena.situation_table
    size = arena.situation_slots
    slot = size | code & (size - 1)
    while table[slot] >= 0:
        found = np.int64(table[slot])
        if (
            arena.situation_bag[found] == bag
            and arena.situation_phase[found] == phase
            and arena.situation_members[found] == members
            and arena.situation_flags[found] == flags
            and arena.situation_used[found] == used
            and arena.situation_from[found] == start
        ):
            return found + BAG
        slot = size | (slot + 1) & (size - 1)
    made = _new_situation(arena, bag, phase, members, flags, used, start)
    arena.situation_code[made] = code
    table[slot] = made
    count = arena.situation_entries
    arena.situation_table = begin_larger(table, 1, size, count)
    arena.situation_slots = step_numbers(arena.situation_table, size, arena.situation_code, 1, count, made)
    arena.situation_entries = count + 1
    return made + BAG


@jit(_int(arena_type, _int))
def plain_situation(arena, state):
    """The same situation without the items used."""
    k = state - BAG
    if arena.situation_used[k] < 0:
        return state
    return situation(
        arena, np.int64(arena.situation_bag[k]), np.int64(arena.situation_phase[k]),
        np.int64(arena.situation_members[k]), np.int64(arena.situation_flags[k]), np.int64(-1), np.int64(0),
    )  # fmt: skip


@jit(types.void(arena_type, _int, _int))
def _flags_after(arena, flags, member):
    """``arena.scratch_words`` becomes the flags after one more member."""
    low = np.int64(arena.flagset_offsets[flags])
    count = np.int64(arena.flagset_offsets[flags + 1]) - low
    arena.scratch_words = with_room(arena.scratch_words, count)
    words = arena.scratch_words
    for k in range(count):
        words[k] = arena.flagset_words[low + k]
    words[0] |= np.int64(arena.member_wanted[member])
    own = np.int64(arena.member_own[member])
    if own >= 0:
        bit = own + WANTED_BITS
        words[bit >> 6] |= np.int64(np.uint64(1) << np.uint64(bit & 63))


@jit(_bool(_words, _int))
def _has(words, own):
    bit = own + WANTED_BITS
    return (np.uint64(words[bit >> 6]) >> np.uint64(bit & 63)) & np.uint64(1) != np.uint64(0)


@jit(_int(arena_type, _int, _words), apart=True)
def members_needed(arena, bag, words):
    """The least number of further members that set every required flag; more than any maximum if none do."""
    first = np.int64(arena.bag_word_offsets[bag])
    count = np.int64(arena.bag_word_offsets[bag + 1]) - first
    wanted = np.int64(arena.bag_wanted[bag])
    missing = np.int64(0)
    for k in range(count):
        rest = np.uint64(arena.bag_required[first + k] & ~words[k])
        if k == 0:
            rest &= ~np.uint64(255)
        while rest != np.uint64(0):
            rest &= rest - np.uint64(1)
            missing += 1
    if wanted & ~words[0] == 0:
        return missing
    # Over the members with one own flag, one is taken; which wanted flags they set together is a small
    # search over the subsets of wanted flags, as in the set cover problem.
    cost = np.full(wanted + 1, _NEVER, np.int64)
    after = np.empty(wanted + 1, np.int64)
    cost[words[0] & wanted] = 0
    low = np.int64(arena.bag_offsets[bag])
    past = np.int64(arena.bag_offsets[bag + 1])
    place = np.int64(low)
    while place < past and arena.member_own[place] >= 0:
        own = np.int64(arena.member_own[place])
        upto = np.int64(place)
        while upto < past and arena.member_own[upto] == own:
            upto = upto + np.int64(1)
        if not _has(words, own):
            bit = own + WANTED_BITS
            asked = (np.uint64(arena.bag_required[first + (bit >> 6)]) >> np.uint64(bit & 63)) & np.uint64(1)
            for have in range(wanted + 1):
                after[have] = _NEVER if asked != np.uint64(0) else cost[have]
            for j in range(place, upto):
                for have in range(wanted + 1):
                    reached = have | np.int64(arena.member_wanted[j])
                    after[reached] = min(after[reached], cost[have] + 1)
            for have in range(wanted + 1):
                cost[have] = after[have]
        place = upto
    for _ in range(8):
        for j in range(place, past):
            for have in range(wanted + 1):
                reached = have | np.int64(arena.member_wanted[j])
                cost[reached] = min(cost[reached], cost[have] + 1)
    return cost[wanted]


@jit(_bool(arena_type, _int, _int))
def _may_take(arena, here, member):
    """Whether ``member`` may come next in situation ``here``; its flags are in ``scratch_words`` then."""
    bag = np.int64(arena.situation_bag[here])
    members = np.int64(arena.situation_members[here])
    flags = np.int64(arena.situation_flags[here])
    most = np.int64(arena.bag_maximum[bag])
    if most >= 0 and members >= most:
        return False
    if members < arena.member_first[member]:
        return False
    if arena.member_last[member] >= 0 and members > arena.member_last[member]:
        return False
    own = np.int64(arena.member_own[member])
    if own >= 0:
        bit = own + WANTED_BITS
        word = np.uint64(arena.flagset_words[np.int64(arena.flagset_offsets[flags]) + (bit >> 6)])
        if (word >> np.uint64(bit & 63)) & np.uint64(1) != np.uint64(0):
            return False
    _flags_after(arena, flags, member)
    if most < 0 and arena.bag_wanted[bag] == 0:
        return True
    needed = members_needed(arena, bag, arena.scratch_words)
    return needed < _NEVER and (most < 0 or members + 1 + needed <= most)


@jit(_bool(arena_type, _int))
def _is_last(arena, here):
    """Whether the member that is taken in situation ``here`` is certainly the last one."""
    bag = np.int64(arena.situation_bag[here])
    most = np.int64(arena.bag_maximum[bag])
    if most >= 0 and arena.situation_members[here] + 1 >= most:
        return True
    if arena.bag_free[bag] != 0:
        return False
    flags = np.int64(arena.situation_flags[here])
    taken = np.int64(0)
    low = np.int64(arena.flagset_offsets[flags])
    for k in range(low, arena.flagset_offsets[flags + 1]):
        rest = np.uint64(arena.flagset_words[k])
        if k == low:
            rest &= ~np.uint64(255)
        while rest != np.uint64(0):
            rest &= rest - np.uint64(1)
            taken += 1
    return taken + 1 >= arena.bag_groups[bag]


@jit(_bool(arena_type, _int))
def _may_go_on(arena, here):
    """Whether any further member may come."""
    bag = np.int64(arena.situation_bag[here])
    if arena.bag_free[bag] == ALWAYS and arena.bag_maximum[bag] < 0 and arena.bag_wanted[bag] == 0:
        return True
    for member in range(arena.bag_offsets[bag], arena.bag_offsets[bag + 1]):
        if _may_take(arena, here, np.int64(member)):
            return True
    return False


@jit(_bool(arena_type, _int))
def _may_end(arena, here):
    """Whether the members so far are enough."""
    bag = np.int64(arena.situation_bag[here])
    if arena.situation_members[here] < arena.bag_minimum[bag]:
        return False
    first = np.int64(arena.bag_word_offsets[bag])
    low = np.int64(arena.flagset_offsets[arena.situation_flags[here]])
    for k in range(arena.bag_word_offsets[bag + 1] - first):
        if arena.bag_required[first + k] & ~arena.flagset_words[low + k] != 0:
            return False
    return True


@jit(_int(arena_type, _int, _int))
def _after(arena, here, used):
    """The situation after one more member whose flags ``_flags_after`` has just left in ``scratch_words``."""
    bag = np.int64(arena.situation_bag[here])
    count = np.int64(arena.bag_word_offsets[bag + 1]) - np.int64(arena.bag_word_offsets[bag])
    flags = flagset(arena, arena.scratch_words, count)
    members = min(np.int64(arena.situation_members[here]) + 1, np.int64(arena.bag_clamp[bag]))
    return situation(arena, bag, np.int64(AFTER), members, flags, used, np.int64(0))


@jit(types.void(arena_type, _int), apart=True)
def _make_insides(arena, here):
    """Make the situations inside of each member that may begin in ``here``, one after another.

    What follows behind the member is only found where it ends: most members that may begin do not.
    """
    bag = np.int64(arena.situation_bag[here])
    first = np.int64(arena.bag_offsets[bag])
    arena.situation_then[here] = arena.situation_count
    for member in range(first, arena.bag_offsets[bag + 1]):
        if _may_take(arena, here, np.int64(member)):
            _new_situation(
                arena, bag, np.int64(BEFORE + 1 + member - first), np.int64(arena.situation_members[here]),
                np.int64(arena.situation_flags[here]), np.int64(-1), np.int64(0),
            )  # fmt: skip
    # One more, of no member, ends them.
    _new_situation(arena, bag, np.int64(BEFORE + 1), np.int64(-1), np.int64(0), np.int64(-1), np.int64(0))


@jit(types.void(arena_type, _int, _int), apart=True)
def _add_insides(arena, here, stack):
    """Add the members that may begin in situation ``here``, and append them to ``choice_*``."""
    if arena.situation_then[here] < 0:
        _make_insides(arena, here)
    inside = np.int64(arena.situation_then[here])
    first = np.int64(arena.bag_offsets[arena.situation_bag[here]])
    while arena.situation_members[inside] >= 0:
        start = np.int64(arena.member_start[first + arena.situation_phase[inside] - (BEFORE + 1)])
        below = push(arena, inside + BAG, stack)
        add(arena, start, below)
        k = arena.choice_size
        arena.choice_start = with_room(arena.choice_start, k + 1)
        arena.choice_stack = with_room(arena.choice_stack, k + 1)
        arena.choice_start[k] = start
        arena.choice_stack[k] = below
        arena.choice_size = k + 1
        inside += 1


@jit(types.void(arena_type, _int, _int, _bool), apart=True)
def _add_members(arena, here, stack, remember):
    """Add the members that may begin in situation ``here``, and append them to ``choice_*`` if asked to."""
    bag = np.int64(arena.situation_bag[here])
    used = np.int64(arena.situation_used[here])
    is_last = _is_last(arena, here)
    if not is_last and not arena.bag_distinct[bag]:
        _add_insides(arena, here, stack)
        return
    for member in range(arena.bag_offsets[bag], arena.bag_offsets[bag + 1]):
        if not _may_take(arena, here, np.int64(member)):
            continue
        start = np.int64(arena.member_start[member])
        if arena.member_distinct[member]:
            begin = np.int64(arena.text_length[arena.tape]) if used >= 0 else np.int64(0)
            inside = situation(
                arena, bag, np.int64(BEFORE + 1 + member - arena.bag_offsets[bag]),
                np.int64(arena.situation_members[here]), np.int64(arena.situation_flags[here]), used,
                begin,
            )  # fmt: skip
            add(arena, start, push(arena, inside, stack))
            continue
        after = _after(arena, here, used)
        # After the last one the bag has nothing left to do: come back to its caller.
        last = is_last and _may_end(arena, after - BAG)
        below = stack if last else push(arena, after, stack)
        add(arena, start, below)
        if remember:
            k = arena.choice_size
            arena.choice_start = with_room(arena.choice_start, k + 1)
            arena.choice_stack = with_room(arena.choice_stack, k + 1)
            arena.choice_start[k] = start
            arena.choice_stack[k] = below
            arena.choice_size = k + 1


@jit(_int(arena_type, _int, _int), apart=True)
def expand_bag(arena, state, stack):
    """Add what a bag's situation calls or returns to; the flags that returning sets.

    The tape (``arena.tape``) holds what was read since the outermost distinct item began.
    """
    here = state - BAG
    bag = np.int64(arena.situation_bag[here])
    phase = np.int64(arena.situation_phase[here])
    used = np.int64(arena.situation_used[here])
    if phase == AFTER:
        flags = return_to(arena, stack) if _may_end(arena, here) else np.int64(0)
        # What follows is remembered: -1 not looked for yet, else 1 more than the situation, 0 for none.
        if arena.situation_then[here] < 0:
            following = np.int64(0)
            if _may_go_on(arena, here):
                following = 1 - BAG + situation(
                    arena, bag, np.int64(BEFORE), np.int64(arena.situation_members[here]),
                    np.int64(arena.situation_flags[here]), used, np.int64(0),
                )  # fmt: skip
            arena.situation_then[here] = following
        if arena.situation_then[here] > 0:
            before = np.int64(arena.situation_then[here]) - 1 + BAG
            add(arena, np.int64(arena.bag_separator[bag]), push(arena, before, stack))
            if arena.bag_skips[bag]:
                add(arena, before, stack)
        return flags
    if phase == BEFORE:
        if arena.bag_distinct[bag]:
            _add_members(arena, here, stack, False)
            return np.int64(0)
        key = state << 32 | stack
        place = slot_of(arena.choice_table, np.int64(CHOICE), arena.choice_slots, key)
        if arena.choice_table[place] < 0:
            first = arena.choice_size
            _add_members(arena, here, stack, True)
            count = arena.choice_entries
            arena.choice_table = begin_larger(arena.choice_table, CHOICE, arena.choice_slots, count)
            table = arena.choice_table
            table[place] = key
            table[place + 1] = first << 32 | arena.choice_size - first
            arena.choice_slots = step_records(table, np.int64(CHOICE), arena.choice_slots, count, place)
            arena.choice_entries = count + 1
            return np.int64(0)
        found = arena.choice_table[place + 1]
        first = found >> 32
        for k in range(first, first + (found & 0xFFFFFFFF)):
            add(arena, np.int64(arena.choice_start[k]), np.int64(arena.choice_stack[k]))
        return np.int64(0)
    inner = phase - (BEFORE + 1) + np.int64(arena.bag_offsets[bag])
    if not arena.bag_distinct[bag]:
        if arena.situation_then[here] < 0:
            _flags_after(arena, np.int64(arena.situation_flags[here]), inner)
            arena.situation_then[here] = _after(arena, here, np.int64(-1)) - BAG
        add(arena, np.int64(arena.situation_then[here]) + BAG, stack)
        return np.int64(0)
    if used >= 0:
        text = text_from(arena, arena.tape, np.int64(arena.situation_from[here]))
        if is_used(arena, used, text):
            return np.int64(0)
        used = used_and(arena, used, text)
    _flags_after(arena, np.int64(arena.situation_flags[here]), inner)
    after = _after(arena, here, used)
    last = _is_last(arena, here) and _may_end(arena, after - BAG)
    rest = np.int64(arena.member_rest[inner])
    if rest >= 0:
        add(arena, rest, stack if last else push(arena, after, stack))
        if not arena.member_skips[inner]:
            return np.int64(0)
    if last:
        return return_to(arena, stack)
    add(arena, after, stack)
    return np.int64(0)
