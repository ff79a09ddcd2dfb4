"""The tables that people read; the console, Markdown and LaTeX show the same ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pandas import DataFrame

from pipeline.comparison.comparison import Comparison
from pipeline.comparison.overview import Overview
from pipeline.comparison.runs import SAME_VERSIONS
from pipeline.comparison.sensitivity import Sensitivity, sensitivities

MAX_LENGTHS = 10  # accepted lengths with a column of their own
MAX_GROUPS = 40  # groups with a row of their own: more are a grid for a figure, and speedup.json has them
MAX_METHODS = 5  # methods with a column of their own
_MAX_IDS = 10
_MIB = 2**20


@dataclass(frozen=True)
class Table:
    """Text cells under a title. conditions: what its runs ran on. notes: what must be read with it."""

    title: str
    frame: DataFrame
    conditions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def tables(overview: Overview) -> list[Table]:
    """One after the other, for each group of runs that may be compared.

    Speed; what guessing takes; what lossy runs read and lose, beside FAFO's; accepted lengths; how much speedups vary;
    scores of groups.
    """
    return [table for group in [*overview.datasets, *overview.overall] for table in _tables(*group)]


def _tables(title: str, group: list[Comparison]) -> list[Table]:
    notes = [note for c in group for note in _notes(c)]
    paired = all(c.paired for c in group)
    found = [Table(title, DataFrame([_speed(c, paired) for c in group]), _conditions(group[0]), notes)]
    if any(c.summary.rows_per_step is not None for c in group):  # records of older runs lack it
        found.append(Table(f"{title}: guessing", DataFrame([_guessing(c) for c in group])))
    if any(c.run.is_lossy for c in group):
        found.append(Table(f"{title}: lossy and lossless", DataFrame([_loss(c) for c in group])))
    if guessing := [c for c in group if not (c.is_baseline or c.run.is_lossy)]:
        found.append(Table(f"{title}: steps by tokens accepted", _accepted_lengths(guessing)))
    if varying := sensitivities(group):
        frame = DataFrame([_sensitivity(s) for s in varying])
        found.append(Table(f"{title}: sensitivity", frame, notes=[note for s in varying for note in _varying(s)]))
    groups = list(dict.fromkeys(name for c in group for name in c.summary.group_scores))
    if groups:
        score = f"{title}: {group[0].summary.metric} by group"
        if len(groups) <= MAX_GROUPS:
            parts = [group[start : start + MAX_METHODS] for start in range(0, len(group), MAX_METHODS)]
            found += [Table(score, _group_scores(groups, part)) for part in parts]
        else:
            found[0].notes.append(f"{score}: {len(groups)} groups, see speedup.json")
    return found


def _speed(comparison: Comparison, paired: bool) -> dict[str, str]:
    summary, share = comparison.summary, comparison.cache_seen
    row = {
        "method": comparison.method,
        "tokens/s": f"{summary.throughput:.2f}",
        "speedup (95%)": f"{comparison.speedup:.2f}x{_interval(comparison)}",
        "median (paired)" if paired else "median": f"{comparison.median_ratio:.2f}x",
        "decode only": f"{comparison.decode_speedup:.2f}x",
        "tau": f"{summary.tau:.2f}",
        "cache seen": "" if share is None else f"{share:.0%}",
        "identical": f"{comparison.n_identical}/{comparison.n_prompts}",
        "other length": str(len(comparison.other_length_ids)),
    }
    if comparison.is_overall:
        row["mean of datasets"] = f"{comparison.mean_of_datasets:.2f}x"
    elif summary.metric is not None:
        row[summary.metric] = _score(summary.score)
    return row


def _guessing(comparison: Comparison) -> dict[str, str]:
    """What a method's steps are made of, and what that gains, in a line."""
    summary, share = comparison.summary, comparison.cache_seen
    return {
        "method": comparison.method,
        "speedup (95%)": f"{comparison.speedup:.2f}x{_interval(comparison)}",
        "tau": f"{summary.tau:.2f}",
        "rows/step": "" if summary.rows_per_step is None else f"{summary.rows_per_step:.1f}",
        "draft passes/step": f"{summary.draft_passes_per_step:.2f}" if summary.draft_passes_per_step else "",
        "cache seen": "" if share is None else f"{share:.0%}",
        "identical": f"{comparison.identical_share:.0%}",
        "extra MiB": "" if summary.extra_bytes is None else f"{summary.extra_bytes / _MIB:.1f}",
    }


