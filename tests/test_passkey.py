"""Passkey retrieval: the grid of prompts, and the scores of answers."""

import json
import re
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from eval.passkey import DATASET
from eval.passkey.cell import Cell
from eval.passkey.load import PasskeyParams, background
from eval.sample import Sample
from pipeline.errors import UserError
from tests.runs import ROOT

FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
KEY = "4071926"


def params(**keys: Any) -> PasskeyParams:
    return PasskeyParams(dataset="passkey", **keys)


def samples(**keys: Any) -> list[Sample]:
    return DATASET.load(None, params(**keys))


def scores(answer: str, key: str = KEY) -> tuple[float, float]:
    found = DATASET.score(Sample("a", (), "", {"key": key}), [answer], params())
    assert list(found) == ["exact", "partial"]
    return found["exact"], found["partial"]


def n_words_and_marks(text: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", text))


def body(sample: Sample) -> str:
    """The middle one of the prompt's three lines."""
    instruction, text, question = sample.messages[0]["content"].split("\n")
    assert instruction.startswith("There is an important info hidden inside a lot of irrelevant text.")
    assert question == "What is the pass key?"
    return text


def test_config_has_the_defaults() -> None:
    config = json.loads((ROOT / "config/eval_config/passkey/passkey.json").read_text())
    assert PasskeyParams(**config["eval_params"]) == params()


def test_default_grid_in_order() -> None:
    cells = list(product([500, 1000, 2000, 4000], [0.0, 0.25, 0.5, 0.75, 1.0], [7, 64]))
    assert [(len(s.reference["key"]), s.group) for s in samples()] == [(c[2], Cell(*c).name) for c in cells]
    repeated = samples(lengths=[24], depths=[0.5], key_digits=[7], n_per_cell=3)
    assert [s.id for s in repeated] == [f"passkey/24/0.5/7/{i}" for i in range(3)]
    assert len({s.reference["key"] for s in repeated}) == 3


def test_whole_prompt() -> None:
    (sample,) = samples(lengths=[24], depths=[0.5], key_digits=[7])
    key = sample.reference["key"]
    # 0.5 of five sentences: at the boundary behind the second
    assert body(sample) == (
        f"The grass is green. The sky is blue. The pass key is {key}. Remember it. {key} is the pass key. "
        "The sun is yellow. Here we go. There and back again."
    )
    assert re.fullmatch("[0-9]{7}", key)
    assert sample.messages == ({"role": "user", "content": sample.messages[0]["content"]},)
    assert sample.text == sample.messages[0]["content"] + " The pass key is"


def test_keys_of_a_seed_are_for_ever() -> None:
    """Runs of other machines and versions are compared prompt by prompt."""
    (sample,) = samples(lengths=[500], depths=[0.25], key_digits=[7], seed=1)
    assert sample.reference["key"] == "0597773"


@given(st.integers(24, 3000), st.floats(0, 1))
def test_length_and_depth(length: int, depth: float) -> None:
    (sample,) = samples(lengths=[length], depths=[depth], key_digits=[7])
    key = sample.reference["key"]
    before, after = body(sample).split(f"The pass key is {key}. Remember it. {key} is the pass key.")
    filler = f"{before.strip()} {after.strip()}".strip()
    assert filler == " ".join(background(length))
    assert (" ".join([FILLER] * (length // 24 + 1))).startswith(filler)
    assert length - 5 < n_words_and_marks(filler) <= length
    assert before == "" or before.endswith(". ")
    assert abs(n_words_and_marks(before) - depth * n_words_and_marks(filler)) < 3.3
    assert (before == "") >= (depth == 0)
    assert (after == "") >= (depth == 1)


def test_a_cell_does_not_depend_on_the_grid() -> None:
    large = {s.id: s for s in samples(lengths=[24, 100], depths=[0, 0.3, 1], key_digits=[1, 7], n_per_cell=2)}
    assert len(large) == 24
    for sample in samples(lengths=[100], depths=[1.0, 0.3], key_digits=[7]):
        assert sample == large[sample.id]
    assert len({s.reference["key"] for s in large.values() if len(s.reference["key"]) == 7}) == 12
    assert samples(seed=1) == samples(seed=1)
    assert samples(seed=1) != samples()


@given(st.builds(Cell, st.integers(24, 10**7), st.floats(0, 1), st.integers(1, 10**4)))
def test_cell_names_are_read_back(cell: Cell) -> None:
    assert Cell.from_name(cell.name) == cell
    assert Cell(1000, 0.25, 7).name == "length 1000, depth 0.25, 7 digits"


@pytest.mark.parametrize("name", ["", "length 1000", "length 24, depth 0.5, 7 digits ", "length x, depth 0, 7 digits"])
def test_other_names(name: str) -> None:
    with pytest.raises(UserError, match=re.escape(repr(name))):
        Cell.from_name(name)


@pytest.mark.parametrize("digits", [1, 7, 64])
def test_room_for_the_key(digits: int) -> None:
    (sample,) = samples(lengths=[24], depths=[0], key_digits=[digits])
    sentence = f"The pass key is {sample.reference['key']}. Remember it. {sample.reference['key']} is the pass key."
    pieces = re.findall(r"\d|[^\W\d]+|[^\w\s]", sentence)
    assert sample.n_new_tokens is not None and len(pieces) <= sample.n_new_tokens


def test_there_is_no_file_to_read() -> None:
    with pytest.raises(UserError, match=r"eval_params\.dataset_path: found .*rows\.jsonl"):
        DATASET.load(ROOT / "rows.jsonl", params())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lengths", []),
        ("lengths", [23]),
        ("lengths", [500, 500]),
        ("lengths", [500.0]),
        ("depths", []),
        ("depths", [1.01]),
        ("depths", [-0.1]),
        ("depths", [float("nan")]),
        ("depths", [0, 0.0]),
        ("key_digits", []),
        ("key_digits", [0]),
        ("key_digits", [7, 7]),
        ("n_per_cell", 0),
        ("seed", -1),
        ("long_prompts", "cut_middle"),
    ],
)
def test_bad_params(key: str, value: Any) -> None:
    with pytest.raises(ValidationError) as error:
        params(**{key: value})
    assert error.value.errors()[0]["loc"][0] == key


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (" 4071926.", (1, 1)),
        ("The pass key is 4071926. Remember it. 4071926 is", (1, 1)),
        ("**4071926**", (1, 1)),
        ("pass key:4071926x", (1, 1)),
        ("4,071,926", (1, 1)),
        ("407 1926", (1, 1)),
        ("407-1926", (1, 1)),
        ("4 0 7 1 9 2 6", (1, 1)),
        ("4071926 4071926", (1, 1)),  # joined, these are no longer the key
        ("1 or 4071926?", (1, 1)),
        ("4071926.5", (1, 1)),
        ("40719264071926", (0, 1)),
        ("4071926" * 50, (0, 1)),
        ("94071926", (0, 1)),
        ("407, 1926", (0, 4 / 7)),  # two numbers
        ("407\n1926", (0, 4 / 7)),
        ("407192", (0, 6 / 7)),
        ("071926", (0, 6 / 7)),
        ("4071x926", (0, 4 / 7)),
        ("4071999", (0, 5 / 7)),
        ("The key is 26.", (0, 2 / 7)),
        ("6291704", (0, 1 / 7)),
        ("3858", (0, 0)),
        ("", (0, 0)),
        ("I don't know.", (0, 0)),
        ("٤٠٧١٩٢٦", (0, 0)),
    ],
)
def test_scores(answer: str, expected: tuple[float, float]) -> None:
    assert scores(answer) == pytest.approx(expected)


@given(st.text("0123456789", min_size=1, max_size=20), st.text("0123456789 ,-.ab\n", max_size=60))
def test_scores_against_their_definition(key: str, answer: str) -> None:
    exact, partial = scores(answer, key)
    joined = re.sub(r"(\d)[ ,-](?=\d)", r"\1", answer)
    parts = {key[i:j] for i in range(len(key)) for j in range(i, len(key) + 1)}
    assert partial == max(len(part) for part in parts if part in joined) / len(key)
    assert exact == any(key in re.split(r"\D", text) for text in (answer, joined))
    assert exact <= (partial == 1)
    assert scores(f"The key: {key}.", key) == (1, 1)
