"""GSM8K: its rows, the worked problems before the question, and reading an answer's final number."""

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from eval.gsm8k import DATASET
from eval.gsm8k.exemplars import EXEMPLARS, Exemplar
from eval.gsm8k.load import Gsm8kParams
from eval.gsm8k.number import read_number, write_number
from eval.gsm8k.score import final_number
from eval.sample import Sample
from pipeline.errors import UserError
from tests.runs import ROOT

ROWS = [
    {"question": "How many legs have 9 cats?", "answer": "A cat has 4.\n9*4=<<9*4=36>>36\n#### 36"},
    {"question": "What is left of\n$2,000?", "answer": "#### 1 is no final number, but\n#### -1,250.50"},
]
LAST_OF_8 = "A school buys 5 boxes of 24 pencils"


def params(n_shot: Literal[0, 8] = 0) -> Gsm8kParams:
    return Gsm8kParams(dataset="gsm8k", n_shot=n_shot)


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def score(answer: str, reference: str = "18") -> float:
    sample = Sample("gsm8k/0", (), "", {"answer": reference})
    scores = DATASET.score(sample, [answer], params())
    assert list(scores) == ["exact_match"]
    return scores["exact_match"]


def test_config_has_the_defaults() -> None:
    config = json.loads((ROOT / "config/eval_config/gsm8k/gsm8k.json").read_text())
    assert Gsm8kParams(**config["eval_params"]) == params()


def test_file_and_hub_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(path: str, name: str, split: str, **others: Any) -> list[dict[str, str]]:
        asked.append((path, name, split))
        return ROWS

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    samples = DATASET.load(write(tmp_path / "rows.jsonl", *ROWS), params())
    assert DATASET.load(None, params()) == samples
    assert asked == [("openai/gsm8k", "main", "test")]
    assert [sample.id for sample in samples] == ["gsm8k/0", "gsm8k/1"]
    assert [sample.reference for sample in samples] == [{"answer": "36"}, {"answer": "-1250.5"}]


def test_no_shot(tmp_path: Path) -> None:
    sample = DATASET.load(write(tmp_path / "rows.jsonl", *ROWS), params())[1]
    (message,) = sample.messages
    assert message["role"] == "user"
    assert message["content"].startswith(ROWS[1]["question"] + "\n\n")
    assert "step by step" in message["content"] and '"The answer is N."' in message["content"]
    assert sample.text == f"Question: {ROWS[1]['question']}\nAnswer: Let's think step by step."


def test_eight_shots(tmp_path: Path) -> None:
    sample = DATASET.load(write(tmp_path / "rows.jsonl", *ROWS), params(8))[0]
    assert [message["role"] for message in sample.messages] == ["user", "assistant"] * 8 + ["user"]
    assert sample.messages[-1]["content"] == ROWS[0]["question"]
    assert sample.messages[14]["content"].startswith(LAST_OF_8)
    blocks = sample.text.split("\n\n")
    for i, block in enumerate(blocks[:8]):
        question, answer = (message["content"] for message in sample.messages[2 * i : 2 * i + 2])
        assert block == f"Question: {question}\nAnswer: {answer}"
    assert blocks[8:] == [f"Question: {ROWS[0]['question']}\nAnswer:"]


