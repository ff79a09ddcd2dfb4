"""scripts/environment.sh, with an interpreter that only writes down what it is asked for."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.runs import ROOT

FAKE_PYTHON = """#!/usr/bin/env bash
here=$(dirname "$0")
echo "$*" >> "$CALLS"
case "$*" in
    "-m pip --version") [ -e "$here/pip" ] ;;
    "-m venv --clear "*) mkdir -p "${@: -1}/bin"; rm -f "${@: -1}/.installed"; touch "${@: -1}/bin/pip"
        cp "$0" "${@: -1}/bin/python" ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("requirements.txt", "requirements-dev.txt", "pyproject.toml"):
        (tmp_path / name).write_text(name)
    python = tmp_path / "fake-python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    return tmp_path


def make(folder: Path, *arguments: str, python: str | None = None) -> subprocess.CompletedProcess[str]:
    """Source the script and make an environment; what it called is in `calls`."""
    script = f'set -euo pipefail; source {ROOT}/scripts/environment.sh; make_environment .venv "$@"'
    environment = os.environ | {"PYTHON": python or str(folder / "fake-python"), "CALLS": str(folder / "calls")}
    (folder / "calls").write_text("")
    return subprocess.run(
        ["bash", "-c", script, "a-script.sh", *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


def calls(folder: Path, word: str) -> list[str]:
    return [line for line in (folder / "calls").read_text().splitlines() if word in line]


def test_two_sets_do_not_undo_each_other(folder: Path) -> None:
    some, more = ["-r", "requirements.txt"], ["-r", "requirements.txt", "-r", "requirements-dev.txt"]
    for arguments in (some, more):
        assert make(folder, *arguments).returncode == 0
        assert len(calls(folder, "install")) == 1
    for arguments in (some, more):
        assert "complete" in make(folder, *arguments).stdout
        assert not calls(folder, "install")
    (folder / "requirements.txt").write_text("changed")
    for arguments in (some, more):
        assert make(folder, *arguments).returncode == 0
        assert len(calls(folder, "install")) == 1
    (folder / "requirements.txt").write_text("requirements.txt")
    make(folder, *some)
    assert calls(folder, "install")  # what was there before the change is not there now


def test_without_pip_it_is_made_again(folder: Path) -> None:
    make(folder, "x")
    (folder / ".venv" / "bin" / "pip").unlink()
    assert make(folder, "x").returncode == 0
    assert calls(folder, "venv")
    assert calls(folder, "install")


def test_no_such_interpreter(folder: Path) -> None:
    ended = make(folder, "x", python="nosuch")
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: no nosuch here")
    assert ended.stderr.count("\n") == 1
