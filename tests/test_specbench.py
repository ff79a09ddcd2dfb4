"""Spec-Bench: its questions as a dataset, and runs as answers that its scripts read."""

import json
import shutil
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.sample import EvalParams, Sample
from eval.specbench import DATASET
from pipeline.common.cli import main as run
from pipeline.common.config import load_experiment
from pipeline.common.records import PromptResult, Turn
from pipeline.errors import UserError
from scripts.speedup.compute_speedup import main as compute_speedup
from scripts.speedup.export_specbench import main, question_ids, seconds, steps
from tests.audited import edit_lines, edit_record, run_both
from tests.runs import ROOT, Case

pytest_plugins = ["tests.run_fixtures"]

PARAMS = EvalParams(dataset="specbench")
ROWS: list[dict[str, Any]] = [
    {"question_id": 82, "category": "writing", "turns": ["Write.", "Shorter."]},
    {"question_id": 100, "category": "math", "turns": ["1 + 1?", "Twice that?"], "reference": ["2", "4"]},
    {"question_id": 241, "category": "summarization", "turns": ["Summarize: One. Two. One. Two."], "reference": 3},
]
ANSWERS = Path("spec-bench", "specbench", "model")


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def exported(case: Case) -> Path:
    """The folder of a FAFO run and its baseline on Spec-Bench's rows, exported."""
    model = case.folder / "model"
    shutil.copytree(case.pipeline["model_name"], model)
    case.pipeline["model_name"] = str(model)
    case.eval = {"dataset": "specbench", "dataset_path": str(write(case.folder / "question.jsonl", ROWS))}
    runs = run_both(case)[0].parent
    assert main([str(runs)]) == 0
    return runs


def test_questions(tmp_path: Path) -> None:
    writing, math, summary = DATASET.load(write(tmp_path / "question.jsonl", ROWS), PARAMS)
    assert writing == Sample(
        id="82",
        messages=({"role": "user", "content": "Write."},),
        text="",
        reference={},
        later_turns=("Shorter.",),
        group="writing",
    )
    assert (math.id, math.group, summary.group, summary.later_turns) == ("100", "math", "summarization", ())
    assert DATASET.score(math, ["2", "4"], PARAMS) == {}


def test_config(case: Case) -> None:
    found = load_experiment(case.pipeline_file, ROOT / "config" / "eval_config" / "specbench" / "specbench.json").eval
    assert found == PARAMS


def test_no_file() -> None:
    with pytest.raises(UserError, match=r"eval_params\.dataset_path.*github\.com/hemingkx/Spec-Bench"):
        DATASET.load(None, PARAMS)


