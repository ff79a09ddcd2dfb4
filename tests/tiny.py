"""Tiny random models, built on the spot, and what transformers' own greedy decoding makes of a prompt."""

from functools import cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM as Auto
from transformers import (
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

VOCABULARY = 24
MAX_LENGTH = 128
DEVICE = "cpu"  # set by pytest's --device

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_LENGTH,
    "initializer_range": 0.25,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
CONFIGS = {
    "llama-mha": lambda: LlamaConfig(**COMMON, num_key_value_heads=4),
    "llama-gqa-tied": lambda: LlamaConfig(**COMMON, num_key_value_heads=2, tie_word_embeddings=True),
    "llama-dynamic-rope": lambda: LlamaConfig(
        **COMMON,
        num_key_value_heads=1,
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
    ),
    "mistral-gqa": lambda: MistralConfig(**COMMON, num_key_value_heads=2, head_dim=16, sliding_window=None),
    "qwen2-gqa": lambda: Qwen2Config(**COMMON, num_key_value_heads=2),
    "qwen3-gqa-tied": lambda: Qwen3Config(**COMMON, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True),
}


@cache
def tiny_model(name: str) -> PreTrainedModel:
    """A float32 model of that family with random weights, the same in each run."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Auto.from_config(CONFIGS[name]()).eval().to(DEVICE)
    model.generation_config.pad_token_id = 0
    return model


def greedy(model: PreTrainedModel, prompt: list[int], n_new: int, eos: tuple[int, ...] = ()) -> list[int]:
    """New tokens by transformers' own `generate`."""
    ids = torch.tensor([prompt], device=model.device)
    output = model.generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=n_new,
        do_sample=False,
        eos_token_id=list(eos) or None,
    )
    return output[0, len(prompt) :].tolist()
