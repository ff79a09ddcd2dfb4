"""Who may write to a run's folder."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline.common.schemas import LOCK_NAME, RECORD_LOCK_NAME
from pipeline.common.shard import Shard, all_shards
from pipeline.errors import UserError

_RECORD_SECONDS = 60  # that another process may take to write the record


@contextmanager
def holding(folder: Path, shard: Shard) -> Iterator[None]:
    """Hold a process's shard of a run.

    Raises:
        UserError: another process holds it, or processes hold the shards of another division.
    """
    lock = folder / LOCK_NAME
    with ExitStack() as stack:
        try:
            with holding_record(folder):  # one after the other, so that nobody's look passes for work
                stack.enter_context(FileLock(shard.own(lock), timeout=0))
                for other in set(all_shards(lock)) - set(shard.of_division(lock)):
                    with FileLock(other, timeout=0):
                        pass
        except Timeout:
            raise UserError(
                f"{folder}: another process writes to it; wait, or name another --output_folder_dir"
            ) from None
        yield


def holding_record(folder: Path) -> FileLock:
    """Hold what all processes of a run write to, for a moment."""
    return FileLock(folder / RECORD_LOCK_NAME, timeout=_RECORD_SECONDS)
