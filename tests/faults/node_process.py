"""A real node in a process of its own, to be killed and started again over the same data."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

START_S = 20.0
ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """Below the ports of outgoing connections: a client that knocks at a free one of those again and again may be
    given it as its own end, and is then connected to itself."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


class NodeProcess:
    """`program` runs the node; what it prints goes to `log`."""

    def __init__(self, directory: Path, *, program: tuple[str, ...] = ("-m", "sandq.cli"), **environ: str) -> None:
        self.directory = directory
        self.port = free_port()
        self.data_dir = directory / "data"
        self.log = directory / "node.log"
        self._program = program
        self._environ = os.environ | {
            "SANDQ_NODE__DATA_DIR": str(self.data_dir),
            "SANDQ_LISTEN__CLIENT": f"127.0.0.1:{self.port}",
            "SANDQ_LISTEN__HTTP": "none",
            "PYTHONPATH": str(ROOT),
            **environ,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, *, wait: bool = True) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._program], env=self._environ, stdout=log, stderr=log, cwd=self.directory
            )
        if wait:
            self.wait_until_it_serves()

    def wait_until_it_serves(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError(f"the node ended with {self._process.returncode}:\n{self.output()}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError(f"the node does not serve after {START_S} s:\n{self.output()}")

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=30)

    def ended(self) -> int:
        """Wait for it to end by itself; the exit code."""
        assert self._process is not None
        return self._process.wait(timeout=30)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""
