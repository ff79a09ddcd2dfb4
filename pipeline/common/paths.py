"""Where relative names in configs start from."""

from pathlib import Path

from pipeline.errors import UserError

REPO_ROOT = Path(__file__).resolve().parents[2]


def from_root(name: str) -> Path:
    """What `name` means in a config: a path that is absolute, from ~, or from the repository root.

    Raises:
        UserError: it is no possible path.
    """
    try:
        return REPO_ROOT / to_path(name).expanduser()
    except RuntimeError:
        raise UserError(f"{name}: no such user's home folder; write the path out") from None


def to_path(name: str) -> Path:
    """Return `name` as a path.

    Raises:
        UserError: it is empty or has a NUL byte, which no path has.
    """
    if not name or "\0" in name:
        raise UserError(f"found {name!r}; it should be a path")
    return Path(name)
