"""What a vocabulary says of its ids, by hand-made tables."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys

import numpy as np
import pytest
import vocabularies
from hypothesis import given
from hypothesis import strategies as st

from vllm_guided.vocab.vocabulary import Vocabulary

TOKENS = [b"a", b"b", b"ab", None, b"", b"a", b"</s>", b"<tool>", b"long one"]


def make(**changes: object) -> Vocabulary:
    arguments: dict[str, object] = {
        "token_bytes": TOKENS,
        "stop_token_ids": [6],
        "special_tokens": {"<tool>": 7},
        **changes,
    }
    return Vocabulary(arguments.pop("token_bytes"), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("token_id", "expected"),
    [
        (0, b"a"),
        (2, b"ab"),
        (3, None),  # given as None
        (4, None),  # no bytes
        (5, b"a"),  # as token 0: both stay
        (6, None),  # stops
        (7, None),  # special
        (8, b"long one"),
        (9, None),  # padding
        (11, None),
        (12, None),  # outside
        (-1, None),
    ],
)
def test_bytes_by_id(token_id: int, expected: bytes | None) -> None:
    vocabulary = make(vocab_size=12)
    assert vocabulary.token_bytes(token_id) == expected
    if 0 <= token_id < vocabulary.size:
        assert bool(vocabulary.is_text[token_id]) == (expected is not None)


def test_attributes() -> None:
    vocabulary = make(vocab_size=12, stop_token_ids=[6, 1, 6], added_tokens={"long one": 8})
    assert (vocabulary.size, len(vocabulary), vocabulary.token_count) == (12, 12, 9)
    assert vocabulary.stop_token_ids == (1, 6)
    assert vocabulary.special_tokens == {"<tool>": 7}
    assert vocabulary.named_tokens == {"<tool>": 7, "long one": 8}
    assert vocabulary.max_token_length == 8
    assert vocabulary.token_offsets.dtype == np.int64 and len(vocabulary.token_offsets) == 13
    assert vocabulary.token_data.tobytes() == b"aabalong one"
    assert vocabulary.token_data.dtype == np.uint8 and vocabulary.is_text.dtype == np.bool_
    for array in (vocabulary.token_offsets, vocabulary.token_data, vocabulary.is_text):
        assert array.flags.c_contiguous and array.flags.writeable
    assert sorted(vocabulary.trie.node_tokens.tolist()) == [0, 2, 5, 8]
    assert repr(vocabulary).startswith("Vocabulary(size=12, text=4, special=1, stop=[1, 6], hash=")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stop_token_ids": []}, "at least one stop token"),
        ({"stop_token_ids": [9]}, "stop token 9 is outside the vocabulary of 9"),
        ({"stop_token_ids": [-1]}, "stop token -1"),
        ({"special_tokens": {"<x>": 9}}, "'<x>' is 9, outside"),
        ({"added_tokens": {"<x>": 9}}, "'<x>' is 9, outside"),
        ({"vocab_size": 0}, "a vocabulary of 0 tokens"),
        ({"vocab_size": 1 << 30}, "tokens: between 1 and"),
        ({"token_bytes": []}, "a vocabulary of 0 tokens"),
        ({"vocab_size": 6}, "stop token 6 is outside the vocabulary of 6"),
    ],
)
def test_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_a_vocabulary_without_text_is_possible() -> None:
    vocabulary = Vocabulary([None], stop_token_ids=[0])
    assert len(vocabulary.trie) == 1 and vocabulary.max_token_length == 0


def test_fewer_logits_than_tokens_drops_the_rest_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        vocabulary = make(vocab_size=8)
    assert vocabulary.size == vocabulary.token_count == 8
    assert vocabulary.token_bytes(8) is None
    assert "1 text tokens at and above id 8" in caplog.text


def test_dropping_only_what_is_not_text_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    Vocabulary([b"a", b"b", None], stop_token_ids=[1], vocab_size=2)
    assert not caplog.records


@pytest.mark.parametrize(
    "changes",
    [
        {"token_bytes": [b"x", *TOKENS[1:]]},
        {"token_bytes": [b"ab", b"b", b"a", *TOKENS[3:]]},
        {"stop_token_ids": [6, 0]},
        {"special_tokens": {"<toll>": 7}},
        {"special_tokens": {}},
        {"added_tokens": {"long one": 8}},
        {"vocab_size": 10},
    ],
)
def test_the_hash_tells_vocabularies_apart(changes: dict[str, object]) -> None:
    assert make(**changes).content_hash != make().content_hash


def test_equal_vocabularies_have_one_hash() -> None:
    assert make(special_tokens={"<x>": 3, "<tool>": 7}).content_hash == (
        make(special_tokens={"<tool>": 7, "<x>": 3}).content_hash
    )


def test_pickles() -> None:
    vocabulary = make()
    copy = pickle.loads(pickle.dumps(vocabulary))
    assert copy.content_hash == vocabulary.content_hash
    assert copy.trie.node_next.tolist() == vocabulary.trie.node_next.tolist()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"a", [0]),
        (b"aab", [0, 2]),
        (b"ba", [1, 0]),
        (b"long onea", [8, 0]),
        (b"abab", [2, 2]),
    ],
)
def test_greedy(data: bytes, expected: list[int]) -> None:
    assert make().encode_greedy(data) == expected


@pytest.mark.parametrize(("data", "place"), [(b"c", 0), (b"abx", 2), (b"long on", 0), (b"a</s>", 1)])
def test_greedy_refuses_what_no_token_spells(data: bytes, place: int) -> None:
    with pytest.raises(ValueError, match=f"at byte {place}"):
        make().encode_greedy(data)


@given(
    st.lists(st.sampled_from([*vocabularies.TINY_WORDS, "a", "\n"])).map("".join).map(str.encode)
    | st.binary()
)
def test_greedy_joins_to_its_input_and_takes_the_longest(data: bytes) -> None:
    vocabulary = vocabularies.tiny()[1]
    pieces = [vocabulary.token_bytes(i) or b"" for i in vocabulary.encode_greedy(data)]
    assert b"".join(pieces) == data
    texts = {vocabulary.token_bytes(i) for i in range(vocabulary.size)} - {None}
    position = 0
    for piece in pieces:
        assert not any(data.startswith(text, position) and len(text) > len(piece) for text in texts if text)
        position += len(piece)


def test_importing_needs_no_heavy_library() -> None:
    code = (
        "import sys, vllm_guided.vocab.vocabulary, vllm_guided.vocab.tokenizers, vllm_guided.cachedir\n"
        "heavy = {'numba', 'torch', 'transformers', 'tokenizers', 'tiktoken', 'sentencepiece'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
