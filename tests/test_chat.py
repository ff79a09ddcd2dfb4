"""scripts/chat.py: whole characters however they are split over tokens, free tokens' colour, turns that go on."""

import importlib.util
import io
import sys
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.common.models import LoadedModel, load_model
from pipeline.common.schemas import BaselineParams
from pipeline.fafo.decode import generate
from pipeline.fafo.settings import DecodeSettings
from tests.runs import ROOT, save_tiny_model


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chat", ROOT / "scripts" / "chat.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["chat"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


chat = load_script()
STDIN = "Hello 漢".encode() + b"\xff\n\n/reset\nonce more\n/exit\nnot asked\n"  # not all of it UTF-8
TEXTS = ("plain", "naïve 👍🏽 done", "漢字かな交じり", "👩‍👩‍👧 🇩🇪", " a  b\n\n", "")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_tiny_model(tmp_path_factory.mktemp("model"))
    return load_model(BaselineParams(method="baseline", model_name=str(folder), n_new_tokens=8, dtype="float32"))


@pytest.mark.parametrize("text", TEXTS)
def test_characters_split_over_tokens_come_out_whole(loaded: LoadedModel, text: str) -> None:
    ids = loaded.tokenizer(text)["input_ids"]
    assert len(ids) == len(text.encode())
    stream = chat.CharacterStream(loaded.tokenizer)

    pieces = [stream.feed(token) for token in ids]

    assert [piece for piece in pieces if piece] == list(text)
    assert stream.feed(last=True) == ""


@given(ids=st.lists(st.integers(0, 255), max_size=40))
def test_pieces_make_up_the_decoded_text_whatever_the_bytes(loaded: LoadedModel, ids: list[int]) -> None:
    stream = chat.CharacterStream(loaded.tokenizer)
    pieces = [stream.feed(token) for token in ids] + [stream.feed(last=True)]
    assert "".join(pieces) == loaded.tokenizer.decode(ids)


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_all_but_the_last_token_of_a_step_are_coloured(loaded: LoadedModel, n: int) -> None:
    stream = chat.CharacterStream(loaded.tokenizer)
    ids = loaded.tokenizer("abc漢字")["input_ids"]

    text = chat.coloured(stream, ids[:n])

    free = "".join(text.plain[span.start : span.end] for span in text.spans)
    assert text.plain == "abc漢字"[: {1: 1, 2: 2, 5: 3, 9: 5}[n]]
    assert free == {1: "", 2: "a", 5: "abc", 9: "abc漢"}[n]  # a character has the colour of its last token


def test_turns_go_on_with_the_cache_and_say_what_a_fresh_start_would(loaded: LoadedModel) -> None:
    settings = DecodeSettings(20, level=3, window=3, num_guesses=3)
    conversation = chat.Chat(loaded, settings)
    for turn, text in enumerate(("Hi 漢", "and?", "so")):
        steps: list[int] = []
        conversation.ask(text, steps.extend)
        decoding = conversation.latest
        fresh = generate(loaded.model, decoding.text[: decoding.n_prompt], settings)
        assert steps == fresh.token_ids
        assert (conversation.n_reused > 0) == (turn > 0)
    assert [m["role"] for m in conversation.messages] == ["user", "assistant"] * 3


def test_an_interrupted_answer_stays_and_the_next_turn_is_right(loaded: LoadedModel) -> None:
    settings = DecodeSettings(20, level=3, window=3, num_guesses=3)
    conversation = chat.Chat(loaded, settings)

    def interrupt(tokens: list[int]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conversation.ask("Hi", interrupt)
    steps: list[int] = []
    conversation.ask("on", steps.extend)

    decoding = conversation.latest
    assert conversation.n_reused > 0
    assert steps == generate(loaded.model, decoding.text[: decoding.n_prompt], settings).token_ids


def run(monkeypatch: pytest.MonkeyPatch, stdin: bytes, *arguments: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    return chat.main(arguments)


def test_a_pipe_gets_plain_answers(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", str(loaded.tokenizer.name_or_path), "--n_new_tokens", "9", "--device", "cpu"]
    options += ["--kv_method", "quest", "--set", "page_size=4"]
    assert run(monkeypatch, STDIN, *options) == 0
    out = capsys.readouterr().out
    assert out.count("9 tokens, ") == 2
    assert "tau" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "models/none"], "no folder"),
        (["--set", "num_inti=4"], "num_init"),
        (["--kv_method", "quest", "--set", "num_init=4"], "num_init: unknown key"),
        (["--level", "two"], "level"),
        (["--pipeline_config", "none.json"], "none.json"),
    ],
)
def test_errors_are_one_line(
    options: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, b"Hello\n", *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
