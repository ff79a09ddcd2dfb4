"""The comparison of runs: exact numbers of made-up runs, what is refused, and the files."""

import json
import re
from pathlib import Path
from typing import Any

import pandas
import pytest

from pipeline.common.records import (
    Fingerprint,
    Management,
    OutputConfig,
    PromptResult,
    Session,
    Turn,
    summarize,
)
from pipeline.common.schemas import SubDir
from pipeline.comparison import Comparison, compare_runs, tables, write_files
from pipeline.comparison.comparison import first_difference
from pipeline.comparison.files import as_latex
from pipeline.comparison.tables import MAX_METHODS

Changes = dict[str, Any]
ENVIRONMENT: Changes = {
    "versions": {"torch": "2.13.0", "transformers": "5.2.0"}, "device": "cpu", "device_name": "A 100% CPU",
    "dtype": "float32", "threads": 2, "git_commit": None,
}  # fmt: skip
FAFO: Changes = {"method": "fafo", "kv_method": "stream-llm", "level": 5, "window": 15, "num_guesses": 15}
LOSSY: Changes = {"method": "lossy", "kv_method": "stream-llm", "num_local": 4}
SCORED: Changes = {"score": 1.0, "scores": {"pass@1": 1.0}}


def answer(prompt: str, lengths: list[int], prefill: float, decode: float, **changes: Any) -> PromptResult:
    """The result of a prompt whose steps accepted so many tokens."""
    values: Changes = {
        "id": prompt, "output_text": "", "output_token_ids": list(range(sum(lengths))), "n_prompt_tokens": 9,
        "n_new_tokens": sum(lengths), "n_steps": len(lengths), "accepted_lengths": lengths, "prefill_seconds": prefill,
        "decode_seconds": decode, "stop_reason": "eos", "cache_tokens": 8.0, "window_cache_tokens": None,
        "score": None,
    }  # fmt: skip
    return PromptResult(**values | changes)


PLAIN = [answer("a", [1] * 10, 2, 8), answer("b", [1] * 20, 0, 10)]
FAST = [answer("a", [4, 4, 2], 1, 4), answer("b", [5, 5, 5, 5], 2, 6)]


def write(
    folder: Path,
    results: list[PromptResult],
    params: Changes | None = None,
    of_eval: Changes | None = None,
    sessions: tuple[Changes, ...] = ({},),
) -> Path:
    """A finished run; it is a baseline unless `params` says otherwise."""
    folder.mkdir(parents=True)
    environment = ENVIRONMENT | sessions[-1]
    environment.pop("process", None)
    record = OutputConfig(
        pipeline_params={
            "method": "baseline", "model_name": "models/My_Model", "dtype": "float32", "device": "cpu",
            "n_new_tokens": 20, "batch_size": 1, **(params or {}),
        },
        eval_params={"dataset": "humaneval", **(of_eval or {})},
        eval_results=summarize(results),
        management=Management(
            **environment, exp_desc="", output_folder_dir="", sub_dir=SubDir(), start_time="", end_time="",
            exp_duration=1.0, seed=42, dataset=Fingerprint(n_rows=len(results), sha256="0" * 64),
            sessions=[Session(**ENVIRONMENT | changes, start_time="", end_time="") for changes in sessions],
        ),
    )  # fmt: skip
    (folder / "output_config.json").write_text(record.model_dump_json())
    lines = "".join(result.model_dump_json() + "\n" for result in results)
    (folder / "raw_results.jsonl").write_text(lines)
    return folder


def write_both(folder: Path, plain: list[PromptResult], fast: list[PromptResult], **changes: Any) -> None:
    write(folder / "baseline", plain, **changes)
    write(folder / "stream", fast, FAFO, **changes)


def the_fast_one(folder: Path) -> Comparison:
    (found,) = [c for c in compare_runs(folder).comparisons if not c.is_baseline]
    return found


