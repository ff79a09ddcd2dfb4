"""Reading a JSON config file so that whatever is wrong with it is said in one line."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pipeline.errors import UserError


@dataclass(frozen=True)
class JsonFile:
    """A JSON object and the bytes it was read from."""

    path: Path
    content: bytes
    data: dict[str, Any]


def read_json(path: Path) -> JsonFile:
    """Read a file that holds one JSON object.

    Raises:
        UserError: the file is missing, unreadable, not UTF-8, not JSON, or repeats a key.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; name an existing JSON config file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder; name the JSON file in it") from None
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None
    return JsonFile(path, content, _parse(path, content))


def parse_value(text: str) -> Any:
    """Read `text` as JSON, or else take it as a string: 7 is a number, null is None, quest is "quest"."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    try:
        text = content.decode("utf-8-sig")
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise UserError(f"{path}: not valid JSON at {place}: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply to be a config") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: found {type(data).__name__}; a config is a JSON object, {{...}}")
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f'key "{key}" appears twice in one object; keep one of them')
        result[key] = value
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value; use a number or null")
