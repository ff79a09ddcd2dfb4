"""Running generated programs where they can do no harm: each in a bubblewrap sandbox of its own, with limits.

A program sees the standard library, an empty folder that goes away with it, and nothing else: no network, no other file
or process, no environment. This guards against what a model writes by mistake, however bad. It is no wall against code
written to deceive: such code can find the word that stands for success, or memory that no limit counts.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.errors import UserError

TIMEOUT_S = 10
_LIMITS = {
    "RLIMIT_AS": 512 << 20,  # bytes of memory, each process
    "RLIMIT_NPROC": 8,  # processes and threads, the whole program
    "RLIMIT_FSIZE": 4 << 20,  # bytes, each file
    "RLIMIT_NOFILE": 32,
    "RLIMIT_CORE": 0,
}
_FOLDER_BYTES = 16 << 20  # all files together; they are in memory
_NAMESPACES = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
_AS_ROOT = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")  # to become nobody; see inside.py
_READY = "ready "

# Passes only where a program can't get at the network, at files or at more processes than it may have.
_PROBE = """
import os, socket, threading

def check(port, folder, processes):
    for attempt in (
        lambda: socket.create_connection(("127.0.0.1", port), timeout=1),
        lambda: os.listdir(folder),
        lambda: open(os.path.join(folder, "new"), "w"),
        lambda: open("/new", "w"),
    ):
        try:
            attempt()
        except OSError:
            continue
        raise AssertionError
    try:
        for _ in range(processes):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
    except RuntimeError:
        return
    raise AssertionError
"""


def require_sandbox() -> None:
    """See that generated programs can be executed here and do no harm.

    Raises:
        UserError: they can't.
    """
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not passes([_PROBE, f"check({port}, {folder!r}, {_LIMITS['RLIMIT_NPROC']})"]):
            raise _refusal("network, files or processes stay open in a bubblewrap sandbox here")


def _refusal(reason: str) -> UserError:
    return UserError(
        f"eval_params.execute_generated_code: found true, but {reason}; programs are executed in bubblewrap only "
        "(apt-get install bubblewrap; Linux, with namespaces allowed); or set it to false"
    )


def passes(sources: Sequence[str], timeout_s: float = TIMEOUT_S) -> bool:
    """Whether these sources, executed in turn as one program, reach their end without an error and in time.

    Raises:
        UserError: there is no sandbox to execute them in.
    """
    passed = secrets.token_hex()
    order = {"limits": _LIMITS, "ready": _READY, "passed": passed, "sources": list(sources)}
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:  # files, since limits hold for them
        with suppress(subprocess.TimeoutExpired):  # bubblewrap was killed, and whatever ran in it died with it
            subprocess.run(
                _command(),
                input=json.dumps(order).encode(),
                stdout=said,
                stderr=errors,
                env={"PYTHONHASHSEED": "0"},  # the same score each time; gone before the program starts
                timeout=timeout_s,
            )
        said.seek(0)
        errors.seek(0)
        verdict, reason = said.read().decode(errors="replace"), errors.read().decode(errors="replace")
    if not verdict.startswith(_READY):
        raise _refusal(reason.strip().rpartition("\n")[2] or f"no sandbox started within {timeout_s} s")
    return verdict == _READY + passed


def _command() -> list[str]:
    """An interpreter in a sandbox, with what it needs to start."""
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        raise _refusal("there is no bwrap on the PATH")
    base = Path(sys.base_prefix)  # of a virtual environment, the Python that it was made from
    python = base / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    libraries = [root / name for root in (base, Path("/usr"), Path("/")) for name in ("lib", "lib64")]
    visible = [path for path in (python, *libraries, Path("/etc/ld.so.cache")) if path.exists()]
    return [
        bubblewrap,
        *_NAMESPACES,
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *(_AS_ROOT if os.geteuid() == 0 else ("--unshare-user",)),
        *_mounts(visible),
        *("--dev-bind", "/dev/null", "/dev/null"),
        *("--perms", "0777", "--size", str(_FOLDER_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp"),
        *("--remount-ro", "/"),
        *(str(python), "-PSB", "-c", Path(__file__).with_name("inside.py").read_text()),
    ]


def _mounts(paths: Sequence[Path]) -> Iterator[str]:
    """Show these paths read-only, in folders that every user may enter."""
    for folder in sorted({parent for path in paths for parent in path.parents}):
        yield from ("--perms", "0755", "--dir", str(folder))
    for path in dict.fromkeys(paths):
        yield from ("--ro-bind", str(path), str(path))