def test_numbers(tmp_path: Path) -> None:
    write_both(tmp_path, PLAIN, FAST)
    found = the_fast_one(tmp_path)
    assert (found.dataset, found.run.model, found.method) == ("humaneval", "My_Model", "fafo-stream-llm")
    assert found.summary.throughput == pytest.approx(30 / 13)
    assert found.baseline.throughput == pytest.approx(30 / 20)
    assert found.speedup == pytest.approx(20 / 13)
    assert found.decode_speedup == pytest.approx(18 / 10)
    assert found.median_ratio == pytest.approx((2 + 10 / 8) / 2)
    assert found.summary.tau == pytest.approx(30 / 7)
    assert found.summary.accepted_length_histogram == {"2": 1, "4": 2, "5": 4}
    assert (found.n_prompts, found.n_identical, found.other_length_ids) == (2, 2, [])
    assert not found.paired
    # Of two prompts, a quarter of all samples is one of them twice, and a quarter the other.
    assert found.interval == pytest.approx((10 / 8, 2))


def test_the_baseline_beside_itself(tmp_path: Path) -> None:
    write(tmp_path / "baseline", PLAIN)
    (found,) = compare_runs(tmp_path).comparisons
    assert found.is_baseline
    assert (found.speedup, found.decode_speedup, found.median_ratio, found.interval) == (1, 1, 1, None)


def test_prompts_are_paired_by_id(tmp_path: Path) -> None:
    write_both(tmp_path, PLAIN, FAST[::-1])
    found = the_fast_one(tmp_path)
    assert found.median_ratio == pytest.approx((2 + 10 / 8) / 2)
    assert found.n_identical == 2


def test_an_interval_holds_the_speedup_and_narrows(tmp_path: Path) -> None:
    def widths(n_prompts: int) -> float:
        plain = [answer(f"{i:03}", [1] * 10, 0, 10) for i in range(n_prompts)]
        fast = [answer(f"{i:03}", [1] * 10, 0, 4 + i % 3) for i in range(n_prompts)]
        folder = tmp_path / str(n_prompts)
        write_both(folder, plain, fast)
        found = the_fast_one(folder)
        assert found.interval is not None
        low, high = found.interval
        assert 10 / 6 <= low < found.speedup < high <= 10 / 4
        return high - low

    assert widths(60) < widths(6) / 2


def test_prompts_that_are_all_alike_give_an_interval_of_one_number(tmp_path: Path) -> None:
    write_both(tmp_path, [answer(i, [1] * 4, 0, 4) for i in "abc"], [answer(i, [4], 0, 2) for i in "abc"])
    assert the_fast_one(tmp_path).interval == (2, 2)


def test_one_prompt_has_no_interval(tmp_path: Path) -> None:
    write_both(tmp_path, PLAIN[:1], FAST[:1])
    assert the_fast_one(tmp_path).interval is None
    speed, _ = tables(compare_runs(tmp_path))
    assert list(speed.frame["speedup (95%)"]) == ["1.00x", "2.00x (none)"]
    assert speed.notes == ["fafo-stream-llm: no interval, since a dataset of a single prompt tells no spread"]


def test_other_outputs_are_counted_and_named(tmp_path: Path) -> None:
    plain = [answer(i, [1] * 4, 0, 4) for i in "abcd"]
    fast = [answer("a", [4], 0, 1), answer("b", [3], 0, 1), answer("c", [4], 0, 1, output_token_ids=[0, 1, 2, 9])]
    write_both(tmp_path, plain, [*fast, answer("d", [4, 2], 0, 1)])
    found = the_fast_one(tmp_path)
    assert (found.n_identical, found.differing_ids, found.other_length_ids) == (1, ["b", "c", "d"], ["b", "d"])
    speed, _ = tables(compare_runs(tmp_path))
    assert list(speed.frame["other length"]) == ["0", "2"]
    assert speed.notes == ["fafo-stream-llm: outputs of another length than the baseline's: 2 (b, d)"]


