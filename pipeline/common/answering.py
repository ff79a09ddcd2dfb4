"""Decoding one sample, turn by turn, and scoring what comes of it."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from eval import DATASETS
from pipeline.common.encoding import Encoder, Prompt
from pipeline.common.records import PromptResult, Turn
from pipeline.fafo.decode import Decoding
from pipeline.fafo.settings import DecodeSettings, Generation
from pipeline.fafo.support import PromptTooLongError

log = logging.getLogger(__name__)

Figure = Callable[[Generation], float | None]


@torch.inference_mode()
def answer(prompt: Prompt, encoder: Encoder, settings: DecodeSettings) -> PromptResult:
    """Decode a sample's turns, each continuing on the cache of the one before, and score the answers.

    A conversation that grows too long for the model ends there.

    Args:
        prompt: the sample's first turn.
    """
    sample = prompt.sample
    settings = replace(settings, n_new_tokens=encoder.most_new_tokens(sample))
    answers: list[str] = []
    generations: list[Generation] = []
    prompt_sha256 = prompt.sha256
    n_cut_tokens = prompt.n_cut_tokens
    decoding = None
    extra_bytes = 0
    while True:
        decoding = Decoding(encoder.loaded.model, prompt.token_ids, settings, earlier=decoding)
        generations.append(decoding.run())
        extra_bytes = max(extra_bytes, decoding.extra_bytes())
        answers.append(encoder.answer(generations[-1].token_ids))
        if len(answers) > len(sample.later_turns):
            break
        try:
            prompt = encoder.encode(sample, answers)
        except PromptTooLongError as error:
            log.warning("the conversation ends after turn %d: %s", len(answers), error)
            break
        n_cut_tokens += prompt.n_cut_tokens
    scores = DATASETS[encoder.params.dataset].score(sample, answers, encoder.params)
    return PromptResult(
        id=sample.id,
        prompt_sha256=prompt_sha256,
        group=sample.group,
        **_figures(generations),
        extra_bytes=extra_bytes,
        output_text="\n\n".join(answers),
        score=next(iter(scores.values()), None),
        scores=scores,
        n_cut_tokens=n_cut_tokens,
        turns=list(map(_turn, answers, generations)) if sample.later_turns else [],
    )


def _turn(text: str, generation: Generation) -> Turn:
    return Turn(
        output_text=text,
        n_prompt_tokens=generation.n_prompt_tokens,
        n_reused_tokens=generation.n_reused_tokens,
        n_new_tokens=len(generation.token_ids),
        prefill_seconds=generation.prefill_seconds,
        decode_seconds=generation.decode_seconds,
        stop_reason=generation.stop_reason,
    )


def _figures(generations: Sequence[Generation]) -> dict[str, Any]:
    """What is recorded of the turns together: sums and, weighted by steps, means."""
    accepted_lengths = list(chain.from_iterable(g.accepted_lengths for g in generations))

    def over_steps(value: Figure) -> float | None:
        return _mean((len(g.accepted_lengths), value(g)) for g in generations)

    def over_window_steps(value: Figure) -> float | None:
        return _mean((g.n_window_steps, value(g)) for g in generations)

    return {
        "output_token_ids": list(chain.from_iterable(g.token_ids for g in generations)),
        "n_prompt_tokens": sum(g.n_prompt_tokens for g in generations),
        "n_new_tokens": sum(accepted_lengths),
        "n_steps": len(accepted_lengths),
        "accepted_lengths": accepted_lengths,
        "verified_rows": list(chain.from_iterable(g.verified_rows for g in generations)),
        "window_rows": list(chain.from_iterable(g.window_rows for g in generations)),
        "draft_passes": list(chain.from_iterable(g.draft_passes for g in generations)),
        "draft_cache_share": _mean((sum(g.draft_passes), g.draft_cache_share) for g in generations),
        "prefill_seconds": sum(g.prefill_seconds for g in generations),
        "decode_seconds": sum(g.decode_seconds for g in generations),
        "stop_reason": generations[-1].stop_reason,
        "cache_tokens": over_steps(lambda g: g.cache_tokens),
        "seen_cache_tokens": over_steps(lambda g: g.seen_cache_tokens),
        "kv_bytes": over_steps(lambda g: g.kv_bytes),
        "n_window_steps": sum(g.n_window_steps for g in generations),
        "cache_tokens_beside_window": over_window_steps(lambda g: g.cache_tokens_beside_window),
        "window_cache_tokens": over_window_steps(lambda g: g.window_cache_tokens),
        "token_sources": "".join(g.token_sources for g in generations),
    }


def _mean(weighted: Iterable[tuple[int, float | None]]) -> float | None:
    """The mean of those that are there, each with its weight; None if none is."""
    there = [(weight, value) for weight, value in weighted if value is not None]
    total = sum(weight for weight, _ in there)
    return sum(weight * value for weight, value in there) / total if total else None
