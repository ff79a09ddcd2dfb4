"""What the figures show of a folder's runs: each comparison with its place."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from figures.style import Look, looks
from pipeline.comparison import Comparison, Overview
from pipeline.comparison.groups import grouped

NO_RUNS = (
    "no finished FAFO run with a baseline; make them with "
    "bash scripts/speedup/run_speedup.sh <gpu_id> <output_dir> <model> streamllm,quest"
)


@dataclass(frozen=True)
class Entry:
    """A run beside its baseline, and where its numbers stand.

    setup: model and machine, as far as that sets it apart.
    dataset: its name, with what sets it apart.
    title: the dataset, and the setup if there are several.
    series: the method, with what sets it apart from its variants.
    """

    setup: str
    dataset: str
    title: str
    series: str
    look: Look
    comparison: Comparison


def entries(overview: Overview) -> list[Entry]:
    """All comparisons, those of baselines with themselves included; no two have the same place."""
    setups = grouped(overview.comparisons, lambda run: run.setup, lambda run: run.model)
    found: list[tuple[str, str, str, str, Comparison]] = []
    for setup, of_setup in setups:
        for dataset, of_dataset in grouped(of_setup, lambda run: run.task, lambda run: run.dataset):
            title = dataset if len(setups) == 1 else f"{setup}\n{dataset}"
            seen: Counter[str] = Counter()
            for comparison in of_dataset:
                seen[comparison.method] += 1
                repeat = f", run {seen[comparison.method]}" if seen[comparison.method] > 1 else ""
                found.append((setup, dataset, title, comparison.method + repeat, comparison))
    shades = looks((comparison.run.method, series) for _, _, _, series, comparison in found)
    return [
        Entry(setup, dataset, title, series, shades[series], comparison)
        for setup, dataset, title, series, comparison in found
    ]


def of_methods(entries: Iterable[Entry]) -> list[Entry]:
    """Those that are not a baseline's."""
    return [entry for entry in entries if not entry.comparison.is_baseline]


def of_fafo(entries: Iterable[Entry]) -> list[Entry]:
    """Those that are FAFO's."""
    return [entry for entry in entries if entry.comparison.run.is_fafo]


def lossless_methods(entries: Iterable[Entry]) -> list[Entry]:
    """Those that are FAFO's or its opponents'."""
    return [entry for entry in of_methods(entries) if not entry.comparison.run.is_lossy]


def by(name: Callable[[Entry], str], entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Those of the same name together, in the order of the names' first."""
    groups = defaultdict(list)
    for entry in entries:
        groups[name(entry)].append(entry)
    return dict(groups)


def series_of(entries: Iterable[Entry]) -> dict[str, Look]:
    """The series there are, for a legend."""
    return {entry.series: entry.look for entry in entries}
