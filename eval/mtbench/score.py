"""Scoring MT-Bench: not without a judge."""

from collections.abc import Sequence

from eval.sample import EvalParams, Sample, Scores


def score(sample: Sample, answers: Sequence[str], params: EvalParams) -> Scores:
    """No score: FastChat's judge gives one to the file that `write_answers` writes."""
    return {}
