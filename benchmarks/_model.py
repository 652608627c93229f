"""A tiny Llama with Llama 3's vocabulary, as a folder that vLLM loads with random weights.

The tokenizer is Llama 3's own, from the package ``llama-models``, made into a Hugging Face one, so that vLLM
works with a vocabulary of real size while the model itself costs next to nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

from _vocabularies import PATTERN, tokenizer_file

NAMED = {0: "<|begin_of_text|>", 1: "<|end_of_text|>", 8: "<|eom_id|>", 9: "<|eot_id|>"}
TEXT_TOKENS, SPECIAL_TOKENS = 128_000, 256
BEGIN, END, TURN = TEXT_TOKENS, TEXT_TOKENS + 1, TEXT_TOKENS + 9
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_model(folder: Path) -> None:
    """Write configuration and tokenizer into ``folder``, which must exist; serve it with dummy weights."""
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    special = [NAMED.get(i, f"<|reserved_special_token_{i}|>") for i in range(SPECIAL_TOKENS)]
    converter = TikTokenConverter(
        vocab_file=str(tokenizer_file("llama3")), pattern=PATTERN, extra_special_tokens=special
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=converter.converted(), bos_token=NAMED[0], eos_token=NAMED[1],
        chat_template=CHAT_TEMPLATE,
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64,
        "vocab_size": TEXT_TOKENS + SPECIAL_TOKENS, "max_position_embeddings": 8192,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "float32",
        "bos_token_id": BEGIN, "eos_token_id": END,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [END, TURN]}))
