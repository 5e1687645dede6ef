"""A worker of Celery in processes of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_S, wait_until


class Worker:
    """`celery worker` with two processes, in a session of its own: `kill` ends them all with SIGKILL."""

    def __init__(self, app: str, name: str, log: Path, *options: str) -> None:
        command = (sys.executable, "-m", "celery", "-A", app, "worker", "-c", "2", "-n", name, "-l", "INFO", *options)
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command, cwd=Path(__file__).parent, stdout=out, stderr=out, start_new_session=True
            )
        wait_until(lambda: f"{name} ready" in log.read_text(errors="replace"))

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def stop(self) -> int:
        """Stop it warmly: running tasks end first. Return the exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE_S)
