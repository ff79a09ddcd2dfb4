"""Logging to the console and to a run's exp.log."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler
from pathlib import Path

from pipeline.common.access import RedactingFormatter

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def log_to_console() -> None:
    """Send log records to standard output; standard error is for progress bars and the final error.

    They are kept as well, for `log_to_files`: a run's folder is made only when much is logged already.
    """
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(RedactingFormatter(_FORMAT, datefmt="%H:%M:%S"))
    root = logging.getLogger()
    early = MemoryHandler(capacity=sys.maxsize, flushLevel=sys.maxsize, flushOnClose=False)
    root.handlers = [handler, early]
    root.setLevel(logging.INFO)


@contextmanager
def log_to_files(*paths: Path) -> Iterator[None]:
    """Also append log records to `paths`, first those that were logged since `log_to_console`."""
    handlers = [logging.FileHandler(path, encoding="utf-8") for path in paths]
    root = logging.getLogger()
    early = [kept for kept in root.handlers if isinstance(kept, MemoryHandler)]
    for handler in handlers:
        handler.setFormatter(RedactingFormatter(_FORMAT))
        for record in (record for kept in early for record in kept.buffer):
            handler.handle(record)
        root.addHandler(handler)
    for kept in early:
        root.removeHandler(kept)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


def adopt_library_logs() -> None:
    """Let transformers and the hub client log through our handlers, which hide the token."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    for name in ("transformers", "huggingface_hub", "accelerate"):
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
        library.setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
