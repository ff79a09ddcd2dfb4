"""Finding the layers that the model can do without when it drafts: those that make decoding fastest, as predicted."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import ceil
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import AttentionInterface, PreTrainedModel

from pipeline.fafo.attention import fafo_attention_on
from pipeline.fafo.cache import FullCache
from pipeline.fafo.decode import Decoding
from pipeline.fafo.partial import attend
from pipeline.fafo.settings import DecodeSettings
from pipeline.selfspec_layers.skipping import KINDS, Place, SkippedLayers, n_weights_read, skipping

REHEARSAL_NAME = "fafo_rehearsal"
_SWIFT_RATIO = 0.45  # of sublayers, that SWIFT skips
_MOST_CONTEXT = 1024  # tokens of a prompt that a search looks at, the last ones: it bounds time and memory
_REHEARSAL: ContextVar["Rehearsal"] = ContextVar("rehearsal")


@dataclass(frozen=True)
class Limits:
    """How much a search may do. n_trials: sets that it tries; n_tokens: that it looks at behind each prompt."""

    n_trials: int
    n_tokens: int
    seed: int


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """A text that plain decoding wrote, on which drafting can be tried out without decoding anything.

    A row for each token that was decoded: it sits at the token before. Rows are drafted in guesses of `gamma`: each
    sees the text's entries as they were before its guess, and those that the drafting model makes of its own guess.

    text: prompt and output. cache: entries of all of it but the last token, by the whole model.
    """

    text: list[int]
    n_prompt: int
    cache: FullCache
    gamma: int

    @property
    def n_rows(self) -> int:
        """As many as there are new tokens."""
        return len(self.text) - self.n_prompt

    @cached_property
    def mask(self) -> Tensor:
        """What each row sees of the cache and of the rows, additive, [rows, length + rows]."""
        row = torch.arange(self.n_rows).unsqueeze(1)
        start = row - row % self.gamma
        of_cache = torch.arange(self.cache.length) < self.n_prompt - 1 + start
        of_rows = (torch.arange(self.n_rows) >= start) & (torch.arange(self.n_rows) <= row)
        visible = torch.cat([of_cache, of_rows], dim=1)
        keys, _ = self.cache.entries(0)
        return torch.zeros(visible.shape, dtype=keys.dtype).masked_fill_(~visible, -torch.inf).to(keys.device)

    def matches(self, model: PreTrainedModel) -> list[bool]:
        """Whether `model`, drafting, finds each token that was decoded, if it found the earlier ones of the guess."""
        rows = torch.tensor([self.text[self.n_prompt - 1 :]], device=model.device)
        positions = torch.arange(self.n_prompt - 1, len(self.text) - 1, device=model.device)[None]
        token = _REHEARSAL.set(self)
        try:
            hidden = model.base_model(input_ids=rows[:, :-1], position_ids=positions, use_cache=False)
        finally:
            _REHEARSAL.reset(token)
        predicted = model.get_output_embeddings()(hidden.last_hidden_state).argmax(dim=-1)
        found: list[bool] = (predicted == rows[:, 1:])[0].tolist()
        return found


def _rehearsed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    *,
    scaling: float,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as the rehearsal says; shapes are those of `fafo_attention`. The cache stays as it is."""
    rehearsal = _REHEARSAL.get()
    keys, values = rehearsal.cache.entries(int(module.layer_idx))  # type: ignore[arg-type]
    seen = torch.cat([keys, key], dim=2), torch.cat([values, value], dim=2)
    return attend(query, seen, scaling, rehearsal.mask)[0].transpose(1, 2), None


AttentionInterface.register(REHEARSAL_NAME, _rehearsed_attention)


def search(
    model: PreTrainedModel, prompts: Sequence[list[int]], gamma: int, skip_ratio: float | None, limits: "Limits"
) -> SkippedLayers:
    """Find what to skip when `model` drafts `gamma` tokens behind texts such as these prompts.

    What is compared is the predicted speed, tokens per step / (gamma * weights read + 1) of plain decoding's: where a
    pass takes as long as reading its weights does, whatever its rows. It is measured on what plain decoding writes
    behind the prompts, since that is what will be drafted.

    It climbs, one sublayer at a time and in random order: with up to half of the trials from the whole model, with the
    others from random sets. So the whole model is among the sets that are compared, and the best is no slower.

    Sources: Zhang et al. (see `LayerSkip`), who find the set by Bayesian optimisation of the measured time; Xia et al.,
    "SWIFT: On-the-Fly Self-Speculative Decoding for LLM Inference Acceleration", ICLR 2025, who draw sets of a given
    size at random and by Bayesian optimisation, and compare how many tokens match. Deviations: climbing in the place of
    both, which has no parameters; the size is free by default, since what counts is speed; the first and last layer may
    be skipped too; the search is done before the run, once.

    Args:
        skip_ratio: share of the sublayers to skip, as in SWIFT; then it climbs by swaps alone, from random sets, and
            the whole model is no candidate. None: as many as is fastest.

    Returns: the set with what was found of it; deterministic on one machine.
    """
    rng = Random(limits.seed)
    places = [(kind, index) for kind in KINDS for index in range(model.config.num_hidden_layers)]
    n_skipped = round(len(places) * (_SWIFT_RATIO if skip_ratio is None else skip_ratio))
    with torch.inference_mode():
        rehearsals = [rehearse(model, prompt, limits.n_tokens, gamma) for prompt in prompts]
    found: list[SkippedLayers] = []
    with rehearsing(model), tqdm(total=limits.n_trials, desc="layers to skip", unit="set", leave=False) as bar:
        while len(found) < limits.n_trials:
            from_whole = skip_ratio is None and not found
            start = _set_of([] if from_whole else rng.sample(places, n_skipped))
            n_left = ceil(limits.n_trials / 2) if from_whole else limits.n_trials - len(found)
            for tried in islice(_climb(model, rehearsals, start, places, skip_ratio is None, rng), n_left):
                found.append(tried)
                bar.update()
    best = max(found, key=_speed)
    return best.model_copy(update={"n_trials": len(found)})


