"""How much a method's speedup hangs on what is asked: over datasets, and over lengths of prompts."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import floor, log2
from typing import Any

import numpy as np

from pipeline.common.records import PromptResult
from pipeline.comparison.comparison import Comparison, Pair
from pipeline.comparison.runs import differences
from pipeline.comparison.speedups import Sums, ratio_of_totals


@dataclass(frozen=True)
class Spread:
    """The lowest and the highest of several speedups."""

    lowest: float
    highest: float

    @property
    def ratio(self) -> float:
        """1: the speedup is the same everywhere."""
        return self.highest / self.lowest


@dataclass(frozen=True)
class Sensitivity:
    """A method's speedups, ratios of totals: by dataset, and by the prompts' length in tokens, in order.

    Lengths are those that prompts were made to have, or else powers of two: each is where a bin to the next begins.

    varying: the method's settings that differ between the datasets, which should be none.
    """

    method: str
    by_dataset: dict[str, float]
    by_length: dict[int, float]
    varying: list[str]

    @property
    def over_datasets(self) -> Spread | None:
        """None if there are fewer than two."""
        return _spread(self.by_dataset)

    @property
    def over_lengths(self) -> Spread | None:
        """Ditto."""
        return _spread(self.by_length)


def sensitivity(method: str, pairs: Sequence[Pair]) -> Sensitivity:
    """Of one method's runs, each of another dataset.

    Where datasets have texts of one kind at several lengths, such as longtext, lengths are theirs alone: elsewhere
    longer prompts are other tasks too. Without such a dataset, prompts of all of them count.
    """
    made_for_it = [pair for pair in pairs if has_lengths(pair)]
    bins = binned(made_for_it or pairs, lambda result: nominal_length(result) or 2 ** octave_of(result))
    return Sensitivity(
        method,
        {pair.run.dataset: pair.speedup for pair in pairs},
        {n_tokens: float(ratio_of_totals(sums.sum(axis=1))) for n_tokens, sums in bins.items()},
        _varying([pair.run.settings for pair in pairs]),
    )


def sensitivities(comparisons: Iterable[Comparison]) -> list[Sensitivity]:
    """Those of the lossless methods among comparisons of one group that have something to vary over.

    One dataset alone has that only if it is made of lengths.
    """
    lossless = [c for c in comparisons if not (c.is_baseline or c.run.is_lossy)]
    found = [sensitivity(c.method, c.pairs) for c in lossless if c.is_overall or has_lengths(c.pairs[0])]
    return [s for s in found if s.over_datasets is not None or s.over_lengths is not None]


def has_lengths(pair: Pair) -> bool:
    """Whether the groups of its dataset are lengths in tokens."""
    return all(nominal_length(result) is not None for result in pair.run.results.values())


def nominal_length(result: PromptResult) -> int | None:
    """The tokens that a prompt was made to have, if its group says so."""
    return int(result.group) if result.group is not None and result.group.isdecimal() and int(result.group) else None


def octave_of(result: PromptResult) -> int:
    """Binary logarithm of a prompt's tokens, rounded down; of a conversation's mean over its turns."""
    n_tokens = nominal_length(result) or result.n_prompt_tokens / max(1, len(result.turns))
    return floor(log2(n_tokens))


def binned(pairs: Iterable[Pair], bin_of: Callable[[PromptResult], int]) -> dict[int, Sums]:
    """Tokens and seconds of prompts, [4, prompts] as in `Pair.sums`, by bin, in order."""
    bins = defaultdict(list)
    for pair in pairs:
        for result, prompt in zip(pair.run.results.values(), pair.sums.T, strict=True):
            bins[bin_of(result)].append(prompt)
    return {place: np.array(bins[place]).T for place in sorted(bins)}


def _varying(settings: Sequence[dict[str, Any]]) -> list[str]:
    """The settings that differ, of those that are the method's everywhere: some datasets have a seed of their own."""
    shared = [name for name in settings[0] if all(name in others for others in settings)]
    return differences([{name: some[name] for name in shared} for some in settings])


def _spread(speedups: dict[str, float] | dict[int, float]) -> Spread | None:
    return Spread(min(speedups.values()), max(speedups.values())) if len(speedups) > 1 else None
