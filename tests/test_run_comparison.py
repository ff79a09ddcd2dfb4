"""FAFO and its opponents from one command: which runs those are, what they are called, what is made of them."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from pipeline.common.config import load_experiment
from pipeline.common.schemas import METHODS
from pipeline.errors import UserError
from pipeline.launchers import Method, eval_config, methods_of, spelt
from scripts import make_configs
from scripts.speedup.run_speedup import COMPARISON_REPORTS, REPORTS, SHARES, Step, plan, read_request
from tests.runs import ROOT, run_command, save_tiny_model, write_rows

MODEL = "SmolLM2-135M-Instruct"
OPPONENTS = [
    "lookahead",
    "prompt_lookup",
    "token_recycling",
    "selfspec_kv-quest",
    "selfspec_kv-snapkv",
    "selfspec_kv-streamllm",
    "selfspec_layers",
]
COMPARED = ["fafo-quest", "fafo-streamllm", *OPPONENTS]
SCRIPT = str(ROOT / "scripts" / "speedup" / "run_comparison.sh")


def planned(*arguments: str) -> list[Step]:
    return plan(read_request(["cpu", "out", MODEL, *arguments, "--datasets", "gsm8k"]), ROOT)


def values(step: Step, flag: str) -> list[str]:
    return [word for before, word in pairwise(step.command) if before == flag]


def test_the_tables_have_every_method() -> None:
    """And each of its names leads back to it, in whatever way people spell it."""
    assert make_configs.METHODS.keys() == METHODS.keys()
    found = methods_of(ROOT, "gsm8k", MODEL)
    assert [name for name, method in found.items() if method.is_opponent] == OPPONENTS
    assert list(found)[: len(make_configs.KV_METHODS)] == sorted(n.replace("-", "") for n in make_configs.KV_METHODS)
    for name, method in found.items():
        params = load_experiment(method.config, eval_config(ROOT, "gsm8k")).pipeline_params()
        kv_method = params.get("kv_method", "")
        assert spelt(name) == spelt(name.replace(method.kv_method, kv_method)) == name
        assert (params["method"], kv_method.replace("-", "")) == (method.method, method.kv_method)
        assert method.is_lossy == (method.method == "lossy")
        assert (ROOT / "scripts" / "gsm8k" / f"{method.launcher(MODEL)}.sh").is_file()


def test_run_folders_are_those_of_the_launchers(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/usr/bin/env bash\nwhile [ "$1" != --output_folder_dir ]; do shift; done; echo "$2"\n')
    python.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "VIRTUAL_ENV": "a venv"}

    def folder(method: Method) -> str:
        launcher = ROOT / "scripts" / "gsm8k" / f"{method.launcher(MODEL)}.sh"
        command = ["bash", str(launcher), "cpu", "out"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    found = methods_of(ROOT, "gsm8k", MODEL).values()
    assert [folder(method) for method in found] == [f"out/gsm8k/{method.run_name}/{MODEL}" for method in found]


@pytest.mark.parametrize("paired", [["--paired"], []], ids=["paired", "one by one"])
def test_the_comparison(paired: list[str]) -> None:
    """Everything is audited, and in one process when paired."""
    baseline, *steps = planned("comparison", *paired)
    runs, n_reports = steps[: len(COMPARED)], len(steps) - len(COMPARED)
    assert baseline.name == f"gsm8k, baseline/{MODEL}"
    audited = (*("cpu", "out"), *("--baseline_dir", f"out/gsm8k/baseline/{MODEL}"))
    names = ["/".join([name.partition("-")[0], "_".join([MODEL, *name.split("-")[1:]])]) for name in COMPARED]
    assert [step.name for step in runs] == [f"gsm8k, {name}" for name in names]
    assert [step.command for step in runs] == [
        ("bash", str(ROOT / "scripts" / "gsm8k" / f"{name}.sh"), *audited) for name in names
    ]
    assert {step.needs for step in runs} == {baseline.name}
    interleaved = [pair.partition("=")[2] for pair in values(baseline, "--interleave")]
    assert interleaved == ([f"out/gsm8k/{name}/{MODEL}" for name in COMPARED] if paired else [])
    reports = [*REPORTS, *COMPARISON_REPORTS] if paired else list(REPORTS)
    assert [step.name for step in steps[-n_reports:]] == reports


def test_sets_and_names_mix() -> None:
    def names(asked: str) -> list[str]:
        return [step.name for step in planned(asked)[1 : -len(REPORTS)]]

    assert names("quest,comparison,lossy-quest,lookahead") == [
        *names("quest"),
        *[name for name in names("comparison") if name not in names("quest")],
        *names("lossy-quest"),
    ]
    assert set(names("comparison")) < set(names("all"))
    assert names("selfspec_kv-stream-llm") == [f"gsm8k, selfspec_kv/{MODEL}_streamllm"]


@pytest.mark.parametrize("name", ["selfspec_kv", "selfspec_kv-h2o", "lookahead-quest", "prompt-lookup", "baseline", ""])
def test_no_such_opponent(name: str) -> None:
    with pytest.raises(UserError, match=rf"kv_method: found '{name.replace('prompt-', 'prompt')}'; .* comparison$"):
        planned(name)


def test_a_key_goes_to_those_that_have_it() -> None:
    steps = planned("comparison", "--set", "pipeline_params.gamma=2")
    with_gamma = [step.name for step in steps if "pipeline_params.gamma=2" in step.command]
    assert with_gamma == [step.name for step in steps if "selfspec" in step.name]


def test_no_budgets_of_opponents() -> None:
    steps = planned("comparison", "--paired", "--all-figures", "--limit", "1")
    folders = [step.command[3] for step in steps if step.command[0] == "bash"]
    assert [folder for folder in folders if folder.startswith("out/budgets")] == [
        "out/budgets",
        *(f"out/budgets/{name}-{share}" for name in ("quest", "streamllm") for share in SHARES),
    ]


def run_script(arguments: Sequence[str], python: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}", "VIRTUAL_ENV": "a venv"}
    return subprocess.run(["bash", SCRIPT, *arguments], env=environment, capture_output=True, text=True, timeout=30)


def test_the_script(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/usr/bin/env bash\nprintf '%s\\n' \"$@\"\n")
    python.chmod(0o755)
    words = run_script(["", "my out", MODEL, "--set", "a=b c"], python).stdout.splitlines()
    assert words == [
        *(f"{ROOT}/scripts/speedup/run_speedup.py", "", "my out", MODEL),
        *("comparison", "--paired", "--set", "a=b c"),
    ]
    ended = run_script(["cpu", "out"], python)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("usage: bash scripts/speedup/run_comparison.sh")


def test_a_comparison_of_a_tiny_model(tmp_path: Path) -> None:
    """Its runs as they are configured, but for the model: all of them give the baseline's tokens."""
    rows, model = write_rows(tmp_path / "rows.jsonl", 2), save_tiny_model(tmp_path / "model")
    settings = {
        "eval_params.dataset_path": rows, "pipeline_params.model_name": model, "pipeline_params.n_new_tokens": 24,
    }  # fmt: skip
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    arguments = ["cpu", str(tmp_path / "out"), MODEL, "comparison", "--paired", "--datasets", "humaneval", *options]
    paired, *others = plan(read_request(arguments), ROOT)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ended = run_command(list(paired.command), tmp_path, PATH=path, VIRTUAL_ENV=sys.prefix)
    assert ended.returncode == 0, ended.stderr
    outputs = {
        file.parts[-3]: [json.loads(line)["output_token_ids"] for line in file.read_text().splitlines()]
        for file in (tmp_path / "out").rglob("raw_results.jsonl")
    }
    assert sorted(outputs) == sorted(["baseline", *COMPARED])
    assert [len(tokens) for tokens in outputs["baseline"]] == [24, 24]
    assert all(tokens == outputs["baseline"] for tokens in outputs.values())
    audit = next(step for step in others if "lookahead" in step.name)
    ended = run_command(list(audit.command), tmp_path, PATH=path, VIRTUAL_ENV=sys.prefix)
    assert ended.returncode == 0, ended.stderr
    found = json.loads((tmp_path / "out" / "humaneval" / "lookahead" / MODEL / "audit.json").read_text())
    assert (found["n_identical"], found["n_faults"]) == (2, 0)
