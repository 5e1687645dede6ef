"""Run an HTTP gateway in a process of its own, as `sandq http` starts it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from sandq.model.config_types import Address
from tests.support.paths import ROOT
from tests.support.processes.forks import Fork
from tests.support.waiting import PATIENCE_S, wait_until


class GatewayProcess:
    """A gateway that listens on a free port and writes its log to a file."""

    def __init__(self, directory: Path, *options: str, **environ: str) -> None:
        self._log = directory / "gateway.log"
        with self._log.open("wb") as out:
            self._process = Fork(
                "sandq.cli",
                ["http", "--listen", "127.0.0.1:0", *options],
                env=os.environ | {"PYTHONPATH": str(ROOT)} | environ,
                cwd=directory,
                out=out.fileno(),
            )
        wait_until(lambda: self._process.poll() is not None or self.event("ready"))
        ready = self.event("ready")
        assert ready is not None, self._log.read_text()
        self.url = ready["http"]
        self.address = Address.parse(self.url.removeprefix("http://"))

    def event(self, name: str) -> dict[str, str] | None:
        """Return the first log entry with this event; None if there is none."""
        lines = self._log.read_text().split("\n")[:-1]
        found = [line for line in map(json.loads, lines) if line["event"] == name]
        return found[0] if found else None

    def request_stop(self) -> None:
        """Send SIGTERM and wait until the log confirms it."""
        self._process.send_signal(signal.SIGTERM)
        wait_until(lambda: self.event("stopping"))

    def ended(self) -> int:
        """Wait for the end and return the exit code."""
        return self._process.wait(timeout=PATIENCE_S)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self.ended()
