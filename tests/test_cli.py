"""Whole runs from the command line: outputs, records, resuming after a kill, launchers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.common.cli import main
from pipeline.common.records import OutputConfig
from tests.runs import ROOT, Case, command, run_command, save_tiny_model, write_rows

pytest_plugins = ["tests.run_fixtures"]


def expected_tokens(model: Path, case: Case, text: str) -> list[int]:
    """What transformers' own greedy decoding answers to a chat prompt."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    output = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=case.pipeline["n_new_tokens"],
        do_sample=False,
    )
    return output[0, ids.shape[1] :].tolist()


def test_run_and_run_again(case: Case, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("fafo", case.argv()) == 0
    lines = case.lines()
    assert [line["id"] for line in lines] == ["Tiny/0", "Tiny/1", "Tiny/2"]
    record = OutputConfig.model_validate_json((case.output / "output_config.json").read_bytes())
    assert record.eval_results is not None
    assert record.eval_results.n_new_tokens == 3 * 12
    assert record.eval_results.window_cache_share is not None
    assert record.eval_results.window_cache_share < 0.5
    assert record.management.ignored_generation_config == []
    assert record.management.versions["torch"] == torch.__version__
    assert (record.management.seed, record.management.dtype, record.management.device) == (
        42,
        "float32",
        "cpu",
    )
    log = (case.output / "exp.log").read_text()
    assert "3 prompts" in log
    assert log.count("loading ") == 1  # logged before the folder was made
    assert "compressed" not in capsys.readouterr().out

    before = (case.output / "output_config.json").read_bytes()
    assert main("fafo", case.argv()) == 0
    assert "complete already" in capsys.readouterr().out
    assert (case.output / "output_config.json").read_bytes() == before
    assert case.lines() == lines


@pytest.mark.parametrize("kv_method", ["stream-llm", "quest", "full", "baseline"])
def test_outputs_are_those_of_transformers(case: Case, model: Path, kv_method: str) -> None:
    if kv_method == "baseline":
        case.to_baseline()
    elif kv_method != "stream-llm":
        del case.pipeline["num_init"], case.pipeline["num_local"]
        case.pipeline["kv_method"] = kv_method
        case.write()
    assert main(case.pipeline["method"], case.argv("--limit", "1")) == 0
    question = (
        "Complete the following Python function. Answer with the whole function in one code block.\n\n"
        '```python\ndef f0(x):\n    """Return x + 0."""\n```'
    )
    (line,) = case.lines()
    assert line["output_token_ids"] == expected_tokens(model, case, f"<user>{question}<assistant>")
    if kv_method == "baseline":
        assert line["accepted_lengths"] == [1] * 12


def test_without_a_chat_template_the_prompt_is_plain_text(tmp_path: Path, isolated: None) -> None:
    model = save_tiny_model(tmp_path / "plain", chat_template=None)
    case = Case(tmp_path, model)
    assert main("fafo", case.argv("--limit", "1")) == 0
    prompt = 'def f0(x):\n    """Return x + 0."""\n'
    assert case.lines()[0]["n_prompt_tokens"] == len(prompt)
    assert case.lines()[0]["output_token_ids"] == expected_tokens(model, case, prompt)


@pytest.mark.parametrize("as_list", [False, True])
def test_eos_of_the_generation_config(tmp_path: Path, case: Case, as_list: bool) -> None:
    assert main("fafo", case.argv("--limit", "1")) == 0
    tokens = case.lines()[0]["output_token_ids"]
    last = tokens[len(tokens) // 2]
    other = next(token for token in range(256) if token not in tokens)
    ending = save_tiny_model(tmp_path / "ending", eos_token_id=[other, last] if as_list else last)
    case.output = tmp_path / "ended"
    assert main("fafo", case.argv("--limit", "1", "--set", f"pipeline_params.model_name={ending}")) == 0
    line = case.lines()[0]
    assert line["output_token_ids"] == tokens[: tokens.index(last) + 1]
    assert line["stop_reason"] == "eos"


def test_says_when_nothing_was_compressed(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("fafo", case.argv("--set", "pipeline_params.num_local=500")) == 0
    assert "nothing was compressed" in capsys.readouterr().out
    assert case.record()["eval_results"]["window_cache_share"] == 1.0


@pytest.mark.parametrize("settings", [{"window": 0}, {"level": 2, "window": 1}], ids=str)
def test_says_when_there_is_nothing_to_compress_for(case: Case, settings: dict[str, int]) -> None:
    case.pipeline |= settings
    case.write()
    assert main("fafo", case.argv("--limit", "1")) == 0
    assert "nothing was compressed: level" in (case.output / "exp.log").read_text()


def test_ignored_generation_config_is_recorded(tmp_path: Path, isolated: None) -> None:
    model = save_tiny_model(tmp_path / "sampling", do_sample=True, top_k=7, repetition_penalty=1.5)
    case = Case(tmp_path, model)
    assert main("fafo", case.argv("--limit", "1")) == 0
    ignored = ["repetition_penalty=1.5", "do_sample=True", "top_k=7"]
    assert case.record()["management"]["ignored_generation_config"] == ignored
    assert ", ".join(ignored) in (case.output / "exp.log").read_text()


def test_killed_run_resumes(tmp_path: Path, isolated: None, model: Path) -> None:
    whole = Case(tmp_path, model, n_rows=6)
    killed = Case(tmp_path, model, n_rows=6)
    killed.output = tmp_path / "killed"
    longer = ("--set", "pipeline_params.n_new_tokens=120")
    assert main("fafo", whole.argv(*longer)) == 0

    process = subprocess.Popen(command(*killed.argv(*longer)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    results = killed.output / "raw_results.jsonl"
    deadline = time.monotonic() + 100
    while not results.exists() or results.read_bytes().count(b"\n") < 2:
        assert process.poll() is None, "ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert killed.record()["eval_results"] is None
    with results.open("ab") as file:
        file.write(b'{"id": "Tiny/5", "output_te')  # as if killed while writing
    assert results.read_bytes().count(b"\n") < 6

    assert main("fafo", killed.argv(*longer)) == 0

    def outputs(case: Case) -> list[tuple[str, Any]]:
        return [(line["id"], line["output_token_ids"]) for line in case.lines()]

    assert outputs(killed) == outputs(whole)
    assert "dropping its last line" in (killed.output / "exp.log").read_text()
    assert killed.record()["eval_results"]["n_prompts"] == 6
    assert len(killed.record()["management"]["sessions"]) == 2


def test_run_killed_before_its_summary(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main("fafo", case.argv()) == 0
    record = case.record()
    finished = record["eval_results"]
    record["eval_results"] = record["management"]["sessions"][0]["end_time"] = None
    (case.output / "output_config.json").write_text(json.dumps(record))
    monkeypatch.setattr("pipeline.common.experiment.load_model", None)  # needs none
    assert main("fafo", case.argv()) == 0
    assert case.record()["eval_results"] == finished


def test_interrupt_says_how_to_resume(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.common.experiment._warm_up", interrupt)
    assert main("fafo", case.argv()) == 130
    assert "run the same command again" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [sys.executable, str(ROOT / "pipeline" / "fafo" / "main.py")],
        [sys.executable, "-P", str(ROOT / "pipeline" / "fafo" / "main.py")],
        [sys.executable, str(ROOT / "pipeline" / "baseline" / "main.py")],
        [sys.executable, str(ROOT / "pipeline" / "lossy" / "main.py")],
        [sys.executable, "-m", "pipeline.fafo.main"],
    ],
    ids=["script", "safe-path", "baseline", "lossy", "module"],
)
def test_entry_points(case: Case, tmp_path: Path, arguments: list[str]) -> None:
    if "baseline" in arguments[-1]:
        case.to_baseline()
    elif "lossy" in arguments[-1]:
        case.to_lossy()
    cwd = ROOT if "-m" in arguments else tmp_path
    helped = run_command([*arguments, "--help"], cwd)
    assert helped.returncode == 0
    assert "--pipeline_config_dir" in helped.stdout
    ended = run_command([*arguments, *case.argv()], cwd)
    assert ended.returncode == 0, ended.stderr
    assert len(case.lines()) == 3


LAUNCHERS = [
    ROOT / "scripts" / "humaneval" / method / f"SmolLM2-135M-Instruct{kv_method}.sh"
    for method, kv_method in (("baseline", ""), ("fafo", "_streamllm"), ("fafo", "_quest"), ("lossy", "_fastkv"))
]


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_launchers(launcher: Path, model: Path, tmp_path: Path) -> None:
    usage = run_command(["bash", str(launcher), "cpu"], tmp_path)
    assert usage.returncode == 2
    assert "usage:" in usage.stderr
    rows = write_rows(tmp_path / "rows.jsonl", 1)
    overrides = {
        "eval_params.dataset_path": rows, "pipeline_params.model_name": model, "pipeline_params.dtype": "float32",
        "pipeline_params.n_new_tokens": 4,
    }  # fmt: skip
    more = [word for key, value in overrides.items() for word in ("--set", f"{key}={value}")]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "VIRTUAL_ENV": sys.prefix}
    ended = run_command(["bash", str(launcher), "cpu", "my results", *more], tmp_path, **environment)
    assert ended.returncode == 0, ended.stderr
    (record,) = (tmp_path / "my results").rglob("output_config.json")
    params = json.loads(record.read_text())["pipeline_params"]
    name = "-".join([params["method"], *params.get("kv_method", "").replace("-", "").split()])
    assert record.parent.relative_to(tmp_path / "my results").parts[:2] == ("humaneval", name)
    assert launcher.stem.startswith(record.parent.name)


LAUNCHER = str(ROOT / "scripts" / "humaneval" / "baseline" / "SmolLM2-135M-Instruct.sh")


@pytest.mark.parametrize("gpu_id", ["gpu0", "-1", "0,", ",0", "0,,1", "cpu,0", "0 1"])
def test_gpu_ids_that_are_none(gpu_id: str, tmp_path: Path) -> None:
    commands = [["bash", LAUNCHER, gpu_id, "results"], ["bash", str(ROOT / "scripts" / "quickstart.sh"), gpu_id]]
    for arguments in commands:
        ended = run_command(arguments, tmp_path)
        assert ended.returncode == 2
        assert ended.stderr.startswith("usage:")


def test_a_gpu_that_is_not_there_is_an_error(model: Path, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    model_name = f"pipeline_params.model_name={model}"
    arguments = ["bash", LAUNCHER, "99", "results", "--set", model_name]
    ended = run_command(arguments, tmp_path, PATH=path, VIRTUAL_ENV=sys.prefix)
    assert ended.returncode == 2
    assert "no CUDA device is here" in ended.stderr
    assert not (tmp_path / "results").exists()
