"""FAFO inside transformers' own `generate`: `model.generate(**inputs, custom_generate=fafo_generate, level=5, ..)`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation import GenerateDecoderOnlyOutput, UnbatchedClassifierFreeGuidanceLogitsProcessor
from transformers.generation.streamers import BaseStreamer

from pipeline.errors import UserError
from pipeline.fafo.choice import ProcessedChoice
from pipeline.fafo.decode import Decoding
from pipeline.fafo.selectors import SELECTORS
from pipeline.fafo.selectors.base import KeyValues
from pipeline.fafo.settings import DecodeSettings, Generation


@dataclass
class FafoGenerateOutput(GenerateDecoderOnlyOutput):
    """What `generate` returns with `return_dict_in_generate`, and FAFO's statistics for each row of the batch."""

    statistics: list[Generation] | None = None


def fafo_generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    synced_gpus: bool = False,
    streamer: BaseStreamer | None = None,
    level: int = 5,
    window: int = 15,
    num_guesses: int = 15,
    pool_from_prompt: bool = True,
    pool_from_output: bool = True,
    kv_method: str = "stream-llm",
    kv_params: Mapping[str, Any] | None = None,
    exact: bool = False,
    window_seed: int = 42,
    **model_kwargs: Any,
) -> FafoGenerateOutput | Tensor:
    """Generate what `model.generate` would, several tokens a step.

    Greedy output and, for one seed of torch, drawn output too equal those of plain `generate`. Logits processors and
    stopping criteria see each token's true prefix. Rows of a batch are decoded one after the other, each without its
    padding. transformers (5.2 to 5.24 at least) hands neither `streamer` nor `tokenizer` to a callable: bind the
    streamer with `functools.partial(fafo_generate, streamer=..)`, and give stop strings as a `StopStringCriteria`.

    Args:
        kv_method, kv_params: the selector's config name and its hyperparameters.
        window_seed: of the tokens that the window starts from; it doesn't change the output.
        past_key_values: a `DynamicCache` of an earlier turn is continued, for one row.

    Raises:
        UserError: something asked for can't be done row by row, or at all; it is named.
    """
    _refuse_unsupported(generation_config, logits_processor, synced_gpus, batch_size=len(input_ids))
    if kv_method not in SELECTORS:
        raise UserError(f"kv_method: found {kv_method!r}, known are {', '.join(sorted(SELECTORS))}")
    cache = model_kwargs.get("past_key_values", model_kwargs.get("cache"))
    earlier = _earlier_turn(cache, batch_size=len(input_ids))
    mask = model_kwargs.get("attention_mask")
    rows = [_unpadded(ids, None if mask is None else mask[i]) for i, ids in enumerate(input_ids)]
    if streamer is not None:
        if len(rows) > 1:
            raise UserError(f"streamer: a streamer takes one row, the batch has {len(rows)}")
        streamer.put(input_ids.cpu())

    criteria = StoppingCriteriaList(
        c for c in stopping_criteria if not isinstance(c, MaxLengthCriteria | EosTokenCriteria)
    )
    plain_greedy = not logits_processor and not generation_config.do_sample and not _keeps_scores(generation_config)
    choices, decodings, generations = [], [], []
    for row, (padding, prompt) in enumerate(rows):
        choice = ProcessedChoice(
            logits_processor,
            bool(generation_config.do_sample),
            padding,
            row,
            len(rows),
            keep=_keeps_scores(generation_config),
        )

        def should_stop(text: list[int], row: int = row, padding: list[int] = padding) -> bool:
            ids = torch.tensor([padding + text] * len(rows), device=input_ids.device)
            return bool(criteria(ids, None)[row])

        settings = DecodeSettings(
            n_new_tokens=_n_new_tokens(generation_config, input_ids.shape[1]),
            eos_token_ids=_eos_ids(generation_config),
            level=level,
            window=window,
            num_guesses=num_guesses,
            pool_from_prompt=pool_from_prompt,
            pool_from_output=pool_from_output,
            selector=SELECTORS[kv_method](**(kv_params or {})),
            seed=window_seed,
            exact=exact,
        )
        decoding = Decoding(
            model, prompt, settings, None if plain_greedy else choice, should_stop if criteria else None
        )
        if earlier is not None:
            decoding.continue_from(earlier)
        generations.append(decoding.run(on_step=None if streamer is None else _feed(streamer)))
        choices.append(choice)
        decodings.append(decoding)
    if streamer is not None:
        streamer.end()

    sequences = _padded(input_ids, generations, generation_config)
    if len(rows) == 1 and isinstance(cache, DynamicCache):
        _write_back(decodings[0], cache)
    if not generation_config.return_dict_in_generate:
        return sequences
    keep = _keeps_scores(generation_config)
    return FafoGenerateOutput(
        sequences=sequences,  # type: ignore[arg-type]
        scores=tuple(choices[0].scores) if keep and generation_config.output_scores else None,  # type: ignore[arg-type]
        logits=tuple(choices[0].logits) if keep and generation_config.output_logits else None,  # type: ignore[arg-type]
        past_key_values=cache if len(rows) == 1 else None,
        statistics=generations,
    )


