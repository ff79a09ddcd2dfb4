"""Reading GSM8K problems."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from eval.gsm8k.exemplars import EXEMPLARS
from eval.gsm8k.number import read_number, write_number
from eval.rows import Hub, Row, rows_of
from eval.sample import EvalParams, Sample

_HUB = Hub("openai/gsm8k", name="main", split="test")
_INSTRUCTION = 'Reason step by step. End with the line "The answer is N.", where N is a number without its unit.'
_COT = "Let's think step by step."  # Kojima et al., "Large Language Models are Zero-Shot Reasoners", 2022
_MARK = "####"  # stands before the final number of a solution


class Gsm8kParams(EvalParams):
    """`eval_params` of GSM8K.

    n_shot: worked problems before the question. Their form tells how to answer; without them an instruction does.
    """

    n_shot: Literal[0, 8] = 0


class Problem(Row):
    """One row."""

    question: str = Field(min_length=1)
    answer: str

    @field_validator("answer")
    @classmethod
    def _has_final_number(cls, answer: str) -> str:
        _final_number(answer)
        return answer


def load(path: Path | None, params: Gsm8kParams) -> list[Sample]:
    """Read the problems of a .jsonl or .jsonl.gz file, or the hub's.

    Raises:
        UserError: there is nothing to read, or a row has no question or no final number.
    """
    problems = rows_of(path, _HUB, Problem)
    return [_sample(f"gsm8k/{i}", problem, params.n_shot) for i, problem in enumerate(problems)]


def _sample(sample_id: str, problem: Problem, n_shot: int) -> Sample:
    return Sample(
        id=sample_id,
        messages=_messages(problem.question, n_shot),
        text=_text(problem.question, n_shot),
        reference={"answer": _final_number(problem.answer)},
    )


def _messages(question: str, n_shot: int) -> tuple[dict[str, str], ...]:
    turns = [turn for exemplar in EXEMPLARS[:n_shot] for turn in (exemplar.question, exemplar.solution)]
    turns.append(question if n_shot else f"{question}\n\n{_INSTRUCTION}")
    return tuple({"role": "assistant" if i % 2 else "user", "content": turn} for i, turn in enumerate(turns))


def _text(question: str, n_shot: int) -> str:
    blocks = [f"Question: {exemplar.question}\nAnswer: {exemplar.solution}\n\n" for exemplar in EXEMPLARS[:n_shot]]
    return "".join(blocks) + f"Question: {question}\nAnswer:" + ("" if n_shot else f" {_COT}")


def _final_number(solution: str) -> str:
    """What stands behind the mark, in one way of writing."""
    _, mark, final = solution.rpartition(_MARK)
    number = read_number(final.strip()) if mark else None
    if number is None:
        raise ValueError(f'should end with "{_MARK}" and a number')
    return write_number(number)