@pytest.fixture
def lossy_beside_fafo(tmp_path: Path) -> Path:
    """The lossy outputs: one is the baseline's, one goes apart after 3 tokens, and one ends after 4.

    Lossy steps read a quarter of what the baseline's do, of a cache of which half is seen.
    """
    baseline = [answer(i, [1] * 8, 0, 8, kv_bytes=2.0**22) for i in "abc"]
    write(tmp_path / "baseline", baseline)
    tokens = ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 9, 4, 5, 6, 7], [0, 1, 2, 3])
    lossy = [
        answer(i, [1] * len(ids), 0, len(ids) / 2, output_token_ids=ids, kv_bytes=2.0**20, seen_cache_tokens=4.0)
        for i, ids in zip("abc", tokens, strict=True)
    ]
    for name in ("stream-llm", "quest"):
        write(tmp_path / "1" / name, lossy, LOSSY | {"kv_method": name})
        fafo = [
            answer(i, [4, 4], 0, 4, kv_bytes=1.25 * 2**22, window_cache_tokens=2.0, cache_tokens_beside_window=8.0)
            for i in "abc"
        ]
        write(tmp_path / "2" / name, fafo, FAFO | {"kv_method": name})
    return tmp_path


def test_lossy_runs_stand_beside_fafos(lossy_beside_fafo: Path) -> None:
    found = compare_runs(lossy_beside_fafo)
    assert found.refused == []
    baseline, fafo_quest, lossy_quest, _, lossy_stream = found.comparisons
    names = ["baseline", "fafo-quest", "lossy-quest", "fafo-stream-llm", "lossy-stream-llm"]
    assert [c.method for c in found.comparisons] == names
    assert (baseline.cache_seen, baseline.kv_share, baseline.median_first_difference) == (None, 1, None)
    assert (fafo_quest.cache_seen, fafo_quest.kv_share, fafo_quest.median_first_difference) == (0.25, 1.25, None)
    assert (lossy_quest.cache_seen, lossy_quest.kv_share, lossy_quest.median_first_difference) == (0.5, 0.25, 3.5)
    assert lossy_stream.pairs[0].first_differences == {"b": 3, "c": 4}
    assert (lossy_stream.differing_ids, lossy_stream.other_length_ids) == (["b", "c"], ["c"])
    speed, loss, accepted = tables(found)
    assert list(speed.frame["method"]) == list(loss.frame["method"]) == names
    assert list(accepted.frame["method"]) == names[1::2]  # a lossy step is always of one token
    assert speed.notes == [
        f"lossy-{name}: 1 of 3 outputs of another length; its speedup is of tokens per second"
        for name in ("quest", "stream-llm")
    ]
    assert list(speed.frame["cache seen"]) == ["", "25%", "50%", "25%", "50%"]
    assert loss.title == "humaneval, My_Model: lossy and lossless"
    assert loss.frame.to_dict("list") == {
        "method": names,
        "tokens/s": ["1.00", "2.00", "2.00", "2.00", "2.00"],
        "speedup": ["1.00x", "2.00x", "2.00x", "2.00x", "2.00x"],
        "tau": ["1.00", "4.00", "1.00", "4.00", "1.00"],
        "KV MiB/step": ["4.00", "5.00", "1.00", "5.00", "1.00"],
        "of full": ["100%", "125%", "25%", "125%", "25%"],
        "identical": ["100%", "100%", "33%", "100%", "33%"],
        "first difference": ["", "", "3.5", "", "3.5"],
    }


