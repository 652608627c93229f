"""From where on a used item matters: its *critical* beginning.

While an item is read that begins as a used one does, nothing happens until it is the used one, or until all
ways to complete it are used. The second is for items of which there are few: a beginning is *wide* where more
items than are used, and than one token can add, go on behind it. A lower bound of their number (:func:`room`)
is found once for each configuration that reads an item. The critical beginning of a used text is one byte
longer than its longest wide beginning: the whole text for strings, ``t`` for ``true``.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import DEAD, ESCAPE, PLAIN, UNKNOWN, arena_type
from vllm_guided.runtime.collecting import add, begin
from vllm_guided.runtime.configurations import close, plain, step
from vllm_guided.runtime.texts import EMPTY, OUTSIDE, beginning, is_blank_byte

_int = types.int64

#: Wide is what has more room than this, or than a power of it.
LEAST_LIMIT = 64
_USED_INSIDE, _COMMA = 1 << 12, 44
#: ``room`` counts no further than the first, and looks no further than so many bytes.
_MOST_ROOM, _FURTHEST = 1 << 30, 64


@jit(_int(arena_type, _int), apart=True)
def room(arena, config):
    """A lower bound of how many items, told apart as texts, complete what ``config`` reads.

    ``config`` is the reading of an item over the unknown stack. One way is followed, always on the target
    that most bytes lead to; as many go on from there for each of these bytes, and one for each other byte.

    Distinct items inside of the item are not compared here, so nothing behind one of them counts, and as many
    as may be used are taken off.
    """
    known = np.int64(arena.config_room[config])
    if known >= 0:
        return known
    times = np.empty(_FURTHEST, np.int64)
    more = np.empty(_FURTHEST, np.int64)
    targets = np.empty(256, np.int64)
    here = config
    depth = 0
    product = np.int64(1)
    while depth < _FURTHEST and product < _MOST_ROOM:
        live = np.int64(0)
        most = np.int64(0)
        best = np.int64(DEAD)
        for byte in range(256):
            target = step(arena, here, np.int64(byte))
            targets[byte] = target
            if target == DEAD:
                continue
            if is_blank_byte(np.int64(byte)):
                if best == DEAD:
                    best = target
                continue
            live += 1
            # Bytes with one target mostly stand together: their runs are counted.
            count = np.int64(1)
            before = byte - 1
            while before >= 0 and targets[before] == target and not is_blank_byte(np.int64(before)):
                count += 1
                before -= 1
            if count > most:
                most = count
                best = target
        if best == DEAD or (most <= 1 and best == targets[_COMMA] and arena.config_flags[here] & PLAIN):
            break
        times[depth] = most if most > 0 else 1
        more[depth] = live - most + (1 if arena.config_flags[here] & ESCAPE else 0)
        product = min(product * np.int64(times[depth]), np.int64(_MOST_ROOM))
        here = best
        depth += 1
    count = np.int64(1)
    for k in range(depth - 1, -1, -1):
        count = min(times[k] * count + more[k], np.int64(_MOST_ROOM))
    if arena.config_flags[config] & PLAIN:
        count //= _USED_INSIDE
    arena.config_room[config] = count
    return count


@jit(_int(arena_type, _int), apart=True)
def _reading(arena, member):
    """The configuration over the unknown stack that begins to read the item of a bag's member."""
    known = np.int64(arena.member_reading[member])
    if known >= 0:
        return known
    begin(arena)
    add(arena, np.int64(arena.member_start[member]), np.int64(UNKNOWN))
    arena.tape = np.int64(EMPTY)
    made = plain(arena, close(arena, np.int64(0)))
    arena.member_reading[member] = made
    return made


@jit(types.void(arena_type, _int, types.int64[::1], _int))
def _find_gaps(arena, text, configs, count):
    """Set ``text_gap`` of the beginnings of ``text``, read to ``configs[:count]``, that blanks may follow."""
    here = text
    found = False
    while here != EMPTY:
        length = np.int64(arena.text_length[here])
        if length < count and arena.text_quoting[here] == OUTSIDE and not arena.text_gap[here]:
            for byte in (9, 10, 13, 32):
                if step(arena, configs[length], np.int64(byte)) != DEAD:
                    arena.text_gap[here] = 1
                    found = True
        here = np.int64(arena.text_parent[here])
    if found:
        here = text
        while here != EMPTY:
            arena.text_reach[here] = 0
            here = np.int64(arena.text_parent[here])


