"""Fork processes from a process that has imported the modules of a node once.

A node that starts by itself needs a second of CPU time for its imports, and suites start some two hundred nodes. Tests
about the start itself (`faults/test_start_and_stop.py`, the documents' shell lines, the demo) do not use forks."""

from __future__ import annotations

import atexit
import gc
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

IMPORTED = (
    *("sandq.node.node", "sandq.node.serving", "sandq.client", "sandq.server.http.serve", "sandq.tools.running"),
    *("anyio._backends._trio", "yaml", "trio._core._run"),
)
"""Modules of a node. `sandq.node` itself imports most of them only when a node starts."""
_ASKED_BYTES = 1 << 17
"""Largest request, in bytes. Most of it is the environment."""
_asking = threading.Lock()
_ended_cpu_s = 0.0


def ended_cpu_s() -> float:
    """Return the CPU seconds of the forks whose exit code was read. The forks are not children of this process."""
    return _ended_cpu_s


class Fork:
    """Provides the part of `subprocess.Popen` that a node's process needs.

    It runs `python -m module` with the arguments. `out`: the descriptor to print to."""

    def __init__(self, module: str, arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path, out: int) -> None:
        self.returncode: int | None = None
        self._ended, ended = os.pipe()
        asked = json.dumps({"module": module, "arguments": [*arguments], "environ": {**env}, "cwd": str(cwd)}).encode()
        assert len(asked) <= _ASKED_BYTES
        try:
            with _asking:
                socket.send_fds(_server(), [asked], [out, ended])
                self.pid = int(_server().recv(32))
        finally:
            os.close(ended)

    def poll(self) -> int | None:
        """Return the exit code if the process has ended: the negative number of the signal if one ended it."""
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            self._take()
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the end and return the exit code. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self._take()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _take(self) -> None:
        global _ended_cpu_s
        said = json.loads(os.read(self._ended, 1000))
        os.close(self._ended)
        self.returncode = said["code"]
        _ended_cpu_s += said["cpu_s"]


@cache
def _server() -> socket.socket:
    """Return the socket to the forking process, which the first call starts. It ends when the socket is closed."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _ASKED_BYTES)
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(there.fileno())],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[there.fileno()],
        )

    def end() -> None:
        here.close()
        process.wait()

    atexit.register(end)
    return here


# -- the process that forks ------------------------------------------------------------------------------------------


def serve(asking: socket.socket) -> tuple[dict[str, Any], int] | None:
    """Fork at each request, until the socket is closed.

    In a new process, return the request and the output descriptor. In the forking process, return None."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    reporting: dict[int, int] = {}
    while True:
        ready = select.select([asking, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 1000)
            _reap(reporting)
        if asking in ready:
            asked, descriptors, _, _ = socket.recv_fds(asking, _ASKED_BYTES, 2)
            if not asked:
                return None
            out, ended = descriptors
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                asking.close()
                for descriptor in (woken, wakes, ended, *reporting.values()):
                    os.close(descriptor)
                return json.loads(asked), out
            reporting[pid] = ended
            os.close(out)
            asking.send(str(pid).encode())


def _reap(reporting: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while True:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            said = {"code": os.waitstatus_to_exitcode(status), "cpu_s": usage.ru_utime + usage.ru_stime}
            with suppress(BrokenPipeError), os.fdopen(reporting.pop(pid), "wb") as ended:
                ended.write(json.dumps(said).encode())


def _become(asked: dict[str, Any], out: int) -> None:
    """Run the requested module as if Python had been started with these settings."""
    for descriptor in (1, 2):
        os.dup2(out, descriptor)
    os.close(out)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environ"])
    sys.argv[1:] = asked["arguments"]
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in IMPORTED:
        __import__(name)
    gc.collect()
    gc.freeze()
    found = serve(socket.socket(fileno=int(sys.argv[1])))
    if found is not None:
        # A fork reseeds Python's own generator, but not that of trio, which decides the order of tasks.
        sys.modules["trio._core._run"]._r = random.Random()
        _become(*found)


if __name__ == "__main__":
    main()
