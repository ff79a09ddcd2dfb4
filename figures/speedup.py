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
NUMBER, UPRIGHT = 0.25, 0.11  # inches: width of a bar's number, and of one that is turned
NARROWEST = 0.12  # inches: of a bar whose hatch and number can be read
LINE = 1.8  # inches: height of a line of plots


def speedup_bars(entries: Sequence[Entry]) -> Figure:
    """A bar per dataset and method, with the speedup's interval; a plot per model and machine.

    Where there are too many bars, the datasets go on in further lines.

    Raises:
        UserError: there is nothing to compare.
    """
    shown = of_methods(entries)
    if not shown:
        raise UserError(NO_RUNS)
    plots = by(lambda entry: entry.setup, shown)
    width = COLUMN if max(map(len, plots.values())) <= 6 else PAGE
    lines = [
        (title if number == 0 else "", line, n_places)
        for title, bars in plots.items()
        for n_places, of_plot in [in_lines(bars, width - 0.5)]
        for number, line in enumerate(of_plot)
    ]
    figure = Figure(figsize=(width, LINE * len(lines)), layout="constrained")
    grid = figure.subplots(len(lines), 1, squeeze=False, sharey=True).flat
    for axes, (title, line, n_places) in zip(grid, lines, strict=True):
        draw_bars(axes, line, width - 0.5, n_places)
        axes.set(title=fit(title, width - 0.5), ylabel="speedup")
    shades = series_of(shown)
    legend_below(figure, [bar_handle(shades[name], name) for name in ordered(shades)])
    return figure


def in_lines(bars: Sequence[Entry], width: float) -> tuple[int, list[dict[str, list[Entry]]]]:
    """The most datasets of a line `width` inches wide, so that bars aren't too narrow; each line's bars by dataset."""
    datasets = by(lambda bar: bar.dataset, bars)
    room = int(GROUP * width / (NARROWEST * max(map(len, datasets.values()))))
    n_lines = -(-len(datasets) // max(1, room))
    n_places = -(-len(datasets) // n_lines)
    names = list(datasets)
    lines = [names[start : start + n_places] for start in range(0, len(names), n_places)]
    return n_places, [{name: datasets[name] for name in line} for line in lines]


def draw_bars(axes: Axes, datasets: dict[str, list[Entry]], width: float, n_places: int) -> None:
    """One plot, `width` inches wide and with `n_places` for datasets, whose bars stand side by side around the name."""
    bar_width = GROUP / max(3, *map(len, datasets.values()))
    for middle, group in enumerate(datasets.values()):
        names = ordered(series_of(group))
        for bar in group:
            x = middle + (names.index(bar.series) - (len(names) - 1) / 2) * bar_width
            draw_bar(axes, bar, x, bar_width, inches=width * bar_width / n_places)
    axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axes.grid(axis="y")
    axes.margins(y=0.12 if width * bar_width / n_places > NUMBER else 0.22)  # room for the numbers
    axes.set_xlim(-0.6, n_places - 0.4)
    names = [dataset.replace(", ", "\n") for dataset in datasets]
    is_tight = max(len(line) for name in names for line in name.split("\n")) * LETTER > width / n_places
    axes.set_xticks(range(len(names)), names, rotation=25 if is_tight else 0, ha="right" if is_tight else "center")


def draw_bar(axes: Axes, bar: Entry, x: float, width: float, inches: float) -> None:
    """One bar with its interval; a single prompt's has none. inches: its width on paper."""
    speedup, look = bar.comparison.speedup, bar.look
    low, high = bar.comparison.interval or (speedup, speedup)
    axes.bar(x, speedup, width, label=f"{bar.dataset}, {bar.series}", **look.bar())
    if bar.comparison.interval is not None:
        axes.vlines(x, low, high, color="black", linewidth=1, path_effects=[HALO])
    if inches > UPRIGHT:
        axes.annotate(
            f"{speedup:.2f}", (x, max(high, speedup)), xytext=(0, 2), textcoords="offset points", ha="center",
            fontsize=SMALL, rotation=0 if inches > NUMBER else 90,
        )  # fmt: skip
