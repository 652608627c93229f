"""A model that loads in no time: two layers of random Llama over 300 tokens of bytes and a few words.

Its tokenizer is a real Hugging Face one (byte-level BPE with hand-made merges), so that vLLM loads, encodes
and decodes as always. For a real vocabulary see ``vllm_guided.demo.model``.
"""

from __future__ import annotations

import json
from pathlib import Path

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% if add_generation_prompt %}assistant:{% endif %}"
)
SPECIAL = ("<|begin|>", "<|end|>", "<|eot|>", "<think>", "</think>")
MERGES = (
    ("a", "b"), ("ab", "ab"), ("Ġ", "Ġ"), ('"', ":"), ("{", '"'), ('"', "}"), ("n", "a"), ("m", "e"),
    ("na", "me"), ("1", "2"), ("t", "r"), ("u", "e"), ("tr", "ue"), (",", '"'), ("Ġ", '"'), ("y", "e"),
    ("ye", "s"), ("n", "o"), ("[", "]"), ("{", "}"), ("c", "d"), ("e", "r"), ("o", "r"), ("t", "h"),
)  # fmt: skip
PADDED = 320


def write_tokenizer(folder: Path) -> int:
    """Write the tokenizer's files; returns the number of its tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {text: i for i, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = []
    for left, right in MERGES:
        if left in vocabulary and right in vocabulary and left + right not in vocabulary:
            vocabulary[left + right] = len(vocabulary)
            merges.append((left, right))
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=SPECIAL[0], eos_token=SPECIAL[1], chat_template=CHAT_TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def write_model(folder: Path) -> None:
    """Write config, generation config (two stop tokens) and tokenizer; weights are vLLM's dummies."""
    count = write_tokenizer(folder)
    eot = count - len(SPECIAL) + SPECIAL.index("<|eot|>")
    end = count - len(SPECIAL) + SPECIAL.index("<|end|>")
    assert count <= PADDED
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": PADDED,
        "max_position_embeddings": 1024,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": end - 1,
        "eos_token_id": end,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, eot]}))
