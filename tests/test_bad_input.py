"""Whatever the user can put right ends with exit code 2, one line that says how, and no run folder."""

import http.server
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig

from pipeline.common import access, hardware
from pipeline.common.cli import main
from pipeline.common.logs import log_to_console
from pipeline.common.models import ignored_settings
from tests.runs import MAX_LENGTH, Case, command, run_command, save_tiny_model

pytest_plugins = ["tests.run_fixtures"]

TOKEN = "hf_secretsecretsecret"


def refuse(case: Case, capsys: pytest.CaptureFixture[str], *more: str, method: str = "fafo") -> str:
    """Run what must end with exit code 2, one line and no folder; return the line."""
    assert main(method, case.argv(*more)) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.out
    assert not case.output.parent.exists()
    return captured.err


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("pipeline_params.windw=3", "windw"),
        ("pipeline_params.window=-3", "window: found -3"),
        ("pipeline_params.kv_method=streaming", "kv_method"),
        ("eval_params.dataset=nothing", "unknown dataset"),
        ("eval_params.dataset_path=nowhere.jsonl", "nowhere.jsonl: no such file"),
        ("pipeline_params.model_name=models/nowhere", "models/nowhere"),
        ("pipeline_params.model_name=./nowhere", "nowhere"),
        ("pipeline_params.model_name=/nowhere", "no folder /nowhere"),
        ("pipeline_params.model_name=~nosuchuser/x", "~nosuchuser/x"),
        ("eval_params.dataset_path=~nosuchuser/x", "~nosuchuser/x"),
        (r'eval_params.dataset_path="a\u0000b"', "should be a path"),
        (r'pipeline_params.model_name="a\u0000b"', "should be a path"),
        ("pipeline_params.model_name=a b", "neither an existing folder nor a possible hub id"),
        ("pipeline_params.model_name=config", "has no config.json"),
        ("pipeline_params.model_name=no-such/model", "the hub can't be reached"),  # tests are offline
        ("nonsense", "--set nonsense"),
    ],
)
def test_bad_values(case: Case, capsys: pytest.CaptureFixture[str], override: str, said: str) -> None:
    assert said in refuse(case, capsys, "--set", override)


@pytest.mark.parametrize(("limit", "said"), [("0", "found 0"), ("x", 'found "x"'), ("1.5", "found 1.5")])
def test_bad_limit(case: Case, capsys: pytest.CaptureFixture[str], limit: str, said: str) -> None:
    line = refuse(case, capsys, "--limit", limit)
    assert f"--limit {limit}" in line
    assert said in line


@pytest.mark.parametrize("option", ["--pipeline_config_dir", "--eval_config_dir", "--output_folder_dir"])
@pytest.mark.parametrize("path", ["", "a\0b"])
def test_bad_paths(case: Case, capsys: pytest.CaptureFixture[str], option: str, path: str) -> None:
    assert f"{option}: found {path!r}" in refuse(case, capsys, option, path)


