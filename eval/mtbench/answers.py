"""Answers in the form that FastChat's judge reads."""

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.sample import Sample
from pipeline.files import write_whole


def write_answers(folder: Path, model_name: str, answered: Sequence[tuple[Sample, Sequence[str]]]) -> None:
    """Write `model_answer/MODEL.jsonl`, whole or not at all; MODEL is the last part of the model's name.

    A row is what `fastchat.llm_judge.gen_model_answer` writes. The same answers make the same file: ids are derived
    from what is answered, and the time stamp, which the judge does not read, is 0.
    """
    model_id = Path(model_name).name or Path(model_name).resolve().name  # "." has no last part of its own
    path = folder / "model_answer" / f"{model_id}.jsonl"
    rows = sorted((_row(model_id, *pair) for pair in answered), key=lambda row: row["question_id"])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def _row(model_id: str, sample: Sample, answers: Sequence[str]) -> dict[str, Any]:
    turns = [answer.strip() for answer in answers]  # as FastChat does
    content = json.dumps([model_id, sample.id, turns])
    return {
        "question_id": int(sample.id),
        "answer_id": str(uuid.uuid5(uuid.NAMESPACE_OID, content)),
        "model_id": model_id,
        "choices": [{"index": 0, "turns": turns}],
        "tstamp": 0.0,
    }