def test_json_of_lossy_runs(lossy_beside_fafo: Path) -> None:
    write_files(compare_runs(lossy_beside_fafo))
    baseline, fafo, lossy = read_json(lossy_beside_fafo)["comparisons"][:3]
    assert [c["lossy"] for c in (baseline, fafo, lossy)] == [False, False, True]
    assert (lossy["kv_bytes_per_step"], lossy["baseline_kv_bytes_per_step"]) == (2**20, 2**22)
    assert (lossy["seen_cache_share"], lossy["window_cache_share"]) == (0.5, None)
    assert (fafo["seen_cache_share"], fafo["window_cache_share"]) == (None, 0.25)
    assert lossy["median_tokens_before_first_difference"] == 3.5
    assert lossy["tokens_before_first_difference"] == {"b": 3, "c": 4}
    assert fafo["tokens_before_first_difference"] == {}
    assert fafo["median_tokens_before_first_difference"] is None


def test_lossy_runs_overall(lossy_beside_fafo: Path) -> None:
    of_eval = {"dataset": "gsm8k"}
    write(lossy_beside_fafo / "3", [answer("a", [1] * 8, 0, 8, kv_bytes=2.0**21)], of_eval=of_eval)
    shorter = answer("a", [1] * 8, 0, 4, output_token_ids=[9] * 8, kv_bytes=2.0**20, seen_cache_tokens=2.0)
    write(lossy_beside_fafo / "4", [shorter], LOSSY, of_eval)
    _, lossy = compare_runs(lossy_beside_fafo).overalls
    assert lossy.method == "lossy-stream-llm"
    assert (lossy.n_identical, lossy.median_first_difference) == (1, 3)  # of 0, 3 and 4
    # Means over all steps: 20 and 8 of the lossy runs, 24 and 8 of the baselines.
    assert lossy.cache_seen == pytest.approx((20 * 4 + 8 * 2) / (28 * 8))
    assert lossy.kv_share == pytest.approx(1 / ((24 * 4 + 8 * 2) / 32))
    assert tables(compare_runs(lossy_beside_fafo))[-1].frame.columns[-1] == "first difference"


def test_records_without_bytes_are_compared_all_the_same(tmp_path: Path) -> None:
    write(tmp_path / "baseline", PLAIN)
    write(tmp_path / "lossy", PLAIN, LOSSY)
    _, found = compare_runs(tmp_path).comparisons
    assert (found.kv_share, found.cache_seen, found.identical_share) == (None, None, 1)
    _, loss = tables(compare_runs(tmp_path))
    assert list(loss.frame["KV MiB/step"]) == list(loss.frame["of full"]) == ["", ""]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([[1, 2], [3]], [[1, 2], [3]], None),
        ([[1, 2], [3]], [[1, 2], [4]], 2),
        ([[1, 2], [3]], [[1], [2, 3]], 1),  # the same tokens, and another first answer
        ([[1, 2]], [[1, 2], [3]], 2),
    ],
)
def test_first_difference(ours: list[list[int]], theirs: list[list[int]], expected: int | None) -> None:
    assert first_difference(ours, theirs) == first_difference(theirs, ours) == expected


def conversation(first_prompt: int, second_prompt: int) -> list[PromptResult]:
    sizes = (first_prompt, second_prompt)
    turns = [
        Turn(output_text="", n_prompt_tokens=n, n_reused_tokens=0, n_new_tokens=5, stop_reason="eos") for n in sizes
    ]
    return [answer("a", [1] * 10, 1, 1, turns=turns, n_prompt_tokens=sum(sizes))]


def test_later_turns_may_have_other_prompts_since_these_hold_the_answers(tmp_path: Path) -> None:
    write_both(tmp_path / "answers", conversation(9, 30), conversation(9, 31))
    assert the_fast_one(tmp_path / "answers").n_identical == 1
    write_both(tmp_path / "questions", conversation(9, 30), conversation(10, 29))
    assert "its prompts are not those of" in compare_runs(tmp_path / "questions").refused[0].reason


