"""The compiled model: the same tokens; made once; and what happens where it can't be had."""

import logging
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch

from pipeline.fafo import compiled as module
from pipeline.fafo.compiled import compiled
from pipeline.fafo.decode import generate
from pipeline.fafo.selectors import Quest, StreamLLM
from pipeline.fafo.settings import DecodeSettings
from tests.tiny import greedy, tiny_model

PROMPT = [1, 2, 3, 1, 2, 3, 4]
pytestmark = pytest.mark.skipif("config.getoption('--device') != 'cpu'", reason="these are about CPUs")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ here")


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COMPILED", WeakKeyDictionary())


@needs_compiler
def test_tokens_are_the_same_and_it_is_compiled_once(
    forgetful: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model("llama-gqa-tied")
    expected = greedy(model, PROMPT, 60)
    every: list[dict[str, Any]] = [
        {},
        {"level": 4, "window": 5, "num_guesses": 4, "selector": StreamLLM(1, 6)},
        {"level": 3, "window": 4, "num_guesses": 9, "selector": Quest(2, 2, 3), "pool": "ranked"},
        {"level": 4, "num_guesses": 4, "pool": "ranked"},
    ]
    for settings in every:
        assert generate(model, PROMPT, DecodeSettings(60, compile=True, **settings)).token_ids == expected
    path = module.user_cache_path("fafo") / "compiled" / f"{module._fingerprint(model)}.pt2"

    def refuse(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(module, "_COMPILED", WeakKeyDictionary())
    monkeypatch.setattr(module, "_build", refuse)
    assert generate(model, PROMPT, DecodeSettings(60, compile=True)).token_ids == expected

    good = path.read_bytes()
    monkeypatch.setattr(module, "_COMPILED", WeakKeyDictionary())
    monkeypatch.setattr(module, "_build", lambda _, at: at.write_bytes(good))
    path.write_bytes(good[: len(good) // 2])
    with caplog.at_level(logging.WARNING):
        assert generate(model, PROMPT, DecodeSettings(60, compile=True)).token_ids == expected
    assert "can't be used" in caplog.text
    assert path.read_bytes() == good


def test_changed_weights_are_noticed(forgetful: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = deepcopy(tiny_model("llama-mha"))
    made = []
    monkeypatch.setattr(module, "_compile", lambda _: made.append(1))
    for _ in range(2):
        compiled(model)
    assert len(made) == 1
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(2)
    compiled(model)
    model.bfloat16()
    compiled(model)
    assert len(made) == 3


def test_what_can_not_be_compiled_runs_uncompiled(
    forgetful: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no\nlines")

    monkeypatch.setattr(module, "_build", fail)
    model = tiny_model("qwen2-gqa")
    with caplog.at_level(logging.WARNING):
        got = generate(model, PROMPT, DecodeSettings(20, compile=True))
    assert got.token_ids == greedy(model, PROMPT, 20)
    assert "runs uncompiled (RuntimeError: no)" in caplog.text


def test_steps_of_more_rows_than_a_graph_takes(forgetful: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_compile", lambda _: lambda *rows: pytest.fail("called"))
    monkeypatch.setattr("pipeline.fafo.forward.MOST_ROWS", 0)
    model = tiny_model("llama-mha")
    assert generate(model, PROMPT, DecodeSettings(20, compile=True)).token_ids == greedy(model, PROMPT, 20)


def test_another_models_weights_have_another_fingerprint() -> None:
    fingerprints = {module._fingerprint(tiny_model(name)) for name in ("llama-mha", "llama-gqa-tied", "qwen2-gqa")}
    assert len(fingerprints) == 3
    assert module._fingerprint(tiny_model("llama-mha")) in fingerprints


def test_without_a_compiler_it_says_so_and_runs_uncompiled(
    forgetful: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    model = tiny_model("llama-mha")
    with caplog.at_level(logging.WARNING):
        assert compiled(model) is None
        got = generate(model, PROMPT, DecodeSettings(20, compile=True))
    assert got.token_ids == greedy(model, PROMPT, 20)
    assert caplog.text.count("no C++ compiler") == 1