def test_bad_files(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    case.eval_file.write_text('{"eval_params": ')
    assert "line 1, column" in refuse(case, capsys)
    case.pipeline_file.unlink()
    assert "no such file" in refuse(case, capsys)


def test_the_other_methods_config(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    assert 'found "fafo"' in refuse(case, capsys, method="baseline")


def test_missing_default_model_says_how_to_make_it(
    case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("pipeline.common.paths.REPO_ROOT", tmp_path)
    line = refuse(case, capsys, "--set", "pipeline_params.model_name=models/SmolLM2-135M-Instruct")
    assert "python scripts/prepare_smollm2.py" in line


def test_no_cuda(case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device is here" in refuse(case, capsys, "--set", "pipeline_params.device=cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert "the last CUDA device here is cuda:1" in refuse(case, capsys, "--set", "pipeline_params.device=cuda:2")


def test_too_little_memory(case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "free_bytes", lambda device: 2**10)
    line = refuse(case, capsys)
    assert "too little memory" in line
    assert line.count("GiB") == 2


def spoil_config(model: Path, **changes: Any) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"model_type": "no-such-type"}, "no-such-type"),
        ({"num_hidden_layers": 3}, "the weights lack"),
        ({"intermediate_size": 64}, "can't be loaded"),
    ],
)
def test_unfit_models(
    tmp_path: Path, isolated: None, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    model = save_tiny_model(tmp_path / "unfit")
    spoil_config(model, **changes)
    assert said in refuse(Case(tmp_path, model), capsys)


@pytest.mark.parametrize("content", ["[]", "3", "null"])
def test_config_that_is_no_object(
    tmp_path: Path, isolated: None, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    model = save_tiny_model(tmp_path / "broken")
    (model / "config.json").write_text(content)
    said = refuse(Case(tmp_path, model), capsys)
    assert "pipeline_params.model_name" in said
    assert str(model) in said


def test_no_tokenizer(tmp_path: Path, isolated: None, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_tiny_model(tmp_path / "broken")
    (model / "tokenizer.json").unlink()
    assert "has no tokenizer (tokenizer.json" in refuse(Case(tmp_path, model), capsys)


@pytest.mark.parametrize("ids", ["2", 1.5, True, {"a": 1}, ["x"]])
def test_bad_eos(tmp_path: Path, isolated: None, capsys: pytest.CaptureFixture[str], ids: object) -> None:
    model = save_tiny_model(tmp_path / "broken")
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    assert f"eos_token_id: found {ids!r}" in refuse(Case(tmp_path, model), capsys)


@pytest.mark.parametrize("template", ["{% if %}", "{{ raise_exception('no users here') }}", "{{ 'a' + 1 }}"])
def test_bad_chat_template(tmp_path: Path, isolated: None, capsys: pytest.CaptureFixture[str], template: str) -> None:
    model = save_tiny_model(tmp_path / "broken", chat_template=template)
    line = refuse(Case(tmp_path, model), capsys)
    assert f"prompt Tiny/0: the chat template of {model} fails: " in line


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_broken_model_files(tmp_path: Path, isolated: None, capsys: pytest.CaptureFixture[str], name: str) -> None:
    model = save_tiny_model(tmp_path / "broken")
    (model / name).write_bytes(b'{"cut off')
    assert "model_name" in refuse(Case(tmp_path, model), capsys)


def test_prompt_longer_than_the_model_takes(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    rows = Path(case.eval["dataset_path"])
    rows.write_text(rows.read_text().replace("Return x + 1.", "x" * MAX_LENGTH))
    line = refuse(case, capsys)
    assert "prompt Tiny/1" in line
    assert str(MAX_LENGTH) in line


def test_prompt_outside_the_vocabulary(tmp_path: Path, isolated: None, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_tiny_model(tmp_path / "tokens-added")
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens(["x + 2"])
    tokenizer.save_pretrained(model)
    line = refuse(Case(tmp_path, model), capsys)
    assert "prompt Tiny/2: the prompt has token ids from" in line


def test_another_experiments_folder(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("fafo", case.argv()) == 0
    capsys.readouterr()
    assert main("fafo", case.argv("--set", "pipeline_params.window=4")) == 2
    assert "pipeline_params.window is 3 there and 4 here" in capsys.readouterr().err
    assert case.record()["pipeline_params"]["window"] == 3


class _Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the hub does for models that one may not see."""

    def do_HEAD(self) -> None:
        if "gated" in self.path:
            status, name, value = 403, "X-Error-Code", "GatedRepo"
        elif "expired" in self.path:
            status, name, value = 401, "X-Error-Message", "Invalid credentials in Authorization header"
        else:
            status, name, value = 404, "X-Error-Code", "RepoNotFound"
        self.send_response(status)
        self.send_header(name, value)
        self.end_headers()

    do_GET = do_HEAD  # noqa: N815 - the base class's name

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("some/gated-model", "HF_TOKEN"),
        ("some/unknown-model", "no model on the hub"),
        ("some/expired-token", "does not accept the token from the environment's HF_TOKEN"),
    ],
)
def test_hub_refusals(case: Case, tmp_path: Path, name: str, said: str) -> None:
    case.pipeline["model_name"] = name
    case.write()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hub = {
            "HF_HUB_OFFLINE": "0",
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "NO_PROXY": "*",
        }
        ended = run_command(command(*case.argv()), tmp_path, HF_TOKEN=TOKEN, HF_HOME=str(tmp_path / "hf"), **hub)
        server.shutdown()
    assert ended.returncode == 2, ended.stderr
    assert said in ended.stderr
    assert name in ended.stderr
    assert TOKEN not in ended.stdout + ended.stderr
    assert not case.output.exists()


@pytest.mark.parametrize("source", ["environment", "file"])
def test_token_never_shows(
    case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    if source == "file":
        access.TOKEN_FILE.write_text(f"hf_access_token = '{TOKEN}'\n")
    else:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert access.hub_token() == TOKEN
    assert TOKEN not in refuse(case, capsys, "--set", f"pipeline_params.model_name=./{TOKEN}")
    log_to_console()
    try:
        raise RuntimeError(f"no access with {TOKEN}")
    except RuntimeError:
        logging.getLogger("somewhere").exception("token is %s", TOKEN)
    out = capsys.readouterr().out
    assert "token is [token]" in out
    assert "no access with [token]" in out
    assert TOKEN not in out


def test_bad_token_file(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    access.TOKEN_FILE.write_text(f"hf_access_token = {TOKEN}\n")  # quotes forgotten
    line = refuse(case, capsys)
    assert "access_tokens" in line
    assert TOKEN not in line


def test_fault_of_the_program(case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("pipeline.common.experiment._warm_up", fail)
    assert main("fafo", case.argv()) == 1
    captured = capsys.readouterr()
    assert "ZeroDivisionError" in captured.out
    assert captured.err.startswith("error: ")


CPU_FULL = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate\n9 bytes")


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("no room"), CPU_FULL, OSError(28, "No space left")]
)
def test_the_machine_gives_out(
    case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("pipeline.common.experiment._warm_up", fail)
    assert ("No space left" if isinstance(error, OSError) else "out of memory") in refuse(case, capsys)


def test_memory_gives_out_while_loading(
    case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CPU_FULL

    monkeypatch.setattr("pipeline.common.models._load_weights", fail)
    assert "error: out of memory" in refuse(case, capsys)


def test_ignored_settings_are_named() -> None:
    config = GenerationConfig(
        repetition_penalty=1.1, no_repeat_ngram_size=3, do_sample=True, temperature=0.6, top_p=1.0
    )
    named = ["repetition_penalty=1.1", "no_repeat_ngram_size=3", "do_sample=True", "temperature=0.6"]
    assert ignored_settings(config) == named
    assert ignored_settings(GenerationConfig(do_sample=False, temperature=0.6)) == []
    assert ignored_settings(GenerationConfig()) == []
