"""Run a real node in a process, which tests kill, pause and restart over the same data."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.forks import Fork
from tests.support.waiting import PATIENCE_S, wait_until

SERVES = b"clients are served"
SERVES_HTTP = b"HTTP is served by a process"
"""Events in the log of a node."""
SEGMENT_BYTES = "1048576"
"""Size of the segments of a node's write-ahead log."""


class NodeProcess:
    """A node in a process: `launcher python program`. The output goes to the file `log`.

    `is_fresh`: start a new Python. Otherwise, run the module in a fork of a process that has imported all modules.
    """

    def __init__(
        self,
        directory: Path,
        *,
        program: tuple[str, ...] = ("-m", "sandq.cli"),
        launcher: tuple[str, ...] = (),
        python: str | Path = sys.executable,
        host: str = "127.0.0.1",
        is_fresh: bool = False,
        **environ: str,
    ) -> None:
        self.directory = directory
        self.host = host
        self.port = free_port()
        self.data_dir = directory / "data"
        self.log = directory / "node.log"
        self.program = program
        """Program of the next start."""
        self._python = (*launcher, str(python))
        self._forks = not (is_fresh or launcher) and python == sys.executable
        self.environ = os.environ | {
            "SANDQ_NODE__DATA_DIR": str(self.data_dir),
            "SANDQ_LISTEN__CLIENT": self.address,
            "SANDQ_LISTEN__HTTP": "none",
            "SANDQ_LISTEN__PEER": f"{host}:0",
            "SANDQ_LISTEN__GOSSIP": f"{host}:0",
            "SANDQ_SECURITY__INSECURE": "false" if host == "127.0.0.1" else "true",
            # A node fills two segments with zeros at its start: by default 128 MB.
            "SANDQ_STORAGE__SEGMENT_BYTES": SEGMENT_BYTES,
            "PYTHONPATH": str(ROOT),
            **environ,
        }
        self._process: subprocess.Popen[bytes] | Fork | None = None
        self._logged_before = 0
        """Size of the log file before the last start, in bytes."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self, *, wait: bool = True, log: int | None = None) -> None:
        """Start the node. `log`: a descriptor to print to instead of the file."""
        with self.log.open("ab") as file:
            self._logged_before = file.tell()
            out = file.fileno() if log is None else log
            if self._forks and self.program[0] == "-m":
                _, module, *arguments = self.program
                self._process = Fork(module, arguments, env=self.environ, cwd=self.directory, out=out)
            else:
                self._process = subprocess.Popen(
                    (*self._python, *self.program), env=self.environ, stdout=out, stderr=out, cwd=self.directory
                )
        if wait and log is None:
            self.wait_until_it_serves()
        elif wait:
            wait_until(self._listens)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0

    def wait_until_it_serves(self) -> None:
        """Wait until the log reports that the node serves clients (and HTTP if configured). Its ports open earlier."""
        events = [SERVES]
        if self.environ.get("SANDQ_LISTEN__HTTP", "none") != "none":
            events.append(SERVES_HTTP)

        def serves() -> bool:
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError(f"the node ended with {self._process.returncode}:\n{self.output()}")
            with self.log.open("rb") as log:
                log.seek(self._logged_before)
                logged = log.read()
            return all(event in logged for event in events)

        try:
            wait_until(serves)
        except AssertionError as error:
            error.add_note(self.output())
            raise

    @property
    def root(self) -> Path:
        """Return the root directory that the process sees. It includes disks that a launcher mounted."""
        assert self._process is not None
        return Path(f"/proc/{self._process.pid}/root")

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def http_pids(self) -> list[int]:
        """Return the ids of the processes that have served HTTP for this node, in the order of their starts."""
        lines = [json.loads(line) for line in self.output().splitlines() if line.endswith("}")]
        return [line["pid"] for line in lines if line["event"] == "HTTP is served by a process"]

    def kill_http(self) -> None:
        """Kill the HTTP process of this node with SIGKILL, and wait until the node has started another."""
        pids = self.http_pids
        os.kill(pids[-1], signal.SIGKILL)
        wait_until(lambda: len(self.http_pids) > len(pids))

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the node with SIGKILL, and wait for its end."""
        self.signal(signal.SIGKILL)
        self.ended()

    def pause(self) -> None:
        """Stop the process for a while. The process cannot notice the pause itself."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Wait until the node ends by itself, and return its exit code."""
        assert self._process is not None
        return self._process.wait(timeout=PATIENCE_S)

    def close(self) -> None:
        if self.runs:
            self.kill()

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""