@pytest.mark.parametrize("n_shot", [1, 7, -8, "8", None])
def test_other_shots(n_shot: Any) -> None:
    with pytest.raises(ValidationError, match="n_shot"):
        params(n_shot)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "Why?", "answer": "Because 18"}, "line 2: answer: .*####"),
        ({"question": "Why?", "answer": "18 ####"}, "line 2: answer: .*####"),
        ({"question": "Why?", "answer": "18 #### many"}, "line 2: answer: .*####"),
        ({"question": "Why?", "answer": "#### 18 or 19"}, "line 2: answer: .*####"),
        ({"question": "Why?", "answer": "#### 12:30"}, "line 2: answer: .*####"),
        ({"question": "", "answer": "#### 18"}, "line 2: question"),
        ({"question": "Why?"}, "line 2: answer"),
        ({"question": "Why?", "answer": 18}, "line 2: answer"),
    ],
)
def test_bad_rows(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        DATASET.load(write(tmp_path / "rows.jsonl", ROWS[0], row), params())


BY_HAND = [
    48 + 36 - 71,
    (240 - 90) // 15,
    2 * 12 + 3 * (12 // 2),
    6 * 9 * 2 // 3,
    500 - (16 - 12) * 35,
    4 * 25 * 14 // 5,
    2 * 9 + 3 + 5,
    5 * 24 // 8 - 4,
]


@pytest.mark.parametrize(("exemplar", "number"), list(zip(EXEMPLARS, BY_HAND, strict=True)))
def test_exemplars(exemplar: Exemplar, number: int) -> None:
    *steps, last = exemplar.solution.split("\n")
    assert last == f"The answer is {number}."
    assert final_number(exemplar.solution) == number
    sums = re.findall(r"([\d.]+ [-+*/] [\d.]+) = (\d+)", "\n".join(steps))
    assert len(sums) == "\n".join(steps).count("=") >= 2
    for left, right in sums:
        assert eval(left) == int(right)
    assert sums[-1][1] == str(number)


@pytest.mark.parametrize(
    "answer",  # many with other numbers around
    [
        "#### 18",
        "####18",
        "She makes 9 * 2 = 18 dollars.\n#### 18\n\nNote: eggs cost $2.",
        "#### **$18**",
        "#### 18 dollars for 9 eggs",
        "#### Step 1\nThere are 9 eggs.\n#### 2. Sell them at $2\nThat makes 18 dollars.",
        r"\boxed{18}",
        r"So $x = \boxed{18}$, from 9 eggs at $2.",
        r"\[ \boxed{\$18} \]",
        r"\boxed{\$\,18.00\text{ per day}}. That is 9 eggs.",
        r"\boxed{\text{She makes } \textbf{\$18} \text{ with 9 eggs}} (2)",
        r"\boxed{9 \cdot 2 = 18}",
        r"The answer is $9 \times 2 = \$18$, at 2 each",
        r"\boxed{9}, no: \boxed{18}",
        r"\fbox{18} 2",
        r"\boxed{18",
        "The answer is 12 eggs + 6 eggs = 18 eggs.",
        "The answer is 2/3 of 27 = 18.",
        "The answer is 20% of 90 = 18, or 9 + 9 = 18",
        "The answer is 18, since x = 7",
        r"The answer is 18 \boxed{\text{no number}} 7",
        "The answer is 18.",
        "The answer is 18. That is 9 times 2.",
        "the final answer is: **18**, 2 each",
        "The answer is:\n\n$18\n\nThere were 9 eggs.",
        "The answer is $18$ dollars, from 9 eggs.",
        "The answer is \\(18\\), from 9 eggs.",
        "The answer is 18.00 and not 9.",
        "The answer is 1.8e1, 2",
        "The answer is 36/2, 2",
        r"The answer is $\frac{36}{2}$, 2",
        "The answer is 17 2/2, 2",
        "The answer is 9 * 2 = $18. Each egg is $2.",
        "The answer is 16 - 3 - 4 = 9 x $2 = 18 dollars, at 2 each",
        "The answer is 18. 9 * 2 = 17 would be wrong.",
        "The answer is x = 18, with y = 2",
        "The answer is approximately €18, at 2 each",
        "The answer is USD 18, at 2 each",
        "The answer to this problem is 18; 2 each",
        "The answer is 17. Wait, the answer is 18, since 9 * 2.",
        "The answer is that she makes $18.",
        "The answer is found by adding 3 and 4, then 16 - 7 = 9, then 18.",
        "We give the answer as a percentage: 9 of 50 are 18%.",
        "ANSWER: 18 (at 2 each)",
        "**Answer:** 18\n\n(2 each)",
        "**Final Answer (in dollars)**: $18, at 2 each",
        "Answer: She sells 9 eggs at $2 and makes 18",
        "She makes **18** dollars.",
        "She makes $18",
        "18",
        "18 dollars",
        "It is 18%.",
        "9 * 2 = 18.",
        "9 eggs, 2 each, 16-18",
        "18\n\nQuestion: How many are 9 and 2?\nAnswer: The answer is 11.",
        " The answer is 18.\n\n**Question:** How many? The answer is 11.",
        "The answer is 18. Question: 3?",
        "Question: How many are 9 * 2?\nAnswer: 18",
        "**Question:** How many are 9 * 2?\n**Answer:** 18 (twice 9)",
        "<think>The answer is 17? \\boxed{17}</think>\n\nShe makes 18 dollars.",
        "<think>It is 9 * 2 = 18",
        "The answer is 18\u202fdollars.",
    ],
)
def test_reads_18(answer: str) -> None:
    assert score(answer) == 1.0


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("The answer is $1,234.50.", "1234.5"),
        ("It costs $1,234,567", "1234567"),
        (r"\boxed{1{,}234}", "1234"),
        (r"\boxed{12\,345\,678}", "12345678"),
        ("12\u00a0345", "12345"),
        ("The answer is -18.", "-18"),
        ("The answer is \u221218.", "-18"),
        ("The answer is -$18.", "-18"),
        ("The answer is $-18.", "-18"),
        (r"\boxed{-\$18}", "-18"),
        (r"\boxed{-\frac{36}{2}}", "-18"),
        ("The answer is **-18**.", "-18"),
        ("The answer is 3 - 21 = -18.", "-18"),
        ("- 18", "18"),  # a list
        ("from 16-18", "18"),
        ("from 16\u201318", "18"),
        ("-0", "0"),
        ("000", "0"),
        ("$.50", "0.5"),
        ("0.50 dollars", "0.5"),
        ("1/2", "0.5"),
        (r"2\frac{1}{2}", "2.5"),
        ("2 1/2 cups", "2.5"),
        ("The answer is 5/2.", "2.5"),
        ("1.8e1", "18"),
        ("12e-1", "1.2"),
        ("1, 2, 3", "3"),
        ("9" * 5000, "9" * 5000),
        ("The answer is " + "9" * 30 + ".0", "9" * 30),
        ("-" + "9" * 30, "-" + "9" * 30),
    ],
)
def test_reads(answer: str, number: str) -> None:
    assert score(answer, number) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "",
        " \n",
        "I don't know.",
        "eighteen",
        "The answer is",
        "####",
        "\\boxed{",
        "\\boxed{}",
        "\0",
        "Question: Why?",
        "12:30",
        "18 eggs at 12:30",
        "The answer is 12:30, or 18.",
        "1,2,3",
        "The answer is 1,2,3.",
        "12,34",
        "1,234,5",
        "1.234,56",
        "1.2.3",
        "1/2/2020",
        "1/2.5/3",
        "18/0",
        "The answer is 18/0, or 18.",
    ],
)
def test_has_no_number(answer: str) -> None:
    assert final_number(answer) is None
    assert score(answer) == 0.0


@pytest.mark.parametrize("answer", ["17", "180", "1.8", "-18", "18.5", "The answer is 17, not 18", "#### 9\n18"])
def test_wrong(answer: str) -> None:
    assert score(answer) == 0.0


DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30, places=3)


@given(DECIMALS, DECIMALS, st.sampled_from(["#### {}", "\\boxed{{{}}}", "The answer is {}.", "**Answer:** ${}"]))
def test_any_number_in_any_mark(number: Decimal, other: Decimal, form: str) -> None:
    for written in (f"{number}", f"{number:,}"):
        assert final_number(f"First {other}.\n{form.format(written)}\nAnd {other} last") == number
        assert final_number(f"First {other}, then {written} in all.") == number


@given(DECIMALS)
def test_one_way_of_writing(number: Decimal) -> None:
    text = write_number(number)
    assert Decimal(text) == number == read_number(text)
    assert not re.search(r"[eE]|\.0*$|\..*0$", text)


@given(st.text("0123456789 .,:/-+=eE$\\{}()*#\n" + "boxedfraciswnQut", max_size=80))
def test_any_text_is_read(answer: str) -> None:
    number = final_number(answer)
    assert number is None or number.is_finite()
