"""raw_results.jsonl: one line a prompt, safe against being killed in mid-write."""

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from pipeline.common.records import PromptResult
from pipeline.errors import UserError
from pipeline.files import naming

log = logging.getLogger(__name__)


def as_line(result: PromptResult) -> bytes:
    """A result as it is written: plain ASCII, since common readers take U+2028 and its like for a line's end."""
    return json.dumps(result.model_dump()).encode("ascii") + b"\n"


def append_result(path: Path, result: PromptResult) -> None:
    """Add a line; on return it is on the disk."""
    with naming(path), path.open("ab") as file:
        file.write(as_line(result))
        file.flush()
        os.fsync(file.fileno())


def read_results(path: Path, sample_ids: Iterable[str] | None) -> list[PromptResult]:
    """The recorded lines, without a last one that was cut in mid-write.

    sample_ids: the ids that may occur; None for any.

    Raises:
        UserError: a line is corrupt, or its id is not among `sample_ids` or appears twice.
    """
    if not path.exists():
        return []
    results: list[PromptResult] = []
    seen: set[str] = set()
    known = None if sample_ids is None else set(sample_ids)
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        where = f"{path}, line {number}"
        try:
            result = PromptResult.model_validate_json(line)
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            reason = " ".join(map(str, [*detail["loc"], detail["msg"]]))
            raise UserError(f"{where}: corrupt ({reason}); remove the line to have it computed again") from None
        if result.id in seen:
            raise UserError(f"{where}: id {result.id!r} appears twice; remove one of its lines")
        if known is not None and result.id not in known:
            raise UserError(f"{where}: id {result.id!r} is not in the dataset; remove the line")
        seen.add(result.id)
        results.append(result)
    return results


def drop_partial_line(path: Path) -> None:
    """Cut off what follows the last line end, if anything does."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        log.warning("%s: dropping its last line, which was cut in mid-write", path)
        modified = path.stat().st_mtime_ns
        os.truncate(path, whole)
        os.utime(path, ns=(modified, modified))  # still tells when the killed session ended