def _sensitivity(found: Sensitivity) -> dict[str, str]:
    """How far a method's speedups are apart, in a line."""
    row = {"method": found.method}
    for name, spread in (("datasets", found.over_datasets), ("lengths", found.over_lengths)):
        row[f"over {name}"] = "" if spread is None else f"{spread.lowest:.2f}x-{spread.highest:.2f}x"
        row[f"ratio of {name}"] = "" if spread is None else f"{spread.ratio:.2f}"
    return row


def _varying(found: Sensitivity) -> list[str]:
    settings = ", ".join(found.varying)
    return [f"{found.method}: its settings differ between datasets in {settings}"] if settings else []


def _loss(comparison: Comparison) -> dict[str, str]:
    """What a method gains, reads and loses, in a line."""
    summary, kv_share, position = comparison.summary, comparison.kv_share, comparison.median_first_difference
    row = {
        "method": comparison.method,
        "tokens/s": f"{summary.throughput:.2f}",
        "speedup": f"{comparison.speedup:.2f}x",
        "tau": f"{summary.tau:.2f}",
        "KV MiB/step": "" if summary.kv_bytes is None else f"{summary.kv_bytes / _MIB:.2f}",
        "of full": "" if kv_share is None else f"{kv_share:.0%}",
        "identical": f"{comparison.identical_share:.0%}",
        "first difference": "" if position is None else f"{position:g}",
    }
    if summary.metric is not None and not comparison.is_overall:
        row[summary.metric] = _score(summary.score)
    return row


def _conditions(comparison: Comparison) -> list[str]:
    run, setup = comparison.run, comparison.run.setup
    words = [setup["device_name"], setup["dtype"], *(name for name in ("compiled", "exact") if setup[name])]
    words += [f"threads: {setup['threads']}", f"processes: {setup['n_processes']}"]
    if not comparison.is_overall:
        words.append(f"new tokens: at most {run.task['n_new_tokens']}")
    return [", ".join([*words, *(f"{name} {setup[name]}" for name in SAME_VERSIONS)])]


def _interval(comparison: Comparison) -> str:
    if comparison.is_baseline:
        return ""
    return " (none)" if comparison.interval is None else " ({:.2f}-{:.2f})".format(*comparison.interval)


def _score(score: float | None) -> str:
    return "" if score is None else f"{score:.3f}"


def _notes(comparison: Comparison) -> list[str]:
    notes = []
    if (ids := comparison.other_length_ids) and comparison.run.is_lossy:
        of_all = f"{len(ids)} of {comparison.n_prompts}"
        notes.append(f"{comparison.method}: {of_all} outputs of another length; its speedup is of tokens per second")
    elif ids:
        named = ", ".join(ids[:_MAX_IDS]) + (", .." if len(ids) > _MAX_IDS else "")
        notes.append(f"{comparison.method}: outputs of another length than the baseline's: {len(ids)} ({named})")
    if comparison.interval is None and not comparison.is_baseline:
        notes.append(f"{comparison.method}: no interval, since a dataset of a single prompt tells no spread")
    if comparison.is_overall and comparison.is_baseline:
        notes.append(f"over {', '.join(comparison.datasets)}")
    return notes


def _accepted_lengths(comparisons: Sequence[Comparison]) -> DataFrame:
    """Of each method's steps, how many accepted so many tokens."""
    rows = []
    for comparison in comparisons:
        summary = comparison.summary
        row = {"method": comparison.method}
        for length, n_steps in _binned(summary.accepted_length_histogram).items():
            row[length] = f"{n_steps / summary.n_steps:.1%}"
        rows.append(row)
    columns = ["method", *_binned({length: 0 for c in comparisons for length in c.summary.accepted_length_histogram})]
    return DataFrame(rows, columns=columns).fillna("")


def _binned(histogram: dict[str, int]) -> dict[str, int]:
    """Steps by accepted length, in the lengths' order, the longest in one bin."""
    binned: dict[str, int] = {}
    for length in sorted(map(int, histogram)):
        name = str(length) if length <= MAX_LENGTHS else f"over {MAX_LENGTHS}"
        binned[name] = binned.get(name, 0) + histogram[str(length)]
    return binned


def _group_scores(groups: Sequence[str], comparisons: Sequence[Comparison]) -> DataFrame:
    """A row for each group and a column for each method; the last row is the score of the run, their mean."""
    frame = DataFrame({"group": [*groups, "mean"]})
    for number, c in enumerate(comparisons, start=1):
        scores = [_score(c.summary.group_scores.get(name)) for name in groups]
        frame.insert(number, c.method, [*scores, _score(c.summary.score)], allow_duplicates=True)
    return frame