def _refuse_unsupported(
    config: GenerationConfig, processors: LogitsProcessorList, synced_gpus: bool, batch_size: int
) -> None:
    """Name what can't be done, rather than ignore it."""
    refused = {
        "num_beams": (config.num_beams or 1) > 1,
        "output_attentions": bool(config.output_attentions),
        "output_hidden_states": bool(config.output_hidden_states),
        "prompt_lookup_num_tokens": config.prompt_lookup_num_tokens is not None,
        "penalty_alpha": bool(config.penalty_alpha),
        "dola_layers": config.dola_layers is not None,
        "token_healing": bool(config.token_healing),
        "output_scores": batch_size > 1 and _keeps_scores(config),
        "synced_gpus": synced_gpus,
    }
    for name, is_asked_for in refused.items():
        if is_asked_for:
            found = getattr(config, name, True)
            raise UserError(f"{name}: found {found}, which FAFO can't do for {batch_size} rows; leave it out")
    for processor in processors:
        if isinstance(processor, UnbatchedClassifierFreeGuidanceLogitsProcessor):
            raise UserError("guidance_scale: its logits processor runs the model itself, which FAFO can't do per row")


def _keeps_scores(config: GenerationConfig) -> bool:
    return bool(config.return_dict_in_generate and (config.output_scores or config.output_logits))


def _earlier_turn(cache: Any, batch_size: int) -> list[KeyValues] | None:
    """The entries to continue from, for each layer; None if there are none."""
    if cache is None:
        return None
    if type(cache) is not DynamicCache:
        raise UserError(
            f"past_key_values: found a {type(cache).__name__}; FAFO continues and fills a DynamicCache only"
        )
    if cache.get_seq_length() == 0:
        return None
    if batch_size > 1:
        raise UserError(f"past_key_values: FAFO continues an earlier turn of one row, the batch has {batch_size}")
    return [(layer.keys, layer.values) for layer in cache.layers if layer.keys is not None and layer.values is not None]


def _unpadded(ids: Tensor, mask: Tensor | None) -> tuple[list[int], list[int]]:
    """Split a row into its left padding and its prompt."""
    tokens = ids.tolist()
    if mask is None:
        return [], tokens
    seen = mask.bool().tolist()
    start = seen.index(True) if True in seen else len(seen)
    if not all(seen[start:]):
        raise UserError("attention_mask: has zeros after its first one; FAFO decodes left-padded rows only")
    return tokens[:start], tokens[start:]


def _n_new_tokens(config: GenerationConfig, n_prompt: int) -> int:
    n_new = config.max_new_tokens if config.max_new_tokens is not None else config.max_length - n_prompt
    if n_new < 1:
        raise UserError(f"max_length: found {config.max_length}, and the prompt has {n_prompt} tokens already")
    return n_new


def _eos_ids(config: GenerationConfig) -> tuple[int, ...]:
    ids = config.eos_token_id
    return () if ids is None else (ids,) if isinstance(ids, int) else tuple(ids)


def _feed(streamer: BaseStreamer) -> Any:
    """Give tokens one by one, as plain generation does: streamers hold back what is no whole character yet."""

    def feed(tokens: list[int]) -> None:
        for token in tokens:
            streamer.put(torch.tensor([token]))

    return feed


def _padded(input_ids: Tensor, generations: list[Generation], config: GenerationConfig) -> Tensor:
    """Prompts and outputs, [batch, length], outputs padded on the right."""
    n_new = max(len(g.token_ids) for g in generations)
    eos = _eos_ids(config)
    pad = config.pad_token_id if config.pad_token_id is not None else eos[0] if eos else 0
    outputs = [g.token_ids + [pad] * (n_new - len(g.token_ids)) for g in generations]
    return torch.cat([input_ids, torch.tensor(outputs, device=input_ids.device)], dim=1)


def _write_back(decoding: Decoding, cache: DynamicCache) -> None:
    """Leave in `cache` what plain generation would have left: all tokens but the last."""
    n_there = cache.get_seq_length()
    for layer in range(len(decoding.views)):
        keys, values = decoding.cache.entries(layer)
        if keys.shape[2] > n_there:
            cache.update(keys[:, :, n_there:], values[:, :, n_there:], layer)
