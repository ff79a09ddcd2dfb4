"""Which of the prompts this process answers, where several processes share them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pipeline.errors import UserError

T = TypeVar("T")
_OF = "-of-"  # in names of files: raw_results.0-of-2.jsonl


@dataclass(frozen=True)
class Shard:
    """Every `n_processes`-th prompt, from number `process` on.

    local_process: the number of this process among those on its machine, which decides on its GPU.
    """

    process: int = 0
    n_processes: int = 1
    local_process: int = 0

    def own(self, path: Path) -> Path:
        """This process's file in place of the run's: for a process on its own, the same."""
        return path if self.n_processes == 1 else self._named(path, str(self.process))

    def of_division(self, path: Path) -> list[Path]:
        """The files that there are of all processes of as many."""
        return [path] if self.n_processes == 1 else sorted(path.parent.glob(self._named(path, "*").name))

    def _named(self, path: Path, process: str) -> Path:
        return path.with_suffix(f".{process}{_OF}{self.n_processes}{path.suffix}")

    def of(self, prompts: Sequence[T]) -> Sequence[T]:
        """This process's part."""
        return prompts[self.process :: self.n_processes]


WHOLE = Shard()


def all_shards(path: Path) -> list[Path]:
    """The run's file, and those that there are of processes that share the run, of however many."""
    return [path, *sorted(path.parent.glob(f"{path.stem}.*{_OF}*{path.suffix}"))]


def launched_shard() -> Shard:
    """The shard that the launcher gives this process: `accelerate launch` and torchrun set these variables.

    Raises:
        UserError: their values are none that a launcher sets.
    """
    given = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    if not all(given.values()):  # one of them alone may mean anything
        return WHOLE
    try:
        process, n_processes, local = (int(value or "") for value in given.values())
        if not (0 <= process < n_processes and local >= 0):
            raise ValueError
    except ValueError:
        said = ", ".join(f"{name}={value}" for name, value in given.items())
        raise UserError(f"the environment has {said}, as no launcher would: unset them, or start anew") from None
    return Shard(process, n_processes, local)
