"""Logging to the console and to a run's exp.log."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.common.access import RedactingFormatter

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def log_to_console() -> None:
    """Send log records to standard output; standard error is for progress bars and the final error."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(RedactingFormatter(_FORMAT, datefmt="%H:%M:%S"))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Also append log records to `path`."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(RedactingFormatter(_FORMAT))
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
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
