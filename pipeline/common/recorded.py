"""Reading back what a run recorded, finished or not."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from eval import DATASETS, EvalParams, Sample
from pipeline.common.prompts import fingerprint, load_samples
from pipeline.common.raw_results import read_results
from pipeline.common.records import OutputConfig, PromptResult
from pipeline.common.schemas import PipelineParams, SubDir
from pipeline.errors import UserError


@dataclass(frozen=True)
class RecordedRun:
    """A run as it lies in its folder: settings that all methods share, record, and lines by prompt id."""

    folder: Path
    pipeline: PipelineParams
    eval: EvalParams
    record: OutputConfig
    results: dict[str, PromptResult]

    def samples(self) -> list[Sample]:
        """Read the rows that the run answers once more.

        Raises:
            UserError: they can't be read, or are others by now.
        """
        samples = load_samples(self.eval)
        if fingerprint(samples) != self.record.management.dataset:
            raise UserError(f"{self.folder}: its dataset has changed since; put back the rows that it was run on")
        return samples


def read_run(path: Path) -> RecordedRun:
    """Read the run in a folder, or the one of a record in it (which another `sub_dir` may have named).

    Raises:
        UserError: there is no run, or its files are damaged.
    """
    if path.is_dir():
        path /= SubDir().output_config
    try:
        record = read_record(path)
        pipeline = {k: v for k, v in record.pipeline_params.items() if k in PipelineParams.model_fields}
        results = read_results(path.parent / record.management.sub_dir.raw_results, None)
        return RecordedRun(
            path.parent,
            PipelineParams(**pipeline),
            _eval_params(record.eval_params),
            record,
            {result.id: result for result in results},
        )
    except ValidationError as error:
        raise UserError(f"{path.parent}: {_damage(path, error)}") from None
    except UserError as error:
        raise UserError(f"{path.parent}: {error}") from None


def read_record(path: Path) -> OutputConfig:
    """Read the output_config.json at `path`.

    Raises:
        UserError: it can't be read, or is damaged.
    """
    try:
        return OutputConfig.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path.name} can't be read ({error.strerror})") from None
    except ValidationError as error:
        raise UserError(_damage(path, error)) from None


def _eval_params(values: dict[str, Any]) -> EvalParams:
    name = values.get("dataset")
    if name not in DATASETS:
        raise UserError(f"output_config.json names an unknown dataset, {name!r}")
    return DATASETS[name].params(**values)


def _damage(path: Path, error: ValidationError) -> str:
    detail = error.errors(include_url=False)[0]
    place = ".".join(map(str, detail["loc"])) or "the file"
    return f"{path.name} is damaged ({place}: {detail['msg']})"
