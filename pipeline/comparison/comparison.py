"""A method beside its baseline, on one dataset or on several."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Any

import numpy as np

from pipeline.common.records import EvalResults, summarize
from pipeline.comparison.runs import Run, differences
from pipeline.comparison.speedups import Interval, Sums, interval, median_ratio
from pipeline.errors import UserError
from pipeline.fafo.sources import common_prefix

OVERALL = "overall"


@dataclass(frozen=True)
class Pair:
    """A run and its baseline, which is itself if it is one."""

    run: Run
    baseline: Run

    @cached_property
    def sums(self) -> Sums:
        """Tokens and seconds of each prompt: [4, prompts], see `speedups.py`."""
        rows = []
        for results in (self.run.results.values(), self.baseline.results.values()):
            rows.append([float(r.n_new_tokens) for r in results])
            rows.append([r.prefill_seconds + r.decode_seconds for r in results])
        return np.array(rows)

    @cached_property
    def first_differences(self) -> dict[str, int]:
        """For each prompt whose output is not the baseline's, how many tokens they begin with in common."""
        theirs = self.baseline.results
        found = {key: first_difference(r.answers, theirs[key].answers) for key, r in self.run.results.items()}
        return {key: position for key, position in found.items() if position is not None}

    @property
    def other_length_ids(self) -> list[str]:
        """The prompts whose outputs have another length than the baseline's."""
        theirs = self.baseline.results
        return [key for key, r in self.run.results.items() if r.n_new_tokens != theirs[key].n_new_tokens]

    @property
    def speedup(self) -> float:
        """Ratio of the throughputs."""
        return self.run.summary.throughput / self.baseline.summary.throughput


@dataclass(frozen=True)
class Comparison:
    """One line of a table. `dataset` is a name or "overall", which has a pair of runs for each dataset.

    method: that of the runs, with the settings that tell it from others of the same name.
    """

    dataset: str
    method: str
    pairs: tuple[Pair, ...]

    @property
    def run(self) -> Run:
        """The run; of several, the first."""
        return self.pairs[0].run

    @property
    def datasets(self) -> list[str]:
        """The datasets that it is about."""
        return [pair.run.dataset for pair in self.pairs]

    @property
    def is_baseline(self) -> bool:
        """Whether it compares the baseline with itself."""
        return self.run.is_baseline

    @property
    def paired(self) -> bool:
        """Whether each prompt was decoded by one method after the other, by one process."""
        return all(pair.run.paired for pair in self.pairs)

    @cached_property
    def summary(self) -> EvalResults:
        """Of the method; overall, that of all datasets' prompts, without scores."""
        return _summary([pair.run for pair in self.pairs])

    @cached_property
    def baseline(self) -> EvalResults:
        """The same of the baseline."""
        return _summary([pair.baseline for pair in self.pairs])

    @property
    def speedup(self) -> float:
        """Ratio of the throughputs: all tokens by all seconds."""
        return self.summary.throughput / self.baseline.throughput

    @property
    def decode_speedup(self) -> float:
        """The same without prefill."""
        return self.summary.decode_throughput / self.baseline.decode_throughput

    @property
    def mean_of_datasets(self) -> float:
        """The mean of the datasets' speedups, in which a dataset of many tokens counts no more than others."""
        return fmean(pair.speedup for pair in self.pairs)

    @property
    def median_ratio(self) -> float:
        """The median of the single prompts' speedups."""
        return median_ratio([pair.sums for pair in self.pairs])

    @cached_property
    def interval(self) -> Interval | None:
        """The speedup's interval, see `speedups.interval`; None for the baseline too."""
        return None if self.is_baseline else interval([pair.sums for pair in self.pairs])

    @property
    def n_prompts(self) -> int:
        """Prompts of all its datasets."""
        return self.summary.n_prompts

    @cached_property
    def differing_ids(self) -> list[str]:
        """The prompts whose output tokens are not the baseline's."""
        return [key for pair in self.pairs for key in pair.first_differences]

    @cached_property
    def other_length_ids(self) -> list[str]:
        """The prompts whose outputs have another length than the baseline's."""
        return [key for pair in self.pairs for key in pair.other_length_ids]

    @property
    def median_first_difference(self) -> float | None:
        """Of the outputs that differ, how many tokens are the baseline's before that; None if none does."""
        positions = [position for pair in self.pairs for position in pair.first_differences.values()]
        return float(median(positions)) if positions else None

    @property
    def cache_seen(self) -> float | None:
        """The share of the cache that was seen: by window rows, drafting passes, or all tokens of a lossy run.

        None for methods that have nothing of these.
        """
        summary = self.summary
        if self.run.is_lossy:
            return summary.seen_cache_share
        return summary.draft_cache_share if summary.window_cache_share is None else summary.window_cache_share

    @property
    def kv_share(self) -> float | None:
        """Bytes of keys and values read in a step, by the baseline's; None if they are not recorded."""
        ours, theirs = self.summary.kv_bytes, self.baseline.kv_bytes
        return None if ours is None or not theirs else ours / theirs

    @property
    def n_identical(self) -> int:
        """How many prompts have the baseline's output tokens."""
        return self.n_prompts - len(self.differing_ids)

    @property
    def identical_share(self) -> float:
        """The same as a share."""
        return self.n_identical / self.n_prompts

    @property
    def is_overall(self) -> bool:
        """Whether it is about all datasets."""
        return self.dataset == OVERALL


