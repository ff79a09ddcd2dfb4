"""Several runs interleaved in one process."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.common import experiment
from pipeline.common.cli import main
from tests.audited import outputs
from tests.runs import Case

pytest_plugins = ["tests.run_fixtures"]


@pytest.fixture
def baseline(case: Case) -> Path:
    """A baseline's config that fits the case's FAFO config."""
    keys = ("model_name", "dtype", "device", "n_new_tokens")
    path = case.folder / "baseline.json"
    params = {"method": "baseline", **{key: case.pipeline[key] for key in keys}}
    path.write_text(json.dumps({"pipeline_params": params}))
    return path


def argv(case: Case, baseline: Path, *more: str) -> list[str]:
    return case.argv("--interleave", f"{baseline}={case.output.with_name('baseline')}", *more)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "raw_results.jsonl").read_text().splitlines()]


def test_prompts_take_turns_in_rotating_order(case: Case, baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    answer = experiment.answer

    def noted(prompt: Any, encoder: Any, settings: Any) -> Any:
        order.append((prompt.sample.id, "fafo" if settings.window else "baseline"))
        return answer(prompt, encoder, settings)

    monkeypatch.setattr(experiment, "answer", noted)
    assert main("fafo", argv(case, baseline)) == 0
    assert order == [
        ("Tiny/0", "fafo"), ("Tiny/0", "baseline"),
        ("Tiny/1", "baseline"), ("Tiny/1", "fafo"),
        ("Tiny/2", "fafo"), ("Tiny/2", "baseline"),
    ]  # fmt: skip


def test_the_order_rotates_within_a_shard_too(case: Case, baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    answer = experiment.answer

    def noted(prompt: Any, encoder: Any, settings: Any) -> Any:
        order.append("fafo" if settings.window else "baseline")
        return answer(prompt, encoder, settings)

    monkeypatch.setattr(experiment, "answer", noted)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert main("fafo", argv(case, baseline)) == 0
    assert order == ["fafo", "baseline", "baseline", "fafo"]  # prompts 0 and 2


def test_timings_are_taken_in_one_way(case: Case, baseline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("fafo", case.argv()) == 0
    assert main("fafo", argv(case, baseline)) == 2
    assert f"{case.output}: was run on its own, and not interleaved with" in capsys.readouterr().err
    assert not case.output.with_name("baseline").exists()

    case.output = case.folder / "other" / "run"
    assert main("fafo", argv(case, baseline)) == 0
    assert main("fafo", case.argv()) == 0  # complete: nothing to do
    lines = (case.output / "raw_results.jsonl").read_text().splitlines(keepends=True)
    (case.output / "raw_results.jsonl").write_text(lines[0])
    assert main("fafo", case.argv()) == 2
    assert "was run interleaved with" in capsys.readouterr().err


def test_each_run_is_whole_in_its_folder(case: Case, baseline: Path) -> None:
    assert main("fafo", argv(case, baseline)) == 0
    other = case.output.with_name("baseline")
    assert outputs(case.output) == outputs(other)
    for folder, method in ((case.output, "fafo"), (other, "baseline")):
        record = json.loads((folder / "output_config.json").read_text())
        assert record["pipeline_params"]["method"] == method
        assert record["eval_results"]["n_prompts"] == 3
        assert record["management"]["sessions"][0]["interleaved"] == [str(case.output), str(other)]
        assert "loading" in (folder / "exp.log").read_text()
        assert (folder / "input_config" / "input_pipeline_config.json").exists()
    assert (other / "input_config" / "input_pipeline_config.json").read_bytes() == baseline.read_bytes()
    before = lines(case.output), lines(other)
    assert main("fafo", argv(case, baseline)) == 0
    assert (lines(case.output), lines(other)) == before


def test_only_what_lacks_is_run_again(case: Case, baseline: Path) -> None:
    assert main("fafo", argv(case, baseline)) == 0
    before, other = lines(case.output), case.output.with_name("baseline")
    first = lines(other)[0]
    (other / "raw_results.jsonl").write_text(json.dumps(first) + "\n")
    assert main("fafo", argv(case, baseline)) == 0
    assert lines(case.output) == before
    assert lines(other)[0] == first
    assert outputs(other) == outputs(case.output)


@pytest.mark.parametrize(
    ("key", "value"), [("n_new_tokens", 13), ("dtype", "bfloat16"), ("seed", 1), ("model_name", "another")]
)
def test_other_conditions_are_refused(
    case: Case, baseline: Path, capsys: pytest.CaptureFixture[str], key: str, value: Any
) -> None:
    params = json.loads(baseline.read_text())
    params["pipeline_params"][key] = value
    baseline.write_text(json.dumps(params))
    assert main("fafo", argv(case, baseline)) == 2
    assert f"{baseline}: pipeline_params.{key} is {value!r}" in capsys.readouterr().err
    assert not case.output.exists()


def test_settings_go_where_they_are_known(case: Case, baseline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = [w for key in ("window=2", "num_local=9", "n_new_tokens=11") for w in ("--set", f"pipeline_params.{key}")]
    assert main("fafo", argv(case, baseline, *more)) == 0
    fafo = case.record()["pipeline_params"]
    assert (fafo["window"], fafo["num_local"], fafo["n_new_tokens"]) == (2, 9, 11)
    other = json.loads((case.output.with_name("baseline") / "output_config.json").read_text())["pipeline_params"]
    assert other["n_new_tokens"] == 11
    assert "window" not in other
    assert main("fafo", argv(case, baseline, "--set", "pipeline_params.windou=2")) == 2
    assert "--set pipeline_params.windou=2: pipeline_params.windou: unknown key" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["no-equals", "=folder", "file="])
def test_malformed_arguments_are_refused(case: Case, capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert main("fafo", case.argv("--interleave", text)) == 2
    assert f"--interleave {text}: should look like" in capsys.readouterr().err


def test_a_folder_of_its_own(case: Case, baseline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("fafo", case.argv("--interleave", f"{baseline}={case.output}")) == 2
    assert "each run needs a folder of its own" in capsys.readouterr().err