def test_bad_row(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line 2: turns\.1"):
        DATASET.load(write(tmp_path / "q.jsonl", [ROWS[0], ROWS[1] | {"turns": ["1 + 1?", ""]}]), PARAMS)


def test_answers_have_the_fields_that_the_scripts_read(exported: Path) -> None:
    for name, folder in (("baseline", "baseline"), ("fafo-stream-llm", "fafo")):
        rows = read(exported / ANSWERS / f"{name}.jsonl")
        results = {line["id"]: line for line in read(exported / folder / "raw_results.jsonl")}
        assert [(row["question_id"], row["category"]) for row in rows] == [
            (row["question_id"], row["category"]) for row in ROWS
        ]
        assert {row["model_id"] for row in rows} == {f"model-{name}"}
        assert len({row["answer_id"] for row in rows}) == len(rows)
        for row, question in zip(rows, ROWS, strict=True):
            assert row.keys() == {"question_id", "category", "answer_id", "model_id", "choices", "tstamp"}
            [choice] = row["choices"]
            line, n_turns = results[str(row["question_id"])], len(question["turns"])
            assert choice.keys() == {
                "index", "turns", "decoding_steps", "new_tokens", "wall_time", "accept_lengths",
            }  # fmt: skip
            assert choice["new_tokens"] == [12] * n_turns
            assert choice["accept_lengths"] == line["accepted_lengths"]
            assert sum(choice["decoding_steps"]) == len(choice["accept_lengths"])
            assert min(choice["wall_time"]) > 0 and len(choice["wall_time"]) == n_turns
            assert sum(choice["wall_time"]) == pytest.approx(line["prefill_seconds"] + line["decode_seconds"])
            timed = line["turns"] or [line]
            assert choice["wall_time"] == [turn["prefill_seconds"] + turn["decode_seconds"] for turn in timed]
            assert choice["turns"] == [turn["output_text"].strip() for turn in timed]
            start = 0  # a step never yields tokens of two turns
            for n_steps, n_tokens in zip(choice["decoding_steps"], choice["new_tokens"], strict=True):
                assert sum(choice["accept_lengths"][start : start + n_steps]) == n_tokens
                start += n_steps


def test_same_figures_as_ours(exported: Path) -> None:
    """What speed.py makes of the files, but for how it weighs prompts, is what `compute_speedup.py` says."""
    assert compute_speedup([str(exported)]) == 0
    comparisons = json.loads((exported / "speedup.json").read_text())["comparisons"]
    ours = {comparison["method"]: comparison for comparison in comparisons}
    for name in ("baseline", "fafo-stream-llm"):
        choices = [row["choices"][0] for row in read(exported / ANSWERS / f"{name}.jsonl")]
        tokens = [sum(choice["new_tokens"]) for choice in choices]
        times = [sum(choice["wall_time"]) for choice in choices]
        assert fmean(n for choice in choices for n in choice["accept_lengths"]) == pytest.approx(
            ours[name]["tau_tokens_per_step"]
        )
        assert sum(tokens) / sum(times) == pytest.approx(ours[name]["throughput_tokens_per_second"])
    assert ours["fafo-stream-llm"]["tau_tokens_per_step"] > 1
    [plain, fafo] = [read(exported / ANSWERS / f"{name}.jsonl") for name in ("baseline", "fafo-stream-llm")]
    assert [row["choices"][0]["turns"] for row in plain] == [row["choices"][0]["turns"] for row in fafo]


def test_exporting_again_changes_nothing(exported: Path) -> None:
    before = {path: path.read_bytes() for path in (exported / ANSWERS).iterdir()}
    assert main([str(exported)]) == 0
    assert {path: path.read_bytes() for path in (exported / ANSWERS).iterdir()} == before


def test_other_datasets_are_numbered(runs: tuple[Path, Path]) -> None:
    output = runs[0].parent
    assert main([str(output)]) == 0
    [folder] = (output / "spec-bench" / "humaneval").iterdir()
    rows = read(folder / "fafo-stream-llm.jsonl")
    assert [(row["question_id"], row["category"]) for row in rows] == [(i, "humaneval") for i in (1, 2, 3)]
    assert [len(row["choices"][0]["turns"]) for row in rows] == [1, 1, 1]
    assert [row["question_id"] for row in read(folder / "baseline.jsonl")] == [1, 2, 3]


def test_settings_are_part_of_the_name(case: Case, runs: tuple[Path, Path]) -> None:
    case.pipeline["window"] = 4
    case.write()
    case.output = case.folder / "runs" / "wider"
    assert run("fafo", case.argv()) == 0
    assert main([str(case.folder / "runs")]) == 0
    [folder] = (case.folder / "runs" / "spec-bench" / "humaneval").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        "baseline.jsonl", "fafo-stream-llm-window-3.jsonl", "fafo-stream-llm-window-4.jsonl",
    ]  # fmt: skip


def test_conditions_are_part_of_the_name(runs: tuple[Path, Path]) -> None:
    """Runs on other prompts have a folder of their own, baseline and all."""
    for folder in runs:
        twin = folder.with_name(f"{folder.name}-short")
        shutil.copytree(folder, twin)
        edit_record(twin, lambda record: record["pipeline_params"].update(n_new_tokens=13))
    output = runs[0].parent
    assert main([str(output)]) == 0
    folders = sorted((output / "spec-bench" / "humaneval").iterdir())
    assert [path.name.rpartition("-n_new_tokens-")[2] for path in folders] == ["12", "13"]
    assert [len(list(path.iterdir())) for path in folders] == [2, 2]


