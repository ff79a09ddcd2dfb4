"""Compare FAFO runs with their baselines: speedup, tau, and how many outputs are token-identical.

    python scripts/speedup/compute_speedup.py <output_dir> [--require-identical]

Looks for finished runs in the folder and below it. A FAFO run's baseline is the one with the same dataset rows,
model, dtype, device and length limit.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.common.raw_results import read_results
from pipeline.common.records import EvalResults, OutputConfig, PromptResult
from pipeline.errors import UserError

SAME_IN_BOTH = ("model_name", "dtype", "device", "n_new_tokens", "batch_size")


@dataclass(frozen=True)
class Run:
    """A finished run: its record and its lines by prompt id."""

    folder: Path
    record: OutputConfig
    summary: EvalResults
    results: dict[str, PromptResult]

    @property
    def method(self) -> str:
        """Such as "baseline" or "fafo-stream-llm"."""
        params = self.record.pipeline_params
        return "-".join(filter(None, [params["method"], params.get("kv_method")]))

    @property
    def conditions(self) -> tuple[object, ...]:
        """What two runs must have in common to be compared."""
        params, management = self.record.pipeline_params, self.record.management
        return (*(params[key] for key in SAME_IN_BOTH), management.dataset.sha256, management.device_name)


@dataclass(frozen=True)
class Comparison:
    """A run beside its baseline."""

    run: Run
    speedup: float
    n_identical: int


def main() -> int:
    """Print the table; exit code 2 when there is nothing to compare, 1 for a difference that was not allowed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir", type=Path, help="a folder with the run folders of a baseline and of FAFO")
    parser.add_argument("--require-identical", action="store_true", help="exit with 1 if any output differs")
    args = parser.parse_args()
    try:
        runs = find_runs(args.output_dir)
        comparisons = [compare(run, runs) for run in runs]
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    Console().print(*speedup_tables(comparisons))
    all_identical = all(c.n_identical == len(c.run.results) for c in comparisons)
    return 0 if all_identical or not args.require_identical else 1


def find_runs(folder: Path) -> list[Run]:
    """All runs in `folder` and below, baselines first.

    Raises:
        UserError: there is none, or one is unfinished.
    """
    runs = []
    for path in sorted(folder.rglob("output_config.json")):
        record = OutputConfig.model_validate_json(path.read_bytes())
        if record.eval_results is None:
            raise UserError(f"{path.parent}: this run is not finished; run its command again to resume it")
        results = read_results(path.parent / record.management.sub_dir.raw_results, None)
        runs.append(Run(path.parent, record, record.eval_results, {result.id: result for result in results}))
    if not runs:
        raise UserError(f"{folder}: no output_config.json there or below; name the folder of a baseline and a FAFO run")
    return sorted(runs, key=lambda run: run.method != "baseline")


def compare(run: Run, runs: list[Run]) -> Comparison:
    """Compare a run with the baseline of the same conditions among `runs` (itself, if it is one).

    Raises:
        UserError: there is no such baseline.
    """
    baseline = next((b for b in runs if b.method == "baseline" and b.conditions == run.conditions), None)
    if baseline is None:
        raise UserError(f"{run.folder}: no baseline run with the same {', '.join(SAME_IN_BOTH)}, dataset and device")
    n_identical = sum(
        result.output_token_ids == baseline.results[prompt_id].output_token_ids
        for prompt_id, result in run.results.items()
    )
    return Comparison(run, run.summary.throughput / baseline.summary.throughput, n_identical)


def speedup_tables(comparisons: list[Comparison]) -> list[Table]:
    """A table per dataset and model, with one row a run."""
    tables: dict[str, Table] = {}
    for comparison in comparisons:
        run, summary = comparison.run, comparison.run.summary
        title = f"{run.record.eval_params['dataset']}, {Path(run.record.pipeline_params['model_name']).name}"
        columns = ("method", "tokens/s", "speedup", "tau", "cache seen", "identical outputs")
        share = summary.window_cache_share
        tables.setdefault(title, Table(*columns, title=title)).add_row(
            run.method,
            f"{summary.throughput:.2f}",
            f"{comparison.speedup:.2f}x",
            f"{summary.tau:.2f}",
            "" if share is None else f"{share:.0%}",
            f"{comparison.n_identical}/{summary.n_prompts}",
        )
    return list(tables.values())


if __name__ == "__main__":
    sys.exit(main())