def _climb(
    model: PreTrainedModel,
    rehearsals: Sequence[Rehearsal],
    start: SkippedLayers,
    places: Sequence[Place],
    size_is_free: bool,
    rng: Random,
) -> Iterator[SkippedLayers]:
    """All sets that are tried on the way up, until no neighbour is better."""
    best = measured(model, start, rehearsals)
    yield best
    is_top = False
    while not is_top:
        is_top = True
        for change in _changes(best, places, size_is_free, rng):
            skipped = best.places
            changed = skipped ^ change
            if not size_is_free and len(changed) != len(skipped):
                continue  # one of the two was swapped meanwhile
            tried = measured(model, _set_of(changed), rehearsals)
            yield tried
            if _speed(tried) > _speed(best):
                best, is_top = tried, False


def _changes(around: SkippedLayers, places: Sequence[Place], size_is_free: bool, rng: Random) -> list[set[Place]]:
    """What to skip or no longer skip, in random order: single sublayers, or pairs if the size is to stay."""
    if size_is_free:
        return [{place} for place in rng.sample(places, len(places))]
    kept = [place for place in places if place not in around.places]
    swaps = [{left_out, place} for left_out in sorted(around.places) for place in kept]
    return rng.sample(swaps, len(swaps))


def _set_of(places: Iterable[Place]) -> SkippedLayers:
    skipped = sorted(places)
    attention, mlp = (tuple(index for of, index in skipped if of == kind) for kind in KINDS)
    return SkippedLayers(attention=attention, mlp=mlp)


def _speed(found: SkippedLayers) -> float:
    assert found.speed is not None
    return found.speed


def rehearse(model: PreTrainedModel, prompt: list[int], n_tokens: int, gamma: int) -> Rehearsal:
    """Decode up to `n_tokens` behind the prompt's last tokens."""
    settings = DecodeSettings(n_tokens, eos_token_ids=_eos_ids(model))
    decoding = Decoding(model, prompt[-_MOST_CONTEXT:], settings)
    decoding.run()
    return Rehearsal(decoding.text, decoding.n_prompt, decoding.cache, gamma)


def measured(model: PreTrainedModel, skipped: SkippedLayers, rehearsals: Sequence[Rehearsal]) -> SkippedLayers:
    """The same set with what it brings on these texts. To be called inside `rehearsing`."""
    gamma = rehearsals[0].gamma
    drafting = skipping(model, skipped)
    matches = [match for rehearsal in rehearsals for match in rehearsal.matches(drafting)]
    weights_read = n_weights_read(drafting) / n_weights_read(model)
    tokens_per_step = 1 + sum(_lengths_of_runs(matches, gamma)) / len(matches)
    facts = {
        "model": model.config._name_or_path,
        "n_layers": model.config.num_hidden_layers,
        "gamma": gamma,
        "weights_read": weights_read,
        "matched": sum(matches) / len(matches),
        "tokens_per_step": tokens_per_step,
        "speed": tokens_per_step / (gamma * weights_read + 1),
        "n_tokens": len(matches),
    }
    return skipped.model_copy(update=facts)


def _lengths_of_runs(matches: Sequence[bool], most: int) -> Iterator[int]:
    """From each place how many matches follow one another, up to `most`; behind the last comes the first."""
    for start in range(len(matches)):
        following = (matches[(start + i) % len(matches)] for i in range(most))
        yield next((length for length, match in enumerate(following) if not match), most)


@contextmanager
def rehearsing(model: PreTrainedModel) -> Iterator[None]:
    """Let `model`, and those that share its config, attend as rehearsals say."""
    with torch.inference_mode(), fafo_attention_on(model):  # which also has threads take turns
        model.set_attn_implementation(REHEARSAL_NAME)
        yield


def _eos_ids(model: PreTrainedModel) -> tuple[int, ...]:
    """Behind an end no run drafts anything."""
    found = getattr(model.generation_config, "eos_token_id", None)
    return tuple(found) if isinstance(found, list) else () if found is None else (found,)
