"""Lossy runs from the command line: what they answer, record and refuse."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from eval import EvalParams, Sample
from pipeline.common.answering import answer
from pipeline.common.cli import main
from pipeline.common.encoding import Encoder
from pipeline.common.models import load_model
from pipeline.common.schemas import BaselineParams
from pipeline.fafo.decode import generate
from pipeline.fafo.selectors import StreamLLM
from pipeline.fafo.settings import DecodeSettings
from scripts.audit import main as audit
from scripts.make_configs import KV_METHODS, pipeline_params
from tests.audited import edit_record, outputs
from tests.runs import Case

pytest_plugins = ["tests.run_fixtures"]

BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 4  # of the tiny model: layers, keys and values, KV heads, head_dim, float32
MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture
def baseline(case: Case) -> Path:
    """The folder of a finished baseline; the case is lossy afterwards."""
    case.to_baseline()
    folder, case.output = case.folder / "baseline", case.folder / "baseline"
    assert main("baseline", case.argv()) == 0
    case.output = case.folder / "lossy"
    case.to_lossy()
    return folder


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "output_config.json").read_text())["eval_results"]


def test_run_and_run_again(case: Case, baseline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("lossy", case.argv()) == 0
    lines = case.lines()
    assert [line["id"] for line in lines] == ["Tiny/0", "Tiny/1", "Tiny/2"]
    for line in lines:
        n_read = line["n_prompt_tokens"] - 1
        assert line["accepted_lengths"] == [1] * 12
        assert line["cache_tokens"] == n_read + 5.5  # one more at each of 12 steps
        assert line["seen_cache_tokens"] == (n_read + 11 * (2 + 8)) / 12  # at the first step the whole prompt
        assert line["kv_bytes"] == BYTES_PER_TOKEN * line["seen_cache_tokens"]
        assert (line["n_window_steps"], line["window_cache_tokens"]) == (0, None)
    summary = case.record()["eval_results"]
    assert summary["tau"] == 1
    assert summary["seen_cache_share"] == summary["seen_cache_tokens"] / summary["cache_tokens"] < 0.5
    assert summary["kv_bytes"] == BYTES_PER_TOKEN * summary["seen_cache_tokens"] < results(baseline)["kv_bytes"]
    assert outputs(case.output) != outputs(baseline)
    params = case.record()["pipeline_params"]
    assert params.items() >= case.pipeline.items()
    assert "level" not in params
    assert "compressed" not in capsys.readouterr().out

    assert main("lossy", case.argv()) == 0
    assert "complete already" in capsys.readouterr().out
    assert case.lines() == lines


def test_lossless_runs_record_what_they_read_too(case: Case) -> None:
    assert main("fafo", case.argv()) == 0
    for line in case.lines():
        of_window = line["window_cache_tokens"] * line["n_window_steps"] / line["n_steps"]
        assert line["kv_bytes"] == pytest.approx(BYTES_PER_TOKEN * (line["cache_tokens"] + of_window))
        assert line["seen_cache_tokens"] is None
    summary = case.record()["eval_results"]
    assert (summary["seen_cache_tokens"], summary["seen_cache_share"]) == (None, None)

    case.output = case.folder / "baseline"
    case.to_baseline()
    assert main("baseline", case.argv()) == 0
    summary = case.record()["eval_results"]
    assert summary["kv_bytes"] == BYTES_PER_TOKEN * summary["cache_tokens"]
    assert summary["seen_cache_share"] is None


def test_a_run_resumes(case: Case, baseline: Path) -> None:
    assert main("lossy", case.argv()) == 0
    whole, path = case.record()["eval_results"], case.output / "raw_results.jsonl"
    answered = outputs(case.output)
    path.write_text(path.read_text().splitlines(keepends=True)[1])
    edit_record(case.output, lambda record: record.update(eval_results=None))
    assert main("lossy", case.argv()) == 0
    assert sorted(outputs(case.output)) == sorted(answered)
    assert case.record()["eval_results"]["kv_bytes"] == pytest.approx(whole["kv_bytes"])


def test_a_folder_of_another_method_is_refused(case: Case, baseline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case.output = baseline
    assert main("lossy", case.argv()) == 2
    assert 'pipeline_params.method is "baseline" there and "lossy" here' in capsys.readouterr().err


@pytest.mark.parametrize("kv_method", ["full", "stream-llm"])
def test_who_sees_all_decodes_plainly(
    case: Case, baseline: Path, kv_method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case.to_lossy(kv_method, **({"num_local": 500} if kv_method == "stream-llm" else {}))
    assert main("lossy", case.argv()) == 0
    assert outputs(case.output) == outputs(baseline)
    summary = case.record()["eval_results"]
    assert (summary["seen_cache_share"], summary["kv_bytes"]) == (1, results(baseline)["kv_bytes"])
    assert ("nothing was compressed: stream-llm kept all" in capsys.readouterr().out) == (kv_method != "full")


def test_interleaved_with_the_baseline(case: Case, baseline: Path) -> None:
    alone = case.folder / "alone"
    assert main("lossy", case.argv("--set", "pipeline_params.num_local=9", "--output_folder_dir", str(alone))) == 0
    of_lossy = case.pipeline_file.read_text()
    case.to_baseline()
    beside = case.folder / "lossy.json"
    beside.write_text(of_lossy)
    case.output, folder = case.folder / "turns" / "baseline", case.folder / "turns" / "lossy"
    more = ["--interleave", f"{beside}={folder}", "--set", "pipeline_params.num_local=9"]
    assert main("baseline", case.argv(*more)) == 0
    assert outputs(case.output) == outputs(baseline)
    assert outputs(folder) == outputs(alone)
    assert results(folder)["kv_bytes"] == results(alone)["kv_bytes"]


def test_each_turn_of_a_conversation_is_read_anew(model: Path) -> None:
    params = BaselineParams(method="baseline", model_name=str(model), n_new_tokens=20, dtype="float32")
    encoder = Encoder(load_model(params), EvalParams(dataset="mtbench"), 20)
    sample = Sample("81", ({"role": "user", "content": "Why is it so?"},), "", {}, ("And why?", "Then sum it up."))
    settings = DecodeSettings(20, selector=StreamLLM(2, 8), lossy=True)
    result = answer(encoder.encode(sample), encoder, settings)

    answers: list[str] = []
    generations = []
    for _ in result.turns:
        prompt = encoder.encode(sample, answers)
        generations.append(generate(encoder.loaded.model, prompt.token_ids, settings))
        answers.append(encoder.answer(generations[-1].token_ids))
    assert [turn.output_text for turn in result.turns] == answers
    assert [turn.n_reused_tokens for turn in result.turns] == [0, 0, 0]
    n_steps = [len(generation.accepted_lengths) for generation in generations]
    read = sum(n * generation.kv_bytes for n, generation in zip(n_steps, generations, strict=True))
    assert result.kv_bytes == pytest.approx(read / sum(n_steps))
    assert result.seen_cache_tokens == pytest.approx(read / sum(n_steps) / BYTES_PER_TOKEN)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kv_method": "quest2"}, 'kv_method: found "quest2", which names no selector; did you mean "quest"'),
        ({"kv_method": None}, "kv_method: found null"),
        ({"level": 5}, "level: unknown key"),
        ({"page_size": 16}, "page_size: unknown key"),
        ({"num_local": 0}, "num_local: found 0"),
        ({"exact": True}, "exact: found true; should be false: lossy decoding has no plain decoding"),
        ({"kv_method": "fastkv", "tsp_rat": 0.2}, 'tsp_rat: unknown key; did you mean "tsp_rate"'),
        ({"kv_method": "fastkv", "tsp_rate": 2.0}, "tsp_rate: found 2.0"),
        ({"kv_method": "fastkv", "tsp_layer": 2}, "tsp_layer: found 2, but the model has 2 layers"),
        ({"method": "fafo", "level": 3, "window": 3, "num_guesses": 2}, 'method: found "fafo"; here it is "lossy"'),
    ],
)
def test_bad_configs(case: Case, changes: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    case.to_lossy("stream-llm" if changes.get("kv_method") != "fastkv" else "fastkv")
    case.pipeline |= changes
    case.write()
    assert said in refused("lossy", case, capsys)


def refused(method: str, case: Case, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert main(method, case.argv(*more)) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert not case.output.exists()
    return line


def test_what_is_only_lossy_is_refused_elsewhere(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    del case.pipeline["num_init"], case.pipeline["num_local"]
    case.pipeline["kv_method"] = name = "pipeline.lossy.fastkv:TokenSelectivePropagation"
    case.write()
    assert f'kv_method: found "{name}", which works in lossy decoding only' in refused("fafo", case, capsys)


def test_there_is_nothing_to_audit(case: Case, baseline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "compute_speedup.py" in refused("lossy", case, capsys, "--baseline_dir", str(baseline))
    assert main("lossy", case.argv()) == 0
    capsys.readouterr()
    for pair in ((case.output, baseline), (baseline, case.output)):
        assert audit([str(folder) for folder in pair]) == 2
        assert "nothing to audit" in capsys.readouterr().err


BOUND = '''
"""A selector that wants to know the vocabulary."""

from dataclasses import replace

from pydantic.dataclasses import dataclass

from pipeline.fafo.selectors import Full

seen = set()


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class Knowing(Full):
    n_ids: int = 0

    def bind(self, tokenizer):
        return replace(self, n_ids=len(tokenizer))

    def choose(self, view, query, keys):
        seen.add(self.n_ids)
        return super().choose(view, query, keys)
'''


@pytest.mark.parametrize("method", ["fafo", "lossy"])
def test_selectors_get_to_know_the_tokenizer(
    case: Case, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "knowing.py").write_text(BOUND)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "knowing", raising=False)
    if method == "lossy":
        case.to_lossy("knowing:Knowing")
    else:
        del case.pipeline["num_init"], case.pipeline["num_local"]
        case.pipeline["kv_method"] = "knowing:Knowing"
        case.write()
    assert main(method, case.argv("--limit", "1")) == 0
    assert import_module("knowing").seen == {256}
    assert case.record()["pipeline_params"]["n_ids"] == 0  # as the config has it


@pytest.mark.parametrize("kv_method", KV_METHODS)
def test_the_shipped_methods(case: Case, baseline: Path, kv_method: str) -> None:
    own = ("model_name", "device", "n_new_tokens")
    for method in ("fafo", "lossy"):
        case.output = case.folder / method
        case.pipeline = pipeline_params("humaneval", MODEL, method, kv_method) | {k: case.pipeline[k] for k in own}
        case.pipeline |= {"planner": "fixed"} if method == "fafo" else {}
        case.pipeline |= {"target": 0.5} if kv_method == "fastgen" else {}  # random heads attend to everything a bit
        case.write()
        assert main(method, case.argv()) == 0
    assert outputs(case.folder / "fafo") == outputs(baseline)
    assert results(case.folder / "fafo")["window_cache_share"] < 1
    assert results(case.folder / "lossy")["seen_cache_share"] < 1
