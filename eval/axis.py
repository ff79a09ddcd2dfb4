"""A grid's axis in `eval_params`."""

from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

T = TypeVar("T")


def _distinct(values: list[T]) -> list[T]:
    if len(set(values)) < len(values):
        raise ValueError("should have each value once")
    return values


Axis = Annotated[list[T], Field(min_length=1), AfterValidator(_distinct)]
