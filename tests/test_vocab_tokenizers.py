"""Token bytes of tokenizers built here, one of each kind, against their own decoders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_guided.errors import UnsupportedConstraint
from vllm_guided.vocab.pieces import byte_fallback, byte_level, byte_level_alphabet
from vllm_guided.vocab.tokenizers import extract
from vllm_guided.vocab.vocabulary import Vocabulary

tokenizers = pytest.importorskip("tokenizers")
decoders, models, pre = tokenizers.decoders, tokenizers.models, tokenizers.pre_tokenizers
added = tokenizers.AddedToken

LLAMA2 = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
TEXT = "Grüße,  日本\t😀👨‍👩‍👧 e\u0301 \x00\x1f\r\n  <0x0A>  "


def backend(decoder: Any, pieces: list[str], pre_tokenizer: Any = None) -> Any:
    """A tokenizer that knows these pieces, numbered in order, and cannot merge."""
    tokenizer = tokenizers.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    if decoder is not None:
        tokenizer.decoder = decoder
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


def sequence(*parts: Any) -> Any:
    return decoders.Sequence(list(parts))


@pytest.mark.parametrize(
    ("decoder", "piece", "expected"),
    [
        (decoders.ByteLevel(), "a", b"a"),
        (decoders.ByteLevel(), "Ġa", b" a"),
        (decoders.ByteLevel(), "Ċ", b"\n"),
        (decoders.ByteLevel(), "ðŁĺĢ", "😀".encode()),
        (decoders.ByteLevel(), "ðŁ", b"\xf0\x9f"),
        (decoders.ByteLevel(), "é", b"\xe9"),
        (decoders.ByteLevel(), "日", "日".encode()),  # no byte's character: as it is
        (decoders.ByteLevel(), "a b", b"a b"),
        (decoders.ByteLevel(), "é b", "é b".encode()),
        (sequence(decoders.ByteLevel()), "Ġé", b" \xe9"),
        (sequence(sequence(decoders.ByteLevel(), decoders.Fuse())), "Ġé", b" \xe9"),
        (sequence(*LLAMA2), "a", b"a"),
        (sequence(*LLAMA2), "▁a", b" a"),
        (sequence(*LLAMA2), "▁▁▁", b"   "),
        (sequence(*LLAMA2), "a▁", b"a "),
        (sequence(*LLAMA2), "<0x0A>", b"\n"),
        (sequence(*LLAMA2), "<0xFF>", b"\xff"),
        (sequence(*LLAMA2), "<0x0G>", b"<0x0G>"),
        (sequence(*LLAMA2), "<0x0A>x", b"<0x0A>x"),
        (sequence(*LLAMA2[:3]), "▁日", " 日".encode()),
        (decoders.Metaspace(), "▁a", b" a"),
        (decoders.Metaspace(), "<0x0A>", b"<0x0A>"),  # this decoder does not fall back to bytes
        (decoders.Metaspace(replacement="_"), "_a▁", " a▁".encode()),
        (sequence(decoders.ByteFallback(), decoders.Metaspace()), "<0x41>", b"A"),
        (decoders.Fuse(), "a▁", "a▁".encode()),
        (sequence(decoders.Strip("_", 1, 1)), "__a__", b"_a_"),
        (sequence(decoders.Strip("_", 2, 0)), "_", b""),
        (sequence(decoders.Replace("ab", "c")), "abab", b"cc"),
    ],
)
def test_one_piece(decoder: Any, piece: str, expected: bytes) -> None:
    tokenizer = backend(decoder, ["x", piece])
    assert extract(tokenizer).token_bytes == [b"x", expected]
    # The library's own word on it, inside a text: invalid UTF-8 it shows as replacement characters.
    shown = tokenizer.decode([0, 1, 0])
    assert shown == "x" + expected.decode("utf-8", "replace") + "x"


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (decoders.WordPiece(), "WordPiece"),
        (decoders.BPEDecoder(), "BPEDecoder"),
        (decoders.CTC(), "CTC"),
        (sequence(decoders.Fuse(), decoders.Strip(" ", 0, 1)), "Strip"),
        (sequence(decoders.Fuse(), decoders.Replace("ab", "c")), "Replace"),
        (sequence(decoders.Fuse(), decoders.ByteFallback()), "ByteFallback"),
        (sequence(decoders.Fuse(), decoders.ByteLevel()), "ByteLevel"),
        (sequence(decoders.Replace(tokenizers.Regex("a+"), "b"), decoders.Fuse()), "Replace"),
        (None, "no decoder"),
    ],
)
def test_decoders_that_look_at_neighbours_are_refused_by_name(decoder: Any, named: str) -> None:
    with pytest.raises(UnsupportedConstraint, match=named):
        Vocabulary.from_tokenizer(backend(decoder, ["x"]), stop_token_ids=[0])


@pytest.mark.parametrize(
    ("pre_tokenizer", "piece", "expected"),
    [
        (pre.ByteLevel(), "Ġa", b" a"),
        (pre.Sequence([pre.Digits(), pre.ByteLevel(use_regex=False)]), "é", b"\xe9"),
        (pre.Metaspace(), "▁é", " é".encode()),
    ],
)
def test_without_a_decoder_the_pre_tokenizer_says(pre_tokenizer: Any, piece: str, expected: bytes) -> None:
    assert extract(backend(None, [piece], pre_tokenizer)).token_bytes == [expected]


def byte_level_bpe() -> Any:
    pieces = [chr(c) for c, byte in enumerate(byte_level_alphabet().tolist()) if byte >= 0]
    tokenizer = backend(decoders.ByteLevel(), pieces, pre.ByteLevel(add_prefix_space=False))
    tokenizer.add_special_tokens([added("<|end|>", special=True)])
    tokenizer.add_tokens([added("<tool>", special=False), added("two words", special=False)])
    return tokenizer


def metaspace_byte_fallback() -> Any:
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "G", "日", "▁▁"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    model = models.BPE(vocabulary, [("▁", "▁")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    tokenizer.decoder = sequence(*LLAMA2)
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.add_tokens(["<tool>"])
    return tokenizer


def unigram(byte_fallback_pieces: bool) -> Any:
    pieces = [("<unk>", 0.0), ("▁", -2.0), ("e", -3.0), ("日本", -4.0), ("▁日", -5.0), ("</s>", -9.0)]
    if byte_fallback_pieces:
        pieces += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=byte_fallback_pieces))
    tokenizer.pre_tokenizer = pre.Metaspace(prepend_scheme="never")
    last = decoders.Metaspace(prepend_scheme="never")
    tokenizer.decoder = sequence(decoders.ByteFallback(), last) if byte_fallback_pieces else last
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "text"),
    [
        (byte_level_bpe(), TEXT),
        (byte_level_bpe(), "a<tool>b two words"),
        (metaspace_byte_fallback(), TEXT),
        (metaspace_byte_fallback(), "  G<tool> 日"),
        (unigram(True), TEXT.replace("<0x0A>", "")),
        (unigram(False), "e 日本 日e"),
    ],
)
def test_the_tokens_of_a_text_join_to_the_text(tokenizer: Any, text: str) -> None:
    table = extract(tokenizer)
    assert b"".join(table.token_bytes[i] or b"<?>" for i in tokenizer.encode(text).ids) == text.encode()


def test_added_tokens_are_text_unless_they_are_special() -> None:
    tokenizer = byte_level_bpe()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, stop_token_ids=[256])
    assert vocabulary.token_bytes(tokenizer.token_to_id("<tool>")) == b"<tool>"
    assert vocabulary.token_bytes(tokenizer.token_to_id("two words")) == b"two words"
    assert vocabulary.token_bytes(256) is None
    assert vocabulary.special_tokens == {"<|end|>": 256}
    assert vocabulary.named_tokens == {"<|end|>": 256, "<tool>": 257, "two words": 258}


def test_no_stop_token_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="pass stop_token_ids"):
        Vocabulary.from_tokenizer(byte_level_bpe())


@pytest.mark.parametrize(
    ("vocab_size", "size", "known", "tool"),
    [(None, 259, 259, b"<tool>"), (1000, 1000, 259, b"<tool>"), (257, 257, 257, None)],
)
def test_padded_and_cut_sizes(vocab_size: int | None, size: int, known: int, tool: bytes | None) -> None:
    vocabulary = Vocabulary.from_tokenizer(byte_level_bpe(), vocab_size, [256])
    assert (vocabulary.size, vocabulary.token_count) == (size, known)
    assert vocabulary.token_bytes(257) == tool
    assert vocabulary.named_tokens.get("<tool>") == (257 if tool else None)


def test_transformers_fast_wrapper() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(), eos_token="<|end|>", additional_special_tokens=["<tool>"]
    )
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary.stop_token_ids == (256,)
    assert vocabulary.special_tokens == {"<|end|>": 256, "<tool>": 257}
    assert vocabulary.token_bytes(258) == b"two words"


# -- wrappers and remote code, by shape -------------------------------------------------------------


def encoding(special: dict[str, int] | None = None) -> Any:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256}
    return tiktoken.Encoding("test", pat_str=r".|\n", mergeable_ranks=ranks, special_tokens=special or {})


class Hidden:
    """A tiktoken encoding that shows only its public methods."""

    def __init__(self, inner: Any) -> None:
        self.n_vocab = inner.n_vocab
        self.special_tokens_set = inner.special_tokens_set
        self.encode_single_token = inner.encode_single_token
        self.decode_single_token_bytes = inner.decode_single_token_bytes


@pytest.mark.parametrize("wrap", [lambda inner: inner, Hidden])
def test_tiktoken(wrap: Any) -> None:
    table = extract(wrap(encoding({"<|endoftext|>": 260})))
    assert table.token_bytes == [*(bytes([byte]) for byte in range(256)), b"ab", None, None, None, None]
    assert table.special_tokens == {"<|endoftext|>": 260}
    assert table.stop_token_ids == ((260,) if wrap is not Hidden else ())


@pytest.mark.parametrize("name", ["tokenizer", "model", "_tokenizer"])
def test_remote_code_around_tiktoken(name: str) -> None:
    tokens = {
        257: added("<|user|>", special=True),
        258: added("<think>", special=False),
        300: added("<|x|>", special=False),
    }
    tokenizer = SimpleNamespace(added_tokens_decoder=tokens, all_special_ids=[300], eos_token_id=257)
    setattr(tokenizer, name, encoding())
    table = extract(tokenizer)
    assert len(table.token_bytes) == 301
    assert table.token_bytes[256:260] == [b"ab", None, b"<think>", None]
    assert table.special_tokens == {"<|user|>": 257, "<|x|>": 300}
    assert table.added_tokens == {"<think>": 258}
    assert table.stop_token_ids == (257,)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"eos_token_id": 3}, (3,)),
        ({"eos_token_id": [5, 3]}, (3, 5)),
        ({"eos_token_id": None, "stop_tokens": [7]}, (7,)),
        ({"eos_token_id": 3, "generation_config": SimpleNamespace(eos_token_id=[4, 3])}, (3, 4)),
        ({"eos_token_id": -1, "stop_tokens": ["</s>"]}, (260,)),  # the encoding's own
    ],
)
def test_stop_tokens(attributes: dict[str, Any], expected: tuple[int, ...]) -> None:
    tokenizer = SimpleNamespace(tokenizer=encoding({"<|endoftext|>": 260}), **attributes)
    assert extract(tokenizer).stop_token_ids == expected


class ByteDecoder:
    """A Python tokenizer of the GPT-2 kind, with an odd idea of its last piece if ``word_ends``."""

    def __init__(self, word_ends: bool = False) -> None:
        self.byte_decoder = {
            chr(c): byte for c, byte in enumerate(byte_level_alphabet().tolist()) if byte >= 0
        }
        self.all_special_ids = [2]
        self.added_tokens_decoder = {2: added("<s>", special=True), 3: added("é", special=False)}
        self.word_ends = word_ends

    def get_vocab(self) -> dict[str, int]:
        return {"Ġa": 0, "x</w>": 1, "<s>": 2, "é": 3}

    def convert_tokens_to_string(self, pieces: list[str]) -> str:
        text = b"".join(byte_level(pieces)).decode("utf-8", "replace")
        return text.replace("</w>", " ") if self.word_ends else text


def test_slow_byte_level() -> None:
    table = extract(ByteDecoder())
    assert table.token_bytes == [b" a", b"x</w>", None, "é".encode()]
    assert table.special_tokens == {"<s>": 2}
    with pytest.raises(UnsupportedConstraint, match="'x</w>'"):
        extract(ByteDecoder(word_ends=True))


@pytest.mark.parametrize("unknown", [object(), SimpleNamespace(get_vocab=lambda: {"a": 0}), None, "name"])
def test_unknown_kinds_are_refused(unknown: Any) -> None:
    with pytest.raises(UnsupportedConstraint, match="unknown here"):
        extract(unknown)


def test_nonsense_ids_are_refused() -> None:
    tokenizer = SimpleNamespace(tokenizer=encoding(), added_tokens_decoder={1 << 40: added("x")})
    with pytest.raises(ValueError, match="has a token with id"):
        extract(tokenizer)


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("<0x00>", b"\0"),
        ("<0x+A>", b"\n"),
        ("<0xfF>", b"\xff"),
        ("<0x0>", None),
        ("<0x  >", None),
        ("<0x1 >", None),
        ("", None),
        ("<0xA>", None),
    ],
)
def test_byte_pieces(piece: str, expected: bytes | None) -> None:
    assert byte_fallback(piece) == expected


def test_byte_level_pieces() -> None:
    assert byte_level([]) == []
    assert byte_level(["", "Ġ", "日Ġ", "", "😀", "a"]) == [
        b"",
        b" ",
        "日Ġ".encode(),
        b"",
        "😀".encode(),
        b"a",
    ]
    alphabet = byte_level_alphabet()
    assert sorted(alphabet[alphabet >= 0].tolist()) == list(range(256))
