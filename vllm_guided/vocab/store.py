"""Token tries kept on disk, by the content of the vocabulary they belong to.

In: the text tokens of a vocabulary. Out: their :class:`TokenTrie`, read from the cache directory or
built and written there. The key is a hash of the tokens, never a name or a path, so that a changed
tokenizer is another entry. Small vocabularies are quicker to build than to look up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from vllm_guided.cachedir import read_entry, write_entry
from vllm_guided.vocab.trie import TokenTrie

KIND = "trie-v1"
"""Change the number when the layout of the arrays or of the file changes."""

MIN_TOKENS = 8192
"""Vocabularies below this are not stored: building takes a few milliseconds."""

KEEP = 16
"""Files kept, of about 5 MB each for 128,000 tokens."""


def load_or_build(
    token_ids: Sequence[int],
    token_bytes: Sequence[bytes],
    token_offsets: NDArray[np.int64],
    token_data: NDArray[np.uint8],
) -> TokenTrie:
    """The trie of ``token_bytes[i]`` for ``token_ids[i]``, from the disk where it is there.

    ``token_offsets`` and ``token_data`` are the same tokens by id, as the vocabulary keeps them; they
    are what the key is made from.
    """
    if len(token_ids) < MIN_TOKENS:
        return TokenTrie.build(token_ids, token_bytes)
    key = _key(token_offsets, token_data)
    content = read_entry(KIND, key)
    if content is not None:
        trie = _unpack(content, len(token_ids))
        if trie is not None:
            return trie
    trie = TokenTrie.build(token_ids, token_bytes)
    write_entry(KIND, key, _pack(trie), keep=KEEP)
    return trie


def _key(token_offsets: NDArray[np.int64], token_data: NDArray[np.uint8]) -> str:
    digest = xxhash.xxh3_128(token_offsets.tobytes())
    digest.update(token_data.tobytes())
    return digest.hexdigest()


def _pack(trie: TokenTrie) -> list[bytes]:
    """The node count as 8 bytes, then the arrays in the order of their element size, largest first."""
    arrays = (trie.node_depth, trie.node_next, trie.node_token_start, trie.node_tokens, trie.node_byte)
    return [np.int64(len(trie)).tobytes(), *(array.tobytes() for array in arrays)]


def _unpack(content: bytearray, token_count: int) -> TokenTrie | None:
    """The trie in ``content``; None if its size is not that of a trie of so many tokens."""
    if len(content) < 8:
        return None
    count = int(np.frombuffer(content, np.int64, 1)[0])
    if count < 1 or len(content) != 8 + 4 * (3 * count + 1 + token_count) + count:
        return None
    words = np.frombuffer(content, np.int32, 3 * count + 1 + token_count, offset=8)
    depth, following, start, tokens = np.split(words, [count, 2 * count, 3 * count + 1])
    return TokenTrie(
        node_byte=np.frombuffer(content, np.uint8, count, offset=8 + words.nbytes),
        node_depth=depth,
        node_next=following,
        node_token_start=start,
        node_tokens=tokens,
    )
