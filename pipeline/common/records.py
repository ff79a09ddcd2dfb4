"""Schemas of a run folder's records, and the summary computed from them."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.common.schemas import SubDir
from pipeline.fafo.settings import StopReason
from pipeline.fafo.step_times import StepTimes

Verdict = Literal["identical", "near tie", "fault"]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class Turn(_Record):
    """One turn of a conversation of several. n_reused_tokens: of the prompt, entries that the cache had already."""

    output_text: str
    n_prompt_tokens: int = Field(ge=1)
    n_reused_tokens: int = Field(ge=0)
    n_new_tokens: int = Field(ge=1)
    prefill_seconds: float | None = Field(ge=0, default=None)  # records of older runs lack it, as they do the next
    decode_seconds: float | None = Field(ge=0, default=None)
    stop_reason: StopReason


class PromptResult(_Record):
    """One line of raw_results.jsonl: what `Generation` has, with the decoded text and its scores.

    For a conversation of several turns, numbers are sums over its turns (means, where they are means) and lists go on
    from turn to turn; `turns` tells them apart, and `stop_reason` is that of the last.
    prompt_sha256: of the token ids of the first prompt; None in records of older runs, as are the next two.
    verified_rows, window_rows, draft_passes: of each step the rows of its pass, root and guesses or the window's, and
        the passes that guessed before it; records of older runs lack them, as they do the next.
    draft_cache_share: of the committed entries, how many such passes saw, over layers and passes; None without any.
    extra_bytes: see `Decoding.extra_bytes`.
    token_sources: a letter per new token, see `sources.py`.
    kv_bytes: of all layers, for FAFO of the window's reads too.
    score: the dataset's main one, which is the first of `scores`.
    n_cut_tokens: how many tokens were cut out of a prompt that was too long.
    """

    id: str
    prompt_sha256: str | None = None
    group: str | None = None
    output_text: str
    output_token_ids: list[int]
    n_prompt_tokens: int = Field(ge=1)
    n_new_tokens: int = Field(ge=1)
    n_steps: int = Field(ge=1)
    accepted_lengths: list[int]  # new tokens of each decoding step
    verified_rows: list[int] | None = None
    window_rows: list[int] | None = None
    draft_passes: list[int] | None = None
    draft_cache_share: float | None = None
    extra_bytes: int | None = None
    prefill_seconds: float = Field(ge=0)
    decode_seconds: float = Field(ge=0)
    stop_reason: StopReason
    score: float | None
    scores: dict[str, float] = Field(default_factory=dict)
    turns: list[Turn] = Field(default_factory=list)
    token_sources: str | None = None
    n_cut_tokens: int = Field(ge=0, default=0)
    cache_tokens: float  # committed cache entries, mean over the steps
    seen_cache_tokens: float | None = None  # how many of them new tokens saw, in lossy runs; None in others
    kv_bytes: float | None = None  # of keys and values that attention reads from the cache, mean over the steps
    n_window_steps: int | None = None  # steps with window rows; records of older runs, in which all had some, lack it
    cache_tokens_beside_window: float | None = None  # committed entries, mean over these steps; ditto
    window_cache_tokens: float | None  # how many of them the window rows saw; None without a window

    def has_prompt_of(self, other: "PromptResult") -> bool:
        """Whether both answer the same prompt, of a conversation the first one, which does not depend on any answer.

        Records of older runs tell no more than how many tokens it has.
        """
        n_ours, n_theirs = (r.turns[0].n_prompt_tokens if r.turns else r.n_prompt_tokens for r in (self, other))
        hashes = {self.prompt_sha256, other.prompt_sha256} - {None}
        return n_ours == n_theirs and len(hashes) <= 1

    @property
    def answers(self) -> list[list[int]]:
        """The token ids of each turn's answer."""
        lengths = [turn.n_new_tokens for turn in self.turns] or [self.n_new_tokens]
        return [self.output_token_ids[end - n : end] for n, end in zip(lengths, accumulate(lengths), strict=True)]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if not self.n_new_tokens == len(self.output_token_ids) == sum(self.accepted_lengths):
            raise ValueError("n_new_tokens, output_token_ids and accepted_lengths disagree")
        if self.n_steps != len(self.accepted_lengths):
            raise ValueError("n_steps and accepted_lengths disagree")
        for rows in (self.verified_rows, self.window_rows, self.draft_passes):
            if rows is not None and len(rows) != self.n_steps:
                raise ValueError("n_steps and the rows of each step disagree")
        if self.turns and sum(turn.n_new_tokens for turn in self.turns) != self.n_new_tokens:
            raise ValueError("n_new_tokens and turns disagree")
        if self.token_sources is not None and len(self.token_sources) != self.n_new_tokens:
            raise ValueError("n_new_tokens and token_sources disagree")
        return self


