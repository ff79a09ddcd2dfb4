"""The tables behind configs and launchers: the files are what they give, configs load, launchers launch."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.common.config import load_experiment
from scripts import make_configs
from scripts.make_configs import DATASETS, combinations, differences, files, main
from tests.runs import ROOT

Launch = Callable[..., list[str]]
COMBINATIONS = list(combinations())
FAKE_PYTHON = """#!/usr/bin/env bash
printf '%s\\n' "${CUDA_VISIBLE_DEVICES-unset}" "$@"
"""


def test_the_files_are_those_of_the_tables() -> None:
    assert differences(ROOT) == []


@pytest.fixture
def written(tmp_path: Path) -> Path:
    assert main([], tmp_path) == 0
    return tmp_path


def test_writing(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"], written) == 0
    assert capsys.readouterr().err == ""
    assert len(list(written.rglob("*.sh"))) == len(list(written.rglob("*.json"))) == len(COMBINATIONS)


def test_each_difference_is_named(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = "config/pipeline_config/baseline/gsm8k/Qwen3-8B/default.json"
    launchers = [f"scripts/gsm8k/baseline/{name}.sh" for name in ("Llama-3.1-8B-Instruct", "Qwen3-8B")]
    (written / config).write_text((written / config).read_text().replace("512", "511"))
    (written / launchers[0]).unlink()
    (written / launchers[1]).chmod(0o644)
    (written / "config/pipeline_config/fafo/gsm8k/Qwen3-8B/quest/default.json").chmod(0o755)
    left_over = ["config/pipeline_config/fafo/gsm8k/Qwen3-8B/quest/mine.json", "scripts/old/fafo/Qwen3-8B_quest.sh"]
    for name in left_over:
        (written / name).parent.mkdir(parents=True, exist_ok=True)
        (written / name).touch()
    assert main(["--check"], written) == 1
    assert capsys.readouterr().err.splitlines()[:-1] == [
        f"{config}: not what the tables give",
        "config/pipeline_config/fafo/gsm8k/Qwen3-8B/quest/default.json: executable",
        f"{left_over[0]}: in no table; delete it",
        f"{launchers[0]}: missing",
        f"{launchers[1]}: not executable",
        f"{left_over[1]}: in no table; delete it",
    ]
    assert main([], written) == 1  # what is left over is not deleted
    assert capsys.readouterr().err.splitlines() == [f"{name}: in no table; delete it" for name in left_over]


def test_a_model_is_a_line(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(make_configs.MODELS, "Another", make_configs.Model("some/Another"))
    assert all("Another" in line and line.endswith("missing") for line in differences(written))
    assert main([], written) == 0
    config = written / "config/pipeline_config/fafo/mtbench/Another/stream-llm/default.json"
    assert json.loads(config.read_text())["pipeline_params"]["model_name"] == "some/Another"


@pytest.mark.parametrize("dataset", DATASETS)
def test_configs_load(dataset: str) -> None:
    eval_path = ROOT / "config" / "eval_config" / dataset / f"{dataset}.json"
    for name, text in files():
        if name.endswith(".json") and f"/{dataset}/" in name:
            experiment = load_experiment(ROOT / name, eval_path)
            assert experiment.eval.dataset == dataset
            assert experiment.pipeline_params().items() >= json.loads(text)["pipeline_params"].items()
            assert experiment.pipeline.method == name.split("/")[2]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Call a launcher from a folder of no meaning; what it would run is printed, a word a line."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    environment = os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}", "VIRTUAL_ENV": "a venv"}

    def call(launcher: str, *arguments: str) -> list[str]:
        command = ["bash", str(ROOT / launcher), *arguments]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return ended.stdout.splitlines()

    return call


def test_launchers(launch: Launch) -> None:
    of_each = [c for n, c in enumerate(COMBINATIONS) if n % 7 == 0]  # all datasets, models and methods are among them
    assert all({c[i] for c in of_each} == {c[i] for c in COMBINATIONS} for i in range(4))
    for dataset, model, method, kv_method in of_each:
        suffix = kv_method.replace("-", "") if kv_method else ""
        run = f"{method}-{suffix}" if kv_method else method
        name = "_".join(filter(None, [model, suffix]))
        config = "/".join(filter(None, [method, dataset, model, kv_method]))
        assert launch(f"scripts/{dataset}/{method}/{name}.sh", "cpu", "my  results", "--set", "a=$b c") == [
            "",
            f"{ROOT}/pipeline/{method}/main.py",
            "--exp_desc",
            f"{run}_{dataset}_{model}",
            "--pipeline_config_dir",
            f"{ROOT}/config/pipeline_config/{config}/default.json",
            "--eval_config_dir",
            f"{ROOT}/config/eval_config/{dataset}/{dataset}.json",
            "--output_folder_dir",
            f"my  results/{dataset}/{run}/{model}",
            "--set",
            "a=$b c",
        ]


@pytest.mark.parametrize(
    ("gpu_id", "visible", "more"),
    [
        ("", "", []),
        ("cpu", "", []),
        ("0", "0", ["--set", "pipeline_params.device=cuda"]),
        ("0,1", "0,1", []),
    ],
)
def test_gpu_ids(launch: Launch, gpu_id: str, visible: str, more: list[str]) -> None:
    words = launch("scripts/gsm8k/baseline/Qwen3-8B.sh", gpu_id, "out")
    assert words[0] == visible
    assert words[-2:] == (more or ["--output_folder_dir", "out/gsm8k/baseline/Qwen3-8B"])
