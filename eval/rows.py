"""Reading a dataset's rows: from a local file, from bytes of a package, or from the hub."""

import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import UserError


class Row(BaseModel):
    """Base of a dataset's row schemas; further keys are allowed and ignored."""

    model_config = ConfigDict(strict=True)


R = TypeVar("R", bound=Row)


@dataclass(frozen=True)
class Hub:
    """Where a dataset is on the Hugging Face hub: the arguments of `datasets.load_dataset`.

    rename: names of columns there -> names of the row's fields.
    """

    path: str
    name: str | None = None
    split: str = "test"
    data_files: str | None = None
    rename: Mapping[str, str] | None = None


def rows_of(path: Path | None, hub: Hub, row: type[R]) -> list[R]:
    """Read a .jsonl or .jsonl.gz file, or else the hub's rows.

    Raises:
        UserError: there is nothing to read, or a row is not one of this dataset.
    """
    return rows_of_hub(hub, row) if path is None else rows_of_file(path, row)


def rows_of_file(path: Path, row: type[R]) -> list[R]:
    """Read a .jsonl or .jsonl.gz file. See `rows_of`."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; dataset_path names a .jsonl or .jsonl.gz file") from None
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror}); dataset_path names a file") from None
    return rows_of_bytes(content, str(path), row)


def rows_of_bytes(content: bytes, name: str, row: type[R]) -> list[R]:
    """Read one JSON object a line, packed if `name` ends with .gz. See `rows_of`."""
    if name.endswith(".gz"):
        try:
            content = gzip.decompress(content)
        except (gzip.BadGzipFile, EOFError, zlib.error):
            raise UserError(f"{name}: not a whole gzip file; a name in .gz needs one") from None
    lines = [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]
    if not lines:
        raise UserError(f"{name}: holds no rows; such a file has one JSON object a line")
    return [_validated(row, line, f"{name}, line {number}") for number, line in lines]


def rows_of_hub(hub: Hub, row: type[R]) -> list[R]:
    """Read the hub's rows through `datasets`. See `rows_of`."""
    return [_validated(row, values, f"{hub.path}, row {i}") for i, values in enumerate(_hub_rows(hub))]


def hub_file(repository: str, name: str) -> Path:
    """Return where a file of a hub dataset is, once it has been downloaded.

    Raises:
        UserError: it can't be downloaded and is not in the hub's cache either.
    """
    from httpx import HTTPError
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repository, name, repo_type="dataset"))
    except (HTTPError, OSError, ValueError) as error:
        raise _not_loaded(f"{repository}/{name}", error) from None


def _hub_rows(hub: Hub) -> Iterator[dict[str, Any]]:
    from datasets import load_dataset  # here, since it takes a second to import
    from datasets.exceptions import DatasetsError
    from httpx import HTTPError

    try:
        dataset = load_dataset(hub.path, name=hub.name, split=hub.split, data_files=hub.data_files)
    except (DatasetsError, HTTPError, OSError, ValueError) as error:
        raise _not_loaded(hub.data_files or hub.path, error) from None
    for values in dataset:
        yield {(hub.rename or {}).get(key, key): value for key, value in values.items()}


def _not_loaded(name: str, error: Exception) -> UserError:
    reason = (str(error).strip() or repr(error)).splitlines()[0]
    return UserError(
        f"the hub's dataset {name} can't be loaded ({reason}); check the network, or give its rows in a local file: "
        "eval_params.dataset_path"
    )


def _validated(row: type[R], values: bytes | dict[str, Any], where: str) -> R:
    try:
        return row.model_validate_json(values) if isinstance(values, bytes) else row.model_validate(values)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in detail["loc"])
        raise UserError(
            f"{where}: {field + ': ' if field else ''}{detail['msg'].removeprefix('Value error, ')}"
        ) from None
