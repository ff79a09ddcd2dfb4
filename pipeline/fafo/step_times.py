"""How long a step takes on this machine, by its rows and the cached tokens that they see: measured once, then on disk.

A table belongs to a model's shape, not its weights, and to device, dtype, threads and the way of running the model.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
from filelock import FileLock
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

log = logging.getLogger(__name__)

Seconds = Annotated[float, Field(ge=1e-9, le=1e6, allow_inf_nan=False)]


@dataclass(frozen=True, config={"extra": "forbid"})
class StepTimes:
    """Measured seconds of one step.

    rows: numbers of rows, ascending from 1. seconds: of a step with so many rows and an empty cache. per_token: seconds
    more for each cached token that so many rows see.
    """

    rows: Annotated[tuple[Annotated[int, Field(ge=1, le=1 << 20)], ...], Field(min_length=2)]
    seconds: tuple[Seconds, ...]
    per_token: tuple[Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)], ...]

    def __post_init__(self) -> None:
        """Check that this is a table."""
        if not len(self.rows) == len(self.seconds) == len(self.per_token):
            raise ValueError("rows, seconds and per_token should have one entry each for every number of rows")
        if self.rows[0] != 1 or list(self.rows) != sorted(set(self.rows)):
            raise ValueError("rows should ascend from 1")

    def interpolated(self, n_rows: int) -> tuple[list[float], list[float]]:
        """`seconds` and `per_token` for 0 to `n_rows` rows, linear between and beyond the measured ones; 0 for none."""
        return _line(self.rows, self.seconds, n_rows), _line(self.rows, self.per_token, n_rows)


TABLE = TypeAdapter(StepTimes)


def _line(rows: tuple[int, ...], values: tuple[float, ...], n_rows: int) -> list[float]:
    inside = np.interp(np.arange(n_rows + 1), rows, values)
    slope = max((values[-1] - values[-2]) / (rows[-1] - rows[-2]), 0.0)
    beyond = np.clip(np.arange(n_rows + 1) - rows[-1], 0, None)
    line = [float(v) for v in inside + slope * beyond]
    line[0] = 0.0
    return line


def stored(path: Path, measure: Callable[[], StepTimes]) -> StepTimes:
    """Read the table in `path`; if there is none, or a damaged one, measure and write it, if that can be done."""
    times = None
    try:
        if path.is_file() and (times := _read(path)):
            return times
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if path.is_file() and (times := _read(path)):  # another process has been here meanwhile
                return times
            times = measure()
            partial = path.with_suffix(".partial")
            partial.write_bytes(TABLE.dump_json(times))
            partial.replace(path)
    except (OSError, NotImplementedError) as error:  # the latter from locks, where a file system has none
        log.warning("planner: step times can't be kept in %s (%s)", path, error)
    return times or measure()


def _read(path: Path) -> StepTimes | None:
    try:
        return TABLE.validate_json(path.read_bytes())
    except ValidationError:
        log.warning("planner: %s is damaged; measuring anew", path)
        return None
