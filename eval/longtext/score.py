"""Scoring long texts: not at all."""

from collections.abc import Sequence

from eval.longtext.load import LongTextParams
from eval.sample import Sample, Scores


def score(sample: Sample, answers: Sequence[str], params: LongTextParams) -> Scores:
    """No score: several articles in one text have no reference summary."""
    return {}
