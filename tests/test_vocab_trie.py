"""The token trie against the definition: a dictionary of prefixes, walked by recursion."""

from __future__ import annotations

import numpy as np
import pytest
import vocabularies
from hypothesis import given
from hypothesis import strategies as st

from vllm_guided.vocab.trie import TokenTrie

Node = tuple[bytes, list[int]]


def naive_preorder(tokens: dict[int, bytes]) -> list[Node]:
    """Every prefix of every token once, in byte order (a prefix before what it begins), with its tokens."""
    prefixes = {data[:length] for data in tokens.values() for length in range(len(data) + 1)} | {b""}
    return [
        (prefix, sorted(i for i, data in tokens.items() if data == prefix)) for prefix in sorted(prefixes)
    ]


def read(trie: TokenTrie) -> list[Node]:
    """The nodes of a trie as (bytes that lead there, tokens that end there), in number order."""
    path = b""
    result = []
    for node in range(len(trie)):
        depth = int(trie.node_depth[node])
        if node:
            path = path[: depth - 1] + bytes([trie.node_byte[node]])
        assert len(path) == depth
        tokens = trie.node_tokens[trie.node_token_start[node] : trie.node_token_start[node + 1]]
        result.append((path, tokens.tolist()))
    return result


def check(tokens: dict[int, bytes]) -> None:
    trie = TokenTrie.build(list(tokens), list(tokens.values()))
    nodes = read(trie)
    assert nodes == naive_preorder(tokens)
    for node, (path, _) in enumerate(nodes):
        inside = [other for other, (longer, _) in enumerate(nodes) if longer.startswith(path)]
        assert inside == list(range(node, int(trie.node_next[node])))


TOKEN = st.binary(min_size=1, max_size=5) | st.text("ab", min_size=1, max_size=6).map(str.encode)


@given(st.lists(TOKEN, max_size=30))
def test_equals_the_naive_trie(tokens: list[bytes]) -> None:
    check(dict(enumerate(tokens)))


@given(st.dictionaries(st.integers(0, 1000), TOKEN, max_size=20))
def test_ids_with_gaps(tokens: dict[int, bytes]) -> None:
    check(dict(sorted(tokens.items())))


@pytest.mark.parametrize(
    "tokens",
    [
        [],
        [b"a"],
        [b"a", b"a", b"a"],
        [b"abc", b"ab", b"a", b"ab"],
        [b"\x00", b"\x00\x00", b"\x00\x00", b"\x01\x00"],
        [b"\xff" * 40, b"\xff" * 39 + b"\xfe"],
        [bytes([byte]) for byte in range(256)],
        [b"x" * length for length in range(300, 0, -1)],
    ],
)
def test_shapes(tokens: list[bytes]) -> None:
    check(dict(enumerate(tokens)))


def test_arrays_are_what_compiled_functions_expect() -> None:
    trie = vocabularies.tiny()[1].trie
    for name, dtype in [
        ("node_byte", np.uint8),
        ("node_depth", np.int32),
        ("node_next", np.int32),
        ("node_token_start", np.int32),
        ("node_tokens", np.int32),
    ]:
        array = getattr(trie, name)
        assert array.dtype == dtype and array.flags.c_contiguous and array.flags.writeable, name
    assert len(trie.node_token_start) == len(trie) + 1


def test_every_token_of_a_real_vocabulary_is_reached() -> None:
    vocabulary = vocabularies.sentencepiece()[1]
    found: dict[int, bytes] = {}
    for path, tokens in read(vocabulary.trie):
        found.update(dict.fromkeys(tokens, path))
    assert found == {i: vocabulary.token_bytes(i) for i in range(vocabulary.size) if vocabulary.is_text[i]}
