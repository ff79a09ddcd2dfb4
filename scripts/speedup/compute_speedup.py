"""Compare FAFO runs with their baselines: speedup, tau, and how many outputs are token-identical.

    python scripts/speedup/compute_speedup.py <output_dir> [--require-identical]

Looks for finished runs in the folder and below it. A FAFO run's baseline is the one with the same prompts, model,
dtype, length limit, device, threads and versions, both compiled or neither. What can't be compared is skipped with a
line that says why.
"""

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.common.raw_results import read_results
from pipeline.common.recorded import read_record
from pipeline.common.records import EvalResults, OutputConfig, PromptResult, Session
from pipeline.errors import UserError

SAME_PARAMS = ("dtype", "device", "n_new_tokens", "batch_size")
SAME_VERSIONS = ("torch", "transformers")


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
    def title(self) -> str:
        """Dataset and model, the latter without its folder or owner."""
        return f"{self.record.eval_params['dataset']}, {Path(self.record.pipeline_params['model_name']).name}"

    @property
    def conditions(self) -> dict[str, object]:
        """What two runs must have in common to be compared, by name."""
        params, dataset = self.record.pipeline_params, self.record.management.dataset
        return {
            "dataset": self.record.eval_params["dataset"],
            "model_name": params["model_name"],
            "prompts": f"{dataset.n_rows} ({dataset.sha256[:8]})",
            **{key: params[key] for key in SAME_PARAMS},
            **machine(self.record.management.sessions[-1]),
        }

    @property
    def prompts(self) -> dict[str, int]:
        """Tokens of each prompt, by id: another chat template gives other prompts for the same rows."""
        return {result.id: result.n_prompt_tokens for result in self.results.values()}


@dataclass(frozen=True)
class Comparison:
    """A run beside its baseline."""

    run: Run
    speedup: float
    n_identical: int


def main(argv: list[str] | None = None) -> int:
    """Print the tables; exit code 2 when there is nothing to compare, 1 for what --require-identical forbids."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir", type=Path, help="a folder with the run folders of a baseline and of FAFO")
    parser.add_argument(
        "--require-identical", action="store_true", help="exit with 1 if any output differs or any run is skipped"
    )
    args = parser.parse_args(argv)
    runs, comparisons, n_skipped = [], [], 0
    for path in sorted(args.output_dir.rglob("output_config.json")):
        try:
            runs.append(read_run(path))
        except UserError as error:
            n_skipped += skip(path.parent, error)
    runs.sort(key=lambda run: run.method != "baseline")
    for run in runs:
        try:
            comparisons.append(compare(run, runs))
        except UserError as error:
            n_skipped += skip(run.folder, error)
    if not comparisons:
        sys.stderr.write(f"error: {args.output_dir}: no finished runs there or below of a baseline and of FAFO\n")
        return 2
    Console().print(*speedup_tables(comparisons))
    all_identical = all(c.n_identical == len(c.run.results) for c in comparisons)
    return 1 if args.require_identical and (n_skipped or not all_identical) else 0


def skip(folder: Path, reason: UserError) -> int:
    """Say that a run is left out and why; return how many that are."""
    sys.stderr.write(f"skipped {folder}: {reason}\n")
    return 1


def read_run(path: Path) -> Run:
    """Read the run whose output_config.json is at `path`.

    Raises:
        UserError: it is unfinished, damaged, or was resumed under other conditions.
    """
    record = read_record(path)
    lacking = {"method", "model_name", *SAME_PARAMS} - record.pipeline_params.keys()
    lacking |= {"dataset"} - record.eval_params.keys()
    if lacking or not record.management.sessions:
        raise UserError(f"{path.name} is damaged (it lacks {', '.join(sorted(lacking)) or 'sessions'})")
    if record.eval_results is None:
        raise UserError("it is not finished; run its command again to resume it")
    machines = [machine(session) for session in record.management.sessions]
    if differing := differences(machines):
        raise UserError(f"its sessions differ in {', '.join(differing)}, so its timings mix both")
    try:
        results = read_results(path.parent / record.management.sub_dir.raw_results, None)
    except OSError as error:
        raise UserError(f"{error.filename} can't be read ({error.strerror})") from None
    if len(results) != record.eval_results.n_prompts:
        raise UserError(f"it has {len(results)} results of {record.eval_results.n_prompts} prompts")
    return Run(path.parent, record, record.eval_results, {result.id: result for result in results})


def machine(session: Session) -> dict[str, object]:
    """What a session ran on, as far as it makes a difference to speed or outputs."""
    versions = {name: session.versions.get(name) for name in SAME_VERSIONS}
    return {
        "device_name": f"{session.device_name} ({session.device})",
        "threads": session.threads,
        "compiled": session.compiled,
        **versions,
    }


def differences(conditions: Iterable[dict[str, object]]) -> list[str]:
    """The names whose values are not the same in all of `conditions`."""
    first, *others = conditions
    return [name for name, value in first.items() if any(other[name] != value for other in others)]


def compare(run: Run, runs: list[Run]) -> Comparison:
    """Compare a run with the baseline of the same conditions among `runs` (itself, if it is one).

    Raises:
        UserError: there is no such baseline, or its prompts are not the same.
    """
    baselines = [run] if run.method == "baseline" else [b for b in runs if b.method == "baseline"]
    alike = [b for b in baselines if b.conditions == run.conditions]
    if not alike:
        raise UserError(no_baseline(run, [b for b in baselines if b.title == run.title]))
    baseline = next((b for b in alike if b.prompts == run.prompts), None)
    if baseline is None:
        raise UserError(f"its prompts are not those of the baseline {alike[0].folder}")
    n_identical = sum(
        result.output_token_ids == baseline.results[prompt_id].output_token_ids
        for prompt_id, result in run.results.items()
    )
    return Comparison(run, run.summary.throughput / baseline.summary.throughput, n_identical)


def no_baseline(run: Run, others: list[Run]) -> str:
    """Why a run can't be compared, with what sets it apart from the nearest baseline of its dataset and model."""
    if not others:
        return f"no baseline run of {run.title}"
    nearest = min((differences([b.conditions, run.conditions]) for b in others), key=len)
    return f"no baseline run with the same {', '.join(nearest)}"


def speedup_tables(comparisons: list[Comparison]) -> list[Table]:
    """A table for each group of runs that may be compared, with one row a run.

    A title has what sets its group apart from others of the same dataset and model.
    """
    groups: list[list[Comparison]] = []
    for comparison in comparisons:
        conditions = comparison.run.conditions
        group = next((g for g in groups if g[0].run.conditions == conditions), None)
        if group is None:
            groups.append([comparison])
        else:
            group.append(comparison)
    tables = []
    for group in groups:
        run = group[0].run
        differing = differences([g[0].run.conditions for g in groups if g[0].run.title == run.title])
        title = ", ".join([run.title, *(f"{name} {run.conditions[name]}" for name in differing)])
        tables.append(speedup_table(title, group))
    return tables


def speedup_table(title: str, group: list[Comparison]) -> Table:
    """One row a run."""
    table = Table("method", "tokens/s", "speedup", "tau", "cache seen", "identical outputs", title=title)
    for comparison in group:
        summary = comparison.run.summary
        share = summary.window_cache_share
        table.add_row(
            comparison.run.method,
            f"{summary.throughput:.2f}",
            f"{comparison.speedup:.2f}x",
            f"{summary.tau:.2f}",
            "" if share is None else f"{share:.0%}",
            f"{comparison.n_identical}/{summary.n_prompts}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