OTHER: dict[str, tuple[Changes, str]] = {
    "exact": ({"params": FAFO | {"exact": True}}, "the same exact"),
    "chat-template": ({"params": FAFO | {"chat_template_kwargs": {"think": False}}}, "the same chat_template_kwargs"),
    "long-prompts": ({"of_eval": {"long_prompts": "cut_middle"}}, "the same long_prompts"),
    "processes": ({"sessions": ({"n_processes": 2}, {"n_processes": 2})}, "the same n_processes"),
    "interleaved": ({"sessions": ({"interleaved": ["baseline", "fafo"]},)}, "the same interleaving"),
    "turned": ({"sessions": ({"interleaved": ["baseline", "fafo"]}, {})}, "its sessions differ in interleaving"),
    "joined": ({"sessions": ({"n_processes": 2}, {})}, "its sessions differ in n_processes"),
    "metric": ({"results": [result.model_copy(update=SCORED) for result in FAST]}, "the same metric"),
    "cut": ({"results": [FAST[0].model_copy(update={"n_cut_tokens": 3}), FAST[1]]}, "its prompts are not those"),
    "untimed": ({"results": [answer("a", [1], 1, 0), FAST[1]]}, "prompt a took no time"),
}


@pytest.mark.parametrize(("changes", "said"), OTHER.values(), ids=OTHER)
def test_runs_under_other_conditions_are_refused(tmp_path: Path, changes: Changes, said: str) -> None:
    write(tmp_path / "baseline", PLAIN)
    of_run: Changes = {"results": FAST, "params": FAFO}
    write(tmp_path / "stream", **of_run | changes)
    found = compare_runs(tmp_path)
    assert [c.method for c in found.comparisons] == ["baseline"]
    (refused,) = found.refused
    assert refused.what == str(tmp_path / "stream")
    assert said in refused.reason


def test_lines_that_are_not_those_of_the_summary_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "baseline", PLAIN)
    slower = answer("b", [5, 5, 5, 5], 2, 9)
    (tmp_path / "baseline" / "raw_results.jsonl").write_text(
        "".join(result.model_dump_json() + "\n" for result in (PLAIN[0], slower))
    )
    assert "its results give n_steps 14, its summary has 30" in compare_runs(tmp_path).refused[0].reason


def test_a_second_baseline_is_refused(tmp_path: Path) -> None:
    write_both(tmp_path, PLAIN, FAST)
    write(tmp_path / "baseline-again", PLAIN)
    found = compare_runs(tmp_path)
    assert [c.method for c in found.comparisons] == ["baseline", "fafo-stream-llm"]
    assert f"a second baseline under the conditions of {tmp_path / 'baseline'}" in found.refused[0].reason


def test_interleaved_runs_have_a_baseline_of_their_own(tmp_path: Path) -> None:
    write_both(tmp_path / "alone", PLAIN, PLAIN)
    write_both(tmp_path / "in-turn", PLAIN, FAST, sessions=({"interleaved": ["baseline", "fafo"]},) * 2)
    found = [c for c in compare_runs(tmp_path).comparisons if not c.is_baseline]
    assert [(c.paired, round(c.speedup, 3)) for c in found] == [(False, 1), (True, 1.538)]
    titles = [title.partition("My_Model, ")[2] for title, _ in compare_runs(tmp_path).datasets]
    assert titles == ["interleaving none", "interleaving of 2 runs"]
    named = ["median" in table.frame for table in tables(compare_runs(tmp_path))]
    assert named == [True, False, False, False]


def test_a_pair_is_not_guessed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_both(tmp_path / name, PLAIN, FAST, sessions=({"interleaved": ["baseline", "fafo"]},))
    found = compare_runs(tmp_path)
    assert [c.method for c in found.comparisons] == ["baseline"]
    assert [refused.what for refused in found.refused] == [
        str(tmp_path / n) for n in ("two/baseline", "one/stream", "two/stream")
    ]
    assert "which of several baselines" in found.refused[1].reason


