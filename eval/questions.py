"""Questions and answers in FastChat's form, which MT-Bench and Spec-Bench share."""

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from eval.rows import Row
from eval.sample import Sample


class Question(Row):
    """One row of a question.jsonl. turns: what the user says, one after the other."""

    question_id: int
    category: str = Field(min_length=1)
    turns: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)


def sample_of(question: Question, reference: Mapping[str, Any]) -> Sample:
    """The conversation that a question begins; its group is the category."""
    first, *later = question.turns
    return Sample(
        id=str(question.question_id),
        messages=({"role": "user", "content": first},),
        text="",  # a conversation has no plain form: it takes a template of the tokenizer's or of FastChat's
        reference=reference,
        later_turns=tuple(later),
        group=question.category,
    )


def model_id(model_name: str) -> str:
    """What such rows call a model: the last part of its name or folder."""
    return Path(model_name).name or Path(model_name).resolve().name  # "." has no last part of its own


def answer_row(question_id: int, model: str, answers: Sequence[str]) -> dict[str, Any]:
    """One row of a file of answers, as `fastchat.llm_judge.gen_model_answer` writes it.

    The same answers make the same row: its id is derived from what is answered, and the time stamp, which nothing
    reads, is 0.
    """
    turns = [answer.strip() for answer in answers]  # as FastChat does
    content = json.dumps([model, str(question_id), turns])
    return {
        "question_id": question_id,
        "answer_id": str(uuid.uuid5(uuid.NAMESPACE_OID, content)),
        "model_id": model,
        "choices": [{"index": 0, "turns": turns}],
        "tstamp": 0.0,
    }


def as_jsonl(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A file of answers, in the questions' order."""
    return "".join(json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: row["question_id"])).encode()
