"""Texts of items that must be distinct, as one interned integer each, and lists of those that were used.

A text is its parent and one more byte, so the texts form one trie (text 0 is empty). White space outside
double quotes is left out: it does not make JSON values differ. A list of used texts is a linked list.

``text_jump`` leads to an ancestor such that any one is found in logarithmic time (the skew-binary jump
pointers of Myers, "An applicative random-access stack", 1983). ``text_tail`` is how far a text goes along the
tails of tokens (``straddling.py``).
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import arena_type
from vllm_guided.runtime.memory import mixed, with_room

_int = types.int64
_bool = types.boolean

EMPTY = 0
#: Where a text ends: outside double quotes, inside them, behind a backslash inside them.
OUTSIDE, INSIDE, ESCAPED = 0, 1, 2


@jit(_bool(_int))
def is_blank_byte(byte):
    """Whether ``byte`` is JSON's white space."""
    return byte == 32 or byte == 10 or byte == 9 or byte == 13


@jit(_int(_int, _int))
def quoting_after(quoting, byte):
    """Where a text ends after one more byte."""
    if quoting == OUTSIDE:
        return INSIDE if byte == 34 else OUTSIDE
    if quoting == ESCAPED:
        return INSIDE
    if byte == 34:
        return OUTSIDE
    return ESCAPED if byte == 92 else INSIDE


@jit(_bool(arena_type, _int, _int))
def is_blank(arena, text, byte):
    """Whether ``byte`` after ``text`` is white space that does not count."""
    return arena.text_quoting[text] == OUTSIDE and is_blank_byte(byte)


@jit(_int(arena_type, _int, _int))
def tail_below(arena, node, byte):
    """The node of the trie of tails below ``node``; -1 if there is none."""
    found = np.int64(arena.tail_child[node])
    while found >= 0 and arena.tail_byte[found] != byte:
        found = np.int64(arena.tail_sibling[found])
    return found


@jit(types.void(arena_type))
def _rehash_texts(arena):
    table = np.full(2 * arena.text_table.size, -1, np.int32)
    size = np.uint64(table.size - 1)
    for text in range(1, arena.text_count):
        slot = np.int64(mixed(np.int64(arena.text_parent[text]), np.int64(arena.text_byte[text])) & size)
        while table[slot] >= 0:
            slot = (slot + 1) & np.int64(size)
        table[slot] = text
    arena.text_table = table


@jit(_int(arena_type, _int, _int), apart=True)
def longer(arena, text, byte):
    """``text`` and one more byte."""
    if is_blank(arena, text, byte):
        return text
    size = np.uint64(arena.text_table.size - 1)
    slot = np.int64(mixed(text, byte) & size)
    while arena.text_table[slot] >= 0:
        found = np.int64(arena.text_table[slot])
        if arena.text_parent[found] == text and arena.text_byte[found] == byte:
            return found
        slot = (slot + 1) & np.int64(size)
    made = arena.text_count
    arena.text_parent = with_room(arena.text_parent, made + 1)
    arena.text_byte = with_room(arena.text_byte, made + 1)
    arena.text_quoting = with_room(arena.text_quoting, made + 1)
    arena.text_length = with_room(arena.text_length, made + 1)
    arena.text_jump = with_room(arena.text_jump, made + 1)
    arena.text_tail = with_room(arena.text_tail, made + 1)
    arena.text_reach = with_room(arena.text_reach, made + 1)
    arena.text_gap = with_room(arena.text_gap, made + 1)
    arena.text_asked = with_room(arena.text_asked, made + 1)
    arena.text_answer = with_room(arena.text_answer, made + 1)
    arena.text_parent[made] = text
    arena.text_byte[made] = byte
    arena.text_length[made] = arena.text_length[text] + 1
    arena.text_quoting[made] = quoting_after(np.int64(arena.text_quoting[text]), byte)
    jump = np.int64(arena.text_jump[text])
    further = np.int64(arena.text_jump[jump])
    same = (
        arena.text_length[text] - arena.text_length[jump]
        == arena.text_length[jump] - arena.text_length[further]
    )
    arena.text_jump[made] = further if same else text
    tail = np.int64(arena.text_tail[text])
    if arena.tail_depth[tail] == arena.text_length[text]:
        below = tail_below(arena, tail, byte)
        tail = below if below >= 0 else tail
    arena.text_tail[made] = tail
    arena.text_reach[made] = 0
    arena.text_gap[made] = 0
    arena.text_asked[made] = -1
    arena.text_count = made + 1
    arena.text_table[slot] = made
    if 2 * (made + 1) > arena.text_table.size:
        _rehash_texts(arena)
    return made


