"""All runs from one command: which they are, that failures are named and stop nothing, and that no run outlives it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.fafo.selectors import SELECTORS
from pipeline.processes import STOP_SIGNALS
from scripts import make_configs
from scripts.speedup.run_speedup import REPORTS, SHARES, main, plan, read_request, read_setting
from tests.runs import ROOT

MODEL = "SmolLM2-135M-Instruct"
DATASETS = sorted(make_configs.DATASETS.keys() - {"specbench"})  # whose rows no one has but the user


def commands(*arguments: str, root: Path = ROOT) -> list[list[str]]:
    """What would be run, without the reports, paths from the root."""
    steps = plan(read_request(arguments), root)
    assert [step.name for step in steps[-len(REPORTS) :]] == list(REPORTS)
    return [[word.replace(f"{root}/", "") for word in step.command] for step in steps[: -len(REPORTS)]]


def test_all_datasets() -> None:
    runs = commands("0", "my out", MODEL, "stream-llm,quest,streamllm")
    assert len(runs) == 3 * len(DATASETS)
    for dataset, *of_dataset in zip(DATASETS, runs[::3], runs[1::3], runs[2::3], strict=True):
        audited = ["--baseline_dir", f"my out/{dataset}/baseline/{MODEL}"]
        assert of_dataset == [
            ["bash", f"scripts/{dataset}/baseline/{MODEL}.sh", "0", "my out"],
            ["bash", f"scripts/{dataset}/fafo/{MODEL}_streamllm.sh", "0", "my out", *audited],
            ["bash", f"scripts/{dataset}/fafo/{MODEL}_quest.sh", "0", "my out", *audited],
        ]


def test_a_dataset_of_a_file_runs_where_it_has_one() -> None:
    def datasets(*arguments: str) -> set[str]:
        return {run[1].split("/")[1] for run in commands("0", "out", MODEL, "quest", *arguments)}

    assert datasets() == set(DATASETS)
    assert datasets("--set", "specbench:eval_params.dataset_path=my.jsonl") == {*DATASETS, "specbench"}
    assert datasets("--datasets", "specbench") == {"specbench"}  # and fails there, with a line on where the file is
    assert datasets("--set", "gsm8k:pipeline_params.top_k=7", "--limit", "2") == set(DATASETS)


def test_paired() -> None:
    runs = commands("", "out", MODEL, "streamllm,quest", "--datasets", "mtbench", "--paired")
    configs = f"config/pipeline_config/fafo/mtbench/{MODEL}"
    interleaved = [
        f"{configs}/stream-llm/default.json=out/mtbench/fafo-streamllm/{MODEL}",
        f"{configs}/quest/default.json=out/mtbench/fafo-quest/{MODEL}",
    ]
    assert runs[0] == [
        *("bash", f"scripts/mtbench/baseline/{MODEL}.sh", "", "out"),
        *("--interleave", interleaved[0], "--interleave", interleaved[1]),
    ]
    assert runs[1:] == commands("", "out", MODEL, "streamllm,quest", "--datasets", "mtbench")[1:]
    window = ("--set", "pipeline_params.window=7")
    paired = commands("", "out", MODEL, "quest", "--datasets", "mtbench", "--paired", *window)
    assert [window[1] in run for run in paired] == [True, True]  # main.py knows whose key that is


def test_a_key_of_one_method() -> None:
    top_k = ("--set", "pipeline_params.top_k=7")
    runs = commands("", "out", MODEL, "streamllm,quest", "--datasets", "gsm8k", *top_k)
    assert [top_k[1] in run for run in runs] == [False, False, True]


def test_settings() -> None:
    settings = ["passkey:eval_params.max_prompts=null", "pipeline_params.window=7", "pipeline_params.dtype=float32"]
    options = [word for setting in settings for word in ("--set", setting)]
    runs = commands("cpu", "out", MODEL, "quest", *options, "--limit", "3", "--datasets", "passkey,gsm8k")
    values = [[word for flag, word in pairwise(run) if flag == "--set"] for run in runs]
    first, window, last = "eval_params.max_prompts=3", "pipeline_params.window=7", "pipeline_params.dtype=float32"
    assert values == [
        [first, "eval_params.max_prompts=null", last],
        [first, "eval_params.max_prompts=null", window, last],
        [first, last],
        [first, window, last],
    ]


def test_lossy() -> None:
    """They are not audited; paired, nothing is left of them once the baseline has taken them along."""
    arguments = ("cpu", "out", MODEL, "lossy-stream-llm,quest,lossy-streamllm", "--datasets", "gsm8k")
    lossy = ["bash", f"scripts/gsm8k/lossy/{MODEL}_streamllm.sh", "cpu", "out"]
    baseline, *others = commands(*arguments)
    assert others[0] == lossy
    assert others[1][1] == f"scripts/gsm8k/fafo/{MODEL}_quest.sh"
    paired, *others = commands(*arguments, "--paired")
    config = f"config/pipeline_config/lossy/gsm8k/{MODEL}/stream-llm/default.json"
    assert paired[: len(baseline)] == baseline
    assert f"{config}=out/gsm8k/lossy-streamllm/{MODEL}" in paired
    assert [run[1] for run in others] == [f"scripts/gsm8k/fafo/{MODEL}_quest.sh"]


def test_all_methods() -> None:
    runs = commands("cpu", "out", MODEL, "all", "--datasets", "mtbench")
    launchers = [
        f"scripts/mtbench/{name}/{'_'.join([MODEL, *kv_method])}.sh"
        for name, method in make_configs.METHODS.items()
        for kv_method in [[kv_method.replace("-", "")] for kv_method in method.kv_methods] or [[]]
    ]
    assert sorted(run[1] for run in runs) == sorted(launchers)
    assert commands("cpu", "out", MODEL, "quest,all,lossy-quest", "--datasets", "mtbench")[1] in runs


def test_all_figures() -> None:
    options = ("--datasets", "gsm8k", "--limit", "2", "--all-figures", "--paired")
    runs = commands("0", "out", MODEL, "streamllm,quest,lossy-quest", *options)
    baseline, *sweep = runs[3:-1]
    limit = ["--set", "eval_params.max_prompts=2"]
    assert baseline == ["bash", f"scripts/gsm8k/baseline/{MODEL}.sh", "0", "out/budgets", *limit]
    fixed = ["--set", "pipeline_params.pool=lru", "--set", "pipeline_params.planner=fixed"]
    expected = [
        [
            *("bash", f"scripts/gsm8k/{launcher}.sh", "0", f"out/budgets/{name}-{share}", *limit),
            *(*of_fafo, "--set", f"pipeline_params.{key}={share}"),
        ]
        for name, launcher, of_fafo, key in (
            ("streamllm", f"fafo/{MODEL}_streamllm", fixed, "num_local"),
            ("quest", f"fafo/{MODEL}_quest", fixed, "top_k"),
            ("lossy-quest", f"lossy/{MODEL}_quest", [], "top_k"),
        )
        for share in SHARES
    ]
    assert sweep == expected
    parts = runs[-1]
    assert parts[:2] == ["env", "CUDA_VISIBLE_DEVICES=0"]
    assert parts[4:10] == ["--model", f"models/{MODEL}", "--dtype", "float32", "--device", "cuda"]
    assert "out/step.json" in parts
    assert len({step.name for step in plan(read_request(["0", "out", MODEL, "quest", *options]), ROOT)}) == 3 + 5 + 3


def test_the_sweep_repeats_no_run() -> None:
    """Without --paired the usual baseline serves, and a budget that a run has in any case is not run again."""
    usual = ("--set", f"pipeline_params.top_k={SHARES[1]}")
    runs = commands("0", "out", MODEL, "lossy-quest", "--datasets", "gsm8k", "--all-figures", *usual)
    folders = [run[3] for run in runs[:-1]]
    assert folders == ["out", "out", *(f"out/budgets/lossy-quest-{share}" for share in SHARES if share != SHARES[1])]
    steps = plan(read_request(["0", "out", MODEL, "lossy-quest", "--datasets", "gsm8k", "--all-figures"]), ROOT)
    assert {step.needs for step in steps[1:-4]} == {steps[0].name}


@pytest.mark.parametrize("kv_method", make_configs.KV_METHODS)
def test_what_has_a_budget_is_swept(kv_method: str) -> None:
    """Planning checks each configuration, so a budget can be any of the shares."""
    name, budget_key = kv_method.replace("-", ""), SELECTORS[kv_method].budget_key
    for asked in (name, f"lossy-{name}"):
        runs = commands("0", "out", MODEL, asked, "--datasets", "gsm8k", "--all-figures", "--paired")
        swept = [run[-1] for run in runs if run[3].startswith(f"out/budgets/{asked}-")]
        assert swept == [f"pipeline_params.{budget_key}={share}" for share in SHARES if budget_key]


def test_a_value_may_have_colons() -> None:
    setting = read_setting("eval_params.dataset_path=a:b=c")
    assert (setting.dataset, setting.override.value) == (None, "a:b=c")
    setting = read_setting("gsm8k:pipeline_params.kv_method=a:b")
    assert (setting.dataset, setting.override.value) == ("gsm8k", "a:b")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpu0", "out", MODEL, "quest"], "gpu_id: found 'gpu0'"),
        (["cpu", "", MODEL, "quest"], "output_dir: found nothing"),
        (["cpu", "out", "Llama", "quest"], f"model: found 'Llama'; known: Llama-3.1-8B-Instruct, .*{MODEL}"),
        (
            ["cpu", "out", MODEL, "kwest"],
            f"kv_method: found 'kwest'; {MODEL} on gsm8k has .*quest, .*lossy-quest, .*, all",
        ),
        (["cpu", "out", MODEL, "quest,"], "kv_method: found ''"),
        (["cpu", "out", MODEL, "lossy-"], "kv_method: found 'lossy-'"),
        (["cpu", "out", MODEL, "quest", "--datasets", "gsm"], "--datasets: found 'gsm'; .* for gsm8k, humaneval"),
        (["cpu", "out", MODEL, "quest", "--set", "gsm:eval_params.a=1"], "--set: found 'gsm'"),
        (["cpu", "out", MODEL, "quest", "--set", "window=7"], "--set window=7: should look like"),
        (["cpu", "out", MODEL, "quest", "--set", "pipeline_params.windou=7"], "pipeline_params.windou: unknown key"),
        (["cpu", "out", MODEL, "quest", "--set", "pipeline_params.window=x"], 'pipeline_params.window: found "x"'),
        (["cpu", "out", MODEL, "quest", "--set", "gsm8k:eval_params.n_shot=3"], "eval_params.n_shot: found 3"),
    ],
)
def test_wrong_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=said):
        plan(read_request(arguments), ROOT)
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("error: ")


Repository = Callable[..., Path]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A root folder with launchers of one model that do as they are told, and reports that only say so."""

    def make(**scripts: str) -> Path:
        """Args: what the launchers do, in bash, by name: `gsm8k_baseline` and the like."""
        for dataset in ("gsm8k", "mtbench"):
            for folder in (f"baseline/{dataset}/Tiny", f"fafo/{dataset}/Tiny/quest"):
                config = tmp_path / "config" / "pipeline_config" / folder / "default.json"
                config.parent.mkdir(parents=True, exist_ok=True)
                of_smollm2 = ROOT / "config" / "pipeline_config" / folder.replace("Tiny", MODEL) / "default.json"
                config.write_bytes(of_smollm2.read_bytes())
            for path in (
                tmp_path / "scripts" / dataset / "baseline" / "Tiny.sh",
                tmp_path / "scripts" / dataset / "fafo" / "Tiny_quest.sh",
            ):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(scripts.get(f"{dataset}_{path.parent.name}", "") + f"\necho {dataset} $2 >> $2/log")
        if not (tmp_path / "config" / "eval_config").exists():
            shutil.copytree(ROOT / "config" / "eval_config", tmp_path / "config" / "eval_config")
        for report in REPORTS:
            path = tmp_path / report
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"import sys; open(sys.argv[1] + '/log', 'a').write('{path.stem}\\n')")
        return tmp_path

    return make


