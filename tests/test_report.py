"""The HTML report: what is in it, and that texts and names from runs stay texts."""

import base64
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from pipeline.fafo.marks import MODEL
from pipeline.report.outputs import SOURCES
from pipeline.report.tokens import load_tokenizer, token_texts
from scripts.report import main
from tests.report_runs import ATTACK, MIXED, Maker, write_all
from tests.runs import ROOT

pytest_plugins = ["tests.run_fixtures"]

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAG7buVgAAAABJRU5ErkJggg==")


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(model)


class Page(HTMLParser):
    """The elements of a page, the text of its scripts, and all other text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(path.read_text())
        self.data: dict[str, Any] = json.loads(self.scripts[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
            self._inside = ""
        else:
            self.text += data

    def run(self, group: int, run: int) -> dict[str, Any]:
        return self.data["groups"][group]["runs"][run]

    def texts(self, output: dict[str, Any]) -> list[str]:
        """The text of each turn as the page shows it."""
        return ["".join(turn.get("tokens", turn.get("text"))) for turn in self.data["texts"][output["text"]]]


def report(folder: Path, *more: str) -> Page:
    assert main([str(folder), *more]) == 0
    return Page(folder / "report.html")


def test_characters_of_several_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer("aé😀b")["input_ids"]
    assert token_texts(tokenizer, ids, "aé😀b") == ["a", "", "é", "", "", "", "😀", "b"]
    assert token_texts(tokenizer, ids[:-2], "aé") == ["a", "", "é", "\ufffd", "", ""]  # it was cut in a character
    assert token_texts(tokenizer, ids, "aé") == ["a", "", "é", "", "", "", "😀", "b"]  # the answer ended before
    assert token_texts(tokenizer, ids, "b") is None
    assert token_texts(tokenizer, [], "") == []


@given(st.lists(st.text("aé€😀", min_size=1) | st.integers(0, 255), max_size=9))
def test_no_text_is_lost(tokenizer: PreTrainedTokenizerBase, parts: list[str | int]) -> None:
    ids = [i for part in parts for i in ([part] if isinstance(part, int) else tokenizer(part)["input_ids"])]
    text = str(tokenizer.decode(ids))
    found = token_texts(tokenizer, ids, text)
    assert found is not None
    assert len(found) == len(ids)
    assert "".join(found) == text


def test_tokenizers_that_drop_a_texts_first_space() -> None:
    vocabulary = ["<s>", "</s>", "\u2581the", "\u2581cat", "s", *(f"<0x{byte:02X}>" for byte in "é😀".encode())]
    words = Tokenizer(models.BPE({word: i for i, word in enumerate(vocabulary)}, [], byte_fallback=True))
    words.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>")
    ids = [0, 2, 3, 4, *range(5, 11), 2, 1]
    expected = ["", "the", " cat", "s", "", "é", "", "", "", "😀", " the", ""]
    assert token_texts(tokenizer, ids, "the catsé😀 the") == expected


def test_outputs(tmp_path: Path, model: Path) -> None:
    write_all(tmp_path, model)
    page = report(tmp_path)
    assert [group["title"].partition(",")[0] for group in page.data["groups"]] == ["humaneval", "mtbench"]
    baseline, fast = page.run(0, 0), page.run(0, 1)
    assert (baseline["baseline"], fast["baseline"]) == (0, 0)
    assert [output["id"] for output in fast["outputs"]] == [ATTACK, "a/2", "a/10"]
    assert [page.texts(output) for output in fast["outputs"]] == [[ATTACK], [MIXED], ["Say: y = 1\n"]]
    assert [output["differs"] for output in fast["outputs"]] == [None, None, len("Say: ")]
    assert [a["text"] == b["text"] for a, b in zip(baseline["outputs"], fast["outputs"], strict=True)] == [1, 1, 0]
    assert fast["outputs"][2]["sources"] == "pppmooomwwm"
    assert fast["outputs"][2]["steps"] == [4, 4, 3]
    (chat,) = page.run(1, 1)["outputs"]
    assert page.texts(chat) == ["one\n", "two é\n"]


def test_each_source_has_a_look() -> None:
    """Tokens and shares of each are drawn in a colour of their own."""
    style = (ROOT / "pipeline" / "report" / "templates" / "page.css").read_text()
    hues = {letter: re.search(rf"rect\.{letter} {{\n  fill: (.*);", style) for letter in SOURCES}
    assert len({hue[1] for hue in hues.values() if hue}) == len(SOURCES)
    for letter in SOURCES.keys() - {MODEL}:
        assert f".token.{letter} {{\n  --hue: {hues[letter][1]};" in style  # type: ignore[index]


def test_tables(tmp_path: Path, model: Path) -> None:
    write_all(tmp_path, model)
    page = report(tmp_path)
    for said in ("humaneval, model", "overall, model", "2/3", "fafo-stream-llm", "torch", "2.13.0", "A CPU (cpu)"):
        assert said in page.text
    assert "where tokens came from" in page.text
    assert "no baseline run with the same prompts, dtype" in page.text
    assert str(tmp_path) not in page.text


def test_texts_can_not_become_markup(tmp_path: Path, model: Path) -> None:
    pages = []
    for name, text in (("plain", "x" * len(ATTACK.encode())), ("<b>&", ATTACK)):
        answers = {text: (text,)}
        maker = Maker(tmp_path / name, model, model)
        maker.write_pair(text.replace("/", "|"), answers, answers)
        maker.write("<i>alone", [maker.result("a", text)], f"<u>{text}", method="fafo", kv_method="quest")
        pages.append(report(tmp_path / name))
    harmless, page = pages
    assert page.tags == harmless.tags
    assert page.texts(page.run(0, 1)["outputs"][0]) == [ATTACK]
    assert f"no baseline run of <u>{ATTACK}" in page.text


def test_nothing_is_fetched(tmp_path: Path, model: Path) -> None:
    write_all(tmp_path, model)
    page = report(tmp_path)
    places = [value for name, value in page.attributes if name in ("src", "href", "action", "data", "srcset")]
    assert places
    assert all(place.startswith(("#", "data:")) for place in places)
    (policy,) = [value for name, value in page.attributes if name == "content" and "default-src" in value]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_figures(tmp_path: Path, model: Path) -> None:
    write_all(tmp_path, model)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "tau_by_budget.png").write_bytes(PNG)
    (tmp_path / "figures" / "tau_by_budget.pdf").write_bytes(b"%PDF")
    page = report(tmp_path)
    images = [value for name, value in page.attributes if name == "src"]
    assert images == [f"data:image/png;base64,{base64.b64encode(PNG).decode()}"]
    assert "tau by budget" in page.text


def test_without_the_tokenizer(tmp_path: Path, model: Path) -> None:
    write_all(tmp_path, model, model="nobody/has-this-model")
    page = report(tmp_path)
    assert page.data["texts"][page.run(0, 1)["outputs"][1]["text"]] == [{"text": MIXED}]
    assert load_tokenizer("\0") is None


def test_another_tokenizer(tmp_path: Path, model: Path) -> None:
    maker = Maker(tmp_path, model, model)
    result = maker.result("a", "abc").model_copy(update={"output_text": "what it was"})
    maker.write("baseline", [result])
    assert report(tmp_path).data["texts"] == [[{"text": "what it was"}]]


def test_older_records(tmp_path: Path, model: Path) -> None:
    maker = Maker(tmp_path, model, model)
    maker.write("baseline", [maker.result("a", "abcd", is_plain=True)])
    old = maker.result("a", "abcd").model_copy(update={"token_sources": None})
    maker.write("stream", [old], method="fafo", kv_method="stream-llm")
    page = report(tmp_path)
    assert page.run(0, 1)["outputs"][0]["sources"] is None
    assert "guess of unrecorded source 75.0%" in page.text


def test_some_prompts_are_left_out(tmp_path: Path, model: Path) -> None:
    plain = {f"p/{i}": ("abc",) for i in range(20)}
    Maker(tmp_path, model, model).write_pair("humaneval", plain, plain | {"p/19": ("abd",)})
    page = report(tmp_path, "--max-prompts", "4")
    for run in page.data["groups"][0]["runs"]:
        assert [output["id"] for output in run["outputs"]] == ["p/0", "p/6", "p/12", "p/19"]
        assert run["left_out"] == 16


def test_an_audit_says_what_a_difference_is(tmp_path: Path, model: Path) -> None:
    write_all(tmp_path, model)
    verdicts = {"a/2": "identical", "a/10": "near tie"}
    audit = {
        "run_a": "", "run_b": str(tmp_path / "humaneval" / "baseline"),
            "dtype": "float32", "n_identical": 1, "n_near_ties": 1, "n_faults": 0,
        "n_not_compared": 0, "prompts": [{"id": key, "verdict": verdict} for key, verdict in verdicts.items()],
    }  # fmt: skip
    (tmp_path / "humaneval" / "stream" / "audit.json").write_text(json.dumps(audit))
    assert [output["verdict"] for output in report(tmp_path).run(0, 1)["outputs"]] == [None, None, "near tie"]


def test_the_same_runs_give_the_same_page(tmp_path: Path, model: Path) -> None:
    write_all(tmp_path, model)
    report(tmp_path)
    first = (tmp_path / "report.html").read_bytes()
    report(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == first


def test_nothing_to_compare(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert not (tmp_path / "report.html").exists()
    maker = Maker(tmp_path, model, model)
    maker.write("alone", [maker.result("a", "abc")], method="fafo", kv_method="quest")
    assert main([str(tmp_path)]) == 2
    assert "no baseline run of humaneval" in Page(tmp_path / "report.html").text
    assert "no finished runs" in capsys.readouterr().err
