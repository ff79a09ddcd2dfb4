"""Programs that some tests need beside Python's packages."""

import os
import shutil

import pytest


def tool(*names: str) -> str:
    """The path of a program, under one of its names; without it the test is skipped, in CI it fails."""
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        message = f"needs {' or '.join(names)} on the PATH"
        if os.environ.get("FAFO_REQUIRE_TOOLS") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return path
