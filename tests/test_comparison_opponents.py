"""FAFO's opponents in the tables: in their place, lossless, and with what their guesses take."""

import json
from pathlib import Path

import pandas
import pytest

from pipeline.common.schemas import METHODS
from pipeline.comparison import Comparison, Table, compare_runs, tables, write_files
from pipeline.comparison.runs import OPPONENTS
from scripts.speedup.compute_speedup import main
from tests.figure_runs import result, write_run
from tests.made_up_opponents import IN_ORDER, line, write_opponents


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_opponents(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def shown(folder: Path) -> dict[str, Table]:
    return {table.title: table for table in tables(compare_runs(folder))}


@pytest.fixture(scope="module")
def gsm8k(folder: Path) -> dict[str, Comparison]:
    return {c.method: c for c in compare_runs(folder).comparisons if c.dataset == "gsm8k"}


def test_every_method_is_one_of_three_kinds_or_the_baseline(gsm8k: dict[str, Comparison]) -> None:
    assert {"baseline", "fafo", "lossy", *OPPONENTS} == set(METHODS)
    assert {c.run.params["method"] for c in gsm8k.values()} == set(METHODS)
    for c in gsm8k.values():
        assert [c.is_baseline, c.run.is_fafo, c.run.is_lossy, c.run.is_opponent].count(True) == 1


def test_opponents_come_after_fafo(shown: dict[str, Table]) -> None:
    for title in ("gsm8k, Made-Up-1B", "longtext, Made-Up-1B", "overall, Made-Up-1B"):
        for table in (title, f"{title}: guessing", f"{title}: lossy and lossless"):
            assert list(shown[table].frame["method"]) == IN_ORDER
        lossless = [method for method in IN_ORDER if method not in ("baseline", "lossy-quest")]
        assert list(shown[f"{title}: steps by tokens accepted"].frame["method"]) == lossless


def test_guessing(shown: dict[str, Table]) -> None:
    """A step of ours has 5 rows and 60 of a window; a draft's four steps have 3, 4, 4 and 4 passes before them."""
    rows = shown["gsm8k, Made-Up-1B: guessing"].frame.set_index("method").to_dict("index")
    told = {"speedup (95%)": "2.00x (2.00-2.00)", "tau": "3.00", "identical": "100%", "extra MiB": "5.0"}
    window = told | {"rows/step": "65.0", "draft passes/step": "", "cache seen": "50%"}
    plain = told | {"rows/step": "5.0", "draft passes/step": "", "cache seen": ""}
    drafts = told | {"rows/step": "5.0", "draft passes/step": "3.75", "cache seen": "25%"}
    assert rows["baseline"] == plain | {"speedup (95%)": "1.00x", "tau": "1.00", "rows/step": "1.0"}
    assert rows["lossy-quest"] == plain | {"tau": "1.00", "rows/step": "1.0", "cache seen": "10%"}
    assert rows["fafo-quest"] == rows["fafo-stream-llm"] == rows["lookahead"] == window
    assert rows["prompt_lookup"] == rows["token_recycling"] == plain
    for name in ("selfspec_kv-quest", "selfspec_kv-snapkv", "selfspec_kv-stream-llm", "selfspec_layers"):
        assert rows[name] == drafts


def test_numbers_in_the_files(folder: Path) -> None:
    write_files(compare_runs(folder))
    rows = pandas.read_csv(folder / "speedup.csv").to_dict("records")
    of_all = {row["method"]: row for row in rows if row["dataset"] == "overall"}
    found = of_all["selfspec_layers"]
    assert [found[name] for name in ("rows_per_step", "draft_passes_per_step", "draft_cache_share")] == [5, 3.75, 0.25]
    assert found["extra_bytes"] == 2**20 * (len("256-0") + 1)
    assert [of_all["fafo-quest"][name] for name in ("rows_per_step", "draft_passes_per_step")] == [65, 0]
    (numbers,) = [
        c for c in json.loads((folder / "speedup.json").read_text())["overall"] if c["method"] == "selfspec_layers"
    ]
    assert [numbers[name] for name in ("rows_per_step", "draft_passes_per_step", "lossy")] == [5, 3.75, False]


def test_a_draft_without_a_window_is_told_from_what_a_window_saw(gsm8k: dict[str, Comparison]) -> None:
    seen = {name: c.cache_seen for name, c in gsm8k.items()}
    assert (seen["fafo-quest"], seen["selfspec_kv-quest"], seen["lossy-quest"]) == (0.5, 0.25, 0.1)
    assert seen["baseline"] is seen["prompt_lookup"] is seen["token_recycling"] is None


@pytest.mark.parametrize(("method", "code"), [("prompt_lookup", 1), ("lossy-quest", 0)])
def test_opponents_must_be_identical_too(tmp_path: Path, method: str, code: int) -> None:
    write_opponents(tmp_path, ("gsm8k",))
    assert main([str(tmp_path), "--require-identical"]) == 0
    path = tmp_path / "gsm8k" / method / "raw_results.jsonl"
    first, *rest = path.read_text().splitlines()
    changed = json.loads(first)
    changed["output_token_ids"][3] = 1
    path.write_text("\n".join([json.dumps(changed), *rest]) + "\n")
    assert main([str(tmp_path), "--require-identical"]) == code


def test_older_records_beside_newer_ones(tmp_path: Path) -> None:
    """What an older run lacks is blank; where none has it, there is no table."""
    old = [result("a", 9, 12.0, [1] * 12, window_cache_tokens=None)]
    write_run(tmp_path / "baseline", old)
    write_run(tmp_path / "old", old, {"kv_method": "quest"})
    assert not [table.title for table in tables(compare_runs(tmp_path)) if table.title.endswith("guessing")]
    write_run(tmp_path / "new", [line("prompt_lookup", "humaneval", "a", 9)], {"method": "prompt_lookup"})
    (guessing,) = [table.frame for table in tables(compare_runs(tmp_path)) if table.title.endswith("guessing")]
    assert guessing[["rows/step", "draft passes/step", "extra MiB"]].values.tolist() == [
        ["", "", ""], ["", "", ""], ["5.0", "", "2.0"],
    ]  # fmt: skip
