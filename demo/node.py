"""A node in a process of its own, with its own data directory, to be killed and started again.

`python -m demo.node PARENT_PID` is what is run: the `sandq` command, which the kernel ends together with the process
that started it, so that no node ever stays behind. (Linux; the kernel means the starting *thread*: `start` belongs on
the main one.)
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START_S = 60.0
STOP_S = 15.0
POLL_S = 0.01

_PR_SET_PDEATHSIG = 1
SERVES = b"clients are served"
"""Event in the log of a node that answers clients from now on."""
_PORTS = (10_000, 12_000)
_given: dict[int, int] = {}
"""Ports that were named already, whether or not anybody listens there yet: each with the descriptor of a name in the
kernel that goes with this process, so that no other one of its kind takes the port meanwhile."""
_LOG_LINES = 12


class NodeFailed(Exception):
    """The node did not start, or ended by itself; the text says why, with the end of its log."""


def free_port() -> int:
    """A port of the loopback interface that nobody uses, for TCP or UDP, below those that the system gives to outgoing
    connections.

    A client that knocks on a free port of that upper range again and again may by chance be given this very port for
    its own end; it is then connected to itself, and the node cannot listen there any more.
    """
    for _ in range(1000):
        port = random.randrange(*_PORTS)
        if port in _given:
            continue
        taken = socket.socket(socket.AF_UNIX)
        with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            try:
                taken.bind(f"\0sandq-demo-port-{port}")
                stream.bind(("127.0.0.1", port))
                datagrams.bind(("127.0.0.1", port))
            except OSError:
                taken.close()
                continue
            _given[port] = taken.detach()
            return port
    raise NodeFailed(f"no port is free on 127.0.0.1 within {_PORTS[0]}..{_PORTS[1]}")


PROGRAM = ("-m", "demo.node")
"""Runs a node that ends with its parent."""


class Node:
    """One node over `directory`: data and log live there. `settings` are SANDQ_ variables without the prefix."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "the node",
        program: tuple[str, ...] = PROGRAM,
        **settings: str,
    ) -> None:
        self.directory = directory
        self.name = name
        self.port = free_port()
        self.log_file = directory / "node.log"
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = self._has_served = False
        self._read_to = 0
        """Up to here its log was read."""
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("SANDQ_")}
        self._environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._environ["SANDQ_NODE__DATA_DIR"] = str(directory / "data")
        self._environ["SANDQ_LISTEN__CLIENT"] = self.address
        self._environ["SANDQ_LISTEN__HTTP"] = "none"
        self._environ["SANDQ_LISTEN__PEER"] = "127.0.0.1:0"
        self._environ["SANDQ_LISTEN__GOSSIP"] = "127.0.0.1:0"
        self._environ.update({f"SANDQ_{name}": value for name, value in settings.items()})

    def configure(self, **settings: str) -> None:
        """More SANDQ_ variables, for the next start."""
        self._environ.update({f"SANDQ_{name}": value for name, value in settings.items()})

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def runs(self) -> bool:
        """Whether it was started and not killed or stopped since."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process; `serves` tells when it is ready."""
        command = [sys.executable, *self._program, str(os.getpid())]
        self._stopping = self._has_served = False
        self._read_to = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            # A process group of its own: Ctrl-C in the terminal is for us, who then stop it. Not a session: where the
            # kernel shares the processor among sessions, threads of it that do little wait long beside busy clients.
            self._process = subprocess.Popen(
                command,
                env=self._environ,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def serves(self) -> bool:
        """Return whether it answers clients, by its log: its port listens before it does. Raises NodeFailed if it has
        ended."""
        self.check()
        if not self._has_served:
            with self.log_file.open("rb") as log:
                log.seek(self._read_to)
                for line in log:
                    if not line.endswith(b"\n"):
                        break
                    self._read_to += len(line)
                    self._has_served = self._has_served or SERVES in line
        return self._has_served

    def check(self) -> None:
        """NodeFailed when it has ended without having been told to."""
        if self._process is not None and self._process.poll() is not None:
            raise NodeFailed(f"{self.name} ended with exit code {self._process.returncode}:\n{self.last_lines()}")

    def kill(self) -> None:
        """SIGKILL, and wait for the end: nothing is flushed, nothing is said to anybody."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def terminate(self) -> None:
        """SIGTERM: it stops cleanly, if it still runs. Once: a second one would end it at once."""
        if self._process is not None and not self._stopping and self._process.poll() is None:
            self._stopping = True
            self._process.terminate()

    def stop(self) -> int | None:
        """SIGTERM, and wait; SIGKILL when it takes too long. The exit code; None when it did not run."""
        self.terminate()
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def wait_until_it_serves(self) -> None:
        """Blocking, for programs without an event loop. NodeFailed when it ends or takes too long."""
        deadline = time.monotonic() + START_S
        while not self.serves():
            if time.monotonic() > deadline:
                raise self.too_slow()
            time.sleep(POLL_S)

    def too_slow(self) -> NodeFailed:
        """What to raise when it does not serve in time."""
        return NodeFailed(f"{self.name} does not serve after {START_S:g} s:\n{self.last_lines()}")

    def last_lines(self) -> str:
        """The end of its log."""
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return "\n".join(text.splitlines()[-_LOG_LINES:])


def end_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit("the process that wanted this node is gone already")


if __name__ == "__main__":
    from sandq.cli import main

    end_with_parent(int(sys.argv.pop(1)))
    main()
