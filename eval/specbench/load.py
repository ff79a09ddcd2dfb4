"""Reading Spec-Bench's questions."""

from pathlib import Path

from eval.questions import Question, sample_of
from eval.rows import rows_of_file
from eval.sample import EvalParams, Sample
from pipeline.errors import UserError

_SOURCE = "https://github.com/hemingkx/Spec-Bench/blob/main/data/spec_bench/question.jsonl"


def load(path: Path | None, params: EvalParams) -> list[Sample]:
    """Read the questions of a .jsonl or .jsonl.gz file. References, which few categories have, are left out.

    Raises:
        UserError: there is no file, or a row is not one of Spec-Bench.
    """
    if path is None:
        raise UserError(
            f"eval_params.dataset_path: found nothing; should name Spec-Bench's question.jsonl, which is at {_SOURCE}"
        )
    return [sample_of(question, {}) for question in rows_of_file(path, Question)]
