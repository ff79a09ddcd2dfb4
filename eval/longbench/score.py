"""Scoring LongBench answers."""

from collections.abc import Sequence

from eval.longbench.load import LongBenchParams
from eval.longbench.metrics import METRICS
from eval.longbench.subsets import SUBSETS
from eval.sample import Sample, Scores


def score(sample: Sample, answers: Sequence[str], params: LongBenchParams) -> Scores:
    """The subset's metric against the right answer that fits best: as "longbench", and by its own name."""
    subset = SUBSETS[sample.reference["subset"]]
    answer = answers[0].lstrip("\n").split("\n")[0] if subset.first_line else answers[0]
    classes = sample.reference["all_classes"] or ()
    best = max(METRICS[subset.metric](answer, right, classes) for right in sample.reference["answers"])
    return {"longbench": best, subset.metric: best}