def test_processes_that_share_the_prompts_have_a_device_each(tmp_path: Path) -> None:
    processes = tuple({"n_processes": 2, "process": i, "device": f"cuda:{i}"} for i in range(2))
    write_both(tmp_path, PLAIN, FAST, sessions=processes)
    assert the_fast_one(tmp_path).run.setup["device_name"] == "A 100% CPU (cuda)"
    write_both(tmp_path / "other", PLAIN, FAST, sessions=(processes[0], processes[1] | {"device_name": "B"}))
    assert [r.reason for r in compare_runs(tmp_path).refused] == [
        "its sessions differ in device_name, so its timings mix both"
    ] * 2


def test_settings_tell_methods_apart(tmp_path: Path) -> None:
    write_both(tmp_path, PLAIN, FAST)
    write(tmp_path / "wide", FAST, FAFO | {"window": 20})
    write(tmp_path / "quest", FAST, FAFO | {"kv_method": "quest", "window": 20})
    names = {c.run.folder.name: c.method for c in compare_runs(tmp_path).comparisons}
    assert names == {
        "baseline": "baseline",
        "stream": "fafo-stream-llm (window 15)",
        "wide": "fafo-stream-llm (window 20)",
        "quest": "fafo-quest",
    }


@pytest.fixture
def two_datasets(tmp_path: Path) -> Path:
    """Speedups 2 and 4, whatever prompts are drawn; the second dataset has another length limit."""
    short, long = ([answer(i, [1] * n, 0, n) for i in "ab"] for n in (10, 20))
    write_both(tmp_path / "humaneval", short, [answer(i, [5] * 2, 0, 5) for i in "ab"])
    limit, of_eval = {"n_new_tokens": 9}, {"dataset": "gsm8k"}
    write(tmp_path / "gsm8k" / "baseline", long, limit, of_eval)
    write(tmp_path / "gsm8k" / "stream", [answer(i, [5] * 4, 0, 5) for i in "ab"], FAFO | limit, of_eval)
    return tmp_path


def test_overall(two_datasets: Path) -> None:
    baseline, found = compare_runs(two_datasets).overalls
    assert (baseline.speedup, baseline.interval) == (1, None)
    assert (found.dataset, found.datasets) == ("overall", ["gsm8k", "humaneval"])
    assert found.speedup == pytest.approx((60 / 20) / (60 / 60))
    assert found.mean_of_datasets == pytest.approx((2 + 4) / 2)
    assert found.median_ratio == pytest.approx(3)
    assert found.summary.accepted_length_histogram == {"5": 12}
    assert (found.n_prompts, found.n_identical) == (4, 4)
    # Prompts are drawn within datasets, so these can only give the same again.
    assert found.interval == pytest.approx((found.speedup, found.speedup))


def test_a_dataset_of_one_prompt_leaves_overall_without_interval(two_datasets: Path) -> None:
    write_both(two_datasets / "mtbench", PLAIN[:1], FAST[:1], of_eval={"dataset": "mtbench"})
    _, found = compare_runs(two_datasets).overalls
    assert (found.n_prompts, found.interval) == (5, None)
    (speed,) = [table for table in tables(compare_runs(two_datasets)) if table.title == "overall, My_Model"]
    assert any("no interval" in note for note in speed.notes)


def test_overall_needs_every_dataset(two_datasets: Path) -> None:
    write(two_datasets / "humaneval" / "quest", [answer(i, [5, 5], 0, 5) for i in "ab"], FAFO | {"kv_method": "quest"})
    found = compare_runs(two_datasets)
    assert [c.method for c in found.overalls] == ["baseline", "fafo-stream-llm"]
    (refused,) = found.overall_refused
    assert refused.what == "overall of fafo-quest, My_Model"
    assert refused.reason == "nothing comparable of gsm8k, which other runs here have"
    assert len(found.comparisons) == 5


