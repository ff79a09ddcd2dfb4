"""The comparison of runs: what is compared with what, and that whatever can't be is skipped by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.common.cli import main as run
from pipeline.common.schemas import LossyParams
from scripts.speedup.compute_speedup import main
from tests.runs import Case

pytest_plugins = ["tests.run_fixtures"]


@pytest.fixture
def runs(case: Case) -> Path:
    """A folder with a finished baseline and a finished FAFO run."""
    case.output = case.folder / "runs" / "fafo"
    assert run("fafo", case.argv()) == 0
    case.to_baseline()
    case.output = case.folder / "runs" / "baseline"
    assert run("baseline", case.argv()) == 0
    return case.output.parent


def change(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "output_config.json"
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))


def copy(folder: Path, name: str) -> Path:
    """A second run folder with the same files."""
    twin = folder.with_name(name)
    twin.mkdir()
    for file in ("output_config.json", "raw_results.jsonl"):
        (twin / file).write_bytes((folder / file).read_bytes())
    return twin


def test_one_table(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(runs), "--require-identical"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("speedup") == 2  # of speed and of guessing, of one group of runs
    assert captured.out.count("3/3") == 2
    assert captured.err == ""


def test_a_difference(runs: Path) -> None:
    path = runs / "fafo" / "raw_results.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["output_token_ids"][3] += 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main([str(runs)]) == 0
    assert main([str(runs), "--require-identical"]) == 1


def test_a_lossy_run_may_differ(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twin = copy(runs / "fafo", "lossy")

    def make_lossy(record: dict[str, Any]) -> None:
        params = record["pipeline_params"]
        known = {*LossyParams.model_fields, "num_init", "num_local"}
        record["pipeline_params"] = {key: params[key] for key in params if key in known} | {"method": "lossy"}

    change(twin, make_lossy)
    path = twin / "raw_results.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["output_token_ids"][3] += 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main([str(runs), "--require-identical"]) == 0
    out = capsys.readouterr().out
    assert "lossy-stream-llm" in out
    assert "67%" in out
    assert max(map(len, out.replace(str(runs), "").splitlines())) <= 120


def resume_elsewhere(record: dict[str, Any], **changes: Any) -> None:
    sessions = record["management"]["sessions"]
    sessions.append(sessions[0] | changes)


EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unfinished": (lambda r: r.update(eval_results=None), "it is not finished"),
    "damaged": (lambda r: r.pop("management"), "damaged (management: Field required)"),
    "no-method": (lambda r: r["pipeline_params"].pop("method"), "damaged (it lacks method)"),
    "two-machines": (lambda r: resume_elsewhere(r, device_name="other"), "its sessions differ in device_name"),
    "two-devices": (lambda r: resume_elsewhere(r, device="cuda:0"), "its sessions differ in device_name"),
    "two-threads": (lambda r: resume_elsewhere(r, threads=99), "its sessions differ in threads"),
    "two-versions": (lambda r: resume_elsewhere(r, versions={"torch": "1"}), "sessions differ in torch, transformers"),
    "other-threads": (lambda r: r["management"]["sessions"][0].update(threads=99), "run with the same threads"),
    "other-length": (lambda r: r["pipeline_params"].update(n_new_tokens=9), "baseline run with the same n_new_tokens"),
    "other-model": (lambda r: r["pipeline_params"].update(model_name="a/b"), "no baseline run of humaneval, b"),
    "other-rows": (lambda r: r["management"]["dataset"].update(sha256="0" * 64), "baseline run with the same prompts"),
    "lines-lost": (lambda r: r["eval_results"].update(n_prompts=4), "it has 3 results of 4 prompts"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "said"), EDITS.values(), ids=EDITS)
def test_skipped(
    runs: Path, capsys: pytest.CaptureFixture[str], edit: Callable[[dict[str, Any]], Any], said: str
) -> None:
    twin = copy(runs / "fafo", "twin")
    change(twin, edit)
    assert main([str(runs)]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("3/3") == 2
    assert captured.err.startswith(f"skipped {twin}: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert main([str(runs), "--require-identical"]) == 1


def test_other_prompts_are_skipped(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copy(runs / "fafo", "twin") / "raw_results.jsonl"
    path.write_text(path.read_text().replace('"n_prompt_tokens": ', '"n_prompt_tokens": 1'))
    assert main([str(runs)]) == 0
    assert f"its prompts are not those of the baseline {runs / 'baseline'}" in capsys.readouterr().err


def test_corrupt_lines_are_skipped(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy(runs / "fafo", "twin") / "raw_results.jsonl").write_text("{}\n")
    assert main([str(runs)]) == 0
    assert "line 1: corrupt" in capsys.readouterr().err


def test_nothing_to_compare(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "baseline" / "output_config.json").write_text("{")
    assert main([str(runs)]) == 2
    err = capsys.readouterr().err
    assert "no baseline run" in err
    assert "no finished runs" in err
    assert main([str(tmp_path / "nowhere")]) == 2


def test_a_table_for_each_length(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("baseline", "fafo"):
        change(copy(runs / name, f"{name}-9"), lambda record: record["pipeline_params"].update(n_new_tokens=9))
    assert main([str(runs), "--require-identical"]) == 0
    out = capsys.readouterr().out
    assert out.count("speedup") == 4
    assert "n_new_tokens 9" in out
    assert "n_new_tokens 12" in out
    assert "threads" not in out


def test_the_tables_are_written_too(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(runs)]) == 0
    assert str(runs) in capsys.readouterr().out
    content = json.loads((runs / "speedup.json").read_text())
    assert [(c["run"]["folder"], c["n_identical"]) for c in content["comparisons"]] == [("baseline", 3), ("fafo", 3)]
    for suffix in ("md", "csv", "tex"):
        assert "fafo-stream-llm" in (runs / f"speedup.{suffix}").read_text()


def test_what_is_refused_is_written_too(runs: Path) -> None:
    for name in ("baseline", "fafo"):
        change(runs / name, lambda record: record.update(eval_results=None))
    assert main([str(runs)]) == 2
    refused = json.loads((runs / "speedup.json").read_text())["refused"]
    assert [(r["folder"], "not finished" in r["reason"]) for r in refused] == [("baseline", True), ("fafo", True)]
    assert "| fafo " in (runs / "speedup.md").read_text()


def test_a_method_without_overall_numbers_is_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(copy(runs / "baseline", "other"), lambda record: record["eval_params"].update(dataset="gsm8k"))
    assert main([str(runs), "--require-identical"]) == 0
    captured = capsys.readouterr()
    assert "no overall of fafo-stream-llm" in captured.err
    assert "nothing comparable of gsm8k" in captured.err
    assert max(map(len, captured.out.replace(str(runs), "").splitlines())) <= 120


def test_a_folder_that_cannot_be_written(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "speedup.json.tmp").mkdir()
    assert main([str(runs)]) == 2
    assert capsys.readouterr().err == f"error: {runs / 'speedup.json.tmp'} can't be written (Is a directory)\n"
