"""Running commands so that none outlives this process."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 10
PR_SET_PDEATHSIG = 1  # of Linux's prctl
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass
class Runner:
    """Runs a command at a time, in a process group of its own, which a signal that ends this process ends too."""

    child: subprocess.Popen[bytes] | None = None
    stopped_by: int | None = None

    @contextmanager
    def listening(self) -> Iterator["Runner"]:
        """Pass signals on; afterwards they do what they did before. Ignored ones stay so, as under nohup."""
        numbers = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        before = [(number, signal.signal(number, self._stop)) for number in (*numbers, signal.SIGALRM)]
        try:
            yield self
        finally:
            signal.alarm(0)
            for number, handler in before:
                signal.signal(number, handler)

    def run(self, command: Sequence[str]) -> int:
        """Run a command to its end; return its exit code, below 0 for a signal. Does nothing once stopped."""
        if self.stopped_by is not None:
            return 0
        self.child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=_die_with_parent if LIBC else None
        )
        if self.stopped_by is not None:  # while it was starting
            self._send(self.stopped_by)
        code = self.child.wait()
        if self.stopped_by is not None:
            self._send(signal.SIGKILL)  # what it may have started
        self.child = None
        return code

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Pass the first signal on; kill at the second one, or when time is up."""
        self._send(number if self.stopped_by is None else signal.SIGKILL)
        self.stopped_by = self.stopped_by or number
        signal.alarm(GRACE_SECONDS)

    def _send(self, number: int) -> None:
        if self.child is not None:
            with suppress(ProcessLookupError, PermissionError):  # it has ended
                os.killpg(self.child.pid, number)


def _die_with_parent() -> None:
    """In the child: be killed when this process is, even in a way that it can't pass on."""
    assert LIBC is not None
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
