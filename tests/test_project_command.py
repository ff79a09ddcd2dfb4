"""Projecting a folder of runs: what is compared, that it says so, how far it is off, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from transformers import AutoConfig

from figures.projection import projected_speedups
from figures.style import house_style
from pipeline.common.cli import main as run
from pipeline.common.raw_results import read_results
from pipeline.common.recorded import read_record
from pipeline.common.records import PromptResult
from pipeline.comparison import compare_runs
from pipeline.comparison.runs import finished_run
from pipeline.fafo.step_times import StepTimes
from pipeline.projection import LABEL, Projection, project
from pipeline.projection.curve import Curve
from pipeline.projection.devices import CPU, DEVICES, Device
from pipeline.projection.shapes import Shape
from pipeline.projection.traces import trace, traces
from scripts.speedup.project import main
from tests.audited import edit_record
from tests.figure_runs import result, write_run
from tests.runs import Case, save_tiny_model

pytest_plugins = ["tests.run_fixtures"]

TIMES: dict[str, Any] = {
    "rows": [1, 2, 4, 8, 16, 64],
    "seconds": [1.0, 1.1, 1.2, 1.5, 2.0, 6.0],
    "per_token": [0.001] * 6,
}
MEASURED_LONGER = {"baseline": 1.0, "fafo": 1.25, "lookup": 0.8}  # by what the curve predicts
SKIPPING: dict[str, Any] = {"method": "selfspec_layers", "gamma": 2}


def lines(accepted: list[int], n_rows: int = 1, **more: Any) -> list[PromptResult]:
    """Two prompts; `more` are fields of a line."""
    n_steps = len(accepted)
    rows = {"verified_rows": [n_rows] * n_steps, "window_rows": [0] * n_steps, "draft_passes": [0] * n_steps}
    return [result(str(i), 30 + i, 1.0, accepted, **{"window_cache_tokens": None} | rows | more) for i in range(2)]


def measured(made: list[PromptResult], shape: Shape, times_longer: float) -> list[PromptResult]:
    """The same lines with the seconds that the curve predicts, times a number."""
    curve = Curve(StepTimes(**{key: tuple(value) for key, value in TIMES.items()}), shape)
    found = [trace(one) for one in made]
    return [
        one.model_copy(
            update={
                "decode_seconds": times_longer * curve.decode_seconds(t),
                "prefill_seconds": times_longer * curve.prefill_seconds(t),
            }
        )
        for one, t in zip(made, found, strict=True)
    ]


@pytest.fixture
def shape(model: Path) -> Shape:
    return Shape.of(model.name, AutoConfig.from_pretrained(model))


@pytest.fixture
def runs(tmp_path: Path, model: Path, shape: Shape) -> Path:
    """A baseline; FAFO with 8 rows a step and half of the steps; prompt lookup that never finds anything."""
    folder = tmp_path / "runs"
    window = {"window_rows": [4] * 6, "window_cache_tokens": 6.0, "cache_tokens_beside_window": 30.0}
    for name, method, made in (
        ("baseline", None, lines([1] * 12)),
        ("fafo", {"kv_method": "stream-llm", "num_init": 2, "num_local": 4}, lines([2] * 6, n_rows=4, **window)),
        ("lookup", {"method": "prompt_lookup"}, lines([1] * 12)),
    ):
        write_run(folder / name, measured(made, shape, MEASURED_LONGER[name]), method)
        edit_record(folder / name, lambda record: record["pipeline_params"].update(model_name=str(model)))
    edit_record(folder / "fafo", lambda record: record["management"]["sessions"][0].update(step_times=TIMES))
    return folder


def projected(folder: Path, *devices: Device, **more: Any) -> Projection:
    return project(compare_runs(folder), devices or list(DEVICES.values()), "float16", **more)


def test_plain_decoding_is_neither_faster_nor_slower(runs: Path) -> None:
    for row in projected(runs).groups[0].rows:
        if row.comparison.method in ("baseline", "prompt_lookup"):
            assert [figure.speedup for figure in row.projected.values()] == [1.0] * (len(DEVICES) + 1)


def test_where_rows_are_free_the_speedup_is_that_of_passes(runs: Path) -> None:
    endless = Device("endless", {"float16": 1e300}, 1e300, 1e300, launch_seconds=1.0)
    row = next(r for r in projected(runs, endless).groups[0].rows if r.comparison.run.is_fafo)
    n_layers = 2
    prefill, plain, wide = n_layers * 15, n_layers * 15 + 3, n_layers * 16 + 3  # launches
    figure = row.projected[f"{LABEL}: endless (float16)"]
    assert figure.speedup == pytest.approx((prefill + 12 * plain) / (prefill + 6 * wide))
    assert figure.throughput == pytest.approx(12 / (prefill + 6 * wide))


def test_this_machine_is_predicted_from_its_curve(runs: Path) -> None:
    found = projected(runs).validations[0]
    assert found.curve.decode == {
        "baseline": pytest.approx([0, 0]), "fafo-stream-llm": pytest.approx([-0.2] * 2),
        "prompt_lookup": pytest.approx([0.25] * 2),
    }  # fmt: skip
    assert found.curve.prefill == pytest.approx([0, 0, -0.2, -0.2, 0.25, 0.25])
    assert found.curve.speedup == pytest.approx([0.25, -0.2])
    assert found.curve.all_decode.median_absolute == pytest.approx(0.2)
    assert found.curve.all_decode.median_signed == pytest.approx(0)


def test_the_errors_are_stated(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(runs)]) == 0
    said = "decode seconds of each prompt and method: median error 20.0%"
    for text in (" ".join(capsys.readouterr().out.split()), (runs / "projection.md").read_text()):
        assert said in text
        assert "A roofline fitted to 1, 16, 64 rows of the curve, at its other points: median error" in text
    found = json.loads((runs / "projection.json").read_text())["validation"][0]
    assert found["curve"]["decode_seconds"]["median_absolute_relative_error"] == pytest.approx(0.2)
    assert found["roofline"]["other_points_of_the_curve"]["n"] == 6


def test_all_that_is_projected_says_so(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(runs)]) == 0
    for table in [text for text in (runs / "projection.md").read_text().split("\n\n") if "1.00x" in text]:
        for head in table.splitlines()[0].strip("|").split("|")[1:]:
            assert LABEL in head or "tau" in head or "measured here" in head
    content = json.loads((runs / "projection.json").read_text())
    assert content["label"] == LABEL
    for row in content["groups"][0]["rows"]:
        assert all(key.startswith(LABEL) for figures in row["projected"].values() for key in figures)
        assert all(name.startswith(LABEL) for name in row["projected"])
    assert capsys.readouterr().out.count(f"{LABEL}:") == len(DEVICES) + 1
    assert (runs / "projection.png").read_bytes().startswith(b"\x89PNG")


def test_the_figure_says_so_too(runs: Path) -> None:
    projection = projected(runs)
    with house_style():
        axes = projected_speedups(projection).axes[0]
    assert LABEL in axes.get_title()
    ticks = [tick.get_text().replace("\n", " ") for tick in axes.get_xticklabels()]
    assert ticks == ["measured here", *projection.groups[0].columns]
    assert all(tick.startswith(LABEL) for tick in ticks[1:])
    bars = [bar for bar in axes.containers if bar.get_label() == "fafo-stream-llm"]
    row = next(r for r in projection.groups[0].rows if r.comparison.run.is_fafo)
    heights = [row.comparison.speedup, *(figure.speedup for figure in row.projected.values())]
    assert [bar.get_height() for bar in bars[0]] == pytest.approx(heights)


def test_another_shape_is_named_beside_the_recorded_model(runs: Path, model: Path) -> None:
    assert main([str(runs), "--shape", "llama-3.1-8b", "--device", "a100"]) == 0
    text = (runs / "projection.md").read_text()
    assert f"{LABEL} for llama-3.1-8b, acceptance recorded on {model.name}" in text
    assert "measured curve)" not in text


def test_a_device_of_ones_own(runs: Path, tmp_path: Path) -> None:
    described = {"name": "mine", "peak": {"float16": 1e14}, "bandwidth": 1e12, "memory": 24e9}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(described))
    assert main([str(runs), "--device", f"{file},h100", "--launch-seconds", "0"]) == 0
    content = json.loads((runs / "projection.json").read_text())
    assert [device["name"] for device in content["devices"]] == ["mine", "H100 SXM"]
    assert {device["launch_seconds"] for device in content["devices"]} == {0}
    for row in content["groups"][0]["rows"]:
        for figures in row["projected"].values():
            assert figures["projected_speedup"] == figures["projected_speedup_with_free_launches"]


def test_the_same_runs_give_the_same_files(runs: Path) -> None:
    contents = []
    for _ in range(2):
        assert main([str(runs)]) == 0
        contents.append([(runs / f"projection.{suffix}").read_bytes() for suffix in ("md", "json", "png")])
    assert contents[0] == contents[1]
    assert str(runs).encode() not in contents[0][0] + contents[0][1]


BAD: dict[str, tuple[list[str], str]] = {
    "unknown": (["--device", "h1000"], '--device: found "h1000", no .json file; did you mean "h100"?'),
    "none": (["--device", ""], '--device: found "", no .json file; known: a100, cpu'),
    "no file": (["--device", "nowhere.json"], "nowhere.json: no such file"),
    "too large": (
        ["--device", "rtx4090", "--dtype", "float32", "--shape", "llama-3.1-8b"],
        "RTX 4090: llama-3.1-8b in float32 has 30.0 GB of weights, and the device 24.0 GB of memory",
    ),
    "no curve": (["--device", CPU, "--shape", "llama-3.1-8b"], '--device: found "cpu" alone'),
    "efficiency": (["--peak-efficiency", "1.5"], "--peak-efficiency: found 1.5; should be less than or equal to 1"),
}


@pytest.mark.parametrize(("options", "said"), BAD.values(), ids=BAD)
def test_what_cannot_be_projected(
    runs: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main([str(runs), *options]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {said}")
    assert err.count("\n") == 1
    assert not (runs / "projection.md").exists()


FILES: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"bandwidth": None}, "bandwidth: missing; this key is required"),
    "unknown": ({"bandwith": 1.0}, 'bandwith: unknown key; did you mean "bandwidth"?'),
    "negative": ({"bandwidth": -1}, "bandwidth: found -1; should be greater than 0"),
    "text": ({"memory": "24 GB"}, 'memory: found "24 GB"; should be a valid number'),
    "dtype": ({"peak": {"float8": 1e12}}, 'peak.float8: found "float8"; should be'),
    "name": ({"name": "H100 SXM"}, '--device: two devices are named "H100 SXM"'),
}


@pytest.mark.parametrize(("changes", "said"), FILES.values(), ids=FILES)
def test_a_file_that_describes_no_device(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    described = {"name": "mine", "peak": {"float16": 1e14}, "bandwidth": 1e12, "memory": 24e9} | changes
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({key: value for key, value in described.items() if value is not None}))
    assert main([str(runs), "--device", f"h100,{file}"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def forget_rows(folder: Path) -> None:
    path = folder / "raw_results.jsonl"
    made = [json.loads(text) for text in path.read_text().splitlines()]
    for one in made:
        one.update(verified_rows=None, window_rows=None, draft_passes=None)
    path.write_text("".join(f"{json.dumps(one)}\n" for one in made))


def test_older_runs_are_skipped_by_name(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forget_rows(runs / "fafo")
    assert main([str(runs)]) == 0
    err = capsys.readouterr().err
    assert err.startswith(f"skipped {runs / 'fafo'}: prompt 0: an older record without verified_rows")
    assert err.count("\n") == 1
    assert "| fafo " in (runs / "projection.md").read_text().partition("## Not projected")[2]


def test_nothing_is_projected_without_its_baseline(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forget_rows(runs / "baseline")
    assert main([str(runs)]) == 2
    err = capsys.readouterr().err
    assert err.count("its baseline can't be projected: prompt 0: an older record") == 2
    assert err.splitlines()[-1].startswith("error: ")


def test_without_a_curve_that_is_said(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_record(runs / "fafo", lambda record: record["management"]["sessions"][0].update(step_times=None))
    assert main([str(runs)]) == 0
    for text in (capsys.readouterr().out, (runs / "projection.md").read_text()):
        assert "neither projected nor validated" in " ".join(text.lower().split())


def add_skipping(runs: Path, model: Path, shape: Shape, skipped: Any) -> None:
    more: dict[str, Any] = {"draft_passes": [2] * 12, "draft_cache_share": 0.5}
    write_run(runs / "layers", measured(lines([1] * 12, **more), shape, 1.0), SKIPPING)

    def name_model_and_layers(record: dict[str, Any]) -> None:
        record["pipeline_params"].update(model_name=str(model))
        record["management"]["sessions"][0].update(drafter={"gamma": 2, "skipped_layers": skipped})

    edit_record(runs / "layers", name_model_and_layers)


def test_drafts_read_what_they_do_not_skip(runs: Path, model: Path, shape: Shape) -> None:
    add_skipping(runs, model, shape, {"attention": [1], "mlp": [0, 1]})
    launching = Device("launching", {"float16": 1e300}, 1e300, 1e300, launch_seconds=1.0)
    row = next(r for r in projected(runs, launching).groups[0].rows if r.comparison.method == "selfspec_layers")
    plain, draft = 2 * 15 + 3, 10 + 3
    speedup = row.projected[f"{LABEL}: launching (float16)"].speedup
    assert speedup == pytest.approx((30 + 12 * plain) / (30 + 12 * (plain + 2 * draft)))


def test_drafts_that_skip_no_one_knows_what(
    runs: Path, model: Path, shape: Shape, capsys: pytest.CaptureFixture[str]
) -> None:
    add_skipping(runs, model, shape, None)
    assert main([str(runs)]) == 0
    assert capsys.readouterr().err == (
        f"skipped {runs / 'layers'}: its record does not tell which layers its drafts skip; run it anew\n"
    )


RECORDED: dict[str, Callable[[Case], None]] = {
    "baseline": lambda case: case.to_baseline(),
    "fafo": lambda case: None,
    "selfspec_kv": lambda case: to_drafting(case, "selfspec_kv", gamma=3),
    "selfspec_layers": lambda case: to_drafting(
        case, "selfspec_layers", gamma=3, skipped_layers={"attention": [1], "mlp": []}
    ),
    "lossy": lambda case: case.to_lossy(),
}


def to_drafting(case: Case, method: str, **keys: Any) -> None:
    case.to_lossy() if method == "selfspec_kv" else case.to_baseline()
    case.pipeline |= {"method": method, **keys}
    case.write()


@pytest.mark.parametrize("method", RECORDED)
def test_traces_see_what_was_recorded(case: Case, shape: Shape, method: str) -> None:
    """Contexts and what is read of keys and values are those that the run itself counted."""
    RECORDED[method](case)
    assert run(method, case.argv()) == 0
    path = case.output / "output_config.json"
    made = finished_run(path, read_record(path))
    found = traces(made)
    assert len(found) == 3
    for key, one in made.results.items():
        steps, drafts = found[key].steps, found[key].drafts
        assert drafts.attention_share == (0.5 if method == "selfspec_layers" else 1)
        assert drafts.mlp_share == 1
        if one.seen_cache_tokens is None:
            assert fmean(steps.context) == pytest.approx(one.cache_tokens)
        seen = steps.context.sum() + (steps.window_context * (steps.window_rows > 0)).sum() + drafts.context.sum()
        assert one.kv_bytes is not None
        assert 4 * shape.kv_per_token * seen / one.n_steps == pytest.approx(one.kv_bytes)
        assert len(steps.rows) == one.n_steps
        assert len(drafts.rows) == sum(one.draft_passes or [])


def test_conversations_are_traced_turn_by_turn(tmp_path: Path, isolated: None) -> None:
    """A later turn's context is its own prompt's, and only what the cache lacks of it is read."""
    case = Case(tmp_path, save_tiny_model(tmp_path / "model"))
    rows = [{"question_id": i, "category": "writing", "turns": ["Say a.", "Say b."]} for i in range(2)]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    case.eval = {"dataset": "mtbench", "dataset_path": str(path)}
    case.write()
    assert run("fafo", case.argv()) == 0
    for one in read_results(case.output / "raw_results.jsonl", None):
        found = trace(one)
        assert fmean(found.steps.context) == pytest.approx(one.cache_tokens)
        assert found.prefills.rows.tolist() == [t.n_prompt_tokens - 1 - t.n_reused_tokens for t in one.turns]
        assert found.prefills.context[1] > 0
