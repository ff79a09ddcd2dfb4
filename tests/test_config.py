"""Configs: what is accepted, what is recorded of it, and one line for everything else."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.common.config import Experiment, load_experiment, parse_override
from pipeline.common.schemas import PlannedParams
from pipeline.errors import UserError
from pipeline.fafo.selectors import SELECTORS, Full, Quest, StreamLLM
from pipeline.fafo.settings import DecodeSettings
from tests.runs import ROOT, Case


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path, model="anything")


def load(case: Case, *overrides: str) -> Experiment:
    case.write()
    return load_experiment(case.pipeline_file, case.eval_file, [parse_override(text) for text in overrides])


def refusal(case: Case, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load(case, *overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("path", sorted((ROOT / "config" / "pipeline_config").rglob("*.json")), ids=str)
def test_shipped_configs_load(path: Path) -> None:
    method, dataset = path.relative_to(ROOT / "config" / "pipeline_config").parts[:2]
    eval_path = ROOT / "config" / "eval_config" / dataset / f"{dataset}.json"
    experiment = load_experiment(path, eval_path)
    assert (experiment.pipeline.method, experiment.eval.dataset) == (method, dataset)
    defaults: dict[str, object] = {"exact": False, "compile": False, "chat_template_kwargs": {}}
    if isinstance(experiment.pipeline, PlannedParams):
        defaults |= {"planner": "fixed"}
    if method == "fafo":
        defaults |= {"pool": "lru"}
    if method == "selfspec_layers":
        defaults |= {"skipped_layers": None, "skipped_layers_file": None}  # which stands for what is found
    if path.parent.name == "fastgen":
        defaults |= {"special_ids": [], "punctuation_ids": []}  # which stands for the tokenizer's
    assert experiment.pipeline_params() == defaults | json.loads(path.read_text())["pipeline_params"]
    assert experiment.decode_settings(()).lossy == (method == "lossy")
    params = experiment.eval.model_dump()
    assert params == params | json.loads(eval_path.read_text())["eval_params"]


def test_fafo_settings(case: Case) -> None:
    settings = load(case).decode_settings(eos_token_ids=(1, 2))
    assert settings == DecodeSettings(
        n_new_tokens=12,
        eos_token_ids=(1, 2),
        level=3,
        window=3,
        num_guesses=2,
        selector=StreamLLM(2, 8),
        seed=42,
    )


def test_baseline_is_plain_decoding(case: Case) -> None:
    case.to_baseline()
    assert load(case).decode_settings(()) == DecodeSettings(n_new_tokens=12, selector=Full())


def test_effective_params_have_defaults_and_selector_keys(case: Case) -> None:
    case.pipeline.update(kv_method="quest", page_size=4)
    del case.pipeline["num_init"], case.pipeline["num_local"]
    params = load(case).pipeline_params()
    assert (params["seed"], params["page_size"], params["top_k"]) == (42, 4, Quest().top_k)
    assert json.loads(json.dumps(params)) == params


def test_own_selector(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (ROOT / "pipeline" / "fafo" / "selectors" / "stream_llm.py").read_text()
    (tmp_path / "my_selector.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    case.pipeline["kv_method"] = "my_selector:StreamLLM"
    assert load(case).pipeline_params()["num_local"] == 8


def test_own_selector_that_does_not_import(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_selector.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    case.pipeline["kv_method"] = "broken_selector:Mine"
    assert "can't be imported: ZeroDivisionError: division by zero" in refusal(case)


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("pipeline_params.window=7", "pipeline", "window", 7),
        ("pipeline_params.pool_from_prompt=false", "pipeline", "pool_from_prompt", False),
        ("pipeline_params.model_name=some/model=1", "pipeline", "model_name", "some/model=1"),
        ("eval_params.max_prompts=null", "eval", "max_prompts", None),
        ("eval_params.max_prompts = 5", "eval", "max_prompts", 5),
        ("management.sub_dir.raw_results=raw.jsonl", "sub_dir", "raw_results", "raw.jsonl"),
    ],
)
def test_overrides(case: Case, override: str, section: str, key: str, value: Any) -> None:
    assert getattr(getattr(load(case, override), section), key) == value


@pytest.mark.parametrize(
    "text", ["window=7", "pipeline_params.window", "pipeline_params=3", "other.a=1", ".=", "a..b=1"]
)
def test_malformed_overrides(text: str) -> None:
    with pytest.raises(UserError, match="--set"):
        parse_override(text)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("windw", 3, 'windw: unknown key; did you mean "window"'),
        ("num_lokal", 3, 'num_lokal: unknown key; did you mean "num_local"'),
        ("page_size", 3, "page_size: unknown key"),
        ("window", -1, "window: found -1; should be greater than or equal to 0"),
        ("window", "7", 'window: found "7"; should be a valid integer'),
        ("window", 7.0, "window: found 7.0; should be a valid integer"),
        ("window", True, "window: found true"),
        ("window", None, "window: found null"),
        ("level", 1, "level: found 1"),
        ("level", 10**9, "level: found 1000000000; should be less than"),
        ("window", 10**9, "window: found 1000000000; should be less than"),
        ("num_guesses", 10**9, "num_guesses: found 1000000000; should be less than"),
        ("n_new_tokens", 10**12, "n_new_tokens: found 1000000000000; should be less than"),
        ("num_guesses", -2, "num_guesses: found -2"),
        ("n_new_tokens", 0, "n_new_tokens: found 0"),
        ("num_local", 0, "num_local: found 0"),
        ("num_init", "4", 'num_init: found "4"'),
        (
            "kv_method",
            "stream_llm",
            'kv_method: found "stream_llm", which names no selector; did you mean "stream-llm"',
        ),
        ("kv_method", "zzz", f"known: {', '.join(sorted(SELECTORS))}"),
        ("kv_method", None, "kv_method: found null"),
        ("kv_method", "nowhere:Class", "can't be imported"),
        ("kv_method", "json:Class", "can't be imported"),
        ("kv_method", ".foo:Bar", "can't be imported: TypeError"),
        ("kv_method", "json:JSONDecoder", "not a pydantic dataclass"),
        ("method", "medusa", 'method: found "medusa"; it should be "baseline", "fafo", '),
        ("method", ["fafo"], 'method: found ["fafo"]; it should be'),
        ("pool", "rank", 'pool: found "rank"; should be'),
        ("pool", 1, "pool: found 1"),
        ("planner", "automatic", 'planner: found "automatic"; should be'),
        ("compile", "yes", 'compile: found "yes"; should be a valid boolean'),
        ("step_times", [], "step_times: unknown key"),
        ("dtype", "float64", 'dtype: found "float64"'),
        ("device", "gpu", 'device: found "gpu"; should be "auto"'),
        ("device", "cuda:x", 'device: found "cuda:x"'),
        ("batch_size", 2, "batch_size: found 2; only 1 is supported"),
        ("seed", -1, "seed: found -1"),
        ("seed", 2**32, "seed: found 4294967296"),
        ("model_name", "", "model_name"),
    ],
)
def test_bad_pipeline_values(case: Case, key: str, value: Any, said: str) -> None:
    case.pipeline[key] = value
    message = refusal(case)
    assert said in message
    assert message.startswith(f"{case.pipeline_file}: pipeline_params.{key}")


def test_exact_and_compiled_at_once_is_refused(case: Case) -> None:
    case.pipeline |= {"exact": True, "compile": True}
    assert "pipeline_params: exact and compile exclude each other" in refusal(case)


@pytest.mark.parametrize("key", ["method", "model_name", "n_new_tokens", "kv_method", "level", "window", "num_guesses"])
def test_missing_keys(case: Case, key: str) -> None:
    del case.pipeline[key]
    assert f"pipeline_params.{key}" in refusal(case)


def test_baseline_takes_no_fafo_keys(case: Case) -> None:
    case.to_baseline()
    case.pipeline["window"] = 3
    assert "pipeline_params.window: unknown key" in refusal(case)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("dataset", "humanevil", 'dataset: found "humanevil"; unknown dataset; did you mean "humaneval"'),
        ("dataset", 3, "dataset: found 3"),
        ("max_prompts", 0, "max_prompts: found 0"),
        ("max_prompt", 2, 'unknown key; did you mean "max_prompts"'),
        ("dataset_path", "", "dataset_path"),
    ],
)
def test_bad_eval_values(case: Case, key: str, value: Any, said: str) -> None:
    case.eval[key] = value
    message = refusal(case)
    assert said in message
    assert str(case.eval_file) in message


@pytest.mark.parametrize(
    "override",
    [
        "management.sub_dir.raw_results=../elsewhere.jsonl",
        "management.sub_dir.raw_results=/tmp/raw.jsonl",
        "management.sub_dir.raw_results=output_config.json",
        "management.sub_dir.input_config=exp.log",
        'management.sub_dir.output_config=""',
        "management.sub_dir.output_config=.",
        "management.sub_dir.raw_results=folder/raw.jsonl",
        "management.sub_dir.raw_results=input_config",
        "management.sub_dir.raw_results=output_config.json.tmp",
        "management.sub_dir.raw_results=run.lock",
        r'management.sub_dir.raw_results="a\u0000b"',
        "management.sub_dir.raw_result=raw.jsonl",
        "management.sub_dir=3",
        "eval_params.dataset.name=humaneval",
        "pipeline_params.window=-2",
    ],
)
def test_an_error_names_the_override(case: Case, override: str) -> None:
    assert f"--set {override}" in refusal(case, override)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"pipeline_params": {\n  "window" 3}}', "line 2, column 12"),
        (b"", "line 1, column 1"),
        (b"[]", "JSON object"),
        (b'{"pipeline_params": {"window": 3, "window": 4}}', '"window" appears twice'),
        (b'{"pipeline_params": {"window": NaN}}', "NaN"),
        (b'{"pipeline_params": 3}', "pipeline_params: found 3"),
        (b"{}", "pipeline_params: found null"),
        (b'{"pipelin_params": {}}', 'did you mean "pipeline_params"'),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"[" * 100_000, "deep"),
    ],
)
def test_bad_files(case: Case, content: bytes, said: str) -> None:
    case.pipeline_file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_experiment(case.pipeline_file, case.eval_file)
    assert said in str(caught.value)
    assert str(case.pipeline_file) in str(caught.value)


def test_missing_file_and_folder(case: Case, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.json: no such file"):
        load_experiment(tmp_path / "nowhere.json", case.eval_file)
    with pytest.raises(UserError, match="folder"):
        load_experiment(case.pipeline_file, tmp_path)
