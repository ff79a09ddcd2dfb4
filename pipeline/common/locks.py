"""Who may write to a run's folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline.common.schemas import RECORD_LOCK_NAME
from pipeline.common.share import Share
from pipeline.errors import UserError

_RECORD_SECONDS = 60  # that another process may take to write the record


@contextmanager
def holding(folder: Path, share: Share) -> Iterator[None]:
    """Hold a process's share of a run.

    Raises:
        UserError: another process holds it, or processes hold the shares of another division.
    """
    try:
        with FileLock(folder / f"run{share.tag}.lock", timeout=0):
            for other in set(folder.glob("run*.lock")) - set(_of_division(folder, share)):
                with FileLock(other, timeout=0):
                    pass
            yield
    except Timeout:
        raise UserError(f"{folder}: another process writes to it; wait, or name another --output_folder_dir") from None


def holding_record(folder: Path) -> FileLock:
    """Hold what all processes of a run write to, for a moment."""
    return FileLock(folder / RECORD_LOCK_NAME, timeout=_RECORD_SECONDS)


def _of_division(folder: Path, share: Share) -> Iterator[Path]:
    return folder.glob(f"run.*-of-{share.n_processes}.lock" if share.tag else "run.lock")
