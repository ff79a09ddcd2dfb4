"""From the name of a KV method, as configs and `fafo_generate` have it, to its class."""

from importlib import import_module
from typing import Any

from pydantic.dataclasses import is_pydantic_dataclass

from pipeline.errors import UserError, shown, suggest
from pipeline.fafo.selectors import SELECTORS, Selector
from pipeline.fafo.selectors.presses import press_selector


def selector_named(name: Any) -> type[Selector]:
    """The class of one of our methods ("snapkv"), of a press ("kvpress:SnapKVPress"), or a user's own ("module:Class").

    Raises:
        UserError: there is none; the message says what was found, and not for which field.
    """
    if not isinstance(name, str) or not (name in SELECTORS or ":" in name):
        hint = suggest(name if isinstance(name, str) else "", SELECTORS)
        raise UserError(f"found {shown(name)}, which names no selector{hint}")
    module, is_of_module, class_name = name.partition(":")
    if not is_of_module:
        return SELECTORS[name]
    if module == "kvpress":
        try:
            return press_selector(class_name)
        except UserError as error:
            raise UserError(f"found {shown(name)}, but {error}") from None
    return _users_own(module, class_name)


def _users_own(module: str, class_name: str) -> type[Selector]:
    name = shown(f"{module}:{class_name}")
    try:
        found = getattr(import_module(module), class_name)
    except Exception as error:  # the user's own module: it may raise anything
        raise UserError(f"found {name}, which can't be imported: {type(error).__name__}: {error}") from None
    if isinstance(found, type) and is_pydantic_dataclass(found) and issubclass(found, Selector):
        return found
    raise UserError(f"found {name}, which is not a pydantic dataclass and a Selector")
