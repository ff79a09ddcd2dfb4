"""FAFO inside transformers' own `generate`: `model.generate(**inputs, custom_generate=fafo_generate, level=5, ..)`."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.streamers import BaseStreamer

from pipeline.errors import UserError
from pipeline.fafo.arguments import earlier_turn, keeps_scores, read_criteria, read_rows, refuse_unsupported
from pipeline.fafo.choice import ProcessedChoice
from pipeline.fafo.decode import Decoding
from pipeline.fafo.selectors.named import selector_named
from pipeline.fafo.settings import MOST_NEW_TOKENS, DecodeSettings, Generation, PlannerName, PoolName


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
    streamer: BaseStreamer | None = None,
    level: int = 5,
    window: int = 15,
    num_guesses: int = 15,
    pool: PoolName = "ranked",
    planner: PlannerName = "auto",
    pool_from_prompt: bool = True,
    pool_from_output: bool = True,
    kv_method: str = "stream-llm",
    kv_params: Mapping[str, Any] | None = None,
    exact: bool = False,
    compile: bool = False,
    window_seed: int = 42,
    **model_kwargs: Any,
) -> FafoGenerateOutput | Tensor:
    """Generate what `model.generate` would, several tokens a step.

    Greedy output and, for one row and one seed of torch, drawn output too equal those of plain `generate`, up to the
    model's maximum length. Logits processors and stopping criteria see each token's true prefix. Rows of a batch are
    decoded one after the other, each without its padding and with processors of its own. transformers (5.2 to 5.24 at
    least) hands none of `streamer`, `tokenizer`, `synced_gpus` to a callable: bind the streamer with
    `functools.partial(fafo_generate, streamer=..)` (given to `generate` it would get nothing but the prompt), and give
    stop strings as a `StopStringCriteria`.

    Args:
        level, window, num_guesses, pool, planner, compile: see `DecodeSettings`. As they are, each step runs as many
            guess rows and window columns, up to the given numbers, as pay on this machine; how long steps take is
            measured by the first call, in seconds, and kept on disk. `pool="lru", planner="fixed"` is the paper's way.
        kv_method, kv_params: the selector's name, as in a config, and its hyperparameters. There is no tokenizer here,
            so "fastgen" takes for special only the first token and what `special_ids` has, and for punctuation what
            `punctuation_ids` has; `special_ids_of` and `punctuation_ids_of` in `selectors/fastgen.py` find them.
        window_seed: of the tokens that the window starts from; it doesn't change the output.
        past_key_values: a `DynamicCache` of an earlier turn is continued, for one row without padding, unless the
            selector must see the whole prompt, as presses of kvpress must.

    Raises:
        UserError: something asked for can't be done row by row, or at all; it is named.
    """
    rows = read_rows(input_ids, model_kwargs)
    cache = model_kwargs.get("past_key_values", model_kwargs.get("cache"))
    refuse_unsupported(generation_config, logits_processor, stopping_criteria, len(rows))
    earlier = earlier_turn(cache, rows, generation_config)
    if streamer is not None:
        if len(rows) > 1:
            raise UserError(f"streamer: a streamer takes one row, the batch has {len(rows)}")
        streamer.put(input_ids.cpu())

    max_length, eos_token_ids, criteria = read_criteria(stopping_criteria, generation_config)
    keep = keeps_scores(generation_config)
    plain_greedy = not logits_processor and not generation_config.do_sample and not keep
    settings = _settings(
        n_new_tokens=min(max_length - input_ids.shape[1], MOST_NEW_TOKENS),
        eos_token_ids=eos_token_ids,
        level=level,
        window=window,
        num_guesses=num_guesses,
        pool=pool,
        planner=planner,
        pool_from_prompt=pool_from_prompt,
        pool_from_output=pool_from_output,
        kv_method=kv_method,
        kv_params=kv_params or {},
        seed=window_seed,
        exact=exact,
        compile=compile,
    )
    generations = []
    for row, (padding, prompt) in enumerate(rows):
        processors = logits_processor if len(rows) == 1 else deepcopy(logits_processor)  # some remember their row
        choice = ProcessedChoice(processors, bool(generation_config.do_sample), padding, row, len(rows), keep=keep)

        def should_stop(
            text: list[int], row: int = row, padding: list[int] = padding, scores: list[Tensor] = choice.scores
        ) -> bool:
            ids = torch.tensor([padding + text] * len(rows), device=input_ids.device)
            return bool(criteria(ids, tuple(scores) if keep else None)[row])

        decoding = Decoding(
            model, prompt, settings, None if plain_greedy else choice, should_stop if criteria else None
        )
        if earlier is not None:
            decoding.continue_from(earlier)
        generations.append(decoding.run(on_step=None if streamer is None else _feed(streamer)))
    if streamer is not None:
        streamer.end()

    if len(rows) == 1 and isinstance(cache, DynamicCache):
        _write_back(decoding, cache)
    sequences = _padded(input_ids, generations, generation_config, eos_token_ids)
    if not generation_config.return_dict_in_generate:
        return sequences
    return FafoGenerateOutput(
        sequences=sequences,  # type: ignore[arg-type]
        scores=tuple(choice.scores) if keep and generation_config.output_scores else None,  # type: ignore[arg-type]
        logits=tuple(choice.logits) if keep and generation_config.output_logits else None,  # type: ignore[arg-type]
        past_key_values=cache if len(rows) == 1 else None,
        statistics=generations,
    )


def _settings(kv_method: str, kv_params: Mapping[str, Any], **values: Any) -> DecodeSettings:
    """The settings of all rows; what is wrong with them is named in one line."""
    try:
        named = selector_named(kv_method)
    except UserError as error:
        raise UserError(f"kv_method: {error}") from None
    try:
        selector = named(**kv_params)
    except ValidationError as error:
        raise _explained(error, "kv_params.") from None
    try:
        return DecodeSettings(selector=selector, **values)
    except ValidationError as error:
        raise _explained(error) from None


def _explained(error: ValidationError, prefix: str = "") -> UserError:
    detail = error.errors(include_url=False)[0]
    message = detail["msg"].removeprefix("Value error, ")
    if not detail["loc"]:  # about several arguments, which the message names
        return UserError(message)
    return UserError(f"{prefix}{'.'.join(map(str, detail['loc']))}: {message}, found {detail['input']!r}")


def _feed(streamer: BaseStreamer) -> Callable[[list[int]], None]:
    """Give tokens one by one, as plain generation does: streamers hold back what is no whole character yet."""

    def feed(tokens: list[int]) -> None:
        for token in tokens:
            streamer.put(torch.tensor([token]))

    return feed


def _padded(input_ids: Tensor, generations: list[Generation], config: GenerationConfig, eos: tuple[int, ...]) -> Tensor:
    """Prompts and outputs, [batch, length], outputs padded on the right."""
    n_new = max(len(g.token_ids) for g in generations)
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
