"""Tokens that may hold the end of one distinct item and the beginning of the next: an index of a vocabulary.

Filled when the first bag with distinct items comes to an arena. An item is a JSON value or name: its double
quotes are in pairs, it does not begin with a comma, and between items there is a comma and blanks. So an item
that begins inside of a token begins behind a comma. The texts behind commas (*tails*, without what does not
count) are kept as a trie: ``tail_byte``, ``tail_depth``, ``tail_parent``, ``tail_child`` (the first) and
``tail_sibling`` by node; ``tail_entry`` is the first of the entries whose tail ends there, ``entry_next`` the
next of them, ``entry_token`` its token. ``pair_tokens`` may hold two equal items, or an item and a beginning
of it, whatever was read before.

``entry_quoting`` and ``pair_quoting`` have bit q set if the comma is one between items where the quoting
before the token is q (``texts.OUTSIDE``, ``INSIDE``, ``ESCAPED``).
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit
from vllm_guided.runtime.arena import arena_type, with_room
from vllm_guided.runtime.texts import ESCAPED, INSIDE, OUTSIDE, is_blank_byte, quoting_after, tail_below

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


@jit(_bool(_bytes, _int, _int))
def _begins_with_an_item(data, low, high):
    """Whether some beginning of ``data[low:high]`` may be an item that the end of ``data`` begins again."""
    if data[low] == _COMMA or is_blank_byte(np.int64(data[low])):
        return False
    quoting = np.int64(OUTSIDE)
    for k in range(low, high):
        quoting = quoting_after(quoting, np.int64(data[k]))
        if quoting == OUTSIDE:
            return True
    return False


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
def index_tokens(arena):
    """Fill ``tail_*``, ``entry_*``, ``pair_*``, ``trie_child`` and ``neighbours`` for the vocabulary."""
    _index_trie(arena)
    data = arena.token_data
    arena.tail_count = 1
    arena.most_commas = 1
    entries = 0
    pairs = 0
    tail = np.empty(arena.longest_token + 1, np.uint8)
    states = np.empty((3, arena.longest_token + 1), np.int64)
    for token in range(arena.token_offsets.size - 1):
        low = np.int64(arena.token_offsets[token])
        high = np.int64(arena.token_offsets[token + 1])
        commas = 0
        pair_bits = 0
        for comma in range(low, high):
            if data[comma] != _COMMA:
                continue
            count = _strip(data, comma + 1, high, tail)
            if count == 0:
                break
            if commas == 0:
                for quoting in (OUTSIDE, INSIDE, ESCAPED):
                    states[quoting, 0] = quoting
                    for k in range(low, high):
                        states[quoting, k - low + 1] = quoting_after(
                            states[quoting, k - low], np.int64(data[k])
                        )
            commas += 1
            bits = 0
            for quoting in range(3):
                bits |= (1 << quoting) if states[quoting, comma - low] == OUTSIDE else 0
            if bits == 0:
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
            for begin in range(low, comma):
                if data[begin] == tail[0] and _begins_with_an_item(data, begin, comma):
                    for quoting in range(3):
                        if bits >> quoting & 1 and states[quoting, begin - low] == OUTSIDE:
                            pair_bits |= 1 << quoting
        arena.most_commas = max(arena.most_commas, commas)
        if pair_bits:
            arena.pair_tokens = with_room(arena.pair_tokens, pairs + 1)
            arena.pair_quoting = with_room(arena.pair_quoting, pairs + 1)
            arena.pair_tokens[pairs] = token
            arena.pair_quoting[pairs] = pair_bits
            pairs += 1
    arena.pair_count = pairs
