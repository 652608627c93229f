"""Real vocabularies: the bytes of the tokens of a text, joined, are the text."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vocabularies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_vocab_tokenizers import byte_level_bpe

from vllm_guided.vocab.vocabulary import Vocabulary

CORPUS = {
    "ascii": "The quick brown fox, 1234567890 jumps; over_the (lazy) dog! #@$%^&*+=~`|\\<>?/",
    "json": '{"name": "J\\u00f6rg \\"x\\"", "list": [1, -2.5e+10, null, true], "empty": {}, "s": ""}',
    "code": "def f(x):\n\treturn {\n        'a': [i for i in range(10)],\n    }\r\n\r\n# end\n",
    "latin": "Grüße aus Zürich, façade, naïve, Łódź, Ærøskøbing, ÿ, ß, İstanbul",
    "cjk": "日本語のテキスト。中文字符，繁體漢字。한국어 텍스트 𠀀𪚥",
    "scripts": "Ελληνικά Русский עברית العربية हिन्दी ไทย ქართული አማርኛ",
    "emoji": "😀😃 👍🏽 ❤️ 🏳️‍🌈 👨‍👩‍👧‍👦 🇩🇪🇯🇵 1️⃣ 🫠",
    "combining": "e\u0301 a\u0308\u0323 Z\u0351\u036b\u0343 \u0915\u094d\u0937 \u1112\u1161\u11ab",
    "joiners": "a\u200bb\u200c\u200d\u2060\ufeffc \u202eabc\u202c \u00ad",
    "blanks": " a  b   c    d" + " " * 5 + "e" + " " * 64 + "f" + " " * 200,
    "tabs": "\ta\t\tb\t\t\t\tc\t \t d" + "\t" * 50,
    "newlines": "\n\n\na\n b\r\n\r\nc\r\rd\n\n\n\n\n\n\n\n" + "\n" * 40 + " \n \n",
    "spaces": "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\u1680h",
    "control": "".join(map(chr, range(32))) + "\x7f\x80\x9f",
    "nul": "a\x00b\x00\x00",
    "private": "\ue000\uf8ff\U000f0000\U0010ffff\ufffd\ufffe\uffff",
    "specials": "<|endoftext|> <s> </s> [INST] <0x0A> <|eot_id|> <unk>",
    "repeat": "a" * 300 + "ab" * 100 + "=" * 120,
}

INVALID = {
    "lone": b"a\xff\xfe b\x80c",
    "cut": "日本😀".encode()[:-1] + b" x " + "é".encode()[:1],
    "overlong": b"\xc0\xaf \xe0\x80\xaf",
    "surrogate": b"\xed\xa0\x80\xed\xb0\x80",
    "all": bytes(range(256)),
}

Encode = Callable[[Any, str], list[int]]


def _encoding(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, disallowed_special=())


def _fast(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def _mistral(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, False, False)


KINDS: dict[str, tuple[Encode, str]] = {  # how to encode; what the tokenizer puts before a text
    "llama3": (_encoding, ""),
    "llama3_fast": (_fast, ""),
    "llama4": (_encoding, ""),
    "qwen": (_encoding, ""),
    "deepseek": (_fast, ""),
    "tekken": (_mistral, ""),
    "sentencepiece": (_mistral, " "),
}

MEANT_AS_SPECIAL = {("llama3_fast", "specials")}  # this one reads <|eot_id|> in a text as the token


def load(kind: str) -> tuple[Any, Vocabulary]:
    return getattr(vocabularies, kind)()


def joined(vocabulary: Vocabulary, ids: list[int]) -> bytes:
    pieces = [vocabulary.token_bytes(i) for i in ids]
    assert None not in pieces, ids
    return b"".join(piece for piece in pieces if piece)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in KINDS for name in CORPUS if (kind, name) not in MEANT_AS_SPECIAL],
)
def test_the_tokens_of_a_text_join_to_the_text(kind: str, name: str) -> None:
    (tokenizer, vocabulary), (encode, prefix) = load(kind), KINDS[kind]
    assert joined(vocabulary, encode(tokenizer, CORPUS[name])) == (prefix + CORPUS[name]).encode()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"), max_size=40))
def test_any_text(kind: str, text: str) -> None:
    (tokenizer, vocabulary), (encode, prefix) = load(kind), KINDS[kind]
    assert joined(vocabulary, encode(tokenizer, text)) == ((prefix + text).encode() if text else b"")


@pytest.mark.parametrize("name", INVALID)
@pytest.mark.parametrize("kind", ["llama3", "llama4", "qwen", "tekken"])
def test_invalid_utf8(kind: str, name: str) -> None:
    tokenizer, vocabulary = load(kind)
    encoding, shift = (tokenizer._model, tokenizer.num_special_tokens) if kind == "tekken" else (tokenizer, 0)
    if not hasattr(encoding, "_encode_bytes"):
        pytest.skip("this tiktoken cannot encode bytes")
    assert joined(vocabulary, [i + shift for i in encoding._encode_bytes(INVALID[name])]) == INVALID[name]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_spell_anything(kind: str) -> None:
    vocabulary = load(kind)[1]
    for data in [*INVALID.values(), *(text.encode() for text in CORPUS.values())]:
        assert joined(vocabulary, vocabulary.encode_greedy(data)) == data


# -- the tokenizer's own word on single tokens -------------------------------------------------------


def shown(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def test_deepseek_tokens_decode_to_their_bytes() -> None:
    tokenizer, vocabulary = vocabularies.deepseek()
    anchor = tokenizer.convert_tokens_to_ids("a")
    for token_id in [*range(0, vocabulary.size, 29), *vocabulary.named_tokens.values()]:
        data = vocabulary.token_bytes(token_id)
        if data is None:
            assert tokenizer.decode([token_id], skip_special_tokens=True) == ""
        else:
            assert tokenizer.decode([anchor, token_id], skip_special_tokens=True) == "a" + shown(data)


def test_sentencepiece_tokens_decode_to_their_bytes() -> None:
    tokenizer, vocabulary = vocabularies.sentencepiece()
    anchor = tokenizer._model.piece_to_id("a")
    for token_id in range(vocabulary.size):
        data = vocabulary.token_bytes(token_id)
        if data is None:
            assert tokenizer._model.is_control(token_id) or tokenizer._model.is_unknown(token_id)
        elif "\ufffd" not in shown(data):
            assert tokenizer._model.decode([anchor, token_id]) == "a" + shown(data)


def test_the_two_llama3_tokenizers_have_one_vocabulary() -> None:
    assert vocabularies.llama3()[1].content_hash == vocabularies.llama3_fast()[1].content_hash


@pytest.mark.parametrize(
    ("kind", "size", "special", "stops"),
    [
        ("llama3", 128_256, 256, (128001, 128008, 128009)),
        ("llama4", 202_048, 2048, (200001, 200007, 200008)),
        ("qwen", 151_851, 208, (151643, 151645)),
        ("deepseek", 129_280, None, (1,)),
        ("tekken", 131_072, 1000, (2,)),
        ("sentencepiece", 32_768, None, (2,)),
    ],
)
def test_sizes(kind: str, size: int, special: int | None, stops: tuple[int, ...]) -> None:
    vocabulary = load(kind)[1]
    assert (vocabulary.size, vocabulary.stop_token_ids) == (size, stops)
    assert special in (None, len(vocabulary.special_tokens))
    text = {vocabulary.token_bytes(i) for i in range(size)}
    assert all(bytes([byte]) in text for byte in range(256))


# -- the wrappers vLLM passes ------------------------------------------------------------------------


def same(tokenizer: Any, vocabulary: Vocabulary) -> bool:
    again = Vocabulary.from_tokenizer(tokenizer, stop_token_ids=vocabulary.stop_token_ids)
    return again.content_hash == vocabulary.content_hash


def test_vllm_hugging_face_wrappers() -> None:
    module = pytest.importorskip("vllm.tokenizers.hf")
    deepseek_v32 = pytest.importorskip("vllm.tokenizers.deepseek_v32")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level_bpe(), eos_token="<|end|>")
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    cached = module.get_cached_tokenizer(tokenizer)
    assert same(cached, vocabulary)
    assert same(module.get_cached_tokenizer(deepseek_v32.get_deepseek_v32_tokenizer(tokenizer)), vocabulary)
    assert same(module.maybe_make_thread_pool(cached), vocabulary)
    assert Vocabulary.from_tokenizer(cached).stop_token_ids == (256,)


@pytest.mark.parametrize(
    ("source", "target", "kind"),
    [
        ("data/tekken_240911.json", "tekken.json", "tekken"),
        ("data/mistral_instruct_tokenizer_240323.model.v3", "tokenizer.model.v3", "sentencepiece"),
    ],
)
def test_vllm_and_transformers_mistral_wrappers(
    source: str, target: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    module = pytest.importorskip("vllm.tokenizers.mistral")
    shutil.copy(vocabularies.package_file("mistral_common", source), tmp_path / target)
    tokenizer = module.MistralTokenizer.from_pretrained(str(tmp_path))
    vocabulary = load(kind)[1]
    for wrapper in (tokenizer, tokenizer.transformers_tokenizer, tokenizer.mistral, tokenizer.instruct):
        assert same(wrapper, vocabulary), type(wrapper)
    assert Vocabulary.from_tokenizer(tokenizer).stop_token_ids == (2,)
    assert Vocabulary.from_tokenizer(tokenizer.mistral).stop_token_ids == (2,)


def test_vllm_kimi_audio_wrapper() -> None:
    module = pytest.importorskip("vllm.tokenizers.kimi_audio")
    path = vocabularies.package_file("dashscope", "resources/qwen.tiktoken")
    tokenizer = module.KimiAudioTokenizer(vocab_file=path, name_or_path="kimi", truncation_side="left")
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary.stop_token_ids == (151644,)
    assert vocabulary.special_tokens["<|im_msg_end|>"] == 151645
    qwen = vocabularies.qwen()[1]
    assert all(vocabulary.token_bytes(i) == qwen.token_bytes(i) for i in range(0, 151643, 17))


def test_slow_sentencepiece_wrapper(tmp_path: Path) -> None:
    backend = pytest.importorskip("transformers.tokenization_utils_sentencepiece").SentencePieceBackend
    path = vocabularies.package_file("mistral_common", "data/mistral_instruct_tokenizer_240323.model.v3")
    tokenizer = backend(vocab_file=str(path), eos_token="</s>", bos_token="<s>", unk_token="<unk>")
    tokenizer.add_tokens(["<tool>"])
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    expected = vocabularies.sentencepiece()[1]
    assert vocabulary.stop_token_ids == (2,)
    assert vocabulary.token_bytes(32768) == b"<tool>" and vocabulary.named_tokens["<tool>"] == 32768
    assert [vocabulary.token_bytes(i) for i in range(32768)] == [
        expected.token_bytes(i) for i in range(32768)
    ]
    assert vocabulary.special_tokens == expected.special_tokens


def test_llama_models_and_sentencepiece_processor() -> None:
    module = pytest.importorskip("llama_models.llama3.tokenizer")
    tokenizer = module.Tokenizer.get_instance()
    assert Vocabulary.from_tokenizer(tokenizer).content_hash == vocabularies.llama3()[1].content_hash
    mistral, vocabulary = vocabularies.sentencepiece()
    assert Vocabulary.from_tokenizer(mistral._model).content_hash == vocabulary.content_hash
