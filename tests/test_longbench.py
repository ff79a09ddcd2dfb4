"""LongBench: its prompts letter by letter, reading its files, and its metrics against values reckoned by hand."""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from pydantic import ValidationError

from eval import Sample
from eval.longbench import DATASET, LongBenchParams, load, score
from eval.longbench.metrics import METRICS
from eval.longbench.subsets import SUBSETS
from pipeline.errors import UserError
from tests.runs import ROOT

PASSAGES = ("The following are given passages.\nC\n\nAnswer the", "other words.\n\nQuestion: I\nAnswer:", 32, "qa_f1")
# What stands around the context C, how the prompt ends with the input I, the length of an answer, the metric.
SPECIFIED = {
    "narrativeqa": ("explanation.\n\nStory: C\n\nNow, answer", "\n\nQuestion: I\n\nAnswer:", 128, "qa_f1"),
    "qasper": ("\n\nArticle: C\n\n Answer the question", "\n\nQuestion: I\n\nAnswer:", 128, "qa_f1"),
    "multifieldqa_en": ("briefly.\n\nC\n\nNow, answer", "other words.\n\nQuestion: I\nAnswer:", 64, "qa_f1"),
    "hotpotqa": PASSAGES,
    "2wikimqa": PASSAGES,
    "musique": PASSAGES,
    "gov_report": ("Report:\nC\n\nNow, write", "one-page summary of the report.\n\nSummary:", 512, "rouge_l"),
    "qmsum": ("Transcript:\nC\n\nNow, answer", "one or more sentences.\n\nQuery: I\nAnswer:", 512, "rouge_l"),
    "multi_news": ("all news. \n\nNews:\nC\n\nNow, write", "of all the news.\n\nSummary:", 512, "rouge_l"),
    "trec": ("Please determine the type", "examples of questions.\n\nC\nI", 64, "classification"),
    "triviaqa": ("Answer the question based", "are some examples.\n\nC\n\nI", 32, "qa_f1"),
    "samsum": ("Summarize the dialogue", "are some examples.\n\nC\n\nI", 128, "rouge_l"),
    "passage_count": ("in total?\n\nC\n\nPlease enter", "and so on.\n\nThe final answer is: ", 32, "count"),
    "passage_retrieval_en": ("from.\n\nC\n\nThe following", "abstract.\n\nI\n\nPlease", 32, "retrieval"),
    "lcc": ("Please complete", "the code given below. \nCNext line of code:\n", 64, "code_similarity"),
    "repobench-p": ("Please complete", "the code given below. \nCINext line of code:\n", 64, "code_similarity"),
}
PLAIN_TEXT = {"trec", "triviaqa", "samsum", "lcc", "repobench-p"}


def row(number: int = 0, **values: Any) -> dict[str, Any]:
    """A row that fits each subset."""
    return {
        "input": "I", "context": "C", "answers": ["Paragraph 3"], "length": 5, "dataset": "any", "language": "en",
        "all_classes": ["Food", "Date"], "_id": f"id{number}",
    } | values  # fmt: skip


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(values) + "\n" for values in rows)


def write(folder: Path, **rows: list[dict[str, Any]]) -> Path:
    for name, of_subset in rows.items():
        (folder / f"{name}.jsonl").write_text(lines(of_subset))
    return folder


