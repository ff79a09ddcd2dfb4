"""FAFO's opponents in the figures: which show them, and that they can be told apart and read."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb

from figures.accepted import accepted_lengths
from figures.budget import tau_by_budget
from figures.context import speedup_by_context
from figures.entries import Entry, entries
from figures.lossless import lossless
from figures.make_figures import OF_RUNS
from figures.speedup import NARROWEST, speedup_bars
from figures.style import FULL, house_style, looks, ordered
from pipeline.comparison import compare_runs
from tests.figure_runs import STREAM, result, write_run
from tests.made_up_opponents import IN_ORDER, line, write_opponents
from tests.reading import assert_readable

SHOWN = [method for method in IN_ORDER if method != "baseline"]
OURS = ["fafo-quest", "fafo-stream-llm"]


@pytest.fixture(autouse=True, scope="module")
def styled() -> Iterator[None]:
    with house_style():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many datasets as the comparison may have."""
    datasets = ("gsm8k", "humaneval", "longbench", "longtext", "mtbench")
    return write_opponents(tmp_path_factory.mktemp("runs"), datasets)


@pytest.fixture(scope="module")
def placed(folder: Path) -> list[Entry]:
    return entries(compare_runs(folder))


def test_looks_differ_in_more_than_colour() -> None:
    """No two have a hatch and a lightness, nor a marker and its filling, in common."""
    shades = looks((method, method) for method in SHOWN)
    bars = {(look.hatch, look.fill == 0, round(sum(to_rgb(look.bar()["facecolor"])), 1)) for look in shades.values()}
    lines = {
        (look.marker, look.line()["markerfacecolor"] == "white") for name, look in shades.items() if "lossy" not in name
    }
    assert len(bars) == len(shades)
    assert len(lines) == len(shades) - 1
    assert len({look.hatch for name, look in shades.items() if "lossy" not in name}) == len(shades) - 1


def test_fafo_stands_out() -> None:
    """Of the methods only FAFO's are full of colour, in thick unbroken lines, whatever the KV method is called."""
    shades = looks((method, method) for method in [*SHOWN, "fafo-mine", "selfspec_kv-mine"])
    full = {name for name, look in shades.items() if look.fill == FULL}
    assert full == {*OURS, "fafo-mine"}
    widths = {name: look.line()["linewidth"] for name, look in shades.items()}
    assert min(widths[name] for name in full) > max(widths[name] for name in shades.keys() - full)
    assert {name for name, look in shades.items() if look.line()["linestyle"] == "-"} == full
    assert shades["selfspec_kv-mine"].colour == shades["fafo-mine"].colour


def test_order() -> None:
    assert ordered(SHOWN[::-1]) == SHOWN
    names = ["selfspec_kv-quest (gamma 4)", "prompt_lookup (prompt_lookup_num_tokens 10)", "lossy-quest", "fafo-quest"]
    assert ordered(names) == names[::-1][:2] + names[1:2] + names[:1]


def test_bars_go_on_in_another_line(placed: list[Entry]) -> None:
    """Of ten methods a line has room for three or four datasets; no bar is too narrow for its hatch and number."""
    figure = speedup_bars(placed)
    names = [[tick.get_text() for tick in axes.get_xticklabels()] for axes in figure.axes]
    assert names == [["gsm8k", "humaneval", "longbench"], ["longtext", "mtbench"]]
    assert len({axes.get_xlim() for axes in figure.axes}) == len({axes.get_ylim() for axes in figure.axes}) == 1
    assert [axes.get_title() for axes in figure.axes] == ["Made-Up-1B", ""]
    figure.draw_without_rendering()
    for axes in figure.axes:
        bars = {str(bars.get_label()).split(", ")[1]: bars[0] for bars in axes.containers}
        assert list(bars) == SHOWN
        for bar in bars.values():
            assert bar.get_window_extent().width / figure.dpi >= 0.95 * NARROWEST
        assert {text.get_rotation() for text in axes.texts} == {90}
        for entry in placed:
            if entry.series in bars:
                assert to_hex(bars[entry.series].get_facecolor()) == to_hex(entry.look.bar()["facecolor"])
    assert sum(len(axes.texts) for axes in figure.axes) == len(SHOWN) * 5


def test_what_is_fafos_stays_fafos(placed: list[Entry]) -> None:
    """Opponents are in none of the figures about windows and KV methods."""
    for axes in accepted_lengths(placed).axes:
        assert {bars.get_label() for bars in axes.containers} == set(OURS)
    (axes,) = speedup_by_context(placed).axes
    assert {bars.get_label() for bars in axes.containers} == set(OURS)
    identical = lossless(placed).axes[0]
    assert [tick.get_text() for tick in identical.get_yticklabels()] == ["quest", "stream-llm"]
    labels = {str(marks.get_label()) for marks in identical.collections if not str(marks.get_label()).startswith("_")}
    assert labels == {*OURS, "lossy-quest"}


def test_lookahead_is_a_window_that_sees_everything(tmp_path: Path) -> None:
    """It is the dashed line beside a sweep, as FAFO with the full cache is."""
    write_run(tmp_path / "baseline", [line("baseline", "humaneval", "0", 9)])
    for number, n_local in enumerate((60, 252)):
        made = [result("0", 9, 1.0, [3] * 4, window_cache_tokens=50.0 + 25 * number)]
        write_run(tmp_path / str(number), made, STREAM | {"num_local": n_local})
    write_run(tmp_path / "l", [line("lookahead", "humaneval", "0", 9)], {"method": "lookahead", "level": 5})
    write_run(tmp_path / "p", [line("prompt_lookup", "humaneval", "0", 9)], {"method": "prompt_lookup"})
    (axes,) = tau_by_budget(entries(compare_runs(tmp_path))).axes
    drawn = {line.get_label(): (line.get_linestyle(), np.ravel(line.get_ydata()).tolist()) for line in axes.lines}
    assert drawn == {"fafo-stream-llm": ("-", [3, 3]), "lookahead": ("--", [3, 3])}


@pytest.mark.parametrize("name", [name for name in OF_RUNS if name not in ("tau_by_budget", "passkey")])
def test_readable(placed: list[Entry], name: str) -> None:
    assert_readable(OF_RUNS[name](placed))
