"""Several processes that share a run's prompts."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from pipeline.common import hardware
from pipeline.common.config import load_experiment
from pipeline.common.locks import holding
from pipeline.common.records import Fingerprint
from pipeline.common.results import RunFolder
from pipeline.common.shard import WHOLE, Shard, launched_shard
from pipeline.errors import UserError
from tests.runs import Case, command, run_command, save_tiny_model
from tests.test_results import ENVIRONMENT, IDS, result

pytest_plugins = ["tests.run_fixtures"]

OF_TWO = Shard(0, 2), Shard(1, 2, 1)


@pytest.fixture
def quiet_case(tmp_path: Path) -> Case:
    return Case(tmp_path, model="m")


def folder_of(case: Case, shard: Shard) -> RunFolder:
    experiment = load_experiment(case.pipeline_file, case.eval_file)
    return RunFolder(case.output, experiment, "desc", Fingerprint(n_rows=3, sha256="0" * 64), IDS, shard)


def work(case: Case, shard: Shard, n: int | None = None) -> RunFolder:
    """Answer the first `n` prompts that are pending, and finish if those are all."""
    folder = folder_of(case, shard)
    with folder.open(ENVIRONMENT.model_copy(update={"n_processes": shard.n_processes})):
        pending = folder.pending
        for sample_id in pending[:n]:
            folder.append(result(sample_id))
        if n is None:
            folder.finish()
    return folder


def test_shards() -> None:
    assert [shard.of("abcde") for shard in (Shard(0, 2), Shard(1, 2))] == ["ace", "bd"]
    assert WHOLE.of("abc") == "abc"
    path = Path("raw.jsonl")
    assert [shard.own(path).name for shard in (WHOLE, *OF_TWO)] == ["raw.jsonl", "raw.0-of-2.jsonl", "raw.1-of-2.jsonl"]


def test_the_launcher_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert launched_shard() == WHOLE
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert launched_shard() == Shard(3, 4, 1)


@pytest.mark.parametrize(
    "values", [{"RANK": "3"}, {"WORLD_SIZE": "8"}, {"RANK": "", "WORLD_SIZE": "", "LOCAL_RANK": ""}]
)
def test_stray_variables_mean_nothing(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert launched_shard() == WHOLE


@pytest.mark.parametrize(
    ("rank", "size", "local"), [("2", "2", "0"), ("-1", "2", "0"), ("0", "x", "0"), ("0", "2", "-1")]
)
def test_impossible_variables_are_refused(monkeypatch: pytest.MonkeyPatch, rank: str, size: str, local: str) -> None:
    for name, value in {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f"the environment has RANK={rank}, WORLD_SIZE={size}"):
        launched_shard()


def test_each_process_has_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [hardware.resolve_device("auto", Shard(i, 3, i)) for i in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert hardware.resolve_device("cuda", OF_TWO[1]) == "cuda:1"
    assert hardware.resolve_device("cuda:0", OF_TWO[1]) == "cuda:0"
    assert hardware.resolve_device("auto") == "auto"


@pytest.mark.parametrize("order", [OF_TWO, OF_TWO[::-1]])
def test_the_last_one_merges(quiet_case: Case, order: tuple[Shard, Shard]) -> None:
    first = work(quiet_case, order[0])
    assert first.record is not None and first.record.eval_results is None
    assert not (quiet_case.output / "raw_results.jsonl").exists()
    last = work(quiet_case, order[1])
    assert last.complete
    assert [line["id"] for line in quiet_case.lines()] == list(IDS)
    assert sorted(path.name for path in quiet_case.output.glob("raw*")) == ["raw_results.jsonl"]
    sessions = quiet_case.record()["management"]["sessions"]
    assert [session["process"] for session in sessions] == [shard.process for shard in order]
    assert all(session["end_time"] for session in sessions)
    again = folder_of(quiet_case, WHOLE)
    again.inspect()
    assert again.complete


def test_a_killed_share_is_resumed_alone(quiet_case: Case) -> None:
    work(quiet_case, OF_TWO[0], n=1)
    work(quiet_case, OF_TWO[1])
    part = quiet_case.output / "raw_results.0-of-2.jsonl"
    part.write_text(part.read_text() + '{"id": "c", "out')
    folder = folder_of(quiet_case, OF_TWO[0])
    folder.inspect()
    assert folder.pending == ["c"]
    work(quiet_case, OF_TWO[0])
    assert [line["id"] for line in quiet_case.lines()] == list(IDS)
    assert len(quiet_case.record()["management"]["sessions"]) == 3


def test_one_process_may_finish_what_two_began(quiet_case: Case) -> None:
    work(quiet_case, OF_TWO[0], n=1)
    folder = work(quiet_case, WHOLE)
    assert folder.complete
    assert [line["id"] for line in quiet_case.lines()] == list(IDS)
    assert all(session["end_time"] for session in quiet_case.record()["management"]["sessions"])


def test_killed_while_merging(quiet_case: Case) -> None:
    work(quiet_case, OF_TWO[0], n=2)
    part = quiet_case.output / "raw_results.0-of-2.jsonl"
    kept = part.read_bytes()
    work(quiet_case, OF_TWO[1])
    work(quiet_case, OF_TWO[0])
    part.write_bytes(kept)  # as if it had not come to removing this
    record = quiet_case.record() | {"eval_results": None}
    (quiet_case.output / "output_config.json").write_text(json.dumps(record))
    folder = folder_of(quiet_case, WHOLE)
    with folder.open(environment=None):
        assert folder.finish() is not None
    assert [line["id"] for line in quiet_case.lines()] == list(IDS)
    assert not part.exists()


def test_shards_that_start_together_do_not_refuse_each_other(quiet_case: Case) -> None:
    quiet_case.output.mkdir(parents=True)
    (quiet_case.output / "run.lock").touch()  # of an earlier process on its own, which each of them looks at
    (quiet_case.output / "run.0-of-3.lock").touch()
    start = threading.Barrier(4)

    def hold(process: int) -> None:
        start.wait()
        for _ in range(25):
            with holding(quiet_case.output, Shard(process, 4)):
                pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(hold, range(4)))


def test_one_process_completes_a_run(quiet_case: Case) -> None:
    written = []
    first, second = (folder_of(quiet_case, shard) for shard in OF_TWO)
    environment = ENVIRONMENT.model_copy(update={"n_processes": 2})
    with first.open(environment), second.open(environment):
        for folder in (first, second):
            for sample_id in folder.pending:
                folder.append(result(sample_id))
        summaries = [folder.finish(lambda: written.append(quiet_case.lines())) for folder in (first, second)]
    assert [summary is not None for summary in summaries] == [True, False]
    assert [[line["id"] for line in lines] for lines in written] == [list(IDS)]
    assert all(session["end_time"] for session in quiet_case.record()["management"]["sessions"])


def test_each_shard_is_held_by_one_process(quiet_case: Case) -> None:
    quiet_case.output.mkdir(parents=True)
    with FileLock(quiet_case.output / "run.0-of-2.lock"):
        with holding(quiet_case.output, OF_TWO[1]):
            pass
        for shard in (OF_TWO[0], WHOLE, Shard(0, 3)):
            with pytest.raises(UserError, match="another process"), holding(quiet_case.output, shard):
                pass
    for shard in (*OF_TWO, WHOLE, Shard(0, 3)):
        with holding(quiet_case.output, shard):
            pass


def test_two_launched_processes_give_what_one_gives(tmp_path: Path) -> None:
    case = Case(tmp_path, save_tiny_model(tmp_path / "model"), n_rows=5)
    case.output = tmp_path / "alone"
    assert run_command(command(*case.argv()), tmp_path).returncode == 0
    alone = case.lines()
    case.output = tmp_path / "shared"
    launch = (str(Path(sys.executable).with_name("accelerate")), "launch", "--multi_gpu", "--num_processes", "2")
    done = run_command(command(*case.argv(), interpreter=launch), tmp_path)
    assert done.returncode == 0, done.stderr
    timings = {"prefill_seconds": 0, "decode_seconds": 0}
    assert [line | timings for line in case.lines()] == [line | timings for line in alone]
    results = case.record()["eval_results"]
    assert results["n_prompts"] == 5
    assert results["n_steps"] == sum(line["n_steps"] for line in alone)


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    case = Case(tmp_path, save_tiny_model(tmp_path / "model"), n_rows=4)
    case.pipeline["n_new_tokens"] = 200
    case.write()
    environments = [os.environ | {"RANK": str(i), "WORLD_SIZE": "2", "LOCAL_RANK": str(i)} for i in range(2)]
    part = case.output / "raw_results.0-of-2.jsonl"
    with subprocess.Popen(command(*case.argv()), env=environments[0], stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (part.exists() and part.read_bytes()):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    before = part.read_bytes() if part.exists() else b""
    for environment in environments:
        subprocess.run(command(*case.argv()), env=environment, check=True, capture_output=True)
    assert [line["id"] for line in case.lines()] == [f"Tiny/{i}" for i in range(4)]
    assert before.splitlines()[:1] == (case.output / "raw_results.jsonl").read_bytes().splitlines()[:1]