def write_archive(path: Path, **rows: list[dict[str, Any]]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, of_subset in rows.items():
            archive.writestr(f"data/{name}.jsonl", lines(of_subset))
    return path


def params(*subsets: str, **values: Any) -> LongBenchParams:
    return LongBenchParams(dataset="longbench", subsets=list(subsets), **values)


def sample(subset: str, *answers: str, classes: list[str] | None = None) -> Sample:
    return Sample("a", (), "", {"subset": subset, "answers": list(answers), "all_classes": classes})


def test_prompts_are_the_published_ones() -> None:
    prompts = json.dumps({name: subset.prompt for name, subset in SUBSETS.items()})
    published = "b191c3b1eae7464a8d130d301337b3d962ed82ee119521bb281ab371ef84dbf6"
    assert hashlib.sha256(prompts.encode()).hexdigest() == published


def test_each_subset(tmp_path: Path) -> None:
    folder = write(tmp_path, **{name: [row()] for name in SUBSETS})
    samples = {sample.group: sample for sample in load(folder, LongBenchParams(dataset="longbench"))}
    assert list(samples) == list(SPECIFIED)
    for name, (middle, end, n_new_tokens, metric) in SPECIFIED.items():
        found = samples[name]
        assert middle in found.text and end in found.text, name
        assert found.text.endswith(end) or name == "passage_retrieval_en", name
        assert found.messages == (() if name in PLAIN_TEXT else ({"role": "user", "content": found.text},)), name
        assert found.reference == {"subset": name, "answers": ["Paragraph 3"], "all_classes": ["Food", "Date"]}
        assert found.n_new_tokens == n_new_tokens, name
        assert list(score(found, ["Paragraph 3"], params(name))) == ["longbench", metric], name


def test_braces_in_a_text_are_no_places_to_fill(tmp_path: Path) -> None:
    folder = write(tmp_path, lcc=[row(context="{input} {0}\n", input="{")])
    assert "{input} {0}\nNext line" in load(folder, params("lcc"))[0].text


def test_counts_may_be_numbers(tmp_path: Path) -> None:
    folder = write(tmp_path, passage_count=[row(answers=[15])])
    assert score(load(folder, params("passage_count"))[0], ["15"], params("passage_count"))["count"] == 1.0


def test_subsets_take_turns(tmp_path: Path) -> None:
    without_id = [{key: value for key, value in row().items() if key != "_id"}] * 3
    folder = write(tmp_path, qasper=without_id, lcc=[row(7)])
    assert [s.id for s in load(folder, params("lcc", "qasper"))] == ["lcc/id7", "qasper/0", "qasper/1", "qasper/2"]
    few = load(folder, params("lcc", "qasper", max_prompts_per_subset=2))
    assert [s.id for s in few] == ["lcc/id7", "qasper/0", "qasper/1"]


def test_archive_and_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write_archive(tmp_path / "data.zip", lcc=[row(1)], qasper=[row(2)])
    samples = load(archive, params("lcc", "qasper"))
    assert [s.id for s in samples] == ["lcc/id1", "qasper/id2"]
    asked: list[Any] = []

    def download(*arguments: Any, **keywords: Any) -> str:
        asked.append((arguments, keywords))
        return str(archive)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert load(None, params("lcc", "qasper")) == samples
    assert asked == [(("zai-org/LongBench", "data.zip"), {"repo_type": "dataset"})]


@pytest.mark.parametrize("error", [httpx.ConnectError("no route"), FileNotFoundError("no route")])
def test_no_hub(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def download(*arguments: Any, **keywords: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(UserError, match=r"zai-org/LongBench/data\.zip .*no route.*dataset_path"):
        load(None, params("lcc"))


@pytest.mark.parametrize("archived", [False, True])
def test_missing_subsets(tmp_path: Path, archived: bool) -> None:
    rows = {"qasper": [row()]}
    source = write_archive(tmp_path / "data.zip", **rows) if archived else write(tmp_path, **rows)
    with pytest.raises(UserError, match=r"has no lcc\.jsonl, trec\.jsonl; dataset_path"):
        load(source, params("lcc", "qasper", "trec"))


def test_no_source(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"No such file.*dataset_path"):
        load(tmp_path / "nowhere", params("lcc"))
    write(tmp_path, lcc=[row()])
    with pytest.raises(UserError, match=r"not a whole zip file.*dataset_path"):
        load(tmp_path / "lcc.jsonl", params("lcc"))


def test_damaged_archive(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data.zip", lcc=[row()])
    archive.write_bytes(archive.read_bytes().replace(b'"context"', b'"conxett"'))
    with pytest.raises(UserError, match=r"lcc\.jsonl: can't be read \(Bad CRC"):
        load(archive, params("lcc"))


@pytest.mark.parametrize(
    ("subset", "values", "said"),
    [
        ("lcc", {"answers": []}, "line 2: answers"),
        ("lcc", {"answers": "pass"}, "line 2: answers"),
        ("lcc", {"answers": [True]}, r"line 2: answers\.0"),
        ("lcc", {"context": None}, "line 2: context"),
        ("lcc", {"_id": 3}, "line 2: _id"),
        ("trec", {"all_classes": None}, "line 2: all_classes"),
        ("trec", {"all_classes": []}, "line 2: all_classes"),
        ("passage_retrieval_en", {"answers": ["3"]}, r"line 2: answers\.0"),
    ],
)
def test_bad_rows(tmp_path: Path, subset: str, values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=rf"{subset}\.jsonl, {said}"):
        load(write(tmp_path, **{subset: [row(), row(**values)]}), params(subset))


@pytest.mark.parametrize(
    ("subsets", "said"),
    [(["qasper", "lccc"], "'lccc' is no subset; there are narrativeqa, "), (["lcc", "lcc"], "twice"), ([], "1 item")],
)
def test_bad_subsets(subsets: list[str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        params(*subsets)


def test_shipped_config() -> None:
    config = json.loads((ROOT / "config" / "eval_config" / "longbench" / "longbench.json").read_text())
    assert DATASET.params(**config["eval_params"]) == LongBenchParams(dataset="longbench")
    assert config["eval_params"]["long_prompts"] == "cut_middle"


@pytest.mark.parametrize(
    ("metric", "answer", "right", "expected"),
    [
        ("qa_f1", "The  Eiffel Tower!", "eiffel tower", 1.0),
        ("qa_f1", "It is in Paris, France.", "Paris", 2 * (1 / 5) * 1 / (1 / 5 + 1)),
        ("qa_f1", "no no yes", "no", 2 * (1 / 3) * 1 / (1 / 3 + 1)),  # a word counts as often as both have it
        ("qa_f1", "another", "other", 0.0),  # no article inside a word
        ("qa_f1", "", "other", 0.0),
        ("qa_f1", "the", "a", 0.0),
        ("rouge_l", "the cat sat", "the cat ran far", 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4)),
        ("rouge_l", "sat cat the", "the cat sat", 1 / 3),  # the order counts
        # Lin's example: 4 of the reference's 5 words are in the union, and the answer has 8 different ones.
        ("rouge_l", "w1 w2 w6 w7 w8. w1 w3 w8 w9 w5", "w1 w2 w3 w4 w5", 2 * (4 / 5) * (4 / 8) / (4 / 5 + 4 / 8)),
        ("rouge_l", "", "the cat", 0.0),
        ("rouge_l", "...", "the cat", 0.0),
        ("rouge_l", "\n", "the cat", 0.0),
        ("rouge_l", " ".join(map(str, range(2000))), "the cat", 0.0),  # too deep for the library's recursion
        ("retrieval", "Paragraph 12", "Paragraph 12", 1.0),
        ("retrieval", "The answer is paragraph 12 or 3.", "Paragraph 12", 1 / 2),
        ("retrieval", "Paragraph 1", "Paragraph 12", 0.0),
        ("retrieval", "none", "Paragraph 12", 0.0),
        ("count", "5", "5", 1.0),
        ("count", "5 of 8, so 5", "5", 2 / 3),
        ("count", "15", "5", 0.0),
        ("count", "five", "5", 0.0),
        ("code_similarity", "return x", "return x", 1.0),
        ("code_similarity", "\n\nreturn x\nreturn y", "return x", 1.0),
        ("code_similarity", "```python\n# twice\n// or so\nreturn x\n```", "return x", 1.0),
        ("code_similarity", "abxd", "abcd", 2 * 3 / 8),
        ("code_similarity", "a", "ab", 0.67),  # 2 / 3, to the percent
        ("code_similarity", "x = 1  # one", "x = 1", 0.0),  # no line is left
    ],
)
def test_metric(metric: str, answer: str, right: str, expected: float) -> None:
    assert METRICS[metric](answer, right, ()) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    ("answer", "right", "expected"),
    [
        ("Type: Other number", "Other number", 1.0),
        ("Date or Food", "Date", 1 / 2),
        ("Date or Food", "Other number", 0.0),
        ("date", "Date", 0.0),
        ("", "Date", 0.0),
        ("Date and time", "Date and time", 1.0),  # "Date" is part of the right name and does not count
        ("Date and time", "Date", 1 / 2),
    ],
)
def test_classification(answer: str, right: str, expected: float) -> None:
    classes = ["Food", "Date", "Date and time", "Other number"]
    assert METRICS["classification"](answer, right, classes) == expected


def test_best_of_the_right_answers_counts() -> None:
    assert score(sample("qasper", "no", "Yes"), ["yes"], params("qasper")) == {"longbench": 1.0, "qa_f1": 1.0}
    assert score(sample("lcc", "y", "x = 1"), ["x = 1"], params("lcc"))["longbench"] == 1.0


@pytest.mark.parametrize(
    ("subset", "expected"), [("triviaqa", 1.0), ("samsum", 1.0), ("hotpotqa", 2 / 3), ("qmsum", 2 / 3)]
)
def test_first_line_only_where_published(subset: str, expected: float) -> None:
    answer = "\nParis\nQuestion:"
    assert score(sample(subset, "Paris"), [answer], params(subset))["longbench"] == pytest.approx(expected)


def test_trec() -> None:
    trec = sample("trec", "Food", classes=["Food", "Date"])
    assert score(trec, ["\nType: Food\nType: Date"], params("trec")) == {"longbench": 1.0, "classification": 1.0}
