"""Reading MT-Bench's questions."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from eval.rows import Hub, Row, rows_of
from eval.sample import EvalParams, Sample

# The file of that repository, not its table: there the ids are hashes, which FastChat's judge does not know.
_HUB = Hub("HuggingFaceH4/mt_bench_prompts", split="train", data_files="raw/question.jsonl", rename={"prompt": "turns"})


class Question(Row):
    """One row of FastChat's question.jsonl. reference: right answers turn by turn, which few categories have."""

    question_id: int
    category: str = Field(min_length=1)
    turns: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    reference: list[str] | None = None


def load(path: Path | None, params: EvalParams) -> list[Sample]:
    """Read the questions of a .jsonl or .jsonl.gz file, or the hub's.

    Raises:
        UserError: there is nothing to read, or a row is not one of MT-Bench.
    """
    return [_sample(question) for question in rows_of(path, _HUB, Question)]


def _sample(question: Question) -> Sample:
    first, *later = question.turns
    return Sample(
        id=str(question.question_id),
        messages=({"role": "user", "content": first},),
        text="",  # a conversation has no plain form: it takes a template of the tokenizer's or of FastChat's
        reference={"category": question.category, "reference": question.reference or []},
        later_turns=tuple(later),
        group=question.category,
    )
