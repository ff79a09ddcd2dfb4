"""Prompts for the benchmarks: HumanEval and files of one's own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from eval import Sample
from pipeline.common import prompts
from pipeline.common.prompts import Prompt, benchmark_prompts
from pipeline.errors import UserError


@pytest.fixture(autouse=True)
def encode_by_length(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(samples: Sequence[Sample], loaded: Any) -> list[Prompt]:
        return [Prompt(sample, [len(sample.text)]) for sample in samples]

    monkeypatch.setattr(prompts, "encode_prompts", encode)


def given(path: Path, text: str) -> list[str]:
    path.write_text(text)
    return [f"mine={path}"]


def test_datasets_take_turns_and_each_kind_of_row_is_read(tmp_path: Path) -> None:
    files = given(
        tmp_path / "a.jsonl", '{"question": "abc"}\n{"prompt": "ab"}\n{"turns": ["a", "bcd"]}\n{"prompt": "-"}\n'
    )
    got = benchmark_prompts(files, 3, None)  # type: ignore[arg-type]
    assert [dataset for dataset, _, _ in got] == ["humaneval", "mine"] * 3
    assert [(i, ids) for dataset, i, ids in got if dataset == "mine"] == [("0", [3]), ("1", [2]), ("2", [1])]


@pytest.mark.parametrize("text", ["", "{", "[1]", '"text"', "{}", '{"turns": []}', '{"turns": 1}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="should be NAME=FILE"):
        benchmark_prompts(given(tmp_path / "a.jsonl", text), 3, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("argument", ["mine=/no/such/file", "/no/such/file", "mine="])
def test_a_missing_file_is_named(argument: str) -> None:
    with pytest.raises(UserError, match="should be NAME=FILE"):
        benchmark_prompts([argument], 3, None)  # type: ignore[arg-type]
