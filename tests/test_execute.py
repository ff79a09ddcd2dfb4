"""Generated programs are executed where they can do no harm. Nothing here is simulated: it all runs."""

import os
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from eval.humaneval.execute import passes, require_sandbox
from pipeline.errors import UserError
from tests.tools import tool

# In a process whose command line can be found from outside.
ENDLESS = """
import os, sys
program = '''# {token}
import os, signal, sys
for number in set(signal.Signals) - {{signal.SIGKILL, signal.SIGSTOP}}:
    signal.signal(number, signal.SIG_IGN)
while True:
    try:
        {deed}
    except OSError:
        pass
'''
os.execv(sys.executable, [sys.executable, "-c", program])
"""


def processes_with(token: str) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if token in " ".join(p.info["cmdline"] or ())]


def assert_gone(token: str) -> None:
    """The kernel may need a moment."""
    deadline = time.monotonic() + 10
    while processes_with(token) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not processes_with(token)


@pytest.fixture(autouse=True)
def bubblewrap() -> None:
    tool("bwrap")


@pytest.fixture
def token() -> str:
    return f"fafo-test-{os.urandom(8).hex()}"


def test_sources_are_one_module() -> None:
    assert passes(["import math", "def f(): return math.pi", "assert f() > 3"])
    assert passes(["from dataclasses import dataclass", "@dataclass\nclass A:\n    x: 'int'\nassert A(1).x == 1"])
    assert passes(["assert __name__ != '__main__'", "assert 'é\u2028' == chr(233) + chr(0x2028)"])


@pytest.mark.parametrize(
    "source",
    [
        "assert False",
        "def f(:",
        "\0",
        "'\ud800'",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "raise KeyboardInterrupt",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.kill(0, 9)",
        "import os; os.kill(-1, 9)",
        "def f(): f()\nf()",
        "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n  def __getattr__(self, x): getattr(self, x)\nA().x",
        "import ctypes; ctypes.string_at(0)",
        "input()",
    ],
)
def test_failures(source: str) -> None:
    assert not passes([source])


def test_same_hashes_each_time() -> None:
    ask = [sys.executable, "-c", "print(hash('a'))"]
    expected = subprocess.run(ask, env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True).stdout
    assert passes([f"assert hash('a') == {expected}"])


@pytest.mark.parametrize("deed", ["os.fork()", "print('x' * 1_000_000, file=sys.stderr)"])
def test_endless_program_that_ignores_signals(deed: str, token: str) -> None:
    with ThreadPoolExecutor() as pool:
        running = pool.submit(passes, [ENDLESS.format(token=token, deed=deed)], timeout_s=3)
        seen = []
        while not running.done():
            seen.append(len(processes_with(token)))
            time.sleep(0.05)
    assert not running.result()
    assert (2 if "fork" in deed else 1) <= max(seen) <= 8
    assert_gone(token)


def test_output_goes_nowhere() -> None:
    assert passes(["for _ in range(100): print('x' * 1_000_000)"])


def test_spoilt_verdict() -> None:
    """Writing to whatever is open neither passes nor fills a disk."""
    flood = """
import os
for stream in range(3, 32):
    try:
        for _ in range(100):
            os.write(stream, bytes(1 << 20))
    except OSError:
        pass
"""
    assert not passes([flood])


def test_few_processes() -> None:
    fork = """
import os, time
children = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
        children += 1
except OSError:
    assert 1 <= children < 8
"""
    assert passes([fork])


def test_background_process_is_gone_afterwards(token: str) -> None:
    leave = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600) # {token}"], start_new_session=True)
assert child.poll() is None
"""
    assert passes([leave])
    assert_gone(token)


def test_threads() -> None:
    assert passes(["import threading", "t = threading.Thread(target=print)", "t.start()", "t.join()"])
    assert passes(["import threading, time", "threading.Thread(target=time.sleep, args=(600,)).start()"], timeout_s=60)


def test_memory() -> None:
    assert not passes(["x = bytearray(1 << 30)"])
    assert not passes(["x = []\nwhile True: x.append(bytes(1 << 20))"])
    assert passes(["x = bytearray(1 << 26)"])


def test_files_are_few_small_and_thrown_away() -> None:
    fill = """
import os
def fill(path):
    try:
        with open(path, "wb") as file:
            while True:
                file.write(bytes(1 << 18))
    except OSError:
        return os.path.getsize(path)

sizes = [fill(str(i)) for i in range(100)]
assert sizes[0] <= 4 << 20
assert 0 < sum(sizes) <= 16 << 20
"""
    assert passes([fill])
    assert passes(["import os; assert os.listdir() == []"])


def test_no_other_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("kept")
    tamper = f"""
import os
for path in ({str(secret)!r}, {__file__!r}, {str(Path.home() / ".cache")!r}, "/etc/passwd", "/proc/self"):
    assert not os.path.exists(path), path
for folder in ("/", "/dev", "/usr", "/usr/lib", os.path.dirname(os.__file__)):
    try:
        open(os.path.join(folder, "new"), "w")
    except OSError:
        continue
    raise AssertionError(folder)
open("new", "w").close()
try:
    os.makedirs({str(tmp_path)!r})
    open({str(secret)!r}, "w").close()
except OSError:
    pass
"""
    assert passes([tamper])
    assert secret.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [secret]


def test_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        server.accept()[0].close()
        connect = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=1)"
        assert not passes([connect])
        assert passes(["import socket", "assert [name for _, name in socket.if_nameindex()] == ['lo']"])
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    show = "subprocess.run([sys.executable, '-c', 'import os, sys; sys.exit(\"HF_TOKEN\" in os.environ)'], check=True)"
    assert passes(["import os; assert not os.environ", f"import subprocess, sys\n{show}"])


def test_no_open_files() -> None:
    """The program inherits none, whatever the caller has open; 3 is the verdict's."""
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    look = """
import os
for stream in range(4, 1024):
    try:
        os.fstat(stream)
    except OSError:
        continue
    raise AssertionError(stream)
"""
    try:
        assert passes([look])
    finally:
        os.close(reader)
        os.close(writer)


def test_no_rights() -> None:
    assert passes(["import os; assert os.getuid() != 0 and os.geteuid() != 0"])
    assert not passes(["import os; os.setuid(0)"])


def put_bwrap(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_refusal_where_namespaces_are_forbidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require_sandbox()
    put_bwrap(tmp_path, "echo 'bwrap: No permissions to create new namespace' >&2; exit 1", monkeypatch)
    with pytest.raises(UserError, match=r"found true, but bwrap: No permissions to create .* or set it to false"):
        require_sandbox()


def test_refusal_of_a_leak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leaky = 'for a; do shift; [ "$a" = --unshare-net ] || set -- "$@" "$a"; done'
    put_bwrap(tmp_path, f'{leaky}; exec {shutil.which("bwrap")} "$@"', monkeypatch)
    with pytest.raises(UserError, match="network, files or processes stay open"):
        require_sandbox()
