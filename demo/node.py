"""A node in a process with its own data directory, which can be killed and started again.

`python -m demo.node PARENT_PID` runs the `sandq` command in a process that the kernel ends together with its parent, so
that no node stays behind. (Linux only. The kernel watches the *thread* that started the process, so call `start` on the
main thread.)
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

SEGMENT_BYTES = "4MiB"
"""Size of the segments of a node's log. A node fills two of them with zeros at its start: by default 128 MB."""

_PR_SET_PDEATHSIG = 1
SERVES = b"clients are served"
"""Log event of a node that accepts clients."""
_PORTS = (10_000, 12_000)
_given: dict[int, int] = {}
"""Ports that `free_port` returned, even if no process listens there yet.

Value: descriptor of a socket with an abstract name. While it is open, other demo processes do not take the port."""
_LOG_LINES = 12


class NodeFailed(Exception):
    """The node did not start, or ended by itself. The text says why, with the end of its log."""


def free_port() -> int:
    """Return a port of the loopback interface that is free for TCP and UDP.

    The port is below the range from which the system chooses ports for outgoing connections. Otherwise a client that
    repeatedly tries to reach the node could get the same port as its own. The client would then be connected to itself,
    and the node could not listen there.
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
"""Arguments for Python that start a node. The node ends together with its parent process."""


class Node:
    """A node with its data and its log in `directory`. `settings` are SANDQ_ variables without the prefix."""

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
        """Position in bytes up to which the log was searched for `SERVES`."""
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("SANDQ_")}
        self._environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._environ["SANDQ_NODE__DATA_DIR"] = str(directory / "data")
        self._environ["SANDQ_STORAGE__SEGMENT_BYTES"] = SEGMENT_BYTES
        self._environ["SANDQ_LISTEN__CLIENT"] = self.address
        self._environ["SANDQ_LISTEN__HTTP"] = "none"
        self._environ["SANDQ_LISTEN__PEER"] = "127.0.0.1:0"
        self._environ["SANDQ_LISTEN__GOSSIP"] = "127.0.0.1:0"
        self._environ.update({f"SANDQ_{name}": value for name, value in settings.items()})

    def configure(self, **settings: str) -> None:
        """Set more SANDQ_ variables for the next start."""
        self._environ.update({f"SANDQ_{name}": value for name, value in settings.items()})

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def runs(self) -> bool:
        """True if the node was started, and was not killed or stopped since then."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """Process id of the running process."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process. `serves` returns True once the node is ready."""
        command = [sys.executable, *self._program, str(os.getpid())]
        self._stopping = self._has_served = False
        self._read_to = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            # The node gets its own process group, so that Ctrl-C in the terminal reaches only the demo, which then
            # stops the node. It gets no session of its own: some kernels divide CPU time among sessions, and the node
            # would wait long for the CPU while clients are busy.
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
        """Return whether the node accepts clients. Raises NodeFailed if it has ended.

        The log says so. The port cannot be used as a test, because it listens before the node accepts clients."""
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
        """Raise NodeFailed if the node has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise NodeFailed(f"{self.name} ended with exit code {self._process.returncode}:\n{self.log_tail()}")

    def kill(self) -> None:
        """Kill the node with SIGKILL and wait for its end. The node flushes nothing and sends no message."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def terminate(self) -> None:
        """If the node still runs, send SIGTERM once, so that it stops cleanly. A second SIGTERM would end it
        immediately."""
        if self._process is not None and not self._stopping and self._process.poll() is None:
            self._stopping = True
            self._process.terminate()

    def stop(self) -> int | None:
        """Send SIGTERM and wait; send SIGKILL if the node needs too long. Returns the exit code; None if it never
        ran."""
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
        """Block until the node accepts clients, for programs without an event loop.

        Raises NodeFailed if the node ends, or takes too long."""
        deadline = time.monotonic() + START_S
        while not self.serves():
            if time.monotonic() > deadline:
                raise self.too_slow()
            time.sleep(POLL_S)

    def too_slow(self) -> NodeFailed:
        """Return the error for a node that does not accept clients in time."""
        return NodeFailed(f"{self.name} does not serve after {START_S:g} s:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """Return the last lines of the node's log."""
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return "\n".join(text.splitlines()[-_LOG_LINES:])


def end_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process when the thread that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit("the process that started this node has already ended")


if __name__ == "__main__":
    from sandq.cli import main

    end_with_parent(int(sys.argv.pop(1)))
    main()