def first_difference(ours: Sequence[list[int]], theirs: Sequence[list[int]]) -> int | None:
    """How many tokens of two outputs, given turn by turn, come before the first that differs; None if none does."""
    n_before = 0
    for our_turn, their_turn in zip(ours, theirs, strict=False):
        if our_turn != their_turn:
            return n_before + common_prefix(our_turn, their_turn)
        n_before += len(our_turn)
    return None if len(ours) == len(theirs) else n_before


def _summary(runs: Sequence[Run]) -> EvalResults:
    if len(runs) == 1:
        return runs[0].summary
    # Datasets have metrics of their own, of which no mean can be taken.
    unscored: dict[str, Any] = {"group": None, "score": None, "scores": {}}
    return summarize([r.model_copy(update=unscored) for run in runs for r in run.results.values()])


def compare(run: Run, runs: Sequence[Run], method: str) -> Comparison:
    """Compare a run with the baseline of the same conditions and prompts among `runs`.

    method: what the run is called.

    Raises:
        UserError: there is no such baseline, or several that it may have been decoded in turn with, or the run itself
            is a second one.
    """
    baselines = [other for other in runs if other.is_baseline]
    alike = [b for b in baselines if b.conditions == run.conditions]
    if not alike:
        raise UserError(_no_baseline(run, baselines))
    fitting = [b for b in alike if run.has_prompts_of(b)]
    if not fitting:
        raise UserError(f"its prompts are not those of the baseline {alike[0].folder}")
    baseline = fitting[0]
    if run.paired and not run.is_baseline and len(fitting) > 1:
        folders = ", ".join(str(b.folder) for b in fitting)
        raise UserError(f"which of several baselines it was decoded in turn with is not recorded: {folders}")
    if run.is_baseline and run is not baseline:
        raise UserError(
            f"a second baseline under the conditions of {baseline.folder}, which the others are compared with"
        )
    return Comparison(run.dataset, method, (Pair(run, baseline),))


def _no_baseline(run: Run, baselines: Sequence[Run]) -> str:
    """Why a run can't be compared, with what sets it apart from the nearest baseline of its dataset and model."""
    others = [b.conditions for b in baselines if (b.dataset, b.model) == (run.dataset, run.model)]
    if not others:
        return f"no baseline run of {run.dataset}, {run.model}"
    nearest: list[str] = min((differences([b, run.conditions]) for b in others), key=len)
    return f"no baseline run with the same {', '.join(nearest)}"