def test_a_failure_does_not_stop_the_others(
    repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = repository(gsm8k_fafo="exit 3", mtbench_baseline="kill -KILL $$")
    handlers = [signal.getsignal(number) for number in STOP_SIGNALS]
    assert main(["cpu", str(tmp_path), "Tiny", "quest"], root) == 1
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == handlers
    ran = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
    assert ran == ["gsm8k", "compute_speedup", "make_figures", "report"]  # without mtbench's FAFO run
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == ["[1/7] gsm8k, baseline/Tiny", "[2/7] gsm8k, fafo/Tiny_quest"]
    command, audited = f"bash {tmp_path}/scripts", f"--baseline_dir {tmp_path}/gsm8k/baseline/Tiny"
    assert said[6:] == [
        "failed: gsm8k, fafo/Tiny_quest (exit code 3; "
        f"on its own: {command}/gsm8k/fafo/Tiny_quest.sh cpu {tmp_path} {audited})",
        "failed: mtbench, baseline/Tiny (killed by signal 9; "
        f"on its own: {command}/mtbench/baseline/Tiny.sh cpu {tmp_path})",
        "failed: mtbench, fafo/Tiny_quest (not run, since it needs mtbench, baseline/Tiny)",
        "3 of 7 failed: run the same command again to resume them",
    ]
    assert main(["cpu", str(tmp_path), "Tiny", "quest"], repository()) == 0


def test_a_report_that_fails_is_named(
    repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = repository()
    (root / REPORTS[1]).unlink()
    assert main(["cpu", str(tmp_path), "Tiny", "quest", "--datasets", "gsm8k"], root) == 1
    assert f"failed: {REPORTS[1]} (exit code 2; on its own: " in capsys.readouterr().err
    assert (tmp_path / "log").read_text().splitlines()[-1] == "report"


# A launcher like ours, which ends as `exec python`, with a process of its own besides.
BUSY = 'sleep 100 & echo $! >> "$2/pids"; echo $$ >> "$2/pids"; {} exec sleep 100'


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Zombies are not: where nobody collects orphans, they stay."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def start(root: Path, output_dir: Path, grace_seconds: int = 10) -> tuple[subprocess.Popen[str], list[int]]:
    """A whole call in a process of its own, and the processes of its first run."""
    code = (
        "import sys; from pathlib import Path\n"
        "from pipeline import processes; from scripts.speedup import run_speedup\n"
        f"processes.GRACE_SECONDS = {grace_seconds}\n"
        "sys.exit(run_speedup.main(sys.argv[2:], Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, str(root), "cpu", str(output_dir), "Tiny", "quest"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    pids = output_dir / "pids"
    wait_for(lambda: pids.exists() and pids.read_text().count("\n") == 2)
    return process, [int(pid) for pid in pids.read_text().split()]


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@linux_only
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=str)
def test_a_signal_stops_everything(repository: Repository, tmp_path: Path, number: int) -> None:
    process, pids = start(repository(gsm8k_baseline=BUSY.format("")), tmp_path)
    process.send_signal(number)
    assert process.communicate(timeout=30)[1].splitlines() == [
        "[1/7] gsm8k, baseline/Tiny",
        "interrupted: run the same command again to resume",
    ]
    assert process.returncode == 130
    assert not any(map(is_running, pids))
    assert not (tmp_path / "log").exists()


@linux_only
def test_a_run_that_does_not_listen_is_killed(repository: Repository, tmp_path: Path) -> None:
    process, pids = start(repository(gsm8k_baseline=BUSY.format("trap '' TERM;")), tmp_path, grace_seconds=1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 130
    assert not any(map(is_running, pids))


@linux_only
def test_a_run_does_not_outlive_a_kill(repository: Repository, tmp_path: Path) -> None:
    process, (helper, run) = start(repository(gsm8k_baseline=BUSY.format("")), tmp_path)
    process.kill()
    process.wait()
    wait_for(lambda: not is_running(run))
    os.kill(helper, signal.SIGKILL)


def test_the_wrapper(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/usr/bin/env bash\nprintf '%s\\n' \"$@\"\n")
    python.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "VIRTUAL_ENV": "a venv"}
    command = ["bash", str(ROOT / "scripts/speedup/run_speedup.sh"), "", "my out", "--set", "a=b c"]
    words = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert words.splitlines() == [f"{ROOT}/scripts/speedup/run_speedup.py", "", "my out", "--set", "a=b c"]