class EvalResults(_Record):
    """Summary of all prompts. Rates are tokens per second; tau is new tokens per decoding step.

    score: of the metric named `metric`, the dataset's main one; None both where nothing is scored. It is the mean of
        `group_scores` where prompts have groups, which then count alike, else the mean over prompts.
    scores: all metrics, each the mean over the prompts that have it.
    rows_per_step: of a step's pass, mean over all steps. draft_passes_per_step: passes that guessed before it, ditto.
    draft_cache_share: of the committed entries, how many such passes saw.
    extra_bytes: the most of any prompt.
    n_cut_prompts: prompts whose middle was cut out, since they were too long.
    """

    throughput: float
    decode_throughput: float
    tau: float
    n_prompts: int
    n_new_tokens: int
    n_steps: int
    accepted_length_histogram: dict[str, int]  # accepted length -> steps
    score: float | None
    metric: str | None
    scores: dict[str, float] = Field(default_factory=dict)
    group_scores: dict[str, float] = Field(default_factory=dict)
    rows_per_step: float | None = None  # records of older runs lack it, as they do the next three
    draft_passes_per_step: float | None = None
    draft_cache_share: float | None = None
    extra_bytes: int | None = None
    n_cut_prompts: int = 0
    cache_tokens: float  # mean over all steps
    seen_cache_tokens: float | None = None  # ditto; None for runs that are not lossy
    seen_cache_share: float | None = None  # of the cache, how much new tokens saw
    kv_bytes: float | None = None  # mean over all steps; records of older runs lack it
    n_window_steps: int | None = None  # records of older runs lack it
    window_cache_tokens: float | None  # mean over the steps with a window
    window_cache_share: float | None  # of the cache in these steps, how much the window rows saw


class Fingerprint(_Record):
    """Tells one set of dataset rows from another."""

    n_rows: int
    sha256: str


class Environment(_Record):
    """What a session ran on."""

    versions: dict[str, str | None]
    device: str
    device_name: str
    dtype: str
    threads: int
    git_commit: str | None  # None when this is not a checkout
    compiled: bool = False  # whether the model ran compiled; false too where that was asked for and can't be had
    step_times: StepTimes | None = None  # what planner "auto" reckoned with
    drafter: dict[str, Any] | None = None  # its hyperparameters, with what it found out before decoding
    n_processes: int = 1  # that shared the prompts
    interleaved: list[str] = Field(default_factory=list)  # folders of the runs that one process decoded in turn


class Session(Environment):
    """One process that worked on the run. Times are ISO 8601, UTC.

    A killed session's end is the time of the last result it recorded.
    process: its number among `n_processes`.
    """

    process: int = 0
    start_time: str
    end_time: str | None


class Management(Environment):
    """How a run came about; the environment is that of the latest session.

    exp_duration: seconds, the sum over all sessions, without the pauses between them.
    ignored_generation_config: what the model's generation config sets and plain decoding leaves out, as "name=value".
    """

    exp_desc: str
    output_folder_dir: str
    sub_dir: SubDir
    start_time: str
    end_time: str | None
    exp_duration: float | None
    seed: int
    dataset: Fingerprint
    ignored_generation_config: list[str] = Field(default_factory=list)  # records of older runs lack it
    sessions: list[Session]


class OutputConfig(_Record):
    """output_config.json; `eval_results` is None until the run is complete."""

    pipeline_params: dict[str, Any]
    eval_params: dict[str, Any]
    eval_results: EvalResults | None
    management: Management


class PromptAudit(_Record):
    """How two runs' outputs for one prompt compare; see `audit.py`. All but id and verdict are None if identical.

    position: of the first difference among the new tokens. token_a, token_b: what stands there; None: it has ended.
    gap: between the logits of the two tokens in float32. behind_best: what the lower one lacks to the highest logit.
    noise: how large a gap the rounding of the runs' dtype can make up for there. These three are None where
    nothing was measured, since no rounding explains the difference.
    """

    id: str
    verdict: Verdict
    position: int | None = None
    token_a: int | None = None
    token_b: int | None = None
    gap: float | None = None
    behind_best: float | None = None
    noise: float | None = None


