"""Answers in the form that FastChat's judge reads."""

from collections.abc import Sequence
from pathlib import Path

from eval.questions import answer_row, as_jsonl, model_id
from eval.sample import Sample
from pipeline.files import write_whole


def write_answers(folder: Path, model_name: str, answered: Sequence[tuple[Sample, Sequence[str]]]) -> None:
    """Write `model_answer/MODEL.jsonl`, whole or not at all; MODEL is the last part of the model's name.

    The same answers make the same file, see `answer_row`.
    """
    model = model_id(model_name)
    path = folder / "model_answer" / f"{model}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, as_jsonl([answer_row(int(sample.id), model, answers) for sample, answers in answered]))
