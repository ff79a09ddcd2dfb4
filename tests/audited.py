"""A FAFO run beside its baseline, free to be tampered with."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.common.cli import main as run
from tests.runs import Case

Lines = list[dict[str, Any]]


def run_both(case: Case, *more: str) -> tuple[Path, Path]:
    """The folders of a finished FAFO run and of its baseline; `case` is the FAFO run's afterwards."""
    fafo = case.pipeline
    case.to_baseline()
    case.output = case.folder / "runs" / "baseline"
    assert run("baseline", case.argv(*more)) == 0
    case.pipeline, case.output = fafo, case.folder / "runs" / "fafo"
    case.write()
    assert run("fafo", case.argv(*more)) == 0
    return case.output, case.folder / "runs" / "baseline"


def edit_lines(folder: Path, edit: Callable[[Lines], Any]) -> None:
    path = folder / "raw_results.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    edit(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit_record(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "output_config.json"
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))


def put(folder: Path, line: int, position: int, token: int) -> None:
    edit_lines(folder, lambda lines: lines[line]["output_token_ids"].__setitem__(position, token))


def cut(line: dict[str, Any], n: int) -> None:
    """Make an output end after `n` tokens."""
    line.update(output_token_ids=line["output_token_ids"][:n], n_new_tokens=n, n_steps=n, accepted_lengths=[1] * n)
    line["token_sources"] = line["token_sources"][:n]
    line |= {"verified_rows": [1] * n, "window_rows": [0] * n, "draft_passes": [0] * n}


def outputs(folder: Path) -> list[list[int]]:
    return [json.loads(line)["output_token_ids"] for line in (folder / "raw_results.jsonl").read_text().splitlines()]
