"""The audit: what is a near tie, and what a fault."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.common.audit import audit
from pipeline.common.recorded import read_run
from pipeline.common.records import Audit, PromptAudit
from scripts.audit import main
from tests.audited import cut, edit_lines, edit_record, outputs, put, run_both
from tests.runs import Case

pytest_plugins = ["tests.run_fixtures"]


def logits(model: Path, number: int, output: list[int], dtype: str = "float32", upcast: bool = True) -> torch.Tensor:
    """Logits at each position of an output to the row of that number; weights of `dtype`, arithmetic of float32."""
    text = (
        "<user>Complete the following Python function. Answer with the whole function in one code block.\n\n"
        f'```python\ndef f{number}(x):\n    """Return x + {number}."""\n```<assistant>'
    )
    ids = AutoTokenizer.from_pretrained(model)(text)["input_ids"]
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    if upcast:
        reference.float()
    with torch.inference_mode():
        return reference(torch.tensor([ids + output])).logits[0, len(ids) - 1 : -1].float()


def test_identical_runs_need_no_model(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipeline.common.noise.load_model", None)
    before = sorted(runs[0].iterdir())
    capsys.readouterr()
    assert main([str(folder) for folder in runs]) == 0
    assert capsys.readouterr().out == "3 identical, 0 near ties, 0 faults (float32)\n"
    assert sorted(runs[0].iterdir()) == before
    assert audit(*map(read_run, runs)).prompts[2] == PromptAudit(id="Tiny/2", verdict="identical")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_tampered_token_is_a_fault(case: Case, model: Path, dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    fafo, baseline = run_both(
        case, "--set", f"pipeline_params.dtype={dtype}", "--set", "pipeline_params.n_new_tokens=90"
    )
    (fafo / "raw_results.jsonl").write_bytes((baseline / "raw_results.jsonl").read_bytes())  # no natural near ties
    output = outputs(baseline)[1]
    at = logits(model, 1, output, dtype)[80]
    worst = int(at.argmin())
    put(fafo, 1, 80, worst)
    assert main([str(fafo), str(baseline)]) == 1
    assert "2 identical, 0 near ties, 1 faults" in capsys.readouterr().out
    found = audit(read_run(fafo), read_run(baseline)).prompts[1]
    assert (found.id, found.verdict, found.position) == ("Tiny/1", "fault", 80)
    assert (found.token_a, found.token_b) == (worst, output[80])
    assert found.gap == pytest.approx(float(at[output[80]] - at[worst]), rel=1e-4)
    assert found.behind_best == pytest.approx(float(at.max() - at[worst]), rel=1e-4)
    assert found.gap is not None
    assert found.noise is not None
    assert 0 < found.noise < (1e-4 if dtype == "float32" else found.gap)


def test_a_near_tie_in_bfloat16(case: Case, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second-best token where it is so close behind that rounding may well prefer it."""
    settings = ("--set", "pipeline_params.dtype=bfloat16", "--set", "pipeline_params.n_new_tokens=200")
    fafo, baseline = run_both(case, *settings)
    assert audit(read_run(fafo), read_run(baseline)).n_faults == 0  # what differs by itself is a near tie
    output = outputs(baseline)[0]
    in_float32 = logits(model, 0, output, "bfloat16")
    best = in_float32.topk(2)
    position = int((best.values[:, 0] - best.values[:, 1]).argmin())
    other = next(token for token in best.indices[position].tolist() if token != output[position])
    tampered = [*output[:position], other, *output[position + 1 :]]
    edit_lines(fafo, lambda lines: lines[0].update(output_token_ids=tampered))
    assert main([str(fafo), str(baseline)]) == 0
    assert "near tie" in capsys.readouterr().out
    found = audit(read_run(fafo), read_run(baseline)).prompts[0]
    assert (found.verdict, found.position, found.token_a) == ("near tie", position, other)
    errors = (in_float32 - logits(model, 0, output, "bfloat16", upcast=False)).abs()
    assert found.gap is not None
    assert found.noise is not None
    assert found.gap < found.noise < 4 * errors.max()


def test_two_tokens_alike_but_far_from_the_best_are_a_fault(runs: tuple[Path, Path], model: Path) -> None:
    a, b = logits(model, 0, outputs(runs[0])[0])[5].argsort()[100:102].tolist()
    put(runs[0], 0, 5, a)
    put(runs[1], 0, 5, b)
    found = audit(*map(read_run, runs)).prompts[0]
    assert found.verdict == "fault"
    assert found.gap is not None
    assert found.behind_best is not None
    assert found.gap < found.behind_best


@pytest.mark.parametrize("position", [0, 11])
def test_differences_at_the_ends(runs: tuple[Path, Path], position: int) -> None:
    put(runs[0], 0, position, 7)
    put(runs[1], 0, position, 8)
    assert audit(*map(read_run, runs)).prompts[0].position == position


def test_an_output_that_just_ends_is_a_fault(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipeline.common.noise.load_model", None)  # there is nothing to measure
    edit_lines(runs[0], lambda lines: cut(lines[0], 5))
    capsys.readouterr()
    assert main([str(folder) for folder in runs]) == 1
    assert " end, " in capsys.readouterr().out
    found = audit(*map(read_run, runs)).prompts[0]
    assert (found.verdict, found.position, found.token_a, found.gap) == ("fault", 5, None, None)
    assert found.token_b is not None


def test_a_token_that_does_not_exist_is_a_fault(runs: tuple[Path, Path]) -> None:
    put(runs[0], 0, 5, 256)
    found = audit(*map(read_run, runs)).prompts[0]
    assert (found.verdict, found.noise) == ("fault", None)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_overflow_excuses_nothing(runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    monkeypatch.setattr("pipeline.common.noise._stepwise_logits", lambda *_: torch.full((64, 256), value))
    put(runs[0], 0, 5, 7)
    put(runs[1], 0, 5, 8)
    found = audit(*map(read_run, runs))
    assert found.n_faults == 1
    Audit.model_validate_json(found.model_dump_json())


def test_unfinished_runs_are_compared_as_far_as_they_are(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    edit_lines(runs[0], lambda lines: lines.pop(0))
    edit_record(runs[0], lambda record: record.update(eval_results=None))
    edit_lines(runs[1], lambda lines: lines.pop(2))
    capsys.readouterr()
    assert main([str(folder) for folder in runs]) == 0
    assert capsys.readouterr().out.startswith("1 identical, 0 near ties, 0 faults, 2 not compared")
    edit_lines(runs[0], lambda lines: lines.pop(0))
    assert main([str(folder) for folder in runs]) == 2
    assert "have no prompt in common" in capsys.readouterr().err
