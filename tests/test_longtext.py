"""Long texts: prompts of given lengths, out of whatever texts there are."""

import json
import re
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.longtext import DATASET
from eval.longtext.load import LongTextParams
from eval.sample import Sample
from pipeline.common.config import load_experiment
from pipeline.errors import UserError
from tests.runs import ROOT

TEXTS = [f"Text {i} tells of {i} cats, {i + 1} dogs. " + f"They met at no. {i}. " * (20 + i) for i in range(12)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def params(**keys: Any) -> LongTextParams:
    return LongTextParams.model_validate({"dataset": "longtext", "lengths": [64, 300], "n_per_length": 3} | keys)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("texts") / "texts.jsonl", [{"text": text} for text in TEXTS])


def prompts(path: Path, **keys: Any) -> dict[str, str]:
    return {sample.id: sample.messages[0]["content"] for sample in DATASET.load(path, params(**keys))}


def parts(prompt: str) -> tuple[str, str, str]:
    instruction, _, rest = prompt.partition("\n\n")
    body, _, question = rest.rpartition("\n\n")
    return instruction, body, question


def n_pieces(prompt: str) -> int:
    return len(re.findall(r"[a-zA-Z]+|[^a-zA-Z\s]", prompt))


def test_samples(path: Path) -> None:
    samples = DATASET.load(path, params())
    assert [sample.group for sample in samples] == ["64", "300"] * 3  # lengths take turns
    assert [sample.id for sample in samples[:3]] == ["longtext/64/0", "longtext/300/0", "longtext/64/1"]
    first = samples[0]
    [message] = first.messages
    assert first.text.startswith(message["content"]) and first.text.endswith(":")
    assert first == Sample(first.id, ({"role": "user", "content": message["content"]},), first.text, {}, group="64")
    assert DATASET.score(first, ["Cats met dogs."], params()) == {}


def test_prompts_differ_and_begin_with_whole_texts_of_their_own(path: Path) -> None:
    bodies = {key: parts(prompt)[1] for key, prompt in prompts(path, n_per_length=12).items()}
    for length in (64, 300):
        starts = [bodies[f"longtext/{length}/{i}"][:16] for i in range(12)]
        assert sorted(starts) == sorted(text[:16] for text in TEXTS)
    for i in range(12):  # the shorter prompt is the longer one's beginning
        assert bodies[f"longtext/300/{i}"].startswith(bodies[f"longtext/64/{i}"])


@given(st.integers(64, 1500))
def test_length(path: Path, length: int) -> None:
    for prompt in prompts(path, lengths=[length], n_per_length=2).values():
        instruction, body, question = parts(prompt)
        assert n_pieces(prompt) * 1.08 >= length
        without_last_word = f"{instruction}\n\n{body.rsplit(maxsplit=1)[0]}\n\n{question}"
        assert n_pieces(without_last_word) * 1.08 < length


@given(st.integers(64, 1500))
def test_body_is_consecutive_texts_cut_at_a_word(path: Path, length: int) -> None:
    for prompt in prompts(path, lengths=[length], n_per_length=2).values():
        body = parts(prompt)[1]
        start = next(i for i, text in enumerate(TEXTS) if text.startswith(body[:16]))
        whole = "\n\n".join(text.strip() for text in TEXTS[start:] + TEXTS[:start])
        assert whole.startswith(body)
        assert whole[len(body) : len(body) + 1] in ("", " ", "\n")


def test_a_prompt_is_the_same_in_every_grid(path: Path) -> None:
    whole = prompts(path, lengths=[64, 100, 300], n_per_length=5)
    part = prompts(path, lengths=[300, 64], n_per_length=2)
    assert part == {key: whole[key] for key in part}


@pytest.mark.parametrize("key", ["text", "article", "turns"])
def test_forms_of_rows(tmp_path: Path, path: Path, key: str) -> None:
    rows = [{key: [text, "And then?"] if key == "turns" else text, "id": "x"} for text in TEXTS]
    assert prompts(write(tmp_path / "rows.jsonl", rows)) == prompts(path)


@pytest.mark.parametrize(
    "row", [{}, {"text": " "}, {"article": None}, {"turns": []}, {"turns": [3]}, {"question": "?"}]
)
def test_rows_without_text(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"rows\.jsonl, line 2: "):
        DATASET.load(write(tmp_path / "rows.jsonl", [{"text": TEXTS[0]}, row]), params(n_per_length=1))


def test_too_few_texts(path: Path) -> None:
    with pytest.raises(UserError, match=r"eval_params\.n_per_length: found 13; should be at most 12"):
        prompts(path, n_per_length=13)


def test_too_little_text(path: Path) -> None:
    with pytest.raises(UserError, match=r"eval_params\.lengths: found 99999; should be at most (\d+)") as refused:
        prompts(path, lengths=[64, 99999])
    found = re.search(r"at most (\d+)", str(refused.value))
    assert found is not None
    most = int(found[1])
    bodies = [parts(prompt)[1] for prompt in prompts(path, lengths=[most]).values()]
    assert all(text.strip()[:-1] in body for body in bodies for text in TEXTS[1:-1])
    with pytest.raises(UserError, match=f"found {most + 1}"):
        prompts(path, lengths=[most + 1])


@pytest.mark.parametrize("keys", [{"lengths": []}, {"lengths": [300, 300]}, {"lengths": [63]}, {"n_per_length": 0}])
def test_bad_grids(keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(keys))):
        params(**keys)


def test_hub(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None, str]] = []

    def load_dataset(path: str, *, name: str | None, split: str, **arguments: Any) -> list[dict[str, str]]:
        asked.append((path, name, split))
        return [{"article": text, "highlights": "Cats.", "id": "x"} for text in TEXTS]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert DATASET.load(None, params()) == DATASET.load(path, params())
    assert asked == [("abisee/cnn_dailymail", "3.0.0", "test")]


def test_config_has_the_defaults(tmp_path: Path) -> None:
    pipeline = tmp_path / "pipeline.json"
    pipeline.write_text(json.dumps({"pipeline_params": {"method": "baseline", "model_name": "m", "n_new_tokens": 128}}))
    found = load_experiment(pipeline, ROOT / "config" / "eval_config" / "longtext" / "longtext.json").eval
    assert found == LongTextParams(dataset="longtext")
    assert max(LongTextParams(dataset="longtext").lengths) * 1.04 + 64 + 128 < 8192
