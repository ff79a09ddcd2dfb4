"""The figures: that they show the numbers of the data, which here is made up, and that they can be read."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from figures import make_figures, pipeline_figure
from figures.accepted import accepted_lengths
from figures.budget import tau_by_budget
from figures.context import speedup_by_context
from figures.entries import Entry, entries
from figures.example_step import example_step
from figures.lossless import BESIDE, lossless, size
from figures.make_figures import OF_RUNS, OF_STEPS, STEP_FILE, main
from figures.passkey import passkey_map
from figures.speedup import speedup_bars
from figures.step_parts import StepReport, step_parts
from figures.style import COLUMN, KNOWN, OTHERS, OUTLINE, PAGE, house_style, looks, ordered, save
from pipeline.common.records import Turn
from pipeline.comparison import compare_runs
from scripts.speedup.bench_step import PARTS
from tests.figure_runs import QUEST, STREAM, lossy_result, result, write_passkey_runs, write_run, write_runs
from tests.reading import assert_readable
from tests.runs import ROOT, run_command

NAMES = [*OF_RUNS, OF_STEPS]


def step_report() -> dict[str, Any]:
    """Two methods at two contexts; medians of the parts are 1 to 5 ms times the context's thousands."""
    steps = [
        {"context": context, "method": method, "step": [14.0, 15.0 * context / 1000, 90.0]}
        | {part: [0.0, number * context / 1000, 99.0] for number, part in enumerate(PARTS, start=1)}
        for context in (1000, 2000)
        for method in ("plain", "fafo-quest")
    ]
    machine = {"device": "made up", "threads": 1, "torch": "0", "model": "M", "dtype": "float32", "compile": True}
    return {"machine": machine, "rows": [], "steps": steps}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with something for each figure."""
    folder = tmp_path_factory.mktemp("runs")
    write_runs(folder / "humaneval")
    write_passkey_runs(folder / "passkey")
    (folder / STEP_FILE).write_text(json.dumps(step_report()))
    return folder


@pytest.fixture(scope="module")
def placed(runs: Path) -> list[Entry]:
    return entries(compare_runs(runs))


@pytest.fixture(autouse=True)
def styled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def save_small(figure: Figure, folder: Path, name: str, **_: Any) -> list[Path]:  # takes a tenth of the time
        return save(figure, folder, name, dpi=30)

    for module in (make_figures, pipeline_figure):
        monkeypatch.setattr(module, "save", save_small)
    with house_style():
        yield


def plot(figure: Figure, title: str) -> Axes:
    (found,) = (axes for axes in figure.axes if axes.get_title() == title)
    return found


def points(line: Line2D) -> list[list[float]]:
    return [[float(x), float(y)] for x, y in zip(np.ravel(line.get_xdata()), np.ravel(line.get_ydata()), strict=True)]


def draw(name: str, placed: list[Entry]) -> Figure:
    return step_parts(StepReport.model_validate(step_report())) if name == OF_STEPS else OF_RUNS[name](placed)


def test_all_files(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both formats of each figure are there, the same bytes each time."""
    first: list[bytes] = []
    second: list[bytes] = []
    for contents in (first, second):
        assert main([str(runs)]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        for name in NAMES:
            files = [runs / "figures" / f"{name}.{suffix}" for suffix in ("png", "pdf")]
            assert f"wrote {files[0]} and {files[1]}\n" in captured.out
            contents += [file.read_bytes() for file in files]
            for file in files:
                file.unlink()
    assert first == second
    assert all(png.startswith(b"\x89PNG") and b"Software" not in png for png in first[::2])
    assert all(pdf.startswith(b"%PDF") and b"CreationDate" not in pdf for pdf in first[1::2])


def test_missing_data_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    *lines, last = capsys.readouterr().err.splitlines()
    assert last == f"error: {tmp_path}: holds no data for any figure"
    assert [re.match(r"skipped figure (\w+): ", line)[1] for line in lines] == NAMES  # type: ignore[index]
    assert all("with bash scripts/" in line or "with python scripts/" in line for line in lines)
    assert "bench_step.py --json" in lines[-1]
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_some_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One budget, twice, is no sweep, another's step.json no measurement, a run without a baseline no comparison."""
    write_runs(tmp_path / "a")
    shutil.rmtree(tmp_path / "a" / "stream-256")
    shutil.copytree(tmp_path / "a" / "stream-64", tmp_path / "a" / "again")
    write_run(tmp_path / "alone", [result("0", 9, 1.0, [2], window_cache_tokens=None)], QUEST, model="Other")
    (tmp_path / STEP_FILE).write_text('{"machine": 3}')
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        f"skipped {tmp_path / 'alone'}", "skipped figure tau_by_budget", "skipped figure passkey",
        "skipped figure step_parts",
    ]  # fmt: skip
    assert "machine" in lines[-1]