class Audit(_Record):
    """audit.json: run_a is the run that it lies with, run_b its baseline. The counts are of prompts.

    n_not_compared: those that only one of the runs has answered.
    """

    run_a: str
    run_b: str
    dtype: str
    n_identical: int
    n_near_ties: int
    n_faults: int
    n_not_compared: int
    prompts: list[PromptAudit]


def summarize(results: Sequence[PromptResult]) -> EvalResults:
    """Compute the summary of at least one result."""
    groups: dict[str | None, list[float]] = {}
    for result in results:
        if result.score is not None:
            groups.setdefault(result.group, []).append(result.score)
    group_scores = {group: fmean(scores) for group, scores in groups.items()}
    metrics = list(dict.fromkeys(metric for r in results for metric in r.scores))
    n_new_tokens = sum(r.n_new_tokens for r in results)
    n_steps = sum(r.n_steps for r in results)
    decode_seconds = sum(r.decode_seconds for r in results)
    seconds = decode_seconds + sum(r.prefill_seconds for r in results)
    histogram = Counter(length for r in results for length in r.accepted_lengths)
    cache_tokens = sum(r.cache_tokens * r.n_steps for r in results) / n_steps
    seen_cache_tokens = _over_steps(results, lambda r: r.seen_cache_tokens)
    shares = [(sum(r.draft_passes or ()), r.draft_cache_share) for r in results if r.draft_cache_share is not None]
    n_passes = sum(n for n, _ in shares)
    windows = [(r.n_window_steps or r.n_steps, r) for r in results if r.window_cache_tokens is not None]
    n_window_steps = sum(n for n, _ in windows)
    seen = sum(n * (r.window_cache_tokens or 0.0) for n, r in windows)
    beside = sum(n * (r.cache_tokens_beside_window or r.cache_tokens) for n, r in windows)
    return EvalResults(
        throughput=n_new_tokens / seconds,
        decode_throughput=n_new_tokens / decode_seconds,
        tau=n_new_tokens / n_steps,
        n_prompts=len(results),
        n_new_tokens=n_new_tokens,
        n_steps=n_steps,
        accepted_length_histogram={str(length): histogram[length] for length in sorted(histogram)},
        score=fmean(group_scores.values()) if group_scores else None,
        metric=metrics[0] if metrics else None,
        scores={metric: fmean(r.scores[metric] for r in results if metric in r.scores) for metric in metrics},
        group_scores={group: score for group, score in group_scores.items() if group is not None},
        n_cut_prompts=sum(r.n_cut_tokens > 0 for r in results),
        rows_per_step=_over_steps(results, lambda r: _mean_of(r.verified_rows, r.window_rows)),
        draft_passes_per_step=_over_steps(results, lambda r: _mean_of(r.draft_passes)),
        draft_cache_share=sum(n * share for n, share in shares) / n_passes if n_passes else None,
        extra_bytes=max((r.extra_bytes for r in results if r.extra_bytes is not None), default=None),
        cache_tokens=cache_tokens,
        seen_cache_tokens=seen_cache_tokens,
        seen_cache_share=seen_cache_tokens / cache_tokens if seen_cache_tokens is not None and cache_tokens else None,
        kv_bytes=_over_steps(results, lambda r: r.kv_bytes),
        n_window_steps=n_window_steps,
        window_cache_tokens=seen / n_window_steps if windows else None,
        window_cache_share=seen / beside if beside else None,
    )


def _mean_of(*of_steps: list[int] | None) -> float | None:
    """The mean over a line's steps of the sum of what each step has; None if anything is not recorded."""
    there = [values for values in of_steps if values is not None]
    return sum(map(fmean, there)) if len(there) == len(of_steps) else None


def _over_steps(results: Sequence[PromptResult], value: Callable[[PromptResult], float | None]) -> float | None:
    """The mean over all steps of what each line has as a mean over its own; None if a line lacks it."""
    values = [(r.n_steps, of_line) for r in results if (of_line := value(r)) is not None]
    return sum(n * v for n, v in values) / sum(n for n, _ in values) if len(values) == len(results) else None
