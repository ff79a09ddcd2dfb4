"""The hub token: where it comes from, and that it never shows."""

import logging
import os
import runpy
from functools import cache
from pathlib import Path

from pipeline.common.paths import REPO_ROOT
from pipeline.errors import UserError

TOKEN_FILE = REPO_ROOT / "config" / "access_tokens.py"


def hub_token() -> str | None:
    """The token for gated models: `HF_TOKEN`, else `hf_access_token` in config/access_tokens.py, else None.

    Raises:
        UserError: the file can't be run, or its token is not a string.
    """
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token
    return _token_in(TOKEN_FILE)


def token_source() -> str:
    """Where the token that the hub gets comes from, for errors."""
    if os.environ.get("HF_TOKEN", "").strip():
        return "the environment's HF_TOKEN"
    if _token_in(TOKEN_FILE):
        return str(TOKEN_FILE)
    return "an earlier login (hf auth login)"  # the hub client looks there when it is given none


@cache  # asked for at every log record
def _token_in(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        token = runpy.run_path(str(path)).get("hf_access_token")
    except Exception as error:  # the user's own file: whatever it raises, its text might quote the token
        raise UserError(f"{path}: {type(error).__name__} in it; see access_tokens.example.py") from None
    if token is not None and not isinstance(token, str):
        raise UserError(f"{path}: hf_access_token is a {type(token).__name__}; it should be a string")
    return (token or "").strip() or None


def redact(text: str) -> str:
    """Return `text` without the hub token."""
    try:
        token = hub_token()
    except UserError:
        token = None
    return text.replace(token, "[token]") if token else text


class RedactingFormatter(logging.Formatter):
    """Formats whole records (message, arguments, exception) and takes the hub token out of the result."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatted record without the hub token."""
        return redact(super().format(record))
