"""A vocabulary's slices (``runtime/slices.py``) against their definitions, read token by token."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import vllm_guided as vg
from vllm_guided.runtime import slices
from vllm_guided.runtime.arena import arena_at
from vllm_guided.runtime.binding import Runtime

PIECES = [b"a", b"b", b"\x00", b"?", b"@", b"\x7f", "é".encode(), "€".encode(), "😀".encode()]
SEPARATORS = ["\u2028".encode(), "\u2029".encode()]
#: ECMAScript's white space beyond ASCII; Python has U+0085 instead of U+FEFF.
SPACES = [one.encode() for one in map(chr, range(128, 0xD800)) if one.isspace() and one != "\x85"]
SPACES.append("\ufeff".encode())
#: Bytes that make no UTF-8, or only a part of it.
ODD = [b"\x80", b"\xc3", b"\xe0\x80", b"\xed\xa0", b"\xf0\x9f", b"\xf4\x90", b"\xff"]
TOKENS = st.one_of(
    st.lists(
        st.sampled_from([*PIECES, *PIECES, *SPACES, "\u2027".encode(), *ODD]), min_size=1, max_size=6
    ).map(b"".join),
    st.binary(min_size=1, max_size=4),
    st.sampled_from(
        [b"a" * 31, b"b" * 32, b"a" * 33, "é".encode() * 32, b"a" * 254, b"a" * 255, b"ab" * 150]
    ),
)
VOCABULARIES = st.lists(TOKENS, min_size=1, max_size=40)


@cache
def utf8_prefix(data: bytes) -> tuple[bool, bool]:
    """Whether data begins some UTF-8 text, and whether it is one."""
    # Whatever is missing of a character, one of these completes it.
    for missing in range(4):
        for rest in itertools.product((0x80, 0x90, 0xBF), repeat=missing):
            try:
                (data + bytes(rest)).decode()
            except UnicodeDecodeError:
                continue
            return True, missing == 0
    return False, False


def check_utf8(data: bytes) -> None:
    state = 0
    for length, byte in enumerate(data, start=1):
        state = slices.utf8_step(state, byte)
        assert (state >= 0, state == 0) == utf8_prefix(data[:length]), data[:length]
        if state < 0:
            return


def test_utf8_of_two_bytes() -> None:
    for first in range(256):
        for second in range(256):
            check_utf8(bytes([first, second]))


@given(st.lists(st.one_of(st.characters().map(str.encode), st.sampled_from(ODD)), max_size=4).map(b"".join))
def test_utf8(data: bytes) -> None:
    check_utf8(data)


@given(st.sampled_from([0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4]), st.binary(min_size=1, max_size=4))
def test_utf8_after_a_first_byte(first: int, rest: bytes) -> None:
    check_utf8(bytes([first]) + bytes(0x80 | byte & 0x3F for byte in rest))


#: What characters of a kind leave out.
LEFT_OUT = {slices.EVERY: [], slices.BUT_SEPARATORS: SEPARATORS, slices.BUT_SPACES: SPACES}


@pytest.mark.parametrize("kind", LEFT_OUT)
@given(st.lists(st.one_of(st.characters().map(str.encode), st.sampled_from([*SPACES, *ODD])), max_size=4))
def test_characters_of_a_kind(kind: int, pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    state = plain = 0
    for length, byte in enumerate(data, start=1):
        state = int(slices.class_step(kind, state, byte))
        plain = int(slices.utf8_step(plain, byte))
        if plain < 0:
            assert state == -1
            return
        if any(data[:length].endswith(one) for one in LEFT_OUT[kind]):
            assert state == -2
            return
        assert (state == 0) == (plain == 0)


def test_every_character() -> None:
    for code in range(128, 0x3100):
        data = chr(code).encode() if not 0xD800 <= code < 0xE000 else b""
        for kind, left_out in LEFT_OUT.items():
            state = 0
            for byte in data:
                state = int(slices.class_step(kind, state, byte))
            assert state == (-2 if data in left_out else 0)


def build(tokens: list[bytes]) -> vg.Vocabulary:
    return vg.Vocabulary([*tokens, None], stop_token_ids=[len(tokens)])


def ids_of(rows: NDArray[np.int32], row: int, words: int) -> set[int]:
    part = rows[row * words : (row + 1) * words]
    return set(np.flatnonzero(np.unpackbits(part.view(np.uint8), bitorder="little")).tolist())


def named(tokens: list[bytes], row: int) -> set[int]:
    """The tokens of a row of ``slice_rows``, by its definition."""

    def belongs(data: bytes) -> bool:
        if row < 128:
            return row in data
        if row == slices.NOT_ASCII:
            return any(byte >= 128 for byte in data)
        if row == slices.UTF8:
            return utf8_prefix(data)[0]
        if row == slices.ALL:
            return True
        if row == slices.SEPARATED:
            return any(separator in data for separator in SEPARATORS)
        if row == slices.SPACED:
            return any(space in data for space in SPACES)
        characters = sum(byte & 0xC0 != 0x80 for byte in data)
        # A token that is a part of one character counts as one.
        return max(characters, 1) <= row - slices.UP_TO

    return {i for i, data in enumerate(tokens) if belongs(data)}


@given(VOCABULARIES)
def test_slices(tokens: list[bytes]) -> None:
    vocabulary = build(tokens)
    trie, words = vocabulary.trie, (vocabulary.size + 31) // 32
    below, height, weight, rows, marks = slices.slices_of(
        trie.node_byte, trie.node_depth, trie.node_next, trie.node_token_start, trie.node_tokens,
        vocabulary.token_offsets, vocabulary.token_data, words,
    )  # fmt: skip
    path = b""
    # Of the root nothing is noted: no edge leads there.
    for node in range(1, len(trie)):
        depth = int(trie.node_depth[node])
        path = path[: depth - 1] + bytes([trie.node_byte[node]])
        rests = [data[depth:] for data in tokens if data.startswith(path)]
        assert height[node] == min(max(map(len, rests)), 255), path
        expected = 0
        for byte in set(b"".join(rests)):
            expected |= 1 << (byte if byte < 128 else 0)
        for rest in rests:
            for ends, bit in ((SEPARATORS, slices.SEPARATOR), (SPACES, slices.SPACE)):
                if any(one in path[-len(one) + 1 :] + rest for one in ends):
                    expected |= int(bit)
        mark = slices.ENDS_SEPARATOR if path.endswith(tuple(SEPARATORS)) else 0
        assert marks[node] == mark | (slices.ENDS_SPACE if path.endswith(tuple(SPACES)) else 0), path
        assert int(below[2 * node]) | int(below[2 * node + 1]) << 64 == expected, path
    assert weight.tolist() == [sum(data[0] == byte for data in tokens) for byte in range(256)]
    assert rows.size == slices.ROWS * words
    for row in range(slices.ROWS):
        assert ids_of(rows, row, words) == named(tokens, row), row


@numba.njit  # type: ignore[untyped-decorator]
def _pure(address: Any, low: Any, high: Any, characters: Any) -> Any:
    arena = arena_at(address)
    number = slices.pure_row(arena, low, high, characters)
    return number, arena.rows[number * arena.words : (number + 1) * arena.words].copy()


CLASSES = st.one_of(
    st.sets(st.sampled_from([*b"".join(PIECES[:6]), *b"<>cd"])),
    st.sets(st.integers(0, 127)),
    st.sets(st.integers(0, 127), max_size=6).map(lambda few: set(range(128)) - few),
)


KINDS = st.sampled_from([slices.NONE, *LEFT_OUT])


@settings(max_examples=60)
@given(VOCABULARIES, st.lists(st.tuples(CLASSES, KINDS), min_size=1, max_size=4))
def test_pure_rows(tokens: list[bytes], classes: list[tuple[set[int], int]]) -> None:
    runtime = Runtime(build(tokens))
    numbers: dict[tuple[frozenset[int], int], int] = {}
    for members, characters in classes * 2:
        mask = sum(1 << byte for byte in members)
        number, row = _pure(
            runtime.address, np.uint64(mask & (1 << 64) - 1), np.uint64(mask >> 64), characters
        )
        expected = {
            i
            for i, data in enumerate(tokens)
            if all(byte in members or (characters and byte >= 128) for byte in data)
            and (not characters or utf8_prefix(data)[0])
            and not any(one in data for one in LEFT_OUT.get(characters, []))
        }
        assert ids_of(row, 0, len(row)) == expected, (members, characters)
        assert numbers.setdefault((frozenset(members), characters), number) == number
    assert len(set(numbers.values())) == len(numbers)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64])
def test_sizes(count: int) -> None:
    """All bytes of the class, at word boundaries; and a class of nothing."""
    runtime = Runtime(build([b"a"] * count))
    everything, nothing = (1 << 64) - 1, 0
    for low, expected in ((everything, count), (nothing, 0)):
        for characters in (slices.NONE, *LEFT_OUT):
            _, row = _pure(runtime.address, np.uint64(low), np.uint64(low), characters)
            assert ids_of(row, 0, len(row)) == set(range(expected))
