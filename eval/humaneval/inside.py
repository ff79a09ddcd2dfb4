"""What starts inside the sandbox: it gives up root, sets limits, and runs the program that comes on stdin.

The interpreter gets this file as text (see execute.py), so it imports nothing of this repository. On stdout it says how
far it came: that the sandbox stands, and later, with a word that only the caller knows, that the program ended well.
"""

import json
import os
import resource
import sys
import types
from collections.abc import Mapping, Sequence

_NOBODY = 65534


def main() -> None:
    """Run the sources in turn, as one module."""
    order = json.load(sys.stdin)
    verdict = os.dup(sys.stdout.fileno())
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdin, sys.stdout):
        os.dup2(null, stream.fileno())
    _drop_root()
    _limit(order["limits"])
    os.write(verdict, order["ready"].encode())
    os.dup2(null, sys.stderr.fileno())
    os.close(null)
    _run(order["sources"])
    os.write(verdict, order["passed"].encode())
    os._exit(0)  # threads that the program left behind don't matter


def _drop_root() -> None:
    """The kernel sets root no limit of processes."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)


def _limit(limits: Mapping[str, int]) -> None:
    for name, limit in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (allowed, allowed))


def _run(sources: Sequence[str]) -> None:
    os.environ.clear()
    module = types.ModuleType("program")  # not __main__: what a script does when it is started isn't wanted
    sys.modules[module.__name__] = module
    for source in sources:
        exec(compile(source, module.__name__, "exec"), module.__dict__)


if __name__ == "__main__":
    main()
