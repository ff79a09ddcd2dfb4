"""Runs of the methods with which FAFO is compared: what they answer, record and refuse."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from eval import EvalParams, Sample
from pipeline.common.answering import answer
from pipeline.common.cli import main
from pipeline.common.config import Experiment, load_experiment
from pipeline.common.encoding import Encoder
from pipeline.common.models import load_model
from pipeline.common.records import OutputConfig, summarize
from pipeline.common.schemas import METHODS, BaselineParams
from pipeline.fafo.attention import fafo_attention_on
from pipeline.fafo.decode import Decoding, generate
from pipeline.fafo.settings import DecodeSettings
from tests.audited import edit_record, outputs
from tests.drafting import OPPONENTS, WAYS
from tests.reference import Lookahead, Role
from tests.runs import ROOT, Case
from tests.test_results import result
from tests.tiny import tiny_model

pytest_plugins = ["tests.run_fixtures"]

each_opponent = pytest.mark.parametrize("method", OPPONENTS)


def become(case: Case, method: str, **changes: Any) -> None:
    """changes: of the config; a key with None is left out."""
    case.to_baseline()
    params = case.pipeline | {"method": method, **OPPONENTS[method]} | changes
    case.pipeline = {key: value for key, value in params.items() if value is not None}
    case.write()


@pytest.fixture
def baseline(case: Case) -> Path:
    """The folder of a finished baseline."""
    case.to_baseline()
    folder = case.output = case.folder / "baseline"
    assert main("baseline", case.argv()) == 0
    case.output = case.folder / "opponent"
    return folder


@each_opponent
def test_run_and_run_again(case: Case, baseline: Path, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    become(case, method)
    argv = case.argv("--baseline_dir", str(baseline))
    assert main(method, argv) == 0
    audit = json.loads((case.output / "audit.json").read_text())
    assert (audit["n_identical"], audit["n_near_ties"], audit["n_faults"]) == (3, 0, 0)
    assert outputs(case.output) == outputs(baseline)

    record = OutputConfig.model_validate_json((case.output / "output_config.json").read_bytes())
    summary = record.eval_results
    assert record.pipeline_params.items() >= case.pipeline.items()
    assert summary is not None
    lines = case.lines()
    for line in lines:
        assert len(line["verified_rows"]) == len(line["window_rows"]) == len(line["draft_passes"]) == line["n_steps"]
        assert line["extra_bytes"] > 0
    of_steps = [[n for line in lines for n in line[key]] for key in ("verified_rows", "window_rows", "draft_passes")]
    assert summary.rows_per_step == pytest.approx(sum(map(sum, of_steps[:2])) / summary.n_steps)
    assert summary.draft_passes_per_step == pytest.approx(sum(of_steps[2]) / summary.n_steps)
    assert summary.extra_bytes == max(line["extra_bytes"] for line in lines)
    drafts_with_the_model = method.startswith("selfspec")
    assert (sum(of_steps[2]) > 0) == drafts_with_the_model
    assert (summary.draft_cache_share is not None) == drafts_with_the_model
    assert (sum(of_steps[1]) > 0) == (method == "lookahead")
    drafter = record.management.drafter or {}
    assert bool(drafter) == (method != "lookahead")
    assert drafter.keys() <= record.pipeline_params.keys()
    if method == "selfspec_layers":  # what was found is recorded beside what was asked for
        assert drafter.pop("skipped_layers") is not None
    assert record.pipeline_params.items() >= drafter.items()
    assert "compressed" not in capsys.readouterr().out

    before = (case.output / "output_config.json").read_bytes()
    assert main(method, argv) == 0
    assert "complete already" in capsys.readouterr().out
    assert (case.output / "output_config.json").read_bytes() == before
    assert case.lines() == lines


@each_opponent
def test_a_run_resumes(case: Case, baseline: Path, method: str) -> None:
    become(case, method)
    assert main(method, case.argv()) == 0
    whole, path = case.lines(), case.output / "raw_results.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[1] + '{"id": "Tiny/2", "outp')
    edit_record(case.output, lambda record: record.update(eval_results=None))
    assert main(method, case.argv("--baseline_dir", str(baseline))) == 0
    timed = ("prefill_seconds", "decode_seconds")
    assert [without(line, timed) for line in sorted(case.lines(), key=lambda line: line["id"])] == [
        without(line, timed) for line in whole
    ]
    assert len(case.record()["management"]["sessions"]) == 2


def without(line: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in keys}


@each_opponent
def test_half_precision_in_the_exact_mode(case: Case, method: str) -> None:
    half: dict[str, Any] = {"dtype": "bfloat16", "exact": True}
    case.to_baseline()
    case.pipeline |= half
    case.write()
    baseline = case.output
    assert main("baseline", case.argv("--limit", "1")) == 0
    become(case, method, **half)
    case.output = case.folder / "opponent"
    assert main(method, case.argv("--limit", "1", "--baseline_dir", str(baseline))) == 0
    assert outputs(case.output) == outputs(baseline)


def test_all_of_them_interleaved(case: Case, baseline: Path) -> None:
    more = []
    folders = {method: case.folder / "turns" / method for method in OPPONENTS}
    for method, folder in folders.items():
        become(case, method)
        file = case.folder / f"{method}.json"
        file.write_text(case.pipeline_file.read_text())
        more += ["--interleave", f"{file}={folder}"]
    case.to_baseline()
    case.output = case.folder / "turns" / "baseline"
    more += ["--set", "pipeline_params.gamma=2", "--set", "pipeline_params.num_local=9"]
    assert main("baseline", case.argv(*more)) == 0
    for folder in (case.output, *folders.values()):
        assert outputs(folder) == outputs(baseline)
    recorded = {
        method: json.loads((folder / "output_config.json").read_text())["pipeline_params"]
        for method, folder in folders.items()
    }
    assert {method for method, params in recorded.items() if params.get("gamma") == 2} == {
        "selfspec_kv", "selfspec_layers"
    }  # fmt: skip
    assert {method for method, params in recorded.items() if params.get("num_local") == 9} == {"selfspec_kv"}


def refused(method: str, case: Case, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert main(method, case.argv(*more)) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert not case.output.exists()
    return line


@each_opponent
def test_another_methods_program_is_refused(case: Case, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    become(case, method)
    for other in ("fafo", next(name for name in OPPONENTS if name != method)):
        said = f'method: found "{method}"; here it is "{other}"; run pipeline/{method}/main.py'
        assert said in refused(other, case, capsys)
    assert (ROOT / "pipeline" / method / "main.py").is_file()


@pytest.mark.parametrize("method", METHODS)
def test_each_method_has_a_program(method: str) -> None:
    program = [sys.executable, str(ROOT / "pipeline" / method / "main.py"), "--help"]
    shown = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60, cwd="/").stdout
    assert f"usage: pipeline/{method}/main.py" in shown


@pytest.mark.parametrize(
    ("method", "changes", "said"),
    [
        ("prompt_lookup", {"gamma": 4}, "gamma: unknown key"),
        ("prompt_lookup", {"window": 5}, "window: unknown key"),
        ("prompt_lookup", {"kv_method": "stream-llm"}, "kv_method: unknown key"),
        ("prompt_lookup", {"prompt_lookup_num_token": 3},
         'prompt_lookup_num_token: unknown key; did you mean "prompt_lookup_num_tokens"'),
        ("prompt_lookup", {"prompt_lookup_num_tokens": 0}, "prompt_lookup_num_tokens: found 0"),
        ("prompt_lookup", {"max_matching_ngram_size": 2.0}, "max_matching_ngram_size: found 2.0"),
        ("prompt_lookup", {"planner": "best"}, 'planner: found "best"'),
        ("prompt_lookup", {"exact": True, "prompt_lookup_num_tokens": 32},
         "exact: found guesses of 32 tokens, but with exact they have at most 31"),
        ("lookahead", {"kv_method": "full"}, "kv_method: unknown key"),
        ("lookahead", {"pool": "lru"}, "pool: unknown key"),
        ("lookahead", {"levl": 3}, 'levl: unknown key; did you mean "level"'),
        ("lookahead", {"exact": True, "level": 33}, "level: found 33, but with exact it is at most 32"),
        ("lookahead", {"window": None}, "window: missing; this key is required"),
        ("token_recycling", {"n_tree_rows": 0}, "n_tree_rows: found 0"),
        ("token_recycling", {"n_sucessors": 4}, 'n_sucessors: unknown key; did you mean "n_successors"'),
        ("token_recycling", {"num_guesses": 4}, "num_guesses: unknown key"),
        ("selfspec_kv", {"kv_method": None}, "kv_method: found null"),
        ("selfspec_kv", {"kv_method": "quest2"}, 'kv_method: found "quest2"'),
        ("selfspec_kv", {"kv_method": "pipeline.lossy.fastkv:TokenSelectivePropagation"}, "works in lossy decoding"),
        ("selfspec_kv", {"batch_size": 2}, "batch_size: found 2; only 1 is supported"),
        ("selfspec_kv", {"planner": "auto"}, "planner: unknown key"),
        ("selfspec_kv", {"gamma": "4"}, 'gamma: found "4"'),
        ("selfspec_kv", {"gama": 4}, 'gama: unknown key; did you mean "gamma"'),
        ("selfspec_kv", {"num_locl": 4}, 'num_locl: unknown key; did you mean "num_local"'),
        ("selfspec_kv", {"page_size": 16}, "page_size: unknown key"),
        ("selfspec_kv", {"exact": True, "gamma": 32}, "exact: found guesses of 32 tokens"),
        ("selfspec_layers", {"kv_method": "stream-llm"}, "kv_method: unknown key"),
        ("selfspec_layers", {"planner": "auto"}, "planner: unknown key"),
        ("selfspec_layers", {"gamma": 0}, "gamma: found 0"),
        ("selfspec_layers", {"exact": True, "gamma": 32}, "exact: found guesses of 32 tokens"),
    ],
)  # fmt: skip
def test_bad_configs(
    case: Case, method: str, changes: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    become(case, method, **changes)
    assert said in refused(method, case, capsys)


@pytest.mark.parametrize(("changes", "is_said"), [({"num_local": 500}, True), ({}, False)], ids=["all", "some"])
def test_says_when_nothing_was_compressed(
    case: Case, changes: dict[str, Any], is_said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    become(case, "selfspec_kv", **changes)
    assert main("selfspec_kv", case.argv()) == 0
    said = "nothing was compressed: stream-llm kept all of every context, so drafting passes saw all of it"
    assert (said in capsys.readouterr().out) == is_said
    assert (case.record()["eval_results"]["draft_cache_share"] == 1) == is_said


def test_the_whole_cache_is_no_compression_to_warn_of(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    become(case, "selfspec_kv", kv_method="full", num_init=None, num_local=None)
    assert main("selfspec_kv", case.argv("--limit", "1")) == 0
    assert "compressed" not in capsys.readouterr().out
    assert case.record()["eval_results"]["draft_cache_share"] == 1
    assert case.lines()[0]["accepted_lengths"] == [4] * 3


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_each_turn_of_a_conversation_is_what_a_fresh_start_gives(model: Path, way: dict[str, Any]) -> None:
    params = BaselineParams(method="baseline", model_name=str(model), n_new_tokens=20, dtype="float32")
    encoder = Encoder(load_model(params), EvalParams(dataset="mtbench"), 20)
    sample = Sample("81", ({"role": "user", "content": "Why is it so?"},), "", {}, ("And why?", "Then sum it up."))
    got = answer(encoder.encode(sample), encoder, DecodeSettings(20, **way))
    answers: list[str] = []
    for turn in got.turns:
        prompt = encoder.encode(sample, answers)
        fresh = generate(encoder.loaded.model, prompt.token_ids, DecodeSettings(20))
        answers.append(encoder.answer(fresh.token_ids))
        assert turn.output_text == answers[-1]
    assert len(got.turns) == 3
    assert got.verified_rows is not None and len(got.verified_rows) == got.n_steps
    passes = got.draft_passes or []
    assert len(passes) == got.n_steps
    assert (got.draft_cache_share is not None) == (sum(passes) > 0)


def test_summary_of_what_steps_ran() -> None:
    def line(name: str, lengths: tuple[int, ...], share: float | None, extra_bytes: int, **rows: list[int]) -> Any:
        return result(name, lengths, draft_cache_share=share, extra_bytes=extra_bytes, **rows)

    lines = [
        line("a", (1, 1, 1), 0.5, 700, verified_rows=[4, 4, 1], window_rows=[0, 0, 0], draft_passes=[3, 3, 0]),
        line("b", (2,), 1.0, 900, verified_rows=[5], window_rows=[6], draft_passes=[2]),
        line("c", (1, 1), None, 100, verified_rows=[1, 1], window_rows=[0, 0], draft_passes=[0, 0]),
    ]
    summary = summarize(lines)
    assert summary.rows_per_step == pytest.approx((9 + 11 + 2) / 6)
    assert summary.draft_passes_per_step == pytest.approx(8 / 6)
    assert summary.draft_cache_share == pytest.approx((6 * 0.5 + 2 * 1.0) / 8)
    assert summary.extra_bytes == 900

    with_an_older_one = summarize([*lines, result("d")])
    assert (with_an_older_one.rows_per_step, with_an_older_one.draft_passes_per_step) == (None, None)
    of_older_ones = summarize([result("d")])
    assert (of_older_ones.draft_cache_share, of_older_ones.extra_bytes) == (None, None)


@pytest.mark.parametrize("key", ["verified_rows", "window_rows", "draft_passes"])
def test_a_line_whose_steps_disagree_is_corrupt(key: str) -> None:
    assert result("a", (1, 3), **{key: [1, 2]}).n_steps == 2
    with pytest.raises(ValueError, match="n_steps and the rows of each step disagree"):
        result("a", (1, 3), **{key: [1, 2, 3]})


# Lookahead decoding: FAFO's own loop, whose window sees the whole cache.


def loaded(case: Case, **params: Any) -> Experiment:
    case.to_baseline()
    case.pipeline |= params
    case.write()
    return load_experiment(case.pipeline_file, case.eval_file)


def test_lookahead_is_fafo_that_sees_everything(tmp_path: Path) -> None:
    case = Case(tmp_path, model="m")
    keys: dict[str, Any] = {"level": 4, "window": 5, "num_guesses": 3, "pool_from_output": False, "seed": 7}
    for planner in ("fixed", "auto"):
        keys["planner"] = planner
        ours = loaded(case, method="lookahead", **keys).decode_settings((3,))
        assert ours == loaded(case, method="fafo", kv_method="full", pool="lru", **keys).decode_settings((3,))
        assert (ours.level, ours.window, ours.num_guesses, ours.seed, ours.planner) == (4, 5, 3, 7, planner)


class Counting(Lookahead):
    """Lookahead decoding by the definitions, which notes the rows of each step."""

    def predict(self, roles: list[Role]) -> dict[Role, int]:
        self.n_window_rows = sum(role[0] == "window" for role in roles)
        self.n_verified_rows = len(roles) - self.n_window_rows
        return super().predict(roles)


@hypothesis_settings(max_examples=10)
@given(
    level=st.integers(2, 5),
    window=st.integers(1, 6),
    num_guesses=st.integers(0, 5),
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=20),
)
def test_lookahead_step_by_step(level: int, window: int, num_guesses: int, prompt: list[int]) -> None:
    model = tiny_model("llama-gqa-tied")
    reference = Counting(model, prompt, level, window, num_guesses, seed=3)
    with torch.inference_mode():
        settings = DecodeSettings(20, level=level, window=window, num_guesses=num_guesses, seed=3)
        decoding = Decoding(model, prompt, settings)
        with fafo_attention_on(model):
            decoding.prefill()
        while decoding.stop_reason is None:
            n_left = decoding.limit - len(decoding.text)
            with fafo_attention_on(model):
                decoding.step()
            assert reference.step(n_left) == decoding.accepted_lengths[-1]
            assert reference.text == decoding.text
            assert reference.n_verified_rows == decoding.verified_rows[-1]
            assert reference.n_window_rows == decoding.window_rows[-1]
    assert set(decoding.draft_passes) == {0}


def test_a_lookahead_run_is_a_fafo_run_that_sees_everything(case: Case) -> None:
    become(case, "lookahead")
    assert main("lookahead", case.argv()) == 0
    ours, params = case.lines(), case.pipeline
    case.pipeline = params | {"method": "fafo", "kv_method": "full"}
    case.write()
    case.output = case.folder / "fafo"
    assert main("fafo", case.argv()) == 0
    timed = ("prefill_seconds", "decode_seconds")
    assert [without(line, timed) for line in ours] == [without(line, timed) for line in case.lines()]
    assert case.record()["eval_results"]["window_cache_share"] == 1