@jit(_int(arena_type, _int, _int, _int, _int), apart=True)
def critical_length(arena, bag, text, length, limit):
    """The length of the shortest beginning of ``text`` behind which it is narrow from there on.

    Looked at are beginnings shorter than ``length``, which is the answer if the longest of them is wide: if
    more than ``limit`` items begin so, by every member that can read it. Sets their ``text_gap``, too.
    """
    data = np.empty(length, np.int64)
    some = beginning(arena, text, length)
    here = some
    for k in range(arena.text_length[some] - 1, -1, -1):
        data[k] = arena.text_byte[here]
        here = np.int64(arena.text_parent[here])
    configs = np.empty(length + 1, np.int64)
    shortest = length
    for member in range(arena.bag_offsets[bag], arena.bag_offsets[bag + 1]):
        if not arena.member_distinct[member]:
            continue
        configs[0] = _reading(arena, np.int64(member))
        count = 1 if configs[0] != DEAD else 0
        while count > 0 and count < length:
            configs[count] = step(arena, configs[count - 1], data[count - 1])
            if configs[count] == DEAD:
                break
            count += 1
        _find_gaps(arena, some, configs, count)
        narrow = min(count, length)
        while narrow > 0 and room(arena, configs[narrow - 1]) <= limit:
            narrow -= 1
        if narrow < min(count, length):
            shortest = min(shortest, narrow)
    return shortest


@jit(_int(arena_type, _int), apart=True)
def reach(arena, text):
    """An upper bound of how many of the last bytes of ``text`` stand together in some token."""
    known = np.int64(arena.text_reach[text])
    if known > 0:
        return known
    count = np.int64(0)
    here = text
    while here != EMPTY and count < arena.longest_token:
        count += 1
        parent = np.int64(arena.text_parent[here])
        if parent == EMPTY or (
            not arena.text_gap[parent]
            and not arena.neighbours[np.int64(arena.text_byte[parent]) << 8 | np.int64(arena.text_byte[here])]
        ):
            break
        here = parent
    arena.text_reach[text] = max(count, 1)
    return max(count, 1)


@jit(_int(arena_type, _int), apart=True)
def limit_of(arena, used):
    """A bound of the items that are used once one more token was read, of three sizes."""
    need = arena.used_length[used] + arena.most_commas
    limit = np.int64(LEAST_LIMIT)
    while limit <= need:
        limit *= LEAST_LIMIT
    return limit


@jit(types.void(arena_type, _int, _int), apart=True)
def look_at_used(arena, used, bag):
    """Fill what is known of each text of the list for ``bag``.

    ``used_critical`` is its critical beginning; ``used_behind`` leads to the list from the first text on
    whose critical beginning is one of a tail of tokens (0: none).
    """
    limit = limit_of(arena, used)
    key = bag << 5
    size = limit
    while size > 1:
        size >>= 1
        key += 1
    count = 0
    here = used
    while here > 0 and arena.used_key[here] != key:
        count += 1
        here = np.int64(arena.used_parent[here])
    if count == 0:
        return
    entries = np.empty(count, np.int64)
    here = used
    for k in range(count - 1, -1, -1):
        entries[k] = here
        here = np.int64(arena.used_parent[here])
    for k in range(count):
        here = entries[k]
        text = np.int64(arena.used_text[here])
        length = critical_length(arena, bag, text, np.int64(arena.text_length[text]), limit)
        critical = beginning(arena, text, length)
        before = np.int64(arena.used_parent[here])
        arena.used_critical[here] = critical
        is_tail = arena.tail_depth[arena.text_tail[critical]] == length
        arena.used_behind[here] = here if is_tail else (arena.used_behind[before] if before > 0 else 0)
        arena.used_key[here] = key
