"""Conversations: later turns continue on the cache, and a run records them as one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from eval import EvalParams, Sample
from pipeline.common.answering import answer
from pipeline.common.cli import main
from pipeline.common.encoding import Encoder
from pipeline.common.models import LoadedModel, load_model
from pipeline.common.recorded import read_run
from pipeline.common.schemas import BaselineParams
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
