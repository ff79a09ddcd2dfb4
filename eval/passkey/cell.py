"""One cell of the passkey grid, and its name in records."""

import re
from dataclasses import dataclass
from typing import Self

from pipeline.errors import UserError

_NAME = re.compile(r"length (\d+), depth ([\d.e-]+), (\d+) digits")


@dataclass(frozen=True, order=True)
class Cell:
    """Where in the grid a prompt belongs.

    length: tokens of the background.
    depth: share of the background before the key, from 0 to 1.
    key_digits: digits of the key.
    """

    length: int
    depth: float
    key_digits: int

    @property
    def name(self) -> str:
        """What `Sample.group` says, such as "length 1000, depth 0.25, 7 digits"."""
        return f"length {self.length}, depth {self.depth}, {self.key_digits} digits"

    @classmethod
    def from_name(cls, name: str) -> Self:
        """Read a `name` back.

        Raises:
            UserError: it is not the name of a cell.
        """
        found = _NAME.fullmatch(name)
        if found is None:
            raise UserError(f'group {name!r}: should look like "length 1000, depth 0.25, 7 digits"')
        return cls(int(found[1]), float(found[2]), int(found[3]))
