"""Speedup over plain decoding by dataset."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from figures.entries import NO_RUNS, Entry, by, of_methods, series_of
from figures.style import COLUMN, LETTER, PAGE, SMALL, bar_handle, fit, legend_below, ordered
from pipeline.errors import UserError

GROUP = 0.8  # of a dataset's width, what its bars take together
HALO = withStroke(linewidth=2.4, foreground="white")  # shows a line before a dark bar
NUMBER = 0.25  # inches: width of a bar's number


def speedup_bars(entries: Sequence[Entry]) -> Figure:
    """A bar per dataset and method, with the speedup's interval; a plot per model and machine.

    Raises:
        UserError: there is nothing to compare.
    """
    shown = of_methods(entries)
    if not shown:
        raise UserError(NO_RUNS)
    plots = by(lambda entry: entry.setup, shown)
    width = COLUMN if max(map(len, plots.values())) <= 6 else PAGE
    figure = Figure(figsize=(width, 1.8 * len(plots)), layout="constrained")
    for axes, (title, bars) in zip(figure.subplots(len(plots), 1, squeeze=False).flat, plots.items(), strict=True):
        draw_bars(axes, bars, width - 0.5)
        axes.set(title=fit(title, width - 0.5), ylabel="speedup")
    shades = series_of(shown)
    legend_below(figure, [bar_handle(shades[name], name) for name in ordered(shades)])
    return figure


def draw_bars(axes: Axes, bars: Sequence[Entry], width: float) -> None:
    """One plot, `width` inches wide; a dataset's bars stand side by side around its name."""
    datasets = by(lambda bar: bar.dataset, bars)
    bar_width = GROUP / max(3, *map(len, datasets.values()))
    for middle, group in enumerate(datasets.values()):
        names = ordered(series_of(group))
        for bar in group:
            x = middle + (names.index(bar.series) - (len(names) - 1) / 2) * bar_width
            draw_bar(axes, bar, x, bar_width, numbered=width * bar_width / len(datasets) > NUMBER)
    axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axes.grid(axis="y")
    axes.margins(y=0.12)
    axes.set_xlim(-0.6, len(datasets) - 0.4)
    names = [dataset.replace(", ", "\n") for dataset in datasets]
    is_tight = max(len(line) for name in names for line in name.split("\n")) * LETTER > width / len(names)
    axes.set_xticks(range(len(names)), names, rotation=25 if is_tight else 0, ha="right" if is_tight else "center")


def draw_bar(axes: Axes, bar: Entry, x: float, width: float, numbered: bool) -> None:
    """One bar with its interval; a single prompt's has none."""
    speedup, look = bar.comparison.speedup, bar.look
    low, high = bar.comparison.interval or (speedup, speedup)
    axes.bar(x, speedup, width, label=f"{bar.dataset}, {bar.series}", **look.bar())
    if bar.comparison.interval is not None:
        axes.vlines(x, low, high, color="black", linewidth=1, path_effects=[HALO])
    if numbered:
        top = (x, max(high, speedup))
        axes.annotate(f"{speedup:.2f}", top, xytext=(0, 2), textcoords="offset points", ha="center", fontsize=SMALL)
