"""What is known of a vocabulary's tokens before any grammar: which bytes they hold, which bytes follow where.

Slices are llguidance's idea: where a state loops on a large class of bytes, the set of tokens made of such
bytes alone is a ready row, and only the rest of the trie is walked. Here any class will do: a row is kept
for each ASCII byte (the tokens that hold it), so that the row of a class is found by taking rows away, and
each trie node knows which bytes follow below it, so that a walk passes over all subtrees in which nothing
but the loop can happen.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import arena_type
from vllm_guided.runtime.memory import clear, copy_into, with_room

_int = types.int64
_ints = types.int32[::1]
_bytes = types.uint8[::1]
_words = types.uint64[::1]

#: Rows of ``slice_rows`` behind those of the 128 ASCII bytes: tokens with a byte from 0x80 on; tokens that
#: are UTF-8 from a character's beginning on (the last character may be cut); all text tokens; tokens with
#: U+2028 or U+2029, which the dot of ECMAScript's patterns does not stand for; tokens with white space beyond
#: ASCII, which ``\S`` of these patterns does not stand for.
NOT_ASCII, UTF8, ALL, SEPARATED, SPACED = 128, 129, 130, 131, 132
#: Then, for n from 1 to SHORT, tokens of at most n characters: at ``UP_TO + n``.
UP_TO, SHORT = 132, 32
ROWS = UP_TO + SHORT + 1
SEPARATOR, SPACE = np.uint64(2), np.uint64(4)
#: Which characters beyond ASCII belong to a class: none, every one, every one but U+2028 and U+2029, every
#: one but white space (U+00A0, U+1680, U+2000 to U+200A, U+2028, U+2029, U+202F, U+205F, U+3000, U+FEFF).
NONE, EVERY, BUT_SEPARATORS, BUT_SPACES = 0, 1, 2, 3
#: ``trie_mark``: a node's byte completes U+2028 or U+2029; white space beyond ASCII.
ENDS_SEPARATOR, ENDS_SPACE = 1, 2


@jit(_int(_int, _int))
def utf8_step(state, byte):
    """The state of a UTF-8 decoder after one more byte; 0 between characters, -1 where it is no UTF-8.

    States 1, 2, 3: so many continuation bytes are missing; 4 to 7: after E0, ED, F0, F4, whose next byte has
    a range of its own (RFC 3629).
    """
    if state == 0:
        if byte < 0x80:
            return 0
        if byte < 0xC2 or byte > 0xF4:
            return -1
        if byte < 0xE0:
            return 1
        if byte < 0xF0:
            return 4 if byte == 0xE0 else 5 if byte == 0xED else 2
        return 6 if byte == 0xF0 else 7 if byte == 0xF4 else 3
    low, high = 0x80, 0xBF
    if state == 4:
        low = 0xA0
    elif state == 5:
        high = 0x9F
    elif state == 6:
        low = 0x90
    elif state == 7:
        high = 0x8F
    if byte < low or byte > high:
        return -1
    return state - 1 if state < 4 else 1 if state < 6 else 2


@jit(_int(_int, _int))
def separator_step(state, byte):
    """``utf8_step`` for characters but U+2028 and U+2029, where it is -2.

    States 8 and 9 are after E2 and after E2 80.
    """
    if state == 0 and byte == 0xE2:
        return 8
    if state == 8:
        return -1 if byte < 0x80 or byte > 0xBF else 9 if byte == 0x80 else 1
    if state == 9:
        return -1 if byte < 0x80 or byte > 0xBF else -2 if byte in (0xA8, 0xA9) else 0
    return utf8_step(state, byte)


@jit(_int(_int, _int))
def space_step(state, byte):
    """``utf8_step`` for characters but white space beyond ASCII, where it is -2.

    States 10 to 19 are after C2, E1, E1 9A, E2, E2 80, E2 81, E3, E3 80, EF, EF BB.
    """
    if state == 0:
        if byte == 0xC2:
            return 10
        if byte == 0xE1:
            return 11
        if byte == 0xE2:
            return 13
        if byte == 0xE3:
            return 16
        return 18 if byte == 0xEF else utf8_step(state, byte)
    if state < 10:
        return utf8_step(state, byte)
    if byte < 0x80 or byte > 0xBF:
        return -1
    if state == 10:
        return -2 if byte == 0xA0 else 0
    if state == 11:
        return 12 if byte == 0x9A else 1
    if state == 12:
        return -2 if byte == 0x80 else 0
    if state == 13:
        return 14 if byte == 0x80 else 15 if byte == 0x81 else 1
    if state == 14:
        return -2 if byte <= 0x8A or byte in (0xA8, 0xA9, 0xAF) else 0
    if state == 15:
        return -2 if byte == 0x9F else 0
    if state == 16:
        return 17 if byte == 0x80 else 1
    if state == 17:
        return -2 if byte == 0x80 else 0
    if state == 18:
        return 19 if byte == 0xBB else 1
    return -2 if byte == 0xBF else 0


@jit(_int(_int, _int, _int))
def class_step(characters, state, byte):
    """``utf8_step`` for the given characters (not NONE): -2 where a character of none of them ends."""
    if characters == EVERY:
        return utf8_step(state, byte)
    return separator_step(state, byte) if characters == BUT_SEPARATORS else space_step(state, byte)


@jit(_int(_int, _int, _int))
def mark_of(before, last, byte):
    """ENDS_SEPARATOR and ENDS_SPACE of the last of three bytes of a token (0 stands for none before it)."""
    if before == 0xE2 and last == 0x80 and byte in (0xA8, 0xA9):
        return ENDS_SEPARATOR | ENDS_SPACE
    if last == 0xC2:
        return ENDS_SPACE if byte == 0xA0 else 0
    state = space_step(space_step(0, before), last) if before >= 0xE0 and last >= 0x80 else np.int64(0)
    return ENDS_SPACE if state >= 10 and space_step(state, byte) == -2 else 0


@jit(types.Tuple((_words, _bytes, _ints, _ints, _bytes))(
    _bytes, _ints, _ints, _ints, _ints, types.int64[::1], _bytes, _int,
))  # fmt: skip
def slices_of(trie_byte, trie_depth, trie_next, token_start, tokens, token_offsets, token_data, words):
    """The slices of a vocabulary whose trie has n nodes.

    Returns:
        uint64[2 n]: the ASCII bytes on the edges below node i, as bits of words 2 i (bytes below 64) and
        2 i + 1; bit 0 stands for byte 0 and for all bytes from 0x80 on, SEPARATOR for byte 1 and for the last
        byte of U+2028 and U+2029, SPACE for byte 2 and for the last byte of white space beyond ASCII.
        uint8[n]: how many bytes the longest path below a node has (255: as many or more).
        int32[256]: tokens that begin with each byte. int32[ROWS * words]: the rows named above.
        uint8[n]: ENDS_SEPARATOR and ENDS_SPACE of the byte on the edge to each node.
    """
    count = trie_byte.size
    below = np.zeros(2 * count, np.uint64)
    height = np.zeros(count, np.uint8)
    weight = np.zeros(256, np.int32)
    one = np.uint64(1)
    parent = np.zeros(count, np.int32)
    marks = np.zeros(count, np.uint8)
    for node in range(count):
        child = node + 1
        while child < trie_next[node]:
            parent[child] = node
            if node > 0:
                before = np.int64(trie_byte[parent[node]]) if parent[node] > 0 else np.int64(0)
                marks[child] = mark_of(before, np.int64(trie_byte[node]), np.int64(trie_byte[child]))
            child = trie_next[child]
    # Children come behind their parents in preorder, so backwards they are done before them.
    for node in range(count - 1, 0, -1):
        child = node + 1
        past = trie_next[node]
        most = np.int64(0)
        while child < past:
            byte = np.int64(trie_byte[child])
            known = np.int64(0) if byte >= 128 else byte
            below[2 * node + (known >> 6)] |= one << np.uint64(known & 63)
            if marks[child] & ENDS_SEPARATOR:
                below[2 * node] |= SEPARATOR
            if marks[child] & ENDS_SPACE:
                below[2 * node] |= SPACE
            below[2 * node] |= below[2 * child]
            below[2 * node + 1] |= below[2 * child + 1]
            tall = np.int64(height[child])
            most = max(most, tall + 1 if tall < 254 else np.int64(255))
            child = trie_next[child]
        height[node] = most
    node = 1
    while node < count:
        past = trie_next[node]
        weight[trie_byte[node]] = token_start[past] - token_start[node]
        node = past
    rows = np.zeros(ROWS * words, np.int32)
    for k in range(tokens.size):
        token = tokens[k]
        word = token >> 5
        bit = np.int32(1) << np.int32(token & 31)
        state = np.int64(0)
        for place in range(token_offsets[token], token_offsets[token + 1]):
            byte = np.int64(token_data[place])
            line = byte if byte < NOT_ASCII else np.int64(NOT_ASCII)
            rows[line * words + word] |= bit
            if state >= 0:
                state = utf8_step(state, byte)
        if state >= 0:
            rows[UTF8 * words + word] |= bit
        before = last = np.int64(0)
        for place in range(token_offsets[token], token_offsets[token + 1]):
            mark = mark_of(before, last, np.int64(token_data[place]))
            if mark & ENDS_SEPARATOR:
                rows[SEPARATED * words + word] |= bit
            if mark & ENDS_SPACE:
                rows[SPACED * words + word] |= bit
            before = last
            last = np.int64(token_data[place])
        characters = 0
        for place in range(token_offsets[token], token_offsets[token + 1]):
            characters += 1 if token_data[place] & 0xC0 != 0x80 else 0
        for limit in range(characters if characters > 1 else 1, SHORT + 1):
            rows[(UP_TO + limit) * words + word] |= bit
        rows[ALL * words + word] |= bit
    return below, height, weight, rows, marks


@jit(types.Tuple((_ints, _bytes, _ints, _ints, _ints, _ints))(_bytes, _ints, _ints, _ints))
def levels_of(trie_byte, trie_next, token_start, tokens):
    """The trie level by level: each node's children side by side.

    Returns, for n nodes: int32[n + 1], where the children of each begin (its own number is its place in this
    order); uint8[n] its byte; int32[n + 1] where its tokens begin in the int32 array behind; int32[n] its
    number in preorder, and int32[n] the place of each node in preorder.
    """
    count = trie_byte.size
    kids = np.empty(count + 1, np.int32)
    kid_byte = np.empty(count, np.uint8)
    starts = np.empty(count + 1, np.int32)
    ids = np.empty(tokens.size, np.int32)
    node_of = np.empty(count, np.int32)
    place_of = np.empty(count, np.int32)
    node_of[0] = 0
    found = 1
    used = 0
    for place in range(count):
        node = node_of[place]
        place_of[node] = place
        kid_byte[place] = trie_byte[node]
        kids[place] = found
        child = node + 1
        while child < trie_next[node]:
            node_of[found] = child
            found += 1
            child = trie_next[child]
        starts[place] = used
        for k in range(token_start[node], token_start[node + 1]):
            ids[used] = tokens[k]
            used += 1
    kids[count] = found
    starts[count] = used
    return kids, kid_byte, starts, ids, node_of, place_of


@jit(types.void(arena_type, types.uint64, types.uint64, _int), apart=True)
def _make_pure(arena, low, high, characters):
    """Write the tokens made of a class of bytes alone to ``scratch_row``."""
    words = arena.words
    row = arena.scratch_row
    rows = arena.slice_rows
    copy_into(row, 0, rows, (ALL if characters == NONE else UTF8) * words, words)
    if characters >= BUT_SEPARATORS:
        line = SEPARATED if characters == BUT_SEPARATORS else SPACED
        source = rows[line * words : (line + 1) * words]
        for word in range(words):
            row[word] &= ~source[word]
    for byte in range(129 if characters == NONE else 128):
        if byte < 128:
            part = low if byte < 64 else high
            if (part >> np.uint64(byte & 63)) & np.uint64(1):
                continue
        source = rows[byte * words : byte * words + words]
        for word in range(words):
            row[word] &= ~source[word]


@jit(_int(arena_type, types.uint64, types.uint64, _int), apart=True)
def pure_row(arena, low, high, characters):
    """The number of the row of all tokens made of a class of bytes alone, made on first need.

    Args:
        low, high: the ASCII bytes below 64, and from 64 on, as bits.
        characters: which characters beyond ASCII belong to the class, too (they may be cut at the end).
    """
    for k in range(arena.pure_count):
        if arena.pure_low[k] == low and arena.pure_high[k] == high and arena.pure_wide[k] == characters:
            return np.int64(arena.pure_row[k])
    words = arena.words
    number = arena.row_count
    arena.rows = with_room(arena.rows, (number + 1) * words)
    arena.row_count = number + 1
    _make_pure(arena, low, high, characters)
    copy_into(arena.rows, number * words, arena.scratch_row, 0, words)
    clear(arena.scratch_row, 0, words)
    k = arena.pure_count
    arena.pure_low = with_room(arena.pure_low, k + 1)
    arena.pure_high = with_room(arena.pure_high, k + 1)
    arena.pure_wide = with_room(arena.pure_wide, k + 1)
    arena.pure_row = with_room(arena.pure_row, k + 1)
    arena.pure_low[k] = low
    arena.pure_high[k] = high
    arena.pure_wide[k] = characters
    arena.pure_row[k] = number
    arena.pure_count = k + 1
    return number
