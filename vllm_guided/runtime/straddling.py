"""Tokens that may hold the end of one distinct item and the beginning of the next: an index of a vocabulary.

Filled when the first bag with distinct items comes to an arena. An item is a JSON value or name: its double
quotes are in pairs, it begins like one, and between items there is a comma and blanks. So an item that begins
inside of a token begins behind a comma. The texts behind commas (*tails*, without what does not count) are
kept as a trie: ``tail_byte``, ``tail_depth``, ``tail_parent``, ``tail_child`` (the first) and
``tail_sibling`` by node; ``tail_entry`` is the first of the entries whose tail ends there, ``entry_next`` the
next of them, ``entry_token`` its token.

An item that blanks are still missing before begins in a *gap*: ``gap_first`` is the first gap before each
byte, ``gap_next`` the next one, ``gap_node`` the token trie's node of its blanks.

``pair_tokens`` may hold two equal items, or an item and a beginning of it, whatever was read before. The
second matters where few items have the beginning, ``pair_text``, that both have; ``pair_tried`` is 0 as long
as no bag is known where that is so (``separators.look_at_bags``).

``entry_quoting`` and ``pair_quoting`` have bit q set if the comma is one between items where the quoting
before the token is q (``texts.OUTSIDE``, ``INSIDE``, ``ESCAPED``).
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import arena_type
from vllm_guided.runtime.memory import with_room
from vllm_guided.runtime.texts import (
    EMPTY,
    ESCAPED,
    INSIDE,
    OUTSIDE,
    is_blank_byte,
    longer,
    quoting_after,
    tail_below,
)

_int = types.int64
_bool = types.boolean
_bytes = types.uint8[::1]

_COMMA = 44


@jit(_int(arena_type, _bytes, _int))
def _insert_tail(arena, data, count):
    """The node of the tail ``data[:count]``, made if need be."""
    need = arena.tail_count + count
    arena.tail_byte = with_room(arena.tail_byte, need)
    arena.tail_depth = with_room(arena.tail_depth, need)
    arena.tail_parent = with_room(arena.tail_parent, need)
    arena.tail_child = with_room(arena.tail_child, need)
    arena.tail_sibling = with_room(arena.tail_sibling, need)
    arena.tail_entry = with_room(arena.tail_entry, need)
    node = np.int64(0)
    for k in range(count):
        found = tail_below(arena, node, np.int64(data[k]))
        if found < 0:
            found = arena.tail_count
            arena.tail_byte[found] = data[k]
            arena.tail_depth[found] = k + 1
            arena.tail_parent[found] = node
            arena.tail_child[found] = -1
            arena.tail_entry[found] = -1
            arena.tail_sibling[found] = arena.tail_child[node]
            arena.tail_child[node] = found
            arena.tail_count = found + 1
        node = found
    return node


@jit(_int(_bytes, _int, _int, _bytes))
def _strip(data, low, high, into):
    """Copy ``data[low:high]`` without blanks outside of quotes; the length of the copy."""
    count = 0
    quoting = np.int64(OUTSIDE)
    for k in range(low, high):
        byte = np.int64(data[k])
        if quoting == OUTSIDE and is_blank_byte(byte):
            continue
        quoting = quoting_after(quoting, byte)
        into[count] = byte
        count += 1
    return count


@jit(_bool(_int))
def _begins_items(byte):
    """Whether an item may begin with ``byte``: with a letter, a digit, a quote, a minus, a bracket."""
    if byte >= 128 or (byte >= 48 and byte <= 57) or (byte | 32 >= 97 and byte | 32 <= 122):
        return True
    return byte == 34 or byte == 45 or byte == 91 or byte == 123


@jit(_bool(_bytes, _int))
def _has_an_item(data, count):
    """Whether some beginning of ``data[:count]`` may be an item."""
    quoting = np.int64(OUTSIDE)
    for k in range(count):
        quoting = quoting_after(quoting, np.int64(data[k]))
        if quoting == OUTSIDE:
            return _begins_items(np.int64(data[0]))
    return False


@jit(types.void(arena_type, _int, _int, _bool, _bytes, _int))
def _append_pair(arena, token, quoting, tried, data, count):
    pair = arena.pair_count
    arena.pair_tokens = with_room(arena.pair_tokens, pair + 1)
    arena.pair_quoting = with_room(arena.pair_quoting, pair + 1)
    arena.pair_text = with_room(arena.pair_text, pair + 1)
    arena.pair_tried = with_room(arena.pair_tried, pair + 1)
    arena.pair_tokens[pair] = token
    arena.pair_quoting[pair] = quoting
    arena.pair_tried[pair] = tried
    text = np.int64(EMPTY)
    for k in range(count):
        text = longer(arena, text, np.int64(data[k]))
    arena.pair_text[pair] = text
    arena.pair_count = pair + 1


@jit(types.void(arena_type), apart=True)
def _index_trie(arena):
    """Fill ``trie_child`` (the root's child by byte) and ``neighbours`` (bytes that follow in a token)."""
    arena.trie_child = np.full(256, -1, np.int32)
    node = np.int64(1)
    while node < arena.trie_byte.size:
        arena.trie_child[arena.trie_byte[node]] = node
        node = np.int64(arena.trie_next[node])
    arena.neighbours = np.zeros(1 << 16, np.uint8)
    data = arena.token_data
    for token in range(arena.token_offsets.size - 1):
        for k in range(arena.token_offsets[token] + 1, arena.token_offsets[token + 1]):
            arena.neighbours[np.int64(data[k - 1]) << 8 | np.int64(data[k])] = 1
    arena.near_bytes = np.zeros(256 * (arena.longest_token + 2), np.uint8)


@jit(types.void(arena_type), apart=True)
def _index_gaps(arena):
    """Fill ``gap_*``: the nodes of the token trie that blanks lead to, by the other bytes below them."""
    count = 0
    node = np.int64(1)
    past = arena.trie_byte.size
    blank = np.zeros(arena.longest_token + 2, np.int64)  # the node at each depth, of blanks only
    while node < past:
        depth = np.int64(arena.trie_depth[node])
        byte = np.int64(arena.trie_byte[node])
        if is_blank_byte(byte):
            blank[depth] = node
            node += 1
            continue
        if depth > 1:
            arena.gap_next = with_room(arena.gap_next, count + 1)
            arena.gap_node = with_room(arena.gap_node, count + 1)
            arena.gap_next[count] = arena.gap_first[byte]
            arena.gap_node[count] = blank[depth - 1]
            arena.gap_first[byte] = count
            count += 1
        node = np.int64(arena.trie_next[node])


@jit(types.void(_bytes, _int, _int, types.int64[:, ::1]))
def _follow_quoting(data, low, high, states):
    """``states[q, k]`` becomes the quoting before byte k of ``data[low:high]`` where it is q before it."""
    for quoting in (OUTSIDE, INSIDE, ESCAPED):
        states[quoting, 0] = quoting
        for k in range(low, high):
            states[quoting, k - low + 1] = quoting_after(states[quoting, k - low], np.int64(data[k]))


@jit(_int(types.int64[:, ::1], _int))
def _outside_bits(states, place):
    bits = np.int64(0)
    for quoting in range(3):
        bits |= (1 << quoting) if states[quoting, place] == OUTSIDE else 0
    return bits


@jit(types.void(arena_type), apart=True)
def _index_tails(arena):
    """Fill ``tail_*``, ``entry_*`` and ``most_commas``."""
    data = arena.token_data
    arena.tail_count = 1
    arena.most_commas = 1
    entries = 0
    tail = np.empty(arena.longest_token + 1, np.uint8)
    states = np.empty((3, arena.longest_token + 1), np.int64)
    for token in range(arena.token_offsets.size - 1):
        low = np.int64(arena.token_offsets[token])
        high = np.int64(arena.token_offsets[token + 1])
        commas = 0
        for comma in range(low, high):
            if data[comma] != _COMMA:
                continue
            count = _strip(data, comma + 1, high, tail)
            if commas == 0:
                _follow_quoting(data, low, high, states)
            commas += 1
            bits = _outside_bits(states, comma - low)
            if count == 0 or bits == 0 or not _begins_items(np.int64(tail[0])):
                continue
            node = _insert_tail(arena, tail, count)
            arena.entry_token = with_room(arena.entry_token, entries + 1)
            arena.entry_next = with_room(arena.entry_next, entries + 1)
            arena.entry_quoting = with_room(arena.entry_quoting, entries + 1)
            arena.entry_token[entries] = token
            arena.entry_next[entries] = arena.tail_entry[node]
            arena.entry_quoting[entries] = bits
            arena.tail_entry[node] = entries
            entries += 1
        arena.most_commas = max(arena.most_commas, commas)


@jit(types.void(arena_type), apart=True)
def _index_pairs(arena):
    """Fill ``pair_*``, a token once for each two items of it (after ``_index_tails``, which texts need)."""
    data = arena.token_data
    first = np.empty(arena.longest_token + 1, np.uint8)
    second = np.empty(arena.longest_token + 1, np.uint8)
    states = np.empty((3, arena.longest_token + 1), np.int64)
    for token in range(arena.token_offsets.size - 1):
        low = np.int64(arena.token_offsets[token])
        high = np.int64(arena.token_offsets[token + 1])
        for comma in range(low + 1, high):
            if data[comma] != _COMMA:
                continue
            count = _strip(data, comma + 1, high, second)
            if count == 0:
                break
            _follow_quoting(data, low, high, states)
            for begin in range(low, comma):
                bits = _outside_bits(states, comma - low) & _outside_bits(states, begin - low)
                if data[begin] != second[0] or bits == 0:
                    continue
                length = _strip(data, begin, comma, first)
                same = 0
                while same < min(length, count) and first[same] == second[same]:
                    same += 1
                if _has_an_item(first, length):
                    _append_pair(arena, np.int64(token), bits, _has_an_item(first, same), first, same)


@jit(types.void(arena_type), apart=True)
def index_tokens(arena):
    """Fill ``tail_*``, ``entry_*``, ``gap_*``, ``pair_*``, ``trie_child`` and ``neighbours``."""
    _index_trie(arena)
    _index_gaps(arena)
    _index_tails(arena)
    _index_pairs(arena)
