"""How many tokens a step gives, by how much of the cache the window sees."""

from collections import defaultdict
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from figures.entries import Entry
from figures.style import Look, legend_below, looks, ordered, panels
from pipeline.comparison import Run
from pipeline.comparison.runs import differences
from pipeline.errors import UserError
from pipeline.fafo.selectors.named import selector_named

LOOKAHEAD = ("fafo-full", "lookahead")  # the same steps, by two pipelines
CLOSE = 0.15  # of the axis: what a number takes
NO_SWEEP = (
    "no two FAFO runs with a window differ in nothing but KV budget; make them with "
    "bash scripts/speedup/run_speedup.sh <gpu_id> <output_dir> <model> streamllm,quest --all-figures"
)


def tau_by_budget(entries: Sequence[Entry]) -> Figure:
    """A line per method, a plot per dataset; dashed: lookahead, which sees the whole cache.

    Raises:
        UserError: no two runs differ in budget and in nothing else.
    """
    shown = [entry for entry in entries if entry.comparison.run.is_fafo or entry.comparison.run.method in LOOKAHEAD]
    names = series_names([entry.comparison.run for entry in shown])
    shades = looks((entry.comparison.run.method, name) for entry, name in zip(shown, names, strict=True))
    plots: dict[str, dict[str, list[Run]]] = {}
    for entry, name in zip(shown, names, strict=True):
        plots.setdefault(entry.title, {}).setdefault(name, []).append(entry.comparison.run)
    plots = {title: series for title, series in plots.items() if any(map(is_sweep, series.values()))}
    if not plots:
        raise UserError(NO_SWEEP)
    figure, grid = panels(list(plots), 1.7, "τ (tokens a step)")
    handles: dict[str, Line2D] = {}
    for axes, series in zip(grid, plots.values(), strict=True):
        handles |= draw_lines(axes, series, shades)
        axes.set_xlabel("share of the cache that the window sees")
    legend_below(figure, [handles[name] for name in ordered(handles)])
    return figure


def draw_lines(axes: Axes, series: dict[str, list[Run]], shades: dict[str, Look]) -> dict[str, Line2D]:
    """One plot; return its lines by series."""
    drawn, shares = {}, set()
    for name in ordered(series):
        look = shades[name]
        if found := points(series[name]):
            (drawn[name],) = axes.plot(*zip(*found, strict=True), **look.line(), label=name)
            shares |= {share for share, _ in found}
        elif series[name][0].method in LOOKAHEAD:
            drawn[name] = axes.axhline(series[name][0].summary.tau, color=look.colour, linestyle="--", label=name)
    axes.set_xscale("log", base=2)
    ticks = apart(sorted(shares))
    axes.set_xticks(ticks, [f"{share:.0%}" for share in ticks])
    axes.minorticks_off()
    return drawn


def apart(shares: Sequence[float]) -> list[float]:
    """Those that have room for their number on the axis."""
    room = (shares[-1] / shares[0]) ** CLOSE
    kept = [shares[0]]
    for share in shares[1:]:
        if share >= kept[-1] * room:
            kept.append(share)
    return kept


def points(runs: Sequence[Run]) -> list[tuple[float, float]]:
    """The share of the cache that a run's window saw, and tau, of each run that has one, in order."""
    return sorted((share, run.summary.tau) for run in runs if (share := share_seen(run)) is not None)


def is_sweep(runs: Sequence[Run]) -> bool:
    """Whether there are two budgets to compare."""
    return len({share for share, _ in points(runs)}) > 1


def share_seen(run: Run) -> float | None:
    """The share of the cache that window rows saw, as measured; None for lookahead, and if the window never ran.

    What is configured is no common scale: tokens, pages, shares, or attention to be recovered.
    """
    return None if run.method in LOOKAHEAD else run.summary.window_cache_share


def budget_key(run: Run) -> str | None:
    """The setting that says how much is seen, if the method is known here and has one."""
    try:
        return selector_named(run.kv_method).budget_key
    except UserError:
        return None


def series_names(runs: Sequence[Run]) -> list[str]:
    """The methods, with the settings that tell them apart and are no budget."""
    varying: defaultdict[str, set[str]] = defaultdict(set)
    for run in runs:
        rivals = [r.settings for r in runs if (r.method, r.conditions) == (run.method, run.conditions)]
        varying[run.method] |= {key for key in differences(rivals) if key != budget_key(run)}
    return [
        ", ".join([run.method, *(f"{key} {run.settings[key]}" for key in run.settings if key in varying[run.method])])
        for run in runs
    ]
