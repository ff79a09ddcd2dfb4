"""How much speedups vary over datasets and lengths: the numbers, the table and the figure."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from figures.entries import Entry, entries
from figures.sensitivity import NO_VARIETY, sensitivity_figure
from figures.style import house_style
from pipeline.comparison import compare_runs, tables, write_files
from pipeline.comparison.sensitivity import Sensitivity, Spread, binned, octave_of, sensitivities
from pipeline.errors import UserError
from tests.figure_runs import QUEST, result, write_run
from tests.made_up_opponents import IN_ORDER, write_opponents

LOSSLESS = [method for method in IN_ORDER if method not in ("baseline", "lossy-quest")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_opponents(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def overall(folder: Path) -> dict[str, Sensitivity]:
    return {found.method: found for found in sensitivities(compare_runs(folder).overalls)}


def placed(folder: Path) -> list[Entry]:
    return entries(compare_runs(folder))


def test_numbers(overall: dict[str, Sensitivity]) -> None:
    """2, 2.25 and 2.5 times as fast; the longest two lengths are told apart, though they are of one octave."""
    assert list(overall) == LOSSLESS
    quest = overall["fafo-quest"]
    whole = 3 / (1 / 2 + 1 / 2.25 + 1 / 2.5)
    assert quest.by_dataset == pytest.approx({"gsm8k": 2, "longtext": whole})
    assert quest.by_length == pytest.approx({256: 2, 512: 2.25, 960: 2.5})
    assert quest.over_lengths == pytest.approx(Spread(2, 2.5))
    assert quest.over_lengths is not None
    assert quest.over_lengths.ratio == pytest.approx(1.25)
    lookup = overall["prompt_lookup"]
    assert lookup.over_datasets == Spread(2, 4)
    assert lookup.over_lengths == Spread(4, 4)  # gsm8k's prompts, of which the speedup is 2, are other texts
    assert quest.varying == []


def test_table(folder: Path) -> None:
    """For longtext and overall; gsm8k alone has nothing to vary over."""
    shown = {table.title: table for table in tables(compare_runs(folder)) if "sensitivity" in table.title}
    assert list(shown) == [f"{name}, Made-Up-1B: sensitivity" for name in ("longtext", "overall")]
    row = shown["overall, Made-Up-1B: sensitivity"].frame.set_index("method").loc["prompt_lookup"]
    assert row.to_dict() == {
        "over datasets": "2.00x-4.00x", "ratio of datasets": "2.00",
        "over lengths": "4.00x-4.00x", "ratio of lengths": "1.00",
    }  # fmt: skip
    row = shown["longtext, Made-Up-1B: sensitivity"].frame.set_index("method").loc["fafo-quest"]
    assert row.to_dict() == {
        "over datasets": "", "ratio of datasets": "", "over lengths": "2.00x-2.50x", "ratio of lengths": "1.25",
    }  # fmt: skip


def test_json(folder: Path) -> None:
    write_files(compare_runs(folder))
    of_all = json.loads((folder / "speedup.json").read_text())["sensitivity"]
    (found,) = [s for s in of_all if s["of"].startswith("overall") and s["method"] == "fafo-quest"]
    assert found["speedup_by_shortest_prompt_tokens"] == pytest.approx({"256": 2, "512": 2.25, "960": 2.5})
    assert found["over_lengths"] == pytest.approx({"lowest_speedup": 2, "highest_speedup": 2.5, "ratio": 1.25})


def test_settings_that_differ_are_named(tmp_path: Path) -> None:
    """A setting that only one of the datasets leaves to the method is no difference."""
    for dataset, window in (("gsm8k", 15), ("mtbench", 20)):
        for name, method in (("baseline", None), ("quest", QUEST | {"window": window})):
            made = [result(key, 9, 1.0, [2], window_cache_tokens=None) for key in "ab"]
            write_run(tmp_path / dataset / name, made, method, dataset)
    (found,) = sensitivities(compare_runs(tmp_path).overalls)
    assert found.varying == ["window"]
    (table,) = [table for table in tables(compare_runs(tmp_path)) if "sensitivity" in table.title]
    assert table.notes == ["fafo-quest: its settings differ between datasets in window"]
    with house_style():
        (legend,) = sensitivity_figure(placed(tmp_path)).legends
    assert [text.get_text() for text in legend.get_texts()] == ["fafo-quest (window by dataset)"]


def test_without_a_dataset_of_lengths_all_prompts_count(tmp_path: Path) -> None:
    """By octave, over datasets; longer ones are four times as fast."""
    for dataset, n_tokens in (("gsm8k", 100), ("mtbench", 1000)):
        for name, method in (("baseline", None), ("quest", QUEST)):
            seconds = 1.0 if method is None else 0.5 if n_tokens == 100 else 0.25
            made = [result(key, n_tokens, seconds, [2], window_cache_tokens=None) for key in "ab"]
            write_run(tmp_path / dataset / name, made, method, dataset)
    (found,) = sensitivities(compare_runs(tmp_path).overalls)
    assert found.by_length == {64: 2, 512: 4}


@given(st.integers(1, 10**6), st.sampled_from([None, "else", "0", "256", "8192"]))
def test_octaves(n_tokens: int, group: str | None) -> None:
    found = octave_of(result("0", n_tokens, 1.0, [1], group=group, window_cache_tokens=None))
    told = int(group) if group in ("256", "8192") else n_tokens
    assert 2**found <= told < 2 ** (found + 1)


def test_no_prompt_is_lost_in_bins(folder: Path) -> None:
    for comparison in compare_runs(folder).comparisons:
        bins = binned(comparison.pairs, octave_of)
        assert sum(sums.shape[1] for sums in bins.values()) == comparison.n_prompts
        total = np.sum([sums.sum(axis=1) for sums in bins.values()], axis=0)
        assert total == pytest.approx(comparison.pairs[0].sums.sum(axis=1))


def drawn(figure: Figure, plot: int) -> dict[str, list[float]]:
    """The numbers of a plot, on its y axis or, of ratios, on its x axis."""
    lines = [line for line in figure.axes[plot].lines if line.get_label() in LOSSLESS]
    return {
        str(line.get_label()): np.ravel(line.get_ydata() if plot < 2 else line.get_xdata()).tolist() for line in lines
    }


def test_figure(folder: Path, overall: dict[str, Sensitivity]) -> None:
    with house_style():
        figure = sensitivity_figure(placed(folder))
    lengths, datasets = figure.axes[:2]
    assert [tick.get_text() for tick in lengths.get_xticklabels()] == ["256", "512", "960"]
    assert [tick.get_text() for tick in datasets.get_xticklabels()] == ["gsm8k", "longtext"]
    assert lengths.get_ylim() == datasets.get_ylim()
    expected = {
        0: {name: list(s.by_length.values()) for name, s in overall.items()},
        1: {name: list(s.by_dataset.values()) for name, s in overall.items()},
        2: {name: [s.over_lengths.ratio] for name, s in overall.items() if s.over_lengths},
        3: {name: [s.over_datasets.ratio] for name, s in overall.items() if s.over_datasets},
    }
    for plot, numbers in expected.items():
        found = drawn(figure, plot)
        assert list(found) == LOSSLESS
        assert all(found[name] == pytest.approx(numbers[name]) for name in LOSSLESS)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == LOSSLESS


def test_a_figure_needs_two_of_something(tmp_path: Path) -> None:
    for name, method in (("baseline", None), ("quest", QUEST)):
        write_run(tmp_path / name, [result("0", 9, 1.0, [2], window_cache_tokens=None)], method)
    with pytest.raises(UserError, match="two datasets") as caught:
        sensitivity_figure(placed(tmp_path))
    assert str(caught.value) == NO_VARIETY
