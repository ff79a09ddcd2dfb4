"""Scoring Spec-Bench: not at all."""

from collections.abc import Sequence

from eval.sample import EvalParams, Sample, Scores


def score(sample: Sample, answers: Sequence[str], params: EvalParams) -> Scores:
    """No score: Spec-Bench measures speed, and takes the baseline's answers for right."""
    return {}
