"""Conversations: later turns continue on the cache, and a run records them as one line."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eval import EvalParams, Sample
from pipeline.common.answering import answer
from pipeline.common.audit import first_difference
from pipeline.common.cli import main
from pipeline.common.encoding import Encoder
from pipeline.common.models import LoadedModel, load_model
from pipeline.common.recorded import read_run
from pipeline.common.schemas import BaselineParams
from pipeline.errors import UserError
from pipeline.fafo.decode import generate
from pipeline.fafo.selectors import StreamLLM
from pipeline.fafo.settings import DecodeSettings
from tests.audited import put
from tests.runs import MAX_LENGTH, Case

pytest_plugins = ["tests.run_fixtures"]

FAFO = DecodeSettings(20, level=4, window=5, num_guesses=4, selector=StreamLLM(2, 8))
TURNS = ("And why is that so?", "Then sum it up.")


@pytest.fixture
def loaded(model: Path) -> LoadedModel:
    return load_model(BaselineParams(method="baseline", model_name=str(model), n_new_tokens=20, dtype="float32"))


def sample(later_turns: tuple[str, ...] = TURNS, question: str = "Why?") -> Sample:
    return Sample("81", ({"role": "user", "content": question},), "", {}, later_turns, group="writing")


@pytest.mark.parametrize("settings", [DecodeSettings(20), FAFO], ids=["plain", "fafo"])
def test_each_turn_is_what_a_fresh_start_gives(loaded: LoadedModel, settings: DecodeSettings) -> None:
    encoder = Encoder(loaded, EvalParams(dataset="mtbench"), 20)
    result = answer(encoder.encode(sample()), encoder, settings)

    answers: list[str] = []
    generations = []
    for turn in result.turns:
        prompt = encoder.encode(sample(), answers)
        generations.append(generate(loaded.model, prompt.token_ids, DecodeSettings(20)))
        answers.append(str(loaded.tokenizer.decode(generations[-1].token_ids)))
        assert (turn.n_prompt_tokens, turn.output_text) == (len(prompt.token_ids), answers[-1])
    assert len(result.turns) == 3
    assert result.output_token_ids == [token for g in generations for token in g.token_ids]
    assert result.output_text == "\n\n".join(answers)
    assert result.n_prompt_tokens == sum(turn.n_prompt_tokens for turn in result.turns)
    first, second, third = result.turns
    assert first.n_reused_tokens == 0
    assert second.n_reused_tokens >= first.n_prompt_tokens - len("<assistant>")
    assert third.n_reused_tokens > second.n_reused_tokens
    assert (result.score, result.scores, result.group) == (None, {}, "writing")


def test_a_conversation_ends_where_the_model_does(loaded: LoadedModel) -> None:
    encoder = Encoder(loaded, EvalParams(dataset="mtbench"), 20)
    result = answer(encoder.encode(sample(question="x" * (MAX_LENGTH - 40))), encoder, FAFO)
    assert [turn.stop_reason for turn in result.turns] == ["length"]
    assert len(result.output_token_ids) == 20


def test_a_template_that_fails_later_is_an_error(loaded: LoadedModel) -> None:
    template = loaded.tokenizer.chat_template
    loaded.tokenizer.chat_template = "{% if messages | length > 1 %}{{ raise_exception('one only') }}{% endif %}x"
    try:
        encoder = Encoder(loaded, EvalParams(dataset="mtbench"), 20)
        with pytest.raises(UserError, match=r"prompt 81: the chat template .* fails: one only"):
            answer(encoder.encode(sample()), encoder, FAFO)
    finally:
        loaded.tokenizer.chat_template = template


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exact_mode_goes_on_bit_by_bit(model: Path, dtype: str) -> None:
    params = BaselineParams(method="baseline", model_name=str(model), n_new_tokens=20, dtype=dtype)  # type: ignore[arg-type]
    encoder = Encoder(load_model(params), EvalParams(dataset="mtbench"), 20)
    plain, fafo = (
        answer(encoder.encode(sample()), encoder, replace(settings, exact=True))
        for settings in (DecodeSettings(20), FAFO)
    )
    assert fafo.answers == plain.answers
    assert [turn.n_reused_tokens for turn in fafo.turns] == [turn.n_reused_tokens for turn in plain.turns]


def test_a_dataset_may_ask_for_fewer_tokens(loaded: LoadedModel) -> None:
    encoder = Encoder(loaded, EvalParams(dataset="mtbench"), 20)
    short = Sample("s", ({"role": "user", "content": "x"},), "", {}, n_new_tokens=7)
    assert answer(encoder.encode(short), encoder, FAFO).n_new_tokens == 7


@pytest.fixture
def conversation_case(case: Case) -> Case:
    rows = [{"question_id": 81 + i, "category": "writing", "turns": [f"Write {i}.", "Again."]} for i in range(2)]
    path = case.folder / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    case.eval = {"dataset": "mtbench", "dataset_path": str(path)}
    case.write()
    return case


def test_a_conversation_that_was_cut_short_has_an_empty_answer(conversation_case: Case) -> None:
    case = conversation_case
    question = {"question_id": 81, "category": "writing", "turns": ["x" * (MAX_LENGTH - 40), "Again."]}
    Path(case.eval["dataset_path"]).write_text(json.dumps(question))
    assert main("fafo", case.argv()) == 0
    (path,) = (case.output / "model_answer").iterdir()
    (row,) = (json.loads(line) for line in path.read_text().splitlines())
    assert len(row["choices"][0]["turns"]) == 2
    assert row["choices"][0]["turns"][1] == ""


def test_killed_before_the_answers_were_written(conversation_case: Case) -> None:
    case = conversation_case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.common.experiment._write_answers", lambda *_: sys.exit(9))
        with pytest.raises(SystemExit):
            main("fafo", case.argv())
    assert case.record()["eval_results"] is None
    assert main("fafo", case.argv()) == 0
    assert (case.output / "model_answer").exists()


def test_a_turn_that_ends_early_is_a_difference(conversation_case: Case) -> None:
    case = conversation_case
    assert main("fafo", case.argv()) == 0
    result = read_run(case.output).results["81"]
    moved = [
        turn.model_copy(update={"n_new_tokens": turn.n_new_tokens + by})
        for turn, by in zip(result.turns, (-1, 1), strict=True)
    ]
    other = result.model_copy(update={"turns": moved})
    assert other.output_token_ids == result.output_token_ids
    position = moved[0].n_new_tokens
    assert first_difference(result, other) == (position, result.output_token_ids[position], None)
    assert first_difference(result, result) is None


def test_a_run_writes_what_the_judge_reads(conversation_case: Case) -> None:
    case = conversation_case
    assert main("fafo", case.argv()) == 0
    (path,) = (case.output / "model_answer").iterdir()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    results = read_run(case.output).results
    assert [row["question_id"] for row in rows] == [81, 82]
    for row in rows:
        turns = results[str(row["question_id"])].turns
        assert row["choices"][0]["turns"] == [turn.output_text.strip() for turn in turns]
        assert len(turns) == 2
    assert case.record()["eval_results"]["metric"] is None


@pytest.mark.parametrize("position", [3, 15])  # in the first turn, in the second
def test_a_difference_is_measured_in_its_turn(conversation_case: Case, position: int) -> None:
    case = conversation_case
    fafo = case.pipeline
    baseline = case.folder / "baseline"
    case.to_baseline()
    case.output = baseline
    assert main("baseline", case.argv()) == 0
    right = json.loads((baseline / "raw_results.jsonl").read_text().splitlines()[1])["output_token_ids"][position]
    put(baseline, line=1, position=position, token=(right + 1) % 256)
    case.pipeline, case.output = fafo, case.folder / "fafo"
    case.write()
    assert main("fafo", case.argv("--baseline_dir", str(baseline))) == 1
    prompts: list[dict[str, Any]] = json.loads((case.output / "audit.json").read_text())["prompts"]
    assert [prompt["verdict"] for prompt in prompts] == ["identical", "fault"]
    assert prompts[1]["position"] == position
    # The run's own token is the best there is: what is lacking to the best is the gap between the two.
    assert prompts[1]["behind_best"] == pytest.approx(prompts[1]["gap"], abs=1e-5)
