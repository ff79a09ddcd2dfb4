"""What a recorded prompt made the model do, pass by pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.common.records import PromptResult
from pipeline.comparison.runs import Run
from pipeline.errors import UserError
from pipeline.projection.passes import Passes, numbers
from pipeline.projection.shapes import recorded_shape

_ROWS = ("verified_rows", "window_rows", "draft_passes")
_SKIPPING = "selfspec_layers"


@dataclass(frozen=True)
class Skipped:
    """Of the blocks of each kind, the shares that drafting passes run; all of them but where layers are skipped."""

    attention_share: float = 1.0
    mlp_share: float = 1.0


@dataclass(frozen=True)
class Trace:
    """The passes of one generation, or of all turns of a conversation."""

    n_new_tokens: int
    prefills: Passes
    steps: Passes
    drafts: Passes


def traces(run: Run) -> dict[str, Trace]:
    """Of each prompt of a run, by its id.

    Raises:
        UserError: the run is older than what is needed, or does not tell which layers its drafts skip.
    """
    skipped = _skipped(run)
    return {key: trace(result, skipped) for key, result in run.results.items()}


def trace(result: PromptResult, skipped: Skipped | None = None) -> Trace:
    """Of one prompt. A step's context are the prompt's tokens but the last, which is the first root, and all accepted.

    What window rows, drafting passes and the tokens of lossy runs saw is recorded as means over a prompt's steps, so
    it is taken for the same number of tokens, for drafts the same share, in all of them. Drafts of the same step see
    each other's tokens too, which are few and left out.

    Raises:
        UserError: it was recorded without the rows of each step.
    """
    if lacking := [name for name in _ROWS if getattr(result, name) is None]:
        raise UserError(f"prompt {result.id}: an older record without {', '.join(lacking)}; run it anew")
    skipped = skipped or Skipped()
    turns = [(t.n_prompt_tokens, t.n_reused_tokens, t.n_new_tokens) for t in result.turns]
    turns = turns or [(result.n_prompt_tokens, 0, result.n_new_tokens)]
    context = numbers(_contexts([(n_prompt, n_new) for n_prompt, _, n_new in turns], result.accepted_lengths))
    n_drafts = np.array(result.draft_passes)
    return Trace(
        n_new_tokens=result.n_new_tokens,
        prefills=_prefills([(n_prompt - 1, n_reused) for n_prompt, n_reused, _ in turns]),
        steps=Passes(
            rows=numbers(result.verified_rows or []),
            context=context if result.seen_cache_tokens is None else np.minimum(context, result.seen_cache_tokens),
            window_rows=numbers(result.window_rows or []),
            window_context=np.minimum(context, result.window_cache_tokens or 0.0),
        ),
        drafts=Passes(
            rows=np.ones(n_drafts.sum()),
            context=np.repeat(context, n_drafts) * (result.draft_cache_share or 0.0),
            attention_share=skipped.attention_share,
            mlp_share=skipped.mlp_share,
        ),
    )


def _contexts(turns: Sequence[tuple[int, int]], accepted_lengths: Sequence[int]) -> list[int]:
    """Cached tokens at each step; turns are prompt and new tokens each."""
    contexts: list[int] = []
    for n_prompt, n_new in turns:
        n_accepted = 0
        while n_accepted < n_new:
            n = accepted_lengths[len(contexts)]
            contexts.append(n_prompt - 1 + n_accepted)
            n_accepted += n
    return contexts


def _prefills(turns: Sequence[tuple[int, int]]) -> Passes:
    """Turns are tokens to read, and how many of them are in the cache already; a pass for each that has some left."""
    left = [(n_read - n_reused, n_reused) for n_read, n_reused in turns if n_read > n_reused]
    return Passes(numbers([n for n, _ in left]), numbers([n_reused for _, n_reused in left]), has_head=False)


def _skipped(run: Run) -> Skipped:
    """What the run's drafter left out, as shares of the model's layers, so that they fit other shapes too."""
    drafter: dict[str, Any] = run.record.management.sessions[-1].drafter or {}
    skipped = drafter.get("skipped_layers")
    if skipped is None:
        if run.params["method"] == _SKIPPING:
            raise UserError("its record does not tell which layers its drafts skip; run it anew")
        return Skipped()
    n_layers = recorded_shape(run.model_name).n_layers
    return Skipped(1 - len(skipped["attention"]) / n_layers, 1 - len(skipped["mlp"]) / n_layers)
