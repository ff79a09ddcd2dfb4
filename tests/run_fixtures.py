"""Fixtures of the tests that run the command line in this process."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.common import access
from tests.audited import run_both
from tests.runs import Case, save_tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def case(tmp_path: Path, model: Path, isolated: None) -> Case:
    return Case(tmp_path, model)


@pytest.fixture
def runs(case: Case) -> tuple[Path, Path]:
    """The folders of a finished FAFO run and of its baseline."""
    return run_both(case)


@pytest.fixture
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No hub token of the user's, and logging as it was."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(access, "TOKEN_FILE", tmp_path / "access_tokens.py")
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
