"""Writing files so that a full disk is named and nobody finds half of one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"  # of a file while it is being written


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have what the system refuses within name the file, which errors of writing leave out (a full disk's)."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Write a whole file or nothing."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    with naming(temporary), temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
