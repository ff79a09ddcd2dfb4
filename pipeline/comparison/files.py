"""speedup.json, .csv, .md and .tex: the same bytes for the same runs."""

import json
from pathlib import Path
from typing import Any

from pandas import DataFrame

from pipeline.comparison.comparison import Comparison
from pipeline.comparison.overview import Overview
from pipeline.comparison.runs import Run
from pipeline.comparison.sensitivity import Sensitivity, Spread, sensitivities
from pipeline.comparison.speedups import CONFIDENCE, N_RESAMPLES, SEED
from pipeline.comparison.tables import Table, tables
from pipeline.files import write_whole

NAME = "speedup"
_HOW_TO_READ = """\
Speedup is new tokens per second of the whole generation, prefill included, by the baseline's, with its 95% bootstrap
interval over prompts. "median" is that of the single prompts' ratios; "paired": one process decoded each prompt with
one method after the other. "decode only" leaves prefill out. tau is new tokens per decoding step. "identical" counts
outputs that are the baseline's, token for token, and "other length" those that are not even as long. "cache seen" is
what rows or passes that guess saw of the cache: window rows of FAFO and lookahead, drafting passes of self-speculation;
in a lossy run it is what all tokens saw.

Guessing: "rows/step" are the tokens of a step's verifying pass: root, guesses and window. "draft passes/step" are
passes of the model, whole or with layers left out, that guess before it. tau counts verifying passes only, so where
there are such others a pass gives fewer tokens than tau. "extra MiB" is the most memory that a method takes beside the
model and plain decoding's cache: the cache's room for rows, what guesses are looked up in, what selectors keep and
copy, and the logits of the largest step; what layers need while they compute is not in it.

A lossy run writes other texts, longer or shorter ones: its speedup compares tokens per second and not the time for an
answer. "KV MiB/step" is what attention reads of keys and values from the cache in a step, reads of the window and of
drafting passes included, and "of full" its ratio to the baseline's. What choosing and copying take is not counted;
where a method chooses anew at each step it is at least as much again. "first difference" is how many tokens an output
begins with in common with the baseline's, the median over those that differ.

Sensitivity: the lowest and the highest of a lossless method's speedups, and how many times the lowest the highest is,
over datasets and over prompt lengths. Lengths are those of the dataset made for it if there is one, since elsewhere
longer prompts are other tasks too; without it they are bins from 2^n to 2^(n+1) tokens of all prompts. Where prompts
are few, chance alone makes the ratio larger.
"""
_LATEX = str.maketrans({character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
})  # fmt: skip


def write_files(overview: Overview) -> None:
    """Write the four files to the overview's folder.

    Raises:
        OSError: the folder can't be written to.
    """
    shown = tables(overview)
    contents = {
        "json": as_json(overview),
        "csv": as_csv(overview),
        "md": as_markdown(overview, shown),
        "tex": as_latex(shown),
    }
    for suffix, content in contents.items():
        write_whole(overview.folder / f"{NAME}.{suffix}", content.encode())


def as_json(overview: Overview) -> str:
    """Everything, for other programs."""
    folder = overview.folder
    content = {
        "bootstrap": {
            "method": "percentile", "over": "prompts within each dataset", "confidence": CONFIDENCE,
            "n_resamples": N_RESAMPLES, "seed": SEED,
        },
        "comparisons": [_numbers(c) | _details(c, folder) for c in overview.comparisons],
        "sensitivity": [
            {"of": title} | _sensitivity(found)
            for title, group in [*overview.datasets, *overview.overall]
            for found in sensitivities(group)
        ],
        "overall": [_numbers(c) | {"datasets": c.datasets} | _histogram(c) for c in overview.overalls],
        "refused": [{"folder": inside(r.what, folder), "reason": inside(r.reason, folder)} for r in overview.refused],
        "overall_refused": [{"what": r.what, "reason": inside(r.reason, folder)} for r in overview.overall_refused],
    }  # fmt: skip
    return json.dumps(content, indent=2) + "\n"


def as_csv(overview: Overview) -> str:
    """A row for each comparison, unrounded, with units in the columns' names."""
    comparisons = [*overview.comparisons, *overview.overalls]
    histograms = [comparison.summary.accepted_length_histogram for comparison in comparisons]
    lengths = sorted({int(length) for histogram in histograms for length in histogram})
    rows = [
        _numbers(comparison)
        | {f"n_steps_accepting_{length}_tokens": histogram.get(str(length), 0) for length in lengths}
        for comparison, histogram in zip(comparisons, histograms, strict=True)
    ]
    return str(DataFrame(rows).to_csv(index=False, lineterminator="\n"))


def as_markdown(overview: Overview, shown: list[Table]) -> str:
    """The tables, what they are, and what is not in them."""
    blocks = ["# Speedup", _HOW_TO_READ.strip()]
    for table in shown:
        blocks += [f"## {table.title}", *table.conditions, _markdown(table.frame), *table.notes]
    refused = [*overview.refused, *overview.overall_refused]
    if refused:
        rows = [{"what": inside(r.what, overview.folder), "why": inside(r.reason, overview.folder)} for r in refused]
        blocks += ["## Not compared", _markdown(DataFrame(rows))]
    return "\n\n".join(blocks) + "\n"


