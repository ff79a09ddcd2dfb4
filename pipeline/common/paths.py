"""Where relative names in configs start from."""

from pathlib import Path

REPO_ROOT = Path(__file__).resolve().parents[2]


def from_root(name: str) -> Path:
    """What `name` means in a config: a path that is absolute, from ~, or from the repository root."""
    return REPO_ROOT / Path(name).expanduser()
