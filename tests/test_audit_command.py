"""What `--baseline_dir` records, and which runs an audit refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.common import audit as audit_module
from pipeline.common.cli import main as run
from pipeline.common.records import Audit
from scripts.audit import main
from tests.audited import edit_lines, edit_record, put
from tests.runs import Case

pytest_plugins = ["tests.run_fixtures"]


def test_a_shorter_run_of_the_same_rows(case: Case, runs: tuple[Path, Path]) -> None:
    case.output = case.folder / "short"
    assert run("fafo", case.argv("--limit", "2", "--baseline_dir", str(runs[1]))) == 0
    found = Audit.model_validate_json((case.output / "audit.json").read_bytes())
    assert (found.n_identical, found.n_not_compared) == (2, 1)


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "model": (lambda r: r["pipeline_params"].update(model_name="a/b"), "model_name is a/b there"),
    "dtype": (lambda r: r["pipeline_params"].update(dtype="float16"), "dtype is float16 there and float32 here"),
    "length": (lambda r: r["pipeline_params"].update(n_new_tokens=9), "n_new_tokens is 9 there and 12 here"),
    "dataset": (lambda r: r["eval_params"].update(dataset="other"), "names an unknown dataset"),
    "rows": (lambda r: r["management"]["dataset"].update(sha256="0" * 64), "its dataset has changed since"),
    "damaged": (lambda r: r.pop("management"), "output_config.json is damaged (management: Field required)"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "said"), REFUSED.values(), ids=REFUSED)
def test_refused(
    case: Case,
    runs: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    edit: Callable[[dict[str, Any]], Any],
    said: str,
) -> None:
    edit_record(runs[1], edit)
    assert main([str(folder) for folder in runs]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert said in err
    assert err.count("\n") == 1

    case.output = case.folder / "new"
    assert run("fafo", case.argv("--baseline_dir", str(runs[1]))) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: --baseline_dir: ")
    assert said in err
    assert err.count("\n") == 1
    assert not case.output.exists()


def test_other_encodings_are_refused(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    edit_lines(runs[1], lambda lines: lines[1].update(n_prompt_tokens=9))
    assert main([str(folder) for folder in runs]) == 2
    assert "prompt Tiny/1 is another in one run than in the other" in capsys.readouterr().err
    edit_lines(runs[0], lambda lines: lines[1].update(n_prompt_tokens=9))
    put(runs[0], 1, 5, 7)
    put(runs[1], 1, 5, 8)
    assert main([str(folder) for folder in runs]) == 2
    assert "prompt Tiny/1 has other tokens by now" in capsys.readouterr().err


def test_other_prompts_of_the_same_length_are_refused(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    edit_lines(runs[1], lambda lines: lines[1].pop("prompt_sha256"))  # as older runs have none
    assert main([str(folder) for folder in runs]) == 0
    edit_lines(runs[1], lambda lines: lines[1].update(prompt_sha256="0" * 64))
    assert main([str(folder) for folder in runs]) == 2
    assert "prompt Tiny/1 is another" in capsys.readouterr().err


def test_other_baselines_are_refused(
    case: Case, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    case.output = case.folder / "new"

    def refusal(baseline: Path | str) -> str:
        assert run("fafo", case.argv("--baseline_dir", str(baseline))) == 2
        assert not case.output.exists()
        return capsys.readouterr().err

    assert "output_config.json can't be read (No such file or directory)" in refusal(tmp_path)
    assert "nowhere: there is no such run; run the baseline first" in refusal(tmp_path / "nowhere")
    assert "--baseline_dir: found ''" in refusal("")
    edit_lines(runs[1], lambda lines: lines.pop())
    assert "is not finished" in refusal(runs[1])
    edit_record(runs[1], lambda record: record.update(eval_results=None))
    assert "is not finished" in refusal(runs[1])
    case.to_baseline()
    case.output = tmp_path / "one"
    assert run("baseline", case.argv("--limit", "1")) == 0
    case.pipeline |= {"method": "fafo", "kv_method": "full", "level": 3, "window": 3, "num_guesses": 2}
    case.write()
    case.output = case.folder / "new"
    assert "lacks prompt Tiny/1" in refusal(tmp_path / "one")


def test_the_audit_is_recorded(
    case: Case, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case.output = case.folder / "audited"
    command = case.argv("--baseline_dir", str(runs[1]))
    assert run("fafo", command) == 0
    path = case.output / "audit.json"
    found = Audit.model_validate_json(path.read_bytes())
    assert (found.n_identical, found.n_near_ties, found.n_faults, found.n_not_compared) == (3, 0, 0, 0)
    assert (found.run_a, found.run_b) == (str(case.output), str(runs[1]))
    assert "3 identical, 0 near ties, 0 faults; written to" in (case.output / "exp.log").read_text()

    path.unlink()
    put(runs[1], 2, 11, 7)
    put(case.output, 2, 11, 8)
    assert run("fafo", command) == 1  # complete already, and audited again
    assert Audit.model_validate_json(path.read_bytes()).prompts[2].verdict == "fault"
    assert "ERROR audit against" in capsys.readouterr().out

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(audit_module, "audit", interrupt)
    path.unlink()
    assert run("fafo", command) == 130
    assert not path.exists()