@jit(_int(arena_type, _int, _int), apart=True)
def text_from(arena, tape, start):
    """The text of ``tape`` from its byte number ``start`` on."""
    if start == 0:
        return tape
    count = np.int64(arena.text_length[tape]) - start
    data = np.empty(max(count, 1), np.uint8)
    for k in range(count - 1, -1, -1):
        data[k] = arena.text_byte[tape]
        tape = np.int64(arena.text_parent[tape])
    text = np.int64(EMPTY)
    for k in range(count):
        text = longer(arena, text, np.int64(data[k]))
    return text


@jit(_int(arena_type, _int, _int), apart=True)
def used_and(arena, used, text):
    """The list ``used`` with ``text`` as well."""
    size = np.uint64(arena.used_table.size - 1)
    slot = np.int64(mixed(used, text) & size)
    while arena.used_table[slot] >= 0:
        found = np.int64(arena.used_table[slot])
        if arena.used_parent[found] == used and arena.used_text[found] == text:
            return found
        slot = (slot + 1) & np.int64(size)
    made = arena.used_count
    arena.used_parent = with_room(arena.used_parent, made + 1)
    arena.used_text = with_room(arena.used_text, made + 1)
    arena.used_length = with_room(arena.used_length, made + 1)
    arena.used_key = with_room(arena.used_key, made + 1)
    arena.used_critical = with_room(arena.used_critical, made + 1)
    arena.used_behind = with_room(arena.used_behind, made + 1)
    arena.used_parent[made] = used
    arena.used_text[made] = text
    arena.used_length[made] = arena.used_length[used] + 1
    arena.used_key[made] = -1
    arena.used_count = made + 1
    arena.used_table[slot] = made
    if 2 * (made + 1) > arena.used_table.size:
        table = np.full(2 * arena.used_table.size, -1, np.int32)
        size = np.uint64(table.size - 1)
        for number in range(1, made + 1):
            slot = np.int64(
                mixed(np.int64(arena.used_parent[number]), np.int64(arena.used_text[number])) & size
            )
            while table[slot] >= 0:
                slot = (slot + 1) & np.int64(size)
            table[slot] = number
        arena.used_table = table
    return made


@jit(_bool(arena_type, _int, _int))
def is_used(arena, used, text):
    """Whether ``text`` is in the list."""
    while used > 0:
        if arena.used_text[used] == text:
            return True
        used = np.int64(arena.used_parent[used])
    return False


@jit(_int(arena_type, _int, _int))
def beginning(arena, text, length):
    """The first ``length`` bytes of ``text`` (all of it if it is no longer)."""
    while arena.text_length[text] > length:
        jump = np.int64(arena.text_jump[text])
        text = jump if arena.text_length[jump] >= length else np.int64(arena.text_parent[text])
    return text


@jit(_bool(arena_type, _int, _int))
def begins(arena, whole, text):
    """Whether ``text`` is the beginning, or all, of ``whole``."""
    return beginning(arena, whole, np.int64(arena.text_length[text])) == text


@jit(_int(arena_type, _int, _int))
def next_byte(arena, whole, text):
    """The byte of ``whole`` behind its beginning ``text``; -1 if it does not begin so or is no longer."""
    length = np.int64(arena.text_length[text])
    if arena.text_length[whole] <= length:
        return np.int64(-1)
    whole = beginning(arena, whole, length + 1)
    return np.int64(arena.text_byte[whole]) if arena.text_parent[whole] == text else np.int64(-1)


@jit(_int(arena_type, _int, _int), apart=True)
def first_begun(arena, used, text):
    """The list ``used`` from the first text on that begins with ``text``, or is it; 0 if there is none.

    What was found last is kept with the text, so that reading an item goes through the list once.
    """
    if text == EMPTY or used == 0:
        return used
    if arena.text_asked[text] == used:
        return np.int64(arena.text_answer[text])
    parent = np.int64(arena.text_parent[text])
    found = np.int64(arena.text_answer[parent]) if arena.text_asked[parent] == used else used
    while found > 0 and not begins(arena, np.int64(arena.used_text[found]), text):
        found = np.int64(arena.used_parent[found])
    arena.text_asked[text] = used
    arena.text_answer[text] = found
    return found


@jit(types.void(arena_type, _int, _int, types.uint8[::1]), apart=True)
def next_bytes(arena, used, text, found):
    """Set ``found[byte]`` to 1 for each byte that follows ``text`` in a text of the list, others to 0."""
    for byte in range(256):
        found[byte] = 0
    while used > 0:
        byte = next_byte(arena, np.int64(arena.used_text[used]), text)
        if byte >= 0:
            found[byte] = 1
        used = np.int64(arena.used_parent[used])
