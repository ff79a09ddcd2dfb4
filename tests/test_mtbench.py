"""MT-Bench: loading its questions, and the file for FastChat's judge."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from eval.mtbench import DATASET
from eval.mtbench.answers import write_answers
from eval.mtbench.load import load
from eval.sample import EvalParams, Sample
from pipeline.errors import UserError

PARAMS = EvalParams(dataset="mtbench")
ROWS: list[dict[str, Any]] = [
    {"question_id": 101, "category": "math", "turns": ["1 + 1?", "Twice that?"], "reference": ["2", "4"]},
    {"question_id": 99, "category": "writing", "turns": ["Write.", "Shorter.", "As a limerick."]},
    {"question_id": 100, "category": "stem", "turns": ["Why?"]},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def loaded(tmp_path: Path) -> list[Sample]:
    return load(write(tmp_path / "question.jsonl", ROWS), PARAMS)


def test_turns(tmp_path: Path) -> None:
    math, writing, stem = loaded(tmp_path)
    assert math == Sample(
        id="101",
        messages=({"role": "user", "content": "1 + 1?"},),
        text="",
        reference={"category": "math", "reference": ["2", "4"]},
        later_turns=("Twice that?",),
        group="math",
    )
    assert writing.later_turns == ("Shorter.", "As a limerick.")
    assert writing.reference == {"category": "writing", "reference": []}
    assert stem.later_turns == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"turns": []}, "line 2: turns"),
        ({"turns": ["Why?", ""]}, "line 2: turns.1"),
        ({"turns": "Why?"}, "line 2: turns"),
        ({"question_id": "99"}, "line 2: question_id"),
        ({"category": None}, "line 2: category"),
        ({"reference": "2"}, "line 2: reference"),
    ],
)
def test_bad_rows(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = write(tmp_path / "question.jsonl", [ROWS[0], ROWS[1] | change])
    with pytest.raises(UserError, match=said):
        load(path, PARAMS)


def test_hub_rows_have_fastchats_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def load_dataset(path: str, **arguments: Any) -> list[dict[str, Any]]:
        asked.append((path, arguments))
        return [{"prompt" if key == "turns" else key: value for key, value in row.items()} for row in ROWS]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert load(None, PARAMS) == loaded(tmp_path)
    [(path, arguments)] = asked
    assert path == "HuggingFaceH4/mt_bench_prompts"
    assert arguments["data_files"] == "raw/question.jsonl"  # the repository's table has other ids


def test_only_a_judge_scores(tmp_path: Path) -> None:
    assert DATASET.score(loaded(tmp_path)[0], ["2", "4"], PARAMS) == {}


def test_answers_file(tmp_path: Path) -> None:
    samples = loaded(tmp_path)
    answers = [["2\n", "4"], ["Für dich", "\u2028", ""], ["So."]]
    assert DATASET.write_answers is not None
    DATASET.write_answers(tmp_path, "org/Some-Model-1.5", list(zip(samples, answers, strict=True)))
    [path] = (tmp_path / "model_answer").iterdir()
    assert path.name == "Some-Model-1.5.jsonl"
    assert path.read_bytes().isascii()  # FastChat opens it in the platform's encoding
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["question_id"] for row in rows] == [99, 100, 101]
    assert rows[2].keys() == {"question_id", "answer_id", "model_id", "choices", "tstamp"}
    assert rows[2]["model_id"] == "Some-Model-1.5"
    assert [row["choices"] for row in rows] == [
        [{"index": 0, "turns": ["Für dich", "", ""]}],
        [{"index": 0, "turns": ["So."]}],
        [{"index": 0, "turns": ["2", "4"]}],
    ]
    assert len({row["answer_id"] for row in rows}) == 3


def test_answers_file_is_the_same_again(tmp_path: Path) -> None:
    samples = loaded(tmp_path)[::2]
    answered: list[tuple[Sample, list[str]]] = [(samples[0], ["2", "4"]), (samples[1], ["So."])]
    path = tmp_path / "model_answer" / "model.jsonl"
    write_answers(tmp_path, "models/model/", answered)
    before = path.read_bytes()
    write_answers(tmp_path, "models/model/", answered[::-1])
    assert path.read_bytes() == before
    write_answers(tmp_path, "models/model/", [(samples[0], ["2", "5"]), answered[1]])
    changed, same = json.loads(path.read_text().splitlines()[1]), path.read_bytes().splitlines()[0]
    assert same == before.splitlines()[0]
    assert changed["answer_id"] != json.loads(before.splitlines()[1])["answer_id"]


def test_a_failed_write_leaves_the_file(tmp_path: Path) -> None:
    sample = loaded(tmp_path)[0]
    write_answers(tmp_path, "model", [(sample, ["2", "4"])])
    before = (tmp_path / "model_answer" / "model.jsonl").read_bytes()
    (tmp_path / "model_answer" / "model.jsonl.tmp").mkdir()  # in the way
    with pytest.raises(OSError, match=r"model\.jsonl\.tmp"):
        write_answers(tmp_path, "model", [(sample, ["3", "6"])])
    assert (tmp_path / "model_answer" / "model.jsonl").read_bytes() == before


def test_model_in_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path / "my-model")
    write_answers(tmp_path, ".", [(loaded(tmp_path)[0], ["2", "4"])])
    assert (tmp_path / "model_answer" / "my-model.jsonl").exists()
