"""Reading MT-Bench's questions."""

from pathlib import Path

from eval.questions import Question, sample_of
from eval.rows import Hub, rows_of
from eval.sample import EvalParams, Sample

# The file of that repository, not its table: there the ids are hashes, which FastChat's judge does not know.
_HUB = Hub("HuggingFaceH4/mt_bench_prompts", split="train", data_files="raw/question.jsonl", rename={"prompt": "turns"})


class JudgedQuestion(Question):
    """One row of FastChat's question.jsonl. reference: right answers turn by turn, which few categories have."""

    reference: list[str] | None = None


def load(path: Path | None, params: EvalParams) -> list[Sample]:
    """Read the questions of a .jsonl or .jsonl.gz file, or the hub's.

    Raises:
        UserError: there is nothing to read, or a row is not one of MT-Bench.
    """
    return [
        sample_of(question, {"category": question.category, "reference": question.reference or []})
        for question in rows_of(path, _HUB, JudgedQuestion)
    ]
