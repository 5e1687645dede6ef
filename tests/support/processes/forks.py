"""Processes that begin where Python has imported what a node consists of: forked of one that did so once.

A node that is started by itself spends a second of CPU time on its imports, and suites start some two hundred. What
the start itself is about (`faults/test_start_and_stop.py`, the documents' shell lines, the demo) takes no part in this.
"""

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

IMPORTED = ("sandq.node", "sandq.client", "sandq.server.http.serve", "sandq.tools.running", "yaml", "trio._core._run")
_ASKED_BYTES = 1 << 17
"""What is asked at once: above all an environment."""
_asking = threading.Lock()
_ended_cpu_s = 0.0


def ended_cpu_s() -> float:
    """CPU time of those that have ended, and were asked about: they are no children of this process."""
    return _ended_cpu_s


class Fork:
    """Of `subprocess.Popen` what a node's process needs. Runs `python -m module` with those arguments; `out`: the
    descriptor that it prints to."""

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
        """The exit code, if it has ended: negative, and the signal's number, if a signal ended it."""
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            self._take()
        return self.returncode

    def wait(self, timeout: float) -> int:
        """The exit code, once it has ended. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self._take()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
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
    """To what forks: one for this process, started when it is needed; it ends with the socket."""
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
    """Fork whenever that is asked, until nobody is left who could. Returns in each new process, with what it is to be
    and where it prints to; and in the end, with None."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    told: dict[int, int] = {}
    while True:
        ready = select.select([asking, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 1000)
            _reap(told)
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
                for descriptor in (woken, wakes, ended, *told.values()):
                    os.close(descriptor)
                return json.loads(asked), out
            told[pid] = ended
            os.close(out)
            asking.send(str(pid).encode())


def _reap(told: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while True:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            said = {"code": os.waitstatus_to_exitcode(status), "cpu_s": usage.ru_utime + usage.ru_stime}
            with suppress(BrokenPipeError), os.fdopen(told.pop(pid), "wb") as ended:
                ended.write(json.dumps(said).encode())


def _become(asked: dict[str, Any], out: int) -> None:
    """As if Python had been started with all of it."""
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
        # Python's own generator is seeded anew by a fork; trio's, which says what runs first, is not.
        sys.modules["trio._core._run"]._r = random.Random()
        _become(*found)


if __name__ == "__main__":
    main()
