"""The one error that is shown to users as a single line, without a traceback."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Something the user can put right: the message names the field or file, what was found, what would be right."""


def suggest(name: str, known: Iterable[str]) -> str:
    """How an error about an unknown name ends: the closest known one, or all of them."""
    known = list(known)
    close = get_close_matches(name, known, n=1)
    return f'; did you mean "{close[0]}"?' if close else f"; known: {', '.join(sorted(known))}"
