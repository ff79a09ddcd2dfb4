"""Reading LongBench's rows and filling them into its prompts."""

import zipfile
import zlib
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from eval.longbench.subsets import SUBSETS
from eval.rows import Row, hub_file, rows_of_bytes
from eval.sample import EvalParams, Sample
from pipeline.errors import UserError

_REPOSITORY = "zai-org/LongBench"  # its rows are in the archive; `datasets` no longer runs the script beside it
_ARCHIVE = "data.zip"
_FOLDER_IN_ARCHIVE = "data/"
_EXPECTED = (
    f"dataset_path is LongBench's {_ARCHIVE}, or a folder with a file SUBSET.jsonl for each of eval_params.subsets"
)

_Folder = Path | zipfile.Path


def _check_subsets(names: list[str]) -> list[str]:
    unknown = next((name for name in names if name not in SUBSETS), None)
    if unknown is not None:
        raise ValueError(f"{unknown!r} is no subset; there are {', '.join(SUBSETS)}")
    if len(set(names)) < len(names):
        raise ValueError("should name no subset twice")
    return names


class LongBenchParams(EvalParams):
    """`eval_params` of LongBench.

    subsets: which ones are run.
    max_prompts_per_subset: only the first so many of each; None: all. (`max_prompts` holds for all subsets together.)
    """

    long_prompts: Literal["refuse", "cut_middle"] = "cut_middle"
    subsets: Annotated[list[str], Field(min_length=1), AfterValidator(_check_subsets)] = Field(
        default_factory=lambda: list(SUBSETS)
    )
    max_prompts_per_subset: Annotated[int, Field(ge=1)] | None = None


def _number_as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


class LongBenchRow(Row):
    """One row of a subset's file."""

    input: str
    context: str
    answers: list[Annotated[str, BeforeValidator(_number_as_text)]] = Field(min_length=1)  # counts may be numbers
    all_classes: list[str] | None = None
    id: str | None = Field(default=None, alias="_id")


class ClassificationRow(LongBenchRow):
    """One whose right answer is one of several classes."""

    all_classes: list[str] = Field(min_length=1)


class RetrievalRow(LongBenchRow):
    """One whose right answer is a paragraph's number."""

    answers: list[Annotated[str, Field(pattern=r"Paragraph \d+")]] = Field(min_length=1)


_ROW_CLASSES: dict[str, type[LongBenchRow]] = {"classification": ClassificationRow, "retrieval": RetrievalRow}


def load(path: Path | None, params: LongBenchParams) -> list[Sample]:
    """Read the subsets' rows, from the hub's archive where `path` is None. Subsets take turns.

    So the first few samples are of all subsets, not of the first one.

    Raises:
        UserError: there is no file of a subset, or a row is not one of LongBench's.
    """
    folder = _folder(path or hub_file(_REPOSITORY, _ARCHIVE))
    files = {name: folder / f"{name}.jsonl" for name in params.subsets}
    missing = [name for name, file in files.items() if not file.is_file()]
    if missing:
        raise UserError(f"{folder}: has no {', '.join(f'{name}.jsonl' for name in missing)}; {_EXPECTED}")
    subsets = [_samples(name, file)[: params.max_prompts_per_subset] for name, file in files.items()]
    return [sample for turn in zip_longest(*subsets) for sample in turn if sample is not None]


def _folder(path: Path) -> _Folder:
    """The folder that is at `path`, or in an archive there."""
    if path.is_dir():
        return path
    try:
        return zipfile.Path(path, _FOLDER_IN_ARCHIVE)
    except zipfile.BadZipFile:
        raise UserError(f"{path}: not a whole zip file; {_EXPECTED}") from None
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror}); {_EXPECTED}") from None


def _samples(name: str, file: _Folder) -> list[Sample]:
    try:
        content = file.read_bytes()
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:  # an archive's many ways to fail
        raise UserError(f"{file}: can't be read ({error}); {_EXPECTED}") from None
    rows = rows_of_bytes(content, str(file), _ROW_CLASSES.get(SUBSETS[name].metric, LongBenchRow))
    return [_sample(name, row, str(number)) for number, row in enumerate(rows)]


def _sample(name: str, row: LongBenchRow, number: str) -> Sample:
    subset = SUBSETS[name]
    text = subset.prompt.format(context=row.context, input=row.input)
    return Sample(
        id=f"{name}/{row.id or number}",
        messages=({"role": "user", "content": text},) if subset.as_chat else (),
        text=text,
        reference={"subset": name, "answers": row.answers, "all_classes": row.all_classes},
        group=name,
        n_new_tokens=subset.n_new_tokens,
    )
