"""The run folder: what a record holds, and that nothing is lost, repeated or overwritten."""

import json
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from pipeline.common.config import load_experiment
from pipeline.common.raw_results import append_result
from pipeline.common.records import Environment, Fingerprint, OutputConfig, PromptResult, summarize
from pipeline.common.results import RunFolder
from pipeline.errors import UserError
from tests.runs import Case

IDS = ("a", "b", "c")
ENVIRONMENT = Environment(
    versions={"torch": "1", "fafo": None},
    device="cpu",
    device_name="x",
    dtype="float32",
    threads=1,
    git_commit=None,
)


def result(sample_id: str, accepted: tuple[int, ...] = (1, 3), **changes: Any) -> PromptResult:
    n_new = sum(accepted)
    values: dict[str, Any] = {
        "id": sample_id, "output_text": "é\u2028\n\0", "output_token_ids": list(range(n_new)), "n_prompt_tokens": 5,
        "n_new_tokens": n_new, "n_steps": len(accepted), "accepted_lengths": list(accepted),
        "prefill_seconds": 0.5, "decode_seconds": 1.5, "stop_reason": "length", "score": 1.0,
        "scores": {"parses": 1.0},
        "cache_tokens": 10.0, "window_cache_tokens": 4.0,
    }  # fmt: skip
    return PromptResult(**(values | changes))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path, model="m")


def open_folder(case: Case, rows: str = "0" * 64, exp_desc: str = "desc") -> RunFolder:
    experiment = load_experiment(case.pipeline_file, case.eval_file)
    return RunFolder(case.output, experiment, exp_desc, Fingerprint(n_rows=3, sha256=rows), IDS)


def record(case: Case, *sample_ids: str, finish: bool = False) -> RunFolder:
    folder = open_folder(case)
    with folder.open(ENVIRONMENT):
        for sample_id in sample_ids:
            folder.append(result(sample_id))
        if finish:
            assert folder.finish() is not None
    return folder


def test_summary() -> None:
    summary = summarize(
        [
            result("a", (1, 3), score=0.0, scores={"parses": 0.0}),
            result("b", (4, 4, 2), cache_tokens=20.0, window_cache_tokens=14.0),
            result("c", (1,), score=None, scores={}, cache_tokens=40.0, window_cache_tokens=10.0),
        ]
    )
    assert (summary.n_prompts, summary.n_new_tokens, summary.n_steps) == (3, 15, 6)
    assert summary.throughput == 15 / 6
    assert summary.decode_throughput == 15 / 4.5
    assert summary.tau == 15 / 6
    assert summary.accepted_length_histogram == {"1": 2, "2": 1, "3": 1, "4": 2}
    assert (summary.score, summary.metric) == (0.5, "parses")
    assert summary.cache_tokens == 20.0
    assert summary.window_cache_tokens == 10.0
    assert summary.window_cache_share == 0.5


def test_summary_without_window_or_score() -> None:
    part: dict[str, Any] = {"n_window_steps": 1, "cache_tokens_beside_window": 30.0, "window_cache_tokens": 15.0}
    summary = summarize([result("a", cache_tokens=20.0, **part), result("b", window_cache_tokens=None)])
    assert (summary.n_window_steps, summary.window_cache_tokens, summary.window_cache_share) == (1, 15.0, 0.5)

    summary = summarize([result("a", score=None, scores={}, window_cache_tokens=None)])
    assert (summary.score, summary.metric, summary.scores) == (None, None, {})
    assert (summary.window_cache_tokens, summary.window_cache_share) == (None, None)


def test_summary_of_what_was_read() -> None:
    lines = [
        result("a", (1, 1, 1), cache_tokens=20.0, seen_cache_tokens=10.0, kv_bytes=640.0),
        result("b", (1,), cache_tokens=40.0, seen_cache_tokens=30.0, kv_bytes=1920.0),
    ]
    summary = summarize(lines)
    assert (summary.cache_tokens, summary.seen_cache_tokens, summary.seen_cache_share) == (25.0, 15.0, 0.6)
    assert summary.kv_bytes == 960.0

    of_an_older_version = result("c")
    summary = summarize([*lines, of_an_older_version])
    assert (summary.seen_cache_tokens, summary.seen_cache_share, summary.kv_bytes) == (None, None, None)

    at_once = result("d", (1,), cache_tokens=0.0, seen_cache_tokens=0.0, kv_bytes=0.0)
    assert summarize([at_once]).seen_cache_share is None


def test_complete_folder(case: Case) -> None:
    record(case, *IDS, finish=True)
    assert sorted(path.name for path in case.output.iterdir()) == [
        "input_config", "output_config.json", "raw_results.jsonl", "record.lock", "run.lock",
    ]  # fmt: skip
    copies = case.output / "input_config"
    assert (copies / "input_pipeline_config.json").read_bytes() == case.pipeline_file.read_bytes()
    assert (copies / "input_eval_config.json").read_bytes() == case.eval_file.read_bytes()
    written = OutputConfig.model_validate_json((case.output / "output_config.json").read_bytes())
    assert written.eval_results == summarize([result(i) for i in IDS])
    assert written.management.end_time is not None
    folder = open_folder(case)
    folder.inspect()
    assert folder.complete
    assert folder.results == [result(i) for i in IDS]


