"""Which of the prompts this process answers, where several processes share them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """Every `n_processes`-th prompt, from number `process` on.

    local_process: the number of this process among those on its machine, which decides on its GPU.
    """

    process: int = 0
    n_processes: int = 1
    local_process: int = 0

    @property
    def tag(self) -> str:
        """What tells its files from those of the other processes; empty for a process on its own."""
        return f".{self.process}-of-{self.n_processes}" if self.n_processes > 1 else ""

    def of(self, prompts: Sequence[T]) -> Sequence[T]:
        """This process's part."""
        return prompts[self.process :: self.n_processes]


WHOLE = Share()


def launched_share() -> Share:
    """The share that the launcher gives this process: `accelerate launch` and torchrun set these variables."""
    process, n_processes, local = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    return Share(process, max(n_processes, 1), local)