def test_overall_waits_for_a_dataset_that_is_not_finished(two_datasets: Path) -> None:
    folder = write(two_datasets / "mtbench" / "stream", FAST, FAFO, {"dataset": "mtbench"})
    (folder / "output_config.json").write_text(
        json.dumps(json.loads((folder / "output_config.json").read_text()) | {"eval_results": None})
    )
    found = compare_runs(two_datasets)
    assert found.overalls == []
    assert ["mtbench" in refused.reason for refused in found.overall_refused] == [True, True]


def test_overall_takes_no_run_by_chance(two_datasets: Path) -> None:
    write(two_datasets / "again", [answer(i, [5, 5], 0, 5) for i in "ab"], FAFO)
    found = compare_runs(two_datasets)
    assert [c.method for c in found.overalls] == ["baseline"]
    assert found.overall_refused[0].reason.startswith("2 runs of humaneval, and only one can count: ")


def test_a_single_dataset_has_no_overall(tmp_path: Path) -> None:
    write_both(tmp_path, PLAIN, FAST)
    found = compare_runs(tmp_path)
    assert (found.overalls, found.overall_refused) == ([], [])


def graded(results: list[PromptResult], groups: list[str]) -> list[PromptResult]:
    """Results with a group each; only those of the first group are right."""
    return [
        result.model_copy(update={"group": group, "score": score, "scores": {"f1": score}})
        for result, group in zip(results, groups, strict=True)
        for score in [float(group == groups[0])]
    ]


def test_groups_have_a_table(tmp_path: Path) -> None:
    write_both(tmp_path, graded(PLAIN, ["easy", "hard"]), graded(FAST, ["hard", "easy"]))
    speed, _, scores = tables(compare_runs(tmp_path))
    assert list(speed.frame["f1"]) == ["0.500", "0.500"]
    assert scores.title == "humaneval, My_Model: f1 by group"
    assert scores.frame.values.tolist() == [
        ["easy", "1.000", "0.000"],
        ["hard", "0.000", "1.000"],
        ["mean", "0.500", "0.500"],
    ]


def test_many_methods_have_several_tables(tmp_path: Path) -> None:
    write_both(tmp_path, graded(PLAIN, ["easy", "hard"]), graded(FAST, ["hard", "easy"]))
    for number in range(MAX_METHODS):
        write(tmp_path / str(number), graded(FAST, ["hard", "easy"]), FAFO | {"kv_method": f"k{number}"})
    _, _, first, second = tables(compare_runs(tmp_path))
    assert first.title == second.title == "humaneval, My_Model: f1 by group"
    methods = ["baseline", *(f"fafo-k{number}" for number in range(MAX_METHODS)), "fafo-stream-llm"]
    assert list(first.frame) == ["group", *methods[:MAX_METHODS]]
    assert list(second.frame) == ["group", *methods[MAX_METHODS:]]


def test_a_large_grid_is_left_to_the_json(tmp_path: Path) -> None:
    groups = [f"cell {i:02}" for i in range(41)]
    results = graded([answer(group, [1], 0, 1) for group in groups], groups)
    write_both(tmp_path, results, results)
    found = compare_runs(tmp_path)
    speed, _ = tables(found)
    assert speed.notes == ["humaneval, My_Model: f1 by group: 41 groups, see speedup.json"]
    write_files(found)
    assert len(read_json(tmp_path)["comparisons"][1]["group_scores"]) == 41


def read_json(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "speedup.json").read_text())


