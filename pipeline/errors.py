"""The one error that is shown to users as a single line, without a traceback, and what such lines are made of."""

import json
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class UserError(ValueError):
    """Something the user can put right: the message names the field or file, what was found, what would be right."""


def suggest(name: str, known: Iterable[str]) -> str:
    """How an error about an unknown name ends: the closest known one, or all of them."""
    known = list(known)
    close = get_close_matches(name, known, n=1)
    return f'; did you mean "{close[0]}"?' if close else f"; known: {', '.join(sorted(known))}"


def shown(value: Any) -> str:
    """A value as JSON, cut to fit a line."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
