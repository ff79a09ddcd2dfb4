"""Which models the decoder can decode losslessly, decided from the config before any weights are loaded."""

from collections.abc import Sequence

from transformers import PretrainedConfig

from pipeline.errors import UserError

SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


class PromptTooLongError(UserError):
    """A prompt has more tokens than the model or the config lets it have."""


def check_model(config: PretrainedConfig) -> None:
    """Raise `UserError` unless every layer is full attention whose cache entries can be masked and rolled back.

    Other architectures would run without an error and give other text: attention sinks, soft-capped scores, sliding
    windows and recurrent states all need more than keys and values by position. So the list holds what is tested.
    """
    name = f"model type {config.model_type!r}"
    if config.model_type not in SUPPORTED_MODEL_TYPES:
        raise UserError(f"{name} is not supported: FAFO decodes {', '.join(SUPPORTED_MODEL_TYPES)} models")
    other_layers = set(getattr(config, "layer_types", None) or []) - {"full_attention"}
    if other_layers:
        raise UserError(
            f"{name} with {', '.join(sorted(other_layers))} layers is not supported: only full attention is"
        )
    if getattr(config, "sliding_window", None) is not None:
        raise UserError(
            f"{name} with sliding_window={config.sliding_window} is not supported: entries outside the window can't "
            "be rolled back; use a model whose config has sliding_window null"
        )
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope_type == "longrope":
        raise UserError(
            f"{name} with rope_type 'longrope' is not supported: its keys change with the length of the text"
        )


def context_limit(config: PretrainedConfig) -> int | None:
    """Most tokens of prompt and output together, None if the config names no limit."""
    return getattr(config, "max_position_embeddings", None)


def check_prompt(prompt_ids: Sequence[int], config: PretrainedConfig) -> None:
    """Raise `UserError` if a prompt is empty, has ids outside the vocabulary, or leaves no room for a new token."""
    if not prompt_ids:
        raise UserError("the prompt is empty: decoding needs at least one token")
    smallest, largest = min(prompt_ids), max(prompt_ids)
    if smallest < 0 or largest >= config.vocab_size:
        raise UserError(
            f"the prompt has token ids from {smallest} to {largest}: right are 0 to {config.vocab_size - 1}"
        )
    limit = context_limit(config)
    if limit is not None and len(prompt_ids) >= limit:
        raise PromptTooLongError(
            f"the prompt has {len(prompt_ids)} tokens: the model takes {limit}, new ones included; "
            "leave it out or use a model with a longer context"
        )