def test_resume_adds_up(case: Case) -> None:
    record(case, "b")
    folder = open_folder(case)
    folder.inspect()
    assert (folder.complete, folder.pending) == (False, ["a", "c"])
    record(case, "a", "c", finish=True)
    management = OutputConfig.model_validate_json((case.output / "output_config.json").read_bytes()).management
    assert len(management.sessions) == 2
    assert management.start_time == management.sessions[0].start_time
    assert management.end_time == management.sessions[1].end_time
    assert [line["id"] for line in case.lines()] == ["b", "a", "c"]


def test_resuming_keeps_the_description(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    record(case, "a")
    assert "--exp_desc" not in caplog.text
    with open_folder(case, exp_desc="other").open(ENVIRONMENT):
        pass
    assert "begun with --exp_desc 'desc', which it keeps; 'other' is not recorded" in caplog.text
    assert case.record()["management"]["exp_desc"] == "desc"


def test_a_full_disk_is_named() -> None:
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        append_result(Path("/dev/full"), result("a"))


def test_pauses_between_sessions_do_not_count(case: Case) -> None:
    record(case, "a")
    path = case.output / "output_config.json"
    written = json.loads(path.read_text())
    written["management"]["sessions"][0].update(
        start_time="2020-01-01T00:00:00.000+00:00", end_time="2020-01-01T00:01:00.000+00:00"
    )
    path.write_text(json.dumps(written))
    record(case, "b", "c", finish=True)
    assert 60 <= case.record()["management"]["exp_duration"] < 90


@pytest.mark.parametrize("tail", ['{"id": "b", "outp', json.dumps({"id": "b"}), "\0\0\0", '{"id": "\u00e9'])
def test_partial_last_line_is_dropped(case: Case, tail: str) -> None:
    record(case, "a")
    with (case.output / "raw_results.jsonl").open("ab") as file:
        file.write(tail.encode()[: len(tail)])
    record(case, "b", "c", finish=True)
    assert [line["id"] for line in case.lines()] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: corrupt"),
        ("", "line 2: corrupt"),
        ("{}", "line 2: corrupt"),
        (result("b").model_dump_json().replace('"n_steps":2', '"n_steps":3'), "line 2: corrupt"),
        (result("b").model_dump_json().replace('"n_steps":2', '"n_steps":"2"'), "line 2: corrupt"),
        (result("z").model_dump_json(), "line 2: id 'z' is not in the dataset"),
        (result("a").model_dump_json(), "line 2: id 'a' appears twice"),
    ],
)
def test_corrupt_line(case: Case, line: str, said: str) -> None:
    record(case, "a")
    path = case.output / "raw_results.jsonl"
    path.write_text(path.read_text() + line + "\n")
    before = path.read_bytes()
    with pytest.raises(UserError, match=said), open_folder(case).open(ENVIRONMENT):
        pass
    assert path.read_bytes() == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("pipeline", "window", 4, "pipeline_params.window is 3 there and 4 here"),
        ("pipeline", "num_local", 9, "pipeline_params.num_local is 8 there and 9 here"),
        ("pipeline", "seed", 1, "pipeline_params.seed is 42 there and 1 here"),
        ("eval", "max_prompts", 2, "eval_params.max_prompts is null there and 2 here"),
    ],
)
def test_another_experiment_is_refused(case: Case, section: str, key: str, value: Any, said: str) -> None:
    record(case, *IDS, finish=True)
    before = contents(case.output)
    getattr(case, section)[key] = value
    case.write()
    with pytest.raises(UserError, match=said):
        open_folder(case).inspect()
    assert contents(case.output) == before


def test_other_methods_and_rows_are_refused(case: Case) -> None:
    record(case, "a")
    with pytest.raises(UserError, match=r"dataset\.sha256"):
        open_folder(case, rows="1" * 64).inspect()
    case.to_baseline()
    with pytest.raises(UserError, match=r'pipeline_params\.method is "fafo" there and "baseline" here'):
        open_folder(case).inspect()


@pytest.mark.parametrize("name", ["raw_results.jsonl", "output_config.json", "input_config/other.txt"])
def test_foreign_files_are_refused(case: Case, name: str) -> None:
    path = case.output / name
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    with pytest.raises(UserError, match="output_folder_dir"):
        open_folder(case).inspect()
    assert path.read_text() == "{}"


def test_a_file_in_place_of_the_folder(case: Case) -> None:
    case.output.parent.mkdir()
    case.output.write_text("")
    with pytest.raises(UserError, match="is a file"):
        open_folder(case).inspect()


def test_one_process_at_a_time(case: Case) -> None:
    case.output.mkdir(parents=True)
    with FileLock(case.output / "run.lock"), pytest.raises(UserError, match="another process"):
        record(case, "a")
    record(case, "a")


def test_killed_before_anything_but_the_record(case: Case) -> None:
    record(case)
    for path in (case.output / "input_config").iterdir():
        path.unlink()
    record(case, *IDS, finish=True)
    assert len(list((case.output / "input_config").iterdir())) == 2