def test_unwritable(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(tmp_path)
    (tmp_path / "figures").write_text("a file")
    assert main([str(tmp_path)]) == 2
    assert "can't be written" in capsys.readouterr().err


def test_speedup_bars(placed: list[Entry]) -> None:
    (axes,) = speedup_bars(placed).axes
    heights = {bars.get_label(): bars[0].get_height() for bars in axes.containers}
    assert heights == pytest.approx({
        "humaneval, fafo-stream-llm (num_local 60)": 48 / 25, "humaneval, fafo-stream-llm (num_local 252)": 2,
        "humaneval, fafo-quest": 2, "humaneval, fafo-full": 2, "passkey, fafo-quest": 1, "humaneval, lossy-quest": 1.5,
    })  # fmt: skip
    segments = [lines.get_segments()[0] for lines in axes.collections if isinstance(lines, LineCollection)]
    drawn = {round(segment[0][0], 6): segment[:, 1].tolist() for segment in segments}
    for bars in axes.containers:
        (entry,) = (e for e in placed if f"{e.dataset}, {e.series}" == bars.get_label())
        assert drawn[round(bars[0].get_x() + bars[0].get_width() / 2, 6)] == pytest.approx(entry.comparison.interval)
        hollow = entry.comparison.run.is_lossy
        assert to_hex(bars[0].get_facecolor()) == ("#ffffff" if hollow else entry.look.colour)
        assert to_hex(bars[0].get_edgecolor()) == (entry.look.colour if hollow else "#000000")
    assert any(np.array_equal(line.get_ydata(), [1, 1]) for line in axes.lines)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["humaneval", "passkey"]


def test_one_prompt_has_no_interval(tmp_path: Path) -> None:
    for name, method in (("baseline", None), ("quest", QUEST)):
        write_run(tmp_path / name, [result("0", 9, 1.0, [2], window_cache_tokens=None)], method)
    (axes,) = speedup_bars(entries(compare_runs(tmp_path))).axes
    assert len(axes.containers) == 1
    assert not axes.collections


def test_what_differs_has_a_place_of_its_own(tmp_path: Path) -> None:
    """Models have their plots, repeats of a run their bars."""
    write_runs(tmp_path / "a")
    write_runs(tmp_path / "b", model="Other-1B")
    write_run(
        tmp_path / "again",
        [result(str(i), n, 3.0, [6, 6], window_cache_tokens=50.0) for i, n in enumerate([100, 120, 300, 500])],
        QUEST,
    )
    placed = entries(compare_runs(tmp_path))
    assert len({(e.setup, e.dataset, e.series) for e in placed}) == len(placed)
    figure = speedup_bars(placed)
    assert len(plot(figure, "Other-1B").containers) == 5
    heights = {bars.get_label(): bars[0].get_height() for bars in plot(figure, "Made-Up-1B").containers}
    assert {heights["humaneval, fafo-quest"], heights["humaneval, fafo-quest, run 2"]} == {2, 4}
    assert {axes.get_title() for axes in accepted_lengths(placed).axes} == {
        "Made-Up-1B\nhumaneval", "Other-1B\nhumaneval",
    }  # fmt: skip


def test_speedup_by_context(placed: list[Entry]) -> None:
    """Of the prompts, 100 and 120 tokens are one bin, 300 and 500 the other, and passkey's 500 is in it."""
    (axes,) = speedup_by_context(placed).axes
    drawn = {bars.get_label(): bars for bars in axes.containers}
    line, _, (spread,) = drawn["fafo-stream-llm (num_local 60)"]
    assert np.floor(line.get_xdata()).tolist() == [6, 8]
    assert line.get_ydata() == pytest.approx([1.5, 3.5])
    assert [segment[:, 1].tolist() for segment in spread.get_segments()] == [[1.25, 1.75], [3.25, 3.75]]
    line, _, (spread,) = drawn["fafo-quest"]
    assert line.get_ydata() == pytest.approx([2, 1])
    assert [segment[:, 1].tolist() for segment in spread.get_segments()] == [[2, 2], [1, 1.25]]
    assert [text.get_text() for text in axes.texts] == ["n=2", "n=8"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["64", "128", "256", "512"]


def test_a_conversation_is_as_long_as_its_turns(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"output_text": "", "n_reused_tokens": 0, "n_new_tokens": 1, "stop_reason": "length"}
    turns = [Turn(n_prompt_tokens=n, **shared) for n in (60, 200)]
    for name, method in (("baseline", None), ("quest", QUEST)):
        write_run(tmp_path / name, [result("0", 260, 1.0, [1, 1], window_cache_tokens=None, turns=turns)], method)
    (axes,) = speedup_by_context(entries(compare_runs(tmp_path))).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["128", "256"]


def test_accepted_lengths(placed: list[Entry]) -> None:
    axes = plot(accepted_lengths(placed), "humaneval")
    drawn = {
        bars.get_label(): [(round(bar.get_x() + bar.get_width() / 2), bar.get_height()) for bar in bars]
        for bars in axes.containers
    }
    assert drawn["fafo-stream-llm (num_local 60)"] == [(1, 1 / 2), (2, 1 / 6), (3, 1 / 6), (4, 1 / 6)]
    assert drawn["fafo-full"] == [(6, 1)]
    legend = axes.get_legend()
    assert legend is not None
    assert {text.get_text() for text in legend.get_texts()} == {"τ = 2.00", "τ = 3.00", "τ = 4.00", "τ = 6.00"}


def test_long_lengths_are_one_bar(tmp_path: Path) -> None:
    for name, method, accepted in (("baseline", None, [1] * 40), ("quest", QUEST, [1, 11, 13, 15])):
        write_run(tmp_path / name, [result("0", 9, 1.0, accepted, window_cache_tokens=None)], method)
    (axes,) = accepted_lengths(entries(compare_runs(tmp_path))).axes
    (bars,) = axes.containers
    assert [bar.get_height() for bar in bars] == [1 / 4, 3 / 4]
    assert [tick.get_text() for tick in axes.get_xticklabels()][-1] == ">10"


def test_tau_by_budget(placed: list[Entry]) -> None:
    (axes,) = tau_by_budget(placed).axes
    drawn = {line.get_label(): points(line) for line in axes.lines}
    assert axes.get_title() == "humaneval"
    assert drawn == {
        "fafo-stream-llm": [[0.5, 2], [0.75, 3]],
        "fafo-quest": [[0.5, 4]],
        "fafo-full": [[0, 6], [1, 6]],  # over the whole width
    }
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["50%", "75%"]


def test_other_settings_are_other_lines(tmp_path: Path) -> None:
    """A line has runs that differ in budget only; one whose window never ran is left out."""
    write_run(tmp_path / "baseline", [result("0", 9, 2.0, [1] * 4, window_cache_tokens=None)])
    h2o = {"kv_method": "h2o", "budget": 0.5}
    mine = {"kv_method": "mine:Half", "budget": 0.5}  # a class that is not here: nobody knows what its keys are
    for number, method in enumerate((
        STREAM, STREAM | {"num_local": 28}, STREAM | {"level": 3}, QUEST, QUEST | {"update_interval": 1},
        h2o, h2o | {"budget": 0.25}, mine, mine | {"budget": 0.25},
    )):  # fmt: skip
        made = [result("0", 9, 1.0, [2, 2], window_cache_tokens=10.0 * (number + 1))]
        write_run(tmp_path / str(number), made, method)
    unused = [result("0", 9, 1.0, [2, 2], window_cache_tokens=None)]
    write_run(tmp_path / "unused", unused, STREAM | {"num_local": 508})
    (axes,) = tau_by_budget(entries(compare_runs(tmp_path))).axes
    assert {line.get_label(): [x for x, _ in points(line)] for line in axes.lines} == {
        "fafo-stream-llm, level 5": [0.1, 0.2], "fafo-stream-llm, level 3": [0.3],
        "fafo-quest, update_interval 8": [0.4], "fafo-quest, update_interval 1": [0.5], "fafo-h2o": [0.6, 0.7],
        "fafo-mine:Half, budget 0.5": [0.8], "fafo-mine:Half, budget 0.25": [0.9],
    }  # fmt: skip


def marks(axes: Axes) -> dict[str, list[list[float]]]:
    """Places of the marks, by series, with their areas."""
    found: dict[str, list[list[float]]] = {}
    for drawn in axes.collections:
        if isinstance(drawn, PathCollection):
            ((x, y),) = np.asarray(drawn.get_offsets())
            found.setdefault(str(drawn.get_label()), []).append([float(x), float(y), float(drawn.get_sizes()[0])])
    return found


def test_lossless(placed: list[Entry]) -> None:
    """Only humaneval has a lossy run; its methods' outputs, and speedups, with stems from plain decoding's."""
    identical, score, speedup = lossless(placed).axes
    assert not score.axison  # nothing is scored
    names = [tick.get_text() for tick in identical.get_yticklabels()]
    assert names == ["full", "quest", "stream-llm"]
    fafo, lossy = -BESIDE, BESIDE
    assert {name: [mark[:2] for mark in found] for name, found in marks(identical).items()} == {
        "fafo-full": [[1, fafo]], "fafo-quest": [[1, 1 + fafo]], "lossy-quest": [[0.25, 1 + lossy]],
        "fafo-stream-llm (num_local 60)": [[1, 2 + fafo]], "fafo-stream-llm (num_local 252)": [[1, 2 + fafo]],
    }  # fmt: skip
    assert marks(speedup)["lossy-quest"] == [[1.5, 1 + lossy, size(0.25)]]
    assert marks(speedup)["fafo-quest"] == [[2, 1 + fafo, size(1)]]
    for axes in (identical, speedup):
        stems = [lines.get_segments()[0] for lines in axes.collections if isinstance(lines, LineCollection)]
        assert [stem[0].tolist() for stem in stems] == [[1, stem[1][1]] for stem in stems]
        ends = sorted(tuple(stem[1]) for stem in stems)
        assert ends == sorted((x, y) for found in marks(axes).values() for x, y, _ in found)
    assert identical.get_xlim()[0] < 0 < 1 < identical.get_xlim()[1]


def test_lossless_shows_what_is_seen_and_scored(tmp_path: Path) -> None:
    """Sizes tell how much lossy decoding sees, of which the legend has the ends; scores stand beside the baseline's."""
    scored = {"score": 1.0, "scores": {"pass@1": 1.0}}
    write_run(
        tmp_path / "baseline", [result("0", 9, 8.0, [1] * 12, window_cache_tokens=None).model_copy(update=scored)]
    )
    for seen in (0.1, 0.5, 1.0):
        made = lossy_result("0", 9, n_identical=2, seen=seen).model_copy(
            update={"score": seen, "scores": {"pass@1": seen}}
        )
        write_run(tmp_path / str(seen), [made], {"method": "lossy", "kv_method": "snapkv", "budget": seen})
    figure = lossless(entries(compare_runs(tmp_path)))
    _, score, _ = figure.axes
    drawn = marks(score)
    assert drawn == {f"lossy-snapkv (budget {seen})": [[seen, BESIDE, size(seen)]] for seen in (0.1, 0.5, 1.0)}
    assert score.get_xlabel() == "score (pass@1)"
    assert [points(line) for line in score.lines] == [[[1, 0], [1, 1]]]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "FAFO", "lossy, seeing 10% of the cache", "lossy, seeing 100% of the cache", "plain decoding",
    ]  # fmt: skip


def test_passkey_map(placed: list[Entry]) -> None:
    figure = passkey_map(placed)
    assert {axes.get_title() for axes in figure.axes} == {"baseline, 7 digits", "fafo-quest, 7 digits", ""}
    axes = plot(figure, "fafo-quest, 7 digits")
    (mesh,) = axes.collections
    shown = mesh.get_array()
    assert isinstance(shown, np.ma.MaskedArray)
    assert shown.filled(-1).tolist() == [[1, 0], [0.5, -1]]  # by depth and length; the last cell was not run
    assert [text.get_text() for text in axes.texts] == ["1.00", "0.00", "0.50", ""]
    assert axes.get_ylim() == (2, 0)
    axes = plot(figure, "baseline, 7 digits")
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0%", "100%"]


def test_other_group_names_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = [result("0", 9, 1.0, [2], group="else", scores={"exact": 1.0}, window_cache_tokens=None)]
    write_run(tmp_path / "baseline", made, dataset="passkey")
    main([str(tmp_path)])
    assert "skipped figure passkey: group 'else'" in capsys.readouterr().err


def test_step_parts() -> None:
    figure = step_parts(StepReport.model_validate(step_report()))
    for context in (1000, 2000):
        axes = plot(figure, f"{context:,} cached tokens")
        stacks = {bars.get_label(): [(bar.get_x(), bar.get_width()) for bar in bars] for bars in axes.containers[:-1]}
        starts = np.array([0, 1, 3, 6, 10]) * context / 1000
        for number, part in enumerate(PARTS):
            assert stacks[part] == [(starts[number], (number + 1) * context / 1000)] * 2
        _, _, (spread,) = axes.containers[-1]
        assert [segment[:, 0].tolist() for segment in spread.get_segments()] == [[14, 90]] * 2
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["plain", "fafo-quest"]
    assert figure.axes[0].get_ylim() == (1.5, -0.5)
    assert figure.get_suptitle() == "M, float32, compiled; made up"


def test_the_lossy_way_of_a_method_comes_after_it() -> None:
    assert ordered(["lossy-b (k 10)", "fafo-b (k 10)", "lossy-b (k 9)", "fafo-a"]) == [
        "fafo-a", "lossy-b (k 9)", "fafo-b (k 10)", "lossy-b (k 10)",
    ]  # fmt: skip


def test_looks() -> None:
    """A method's colour does not depend on which others there are, as long as it is known; none are shared."""
    assert looks((m, m) for m in KNOWN) == {m: looks([(m, m)])[m] for m in KNOWN}
    unknown = [f"fafo-{i}" for i in range(len(OTHERS))]
    shown = looks((m, m) for m in [*KNOWN, *unknown])
    assert len({look.colour for look in shown.values()}) == len(shown)
    assert len({(look.marker, look.fill) for look in shown.values()}) == len(shown)
    lossy = looks([("lossy-quest", "lossy"), ("lossy-mine", "mine"), ("fafo-mine", "other")])
    assert lossy["lossy"] == replace(KNOWN["quest"], fill=OUTLINE)
    assert lossy["mine"] == replace(lossy["other"], fill=OUTLINE)
    variants = looks(("fafo-quest", f"fafo-quest (top_k {k})") for k in (4, 16, 128))
    grey = [np.dot(to_rgba(look.colour)[:3], [0.3, 0.6, 0.1]) for look in variants.values()]
    assert list(variants) == ["fafo-quest (top_k 4)", "fafo-quest (top_k 16)", "fafo-quest (top_k 128)"]
    assert grey == sorted(set(grey))


@pytest.mark.parametrize("name", [*NAMES, "pipeline"])
def test_readable(placed: list[Entry], name: str) -> None:
    figure = pipeline_figure.draw(example_step()) if name == "pipeline" else draw(name, placed)
    assert_readable(figure)
    assert figure.get_figwidth() in (COLUMN, PAGE)


def test_pipeline_shows_the_step() -> None:
    """A cell is filled where the decoding code lets a row see a token."""
    step = example_step()
    assert step.layout.visible.shape == (14, 14)
    assert step.n_verify == 6
    assert "".join("x" if seen else "." for seen in step.selected) == "xx......xxxx"
    assert step.ngrams == ["xmps", "knqt", "loru"]
    assert step.sees[:6, :12].all()
    assert (step.sees[6:, :12] == step.selected).all()
    (axes,) = pipeline_figure.draw(step).axes
    filled = {}
    for patch in axes.patches:
        if isinstance(patch, Rectangle) and to_hex(patch.get_facecolor(), keep_alpha=True) not in (
            "#ffffffff",
            "#00000000",
        ):
            filled[round(patch.get_x(), 4), round(patch.get_y(), 4)] = to_hex(patch.get_facecolor())
    for row, column in np.ndindex(step.sees.shape):
        place = (round(pipeline_figure.x_of(step, column), 4), round(pipeline_figure.y_of(step, row), 4))
        expected = pipeline_figure.BLUE if row < step.n_verify else pipeline_figure.PALE_ORANGE
        assert filled.get(place) == (expected if step.sees[row, column] else None)


def test_pipeline_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pipeline_figure, "HERE", tmp_path)
    pipeline_figure.main()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipeline.pdf", "pipeline.png"]


def test_script_runs_anywhere(tmp_path: Path) -> None:
    script = str(ROOT / "figures" / "make_figures.py")
    ran = run_command([sys.executable, script, "nowhere"], cwd=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr == "error: nowhere: no such folder; name one with run folders in it or below\n"
