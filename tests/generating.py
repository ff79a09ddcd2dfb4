"""transformers' own generation and FAFO's, side by side."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.fafo.generate import fafo_generate
from tests.tiny import tiny_model

PROMPTS = [[3], [1, 2, 3, 1, 2], [5] * 12, list(range(20))]
FAFO: dict[str, Any] = {"custom_generate": fafo_generate, "level": 4, "window": 4, "num_guesses": 4}


def both(name: str, prompt: list[int], seed: int = 0, **arguments: Any) -> tuple[Any, Any]:
    """transformers' own generation and FAFO's, from the same random state."""
    model = tiny_model(name)
    ids = torch.tensor([prompt])
    arguments = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 30, "do_sample": False} | arguments
    outputs = []
    for fafo in ({}, FAFO | {"kv_params": {"num_init": 1, "num_local": 4}}):
        torch.manual_seed(seed)
        outputs.append(model.generate(ids, **arguments, **fafo))  # type: ignore[operator]
    return outputs[0], outputs[1]


def wide_model(vocabulary: int = 256) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()