def test_two_runs_of_one_name_are_refused(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs[0], runs[0].with_name("again"))
    assert main([str(runs[0].parent)]) == 2
    error = capsys.readouterr().err
    assert str(runs[0]) in error and str(runs[0].with_name("again")) in error
    assert not (runs[0].parent / "spec-bench").exists()


def test_nothing_to_export(runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs[0], tmp_path / "alone" / "fafo")
    assert main([str(tmp_path / "alone")]) == 2
    skipped, error = capsys.readouterr().err.splitlines()
    assert skipped.startswith("skipped ") and "no baseline run" in skipped
    assert "no finished runs" in error
    assert not (tmp_path / "alone" / "spec-bench").exists()


def test_a_folder_in_the_way(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    (runs[0].parent / "spec-bench").write_text("")
    assert main([str(runs[0].parent)]) == 2
    assert "spec-bench" in capsys.readouterr().err


def test_records_without_the_seconds_of_a_turn(exported: Path) -> None:
    before = read(exported / ANSWERS / "baseline.jsonl")

    def forget(lines: list[dict[str, Any]]) -> None:
        for turn in (turn for line in lines for turn in line["turns"]):
            del turn["prefill_seconds"], turn["decode_seconds"]

    edit_lines(exported / "baseline", forget)
    assert main([str(exported)]) == 0
    for old, new in zip(before, read(exported / ANSWERS / "baseline.jsonl"), strict=True):
        times = new["choices"][0]["wall_time"]
        assert sum(times) == pytest.approx(sum(old["choices"][0]["wall_time"]))
        assert times == pytest.approx([times[0]] * len(times))  # as many new tokens each


def conversation(turns: list[list[int]], times: list[tuple[float, float]]) -> PromptResult:
    """Of turns with these accepted lengths, and seconds of prefill and decoding."""
    lengths = [length for turn in turns for length in turn]
    return PromptResult(
        id="1", output_text="", output_token_ids=[5] * sum(lengths), n_prompt_tokens=9, n_new_tokens=sum(lengths),
        n_steps=len(lengths), accepted_lengths=lengths, prefill_seconds=sum(prefill for prefill, _ in times),
        decode_seconds=sum(decode for _, decode in times), stop_reason="length", score=None, cache_tokens=9,
        window_cache_tokens=None,
        turns=[
            Turn(output_text="", n_prompt_tokens=9, n_reused_tokens=0, n_new_tokens=sum(turn), stop_reason="length",
                 prefill_seconds=prefill, decode_seconds=decode)
            for turn, (prefill, decode) in zip(turns, times, strict=True)
        ],
    )  # fmt: skip


@given(st.lists(st.lists(st.integers(1, 6), min_size=1), min_size=1, max_size=4), st.data())
def test_turns_are_told_apart(turns: list[list[int]], data: st.DataObject) -> None:
    time = st.floats(0, 100)
    times = [(data.draw(time), data.draw(time)) for _ in turns]
    result = conversation(turns, times)
    assert steps(result) == list(map(len, turns))
    assert seconds(result) == [prefill + decode for prefill, decode in times]


@pytest.mark.parametrize(
    ("ids", "numbers"),
    [
        (["101", "81"], [101, 81]),
        (["HumanEval/0", "HumanEval/1"], [1, 2]),
        (["7", "b"], [1, 2]),
        (["07", "7"], [1, 2]),  # one number for both would make one question of two
        (["²", "7"], [1, 2]),  # a digit, but no number
    ],
)
def test_question_ids(ids: list[str], numbers: list[int]) -> None:
    assert question_ids(ids) == numbers


def test_help_says_how_to_run_the_scripts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["export_specbench.py"])
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert all(word in said for word in ("evaluation/speed.py", "evaluation/equal.py", "--tokenizer-path"))