def test_json(tmp_path: Path) -> None:
    plain = [result.model_copy(update=SCORED) for result in PLAIN]
    write_both(tmp_path, plain, [plain[0], answer("b", [5, 5], 1, 3, **SCORED)])
    write(tmp_path / "alone", FAST, FAFO | {"model_name": "a/b"})
    write_files(compare_runs(tmp_path))
    content = read_json(tmp_path)
    baseline, found = content["comparisons"]
    assert baseline["speedup"] == 1
    assert baseline["speedup_low"] is None
    # Where outputs have other lengths, the ratio of totals (20/14 by 30/20) may lie below each prompt's.
    assert [found["speedup_low"], found["speedup"], found["speedup_high"]] == pytest.approx([20 / 21, 20 / 21, 1.25])
    assert found["metric"] == "pass@1"
    assert found["score"] == found["baseline_score"] == 1
    assert found["accepted_length_histogram"] == {"1": 10, "5": 2}
    assert found["differing_ids"] == found["other_length_ids"] == ["b"]
    assert found["conditions"]["threads"] == 2
    assert found["conditions"]["torch"] == "2.13.0"
    assert found["run"]["folder"] == "stream"
    assert found["run"]["settings"]["window"] == 15
    assert found["baseline"]["folder"] == "baseline"
    assert content["overall"] == []
    assert content["refused"] == [{"folder": "alone", "reason": "no baseline run of humaneval, b"}]


def test_csv_has_raw_numbers(two_datasets: Path) -> None:
    found = compare_runs(two_datasets)
    write_files(found)
    frame = pandas.read_csv(two_datasets / "speedup.csv")
    assert list(frame["dataset"]) == ["gsm8k", "gsm8k", "humaneval", "humaneval", "overall", "overall"]
    assert list(frame["speedup"]) == [c.speedup for c in [*found.comparisons, *found.overalls]]
    assert list(frame["throughput_tokens_per_second"]) == [1, 4, 1, 2, 1, 3]
    assert list(frame["n_steps_accepting_1_tokens"]) == [40, 0, 20, 0, 60, 0]
    assert list(frame["n_steps_accepting_5_tokens"]) == [0, 8, 0, 4, 0, 12]
    assert frame["mean_of_dataset_speedups"].dropna().tolist() == [1, 3]
    assert frame["score"].isna().all()


def test_markdown(two_datasets: Path) -> None:
    write(two_datasets / "pipe|d", FAST, FAFO | {"dtype": "float16"})
    write_files(compare_runs(two_datasets))
    text = (two_datasets / "speedup.md").read_text()
    headings = re.findall(r"^## (.*)$", text, re.M)
    titles = [f"{dataset}, My_Model" for dataset in ("gsm8k", "humaneval", "overall")]
    expected = [h for t in titles for h in (t, f"{t}: steps by tokens accepted")]
    assert headings == [*expected, "overall, My_Model: sensitivity", "Not compared"]
    assert "A 100% CPU (cpu), float32, threads: 2, processes: 1, new tokens: at most 9" in text
    assert re.search(r"^\| fafo-stream-llm +\| 3.00 +\| 3.00x \(3.00-3.00\) .* 3.00x +\|$", text, re.M)
    assert re.search(r"^\| pipe\\\|d +\| no baseline run with the same dtype +\|$", text, re.M)


def test_latex_is_escaped(two_datasets: Path) -> None:
    text = as_latex(tables(compare_runs(two_datasets)))
    first, *lines = text.splitlines()
    assert first.startswith("%")
    assert r"\caption{overall, My\_Model. A 100\% CPU (cpu)" in text
    assert not [line for line in lines if re.search(r"(?<!\\)[_%#$]", line)]
    columns = [len(found) for found in re.findall(r"\\begin{tabular}{(l?r+)}", text)]
    rows = [
        {body.count("&") for body in table.splitlines() if body.endswith(r"\\")}
        for table in text.split("tabular}")[1::2]
    ]
    assert rows == [{n - 1} for n in columns]
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == len(columns) == 7


def test_the_same_runs_give_the_same_bytes(two_datasets: Path) -> None:
    def files() -> dict[str, bytes]:
        write_files(compare_runs(two_datasets))
        return {path.name: path.read_bytes() for path in two_datasets.glob("speedup*")}

    first = files()
    assert sorted(first) == ["speedup.csv", "speedup.json", "speedup.md", "speedup.tex"]
    assert files() == first
