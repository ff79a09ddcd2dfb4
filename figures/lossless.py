"""What the KV methods cost when they are used the lossy way, and that they cost nothing in FAFO."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from figures.entries import Entry, by
from figures.style import MARGIN, PAGE, fit, legend_below, ordered
from pipeline.errors import UserError

FAFO, LOSSY, PLAIN = "#0072b2", "#d55e00", "#7f7f7f"
LINE, FRAME = 0.23, 0.62  # inches: height of a KV method, and of what is around them
AROUND = 0.06  # of an axis from nothing to all: what is left for marks at its ends
BESIDE = 0.2  # of a method's height: how far its marks are from its middle
SMALLEST, LARGEST = 5, 32  # points²: marks that see nothing of the cache, and all
NO_LOSSY = (
    "no finished lossy run with a baseline; make some with bash scripts/speedup/run_speedup.sh "
    "<gpu_id> <output_dir> <model> streamllm,quest,lossy-streamllm,lossy-quest"
)


def lossless(entries: Sequence[Entry]) -> Figure:
    """Identical outputs, score and speedup of FAFO and of lossy decoding with the same KV method.

    A line of plots per dataset that has lossy runs, a line in it per KV method. Stems begin where plain decoding is.

    Raises:
        UserError: there is no lossy run.
    """
    plots = {
        title: group
        for title, group in by(lambda entry: entry.title, of_kv_methods(entries)).items()
        if any(entry.comparison.run.is_lossy for entry in group)
    }
    if not plots:
        raise UserError(NO_LOSSY)
    heights = [LINE * len(kv_methods(group)) + FRAME for group in plots.values()]
    figure = Figure(figsize=(PAGE, sum(heights)), layout="constrained")
    grid = figure.subplots(len(plots), 3, squeeze=False, gridspec_kw={"height_ratios": heights})
    for line, (title, group) in zip(grid, plots.items(), strict=True):
        draw_line(list(line), group)
        line[0].set_title(fit(title, PAGE - MARGIN), loc="left")
    legend_below(figure, handles([entry for group in plots.values() for entry in group]))
    return figure


def of_kv_methods(entries: Sequence[Entry]) -> list[Entry]:
    """FAFO's and the lossy ones."""
    return [entry for entry in entries if entry.comparison.run.is_fafo or entry.comparison.run.is_lossy]


def draw_line(line: Sequence[Axes], group: Sequence[Entry]) -> None:
    """The plots of a dataset: the share of identical outputs, the score if there is one, the speedup."""
    identical, score, speedup = line
    comparisons = [entry.comparison for entry in group]
    plain = comparisons[0].baseline
    draw_stems(identical, group, [c.identical_share for c in comparisons], 1)
    draw_stems(speedup, group, [c.speedup for c in comparisons], 1)
    speedup.set_xlabel("speedup")
    scores = [c.summary.score for c in comparisons if c.summary.score is not None]
    if plain.score is None or len(scores) < len(group):
        score.set_axis_off()
    else:
        draw_stems(score, group, scores, plain.score)
        top = max(plain.score, *scores) or 1
        score.set(xlabel=f"score ({plain.metric})", xlim=(-AROUND * top, (1 + AROUND) * top))
    names = kv_methods(group)
    for axes in line:
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks(range(len(names)), names if axes is identical else [""] * len(names))
        axes.tick_params(left=False)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.grid(axis="x")
    identical.set(xlabel="identical outputs", xlim=(-AROUND, 1 + AROUND), xticks=(0, 0.25, 0.5, 0.75, 1))
    identical.xaxis.set_major_formatter(PercentFormatter(1))


def draw_stems(axes: Axes, group: Sequence[Entry], values: Sequence[float], plain: float) -> None:
    """One plot: FAFO's marks filled, the lossy ones in outline and of a size that says how much they saw."""
    names = kv_methods(group)
    axes.axvline(plain, color=PLAIN, linestyle="--", linewidth=0.8, zorder=1)
    for entry, value in zip(group, values, strict=True):
        lossy = entry.comparison.run.is_lossy
        y = names.index(entry.comparison.run.kv_method) + (BESIDE if lossy else -BESIDE)
        colour, seen = (LOSSY, entry.comparison.cache_seen or 0) if lossy else (FAFO, 1)
        axes.hlines(y, plain, value, color=colour, linewidth=0.8, zorder=2)
        axes.scatter(
            value, y, size(seen), label=entry.series, zorder=4 - seen,  # the small ones in front
            facecolor="white" if lossy else colour, edgecolor=colour, linewidth=1,
        )  # fmt: skip


def kv_methods(entries: Sequence[Entry]) -> list[str]:
    """Those that there are, in order."""
    return ordered(entry.comparison.run.kv_method for entry in entries)


def size(seen: float) -> float:
    """The area of a mark, in points², for a method that sees such a share of the cache."""
    return SMALLEST + (LARGEST - SMALLEST) * seen


def handles(entries: Sequence[Entry]) -> list[Line2D]:
    """What the legend shows: FAFO, lossy decoding that sees least and most, and plain decoding."""

    def mark(name: str, colour: str, face: str, seen: float) -> Line2D:
        return Line2D(
            [], [], label=name, color=colour, linewidth=0.8, marker="o",
            markersize=size(seen) ** 0.5, markerfacecolor=face,
        )  # fmt: skip

    shares = sorted(entry.comparison.cache_seen or 0 for entry in entries if entry.comparison.run.is_lossy)
    ends = {f"{seen:.0%}": seen for seen in (shares[0], shares[-1])}
    lossy = [mark(f"lossy, seeing {said} of the cache", LOSSY, "white", seen) for said, seen in ends.items()]
    plain = Line2D([], [], color=PLAIN, linestyle="--", linewidth=0.8, label="plain decoding")
    return [mark("FAFO", FAFO, FAFO, 1), *lossy, plain]