def as_latex(shown: list[Table]) -> str:
    """The tables, for a document that uses booktabs."""
    blocks = [r"% Needs \usepackage{booktabs}."]
    for table in shown:
        text = table.frame.to_latex(index=False, escape=True, column_format="l" + "r" * (table.frame.shape[1] - 1))
        caption = ". ".join([table.title, *table.conditions]).translate(_LATEX)
        notes = "".join(f"\\par {note.translate(_LATEX)}\n" for note in table.notes)
        blocks.append(
            "\\begin{table}[tbp]\n\\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}\n"
            f"\\caption{{{caption}.}}\n{text}{notes}\\end{{table}}"
        )
    return "\n\n".join(blocks) + "\n"


def _markdown(frame: DataFrame) -> str:
    escaped = frame.map(lambda cell: cell.replace("|", "\\|"))
    return str(escaped.to_markdown(index=False, disable_numparse=True))


def _numbers(comparison: Comparison) -> dict[str, Any]:
    """What is one number or name each."""
    summary, baseline = comparison.summary, comparison.baseline
    low, high = comparison.interval or (None, None)
    return {
        "dataset": comparison.dataset,
        "model": comparison.run.model_name,
        "method": comparison.method,
        "throughput_tokens_per_second": summary.throughput,
        "baseline_throughput_tokens_per_second": baseline.throughput,
        "speedup": comparison.speedup,
        "speedup_low": low,
        "speedup_high": high,
        "mean_of_dataset_speedups": comparison.mean_of_datasets if comparison.is_overall else None,
        "median_of_prompt_speedups": comparison.median_ratio,
        "paired": comparison.paired,
        "decode_throughput_tokens_per_second": summary.decode_throughput,
        "baseline_decode_throughput_tokens_per_second": baseline.decode_throughput,
        "decode_speedup": comparison.decode_speedup,
        "tau_tokens_per_step": summary.tau,
        "lossy": comparison.run.is_lossy,
        "window_cache_share": summary.window_cache_share,
        "seen_cache_share": summary.seen_cache_share,
        "draft_cache_share": summary.draft_cache_share,
        "rows_per_step": summary.rows_per_step,
        "draft_passes_per_step": summary.draft_passes_per_step,
        "extra_bytes": summary.extra_bytes,
        "kv_bytes_per_step": summary.kv_bytes,
        "baseline_kv_bytes_per_step": baseline.kv_bytes,
        "n_prompts": comparison.n_prompts,
        "n_identical": comparison.n_identical,
        "n_other_length": len(comparison.other_length_ids),
        "identical_share": comparison.identical_share,
        "median_tokens_before_first_difference": comparison.median_first_difference,
        "metric": summary.metric,
        "score": summary.score,
        "baseline_score": baseline.score,
    }


def _details(comparison: Comparison, folder: Path) -> dict[str, Any]:
    """The rest about a comparison on one dataset."""
    (pair,) = comparison.pairs
    return _histogram(comparison) | {
        "differing_ids": comparison.differing_ids,
        "tokens_before_first_difference": pair.first_differences,
        "other_length_ids": comparison.other_length_ids,
        "group_scores": pair.run.summary.group_scores,
        "baseline_group_scores": pair.baseline.summary.group_scores,
        "conditions": pair.run.conditions,
        "run": _origin(pair.run, folder),
        "baseline": _origin(pair.baseline, folder),
    }


def _sensitivity(found: Sensitivity) -> dict[str, Any]:
    def numbers(spread: Spread | None) -> dict[str, float] | None:
        if spread is None:
            return None
        return {"lowest_speedup": spread.lowest, "highest_speedup": spread.highest, "ratio": spread.ratio}

    return {
        "method": found.method,
        "speedup_by_dataset": found.by_dataset,
        "speedup_by_shortest_prompt_tokens": {str(n): speedup for n, speedup in found.by_length.items()},
        "over_datasets": numbers(found.over_datasets),
        "over_lengths": numbers(found.over_lengths),
        "settings_that_differ": found.varying,
    }


def _histogram(comparison: Comparison) -> dict[str, Any]:
    return {"accepted_length_histogram": comparison.summary.accepted_length_histogram}


def _origin(run: Run, folder: Path) -> dict[str, Any]:
    session = run.record.management.sessions[-1]
    return {
        "folder": run.folder.relative_to(folder).as_posix(),
        "method": run.method,
        "settings": run.settings,
        "versions": session.versions,
        "git_commit": session.git_commit,
    }


def inside(text: str, folder: Path) -> str:
    """A text about runs, with their folders as seen from the one that the files go to."""
    if text == str(folder):
        return "."
    return text if folder == Path() else text.replace(f"{folder}/", "")
